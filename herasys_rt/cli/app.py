"""The command tree."""

from __future__ import annotations

from typing import Annotated

import typer

from herasys_rt import __version__
from herasys_rt.cli import collections, diagnosis, ingestion, lifecycle, runs, workflows

app = typer.Typer(
    name="herasys",
    help="Serve many LLM workflows at once on Ray: run equal work once, order the rest "
    "by what matters to whole workflows.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def herasys(
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="HERASYS_DEBUG", help="Show tracebacks of errors."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Say the version."
        ),
    ] = False,
) -> None:
    """Serve many LLM workflows at once on Ray.

    Equal work runs once; the rest is ordered by what matters to whole workflows.
    """


app.command("up", rich_help_panel="Runtime")(lifecycle.up)
app.command("status", rich_help_panel="Runtime")(lifecycle.status)
app.command("down", rich_help_panel="Runtime")(lifecycle.down)
app.command("run", rich_help_panel="Work")(runs.run)
app.command("graph", rich_help_panel="Work")(workflows.graph)
app.command("ingest", rich_help_panel="Data")(ingestion.ingest)
app.add_typer(collections.app, name="collections", rich_help_panel="Data")
app.command("models", rich_help_panel="Machine")(diagnosis.models)
app.command("doctor", rich_help_panel="Machine")(diagnosis.doctor)
app.command("version", rich_help_panel="Machine")(diagnosis.version)
