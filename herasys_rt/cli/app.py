"""The command tree."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from herasys_rt import __version__
from herasys_rt.cli import (
    cache,
    collections,
    diagnosis,
    explaining,
    ingestion,
    lifecycle,
    profiling,
    runs,
    simulation,
    workflows,
)

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


def _add(panel: str, command: Callable[..., Any]) -> None:
    app.command(command.__name__, help=_reflowed(command), rich_help_panel=panel)(command)


def _add_group(panel: str, name: str, group: typer.Typer) -> None:
    for command in group.registered_commands:
        if command.callback is not None:
            command.help = _reflowed(command.callback)
    app.add_typer(group, name=name, rich_help_panel=panel)


def _reflowed(command: Callable[..., Any]) -> str:
    """A command's docstring with its paragraphs unwrapped: a screen has its own width."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)


_add("Runtime", lifecycle.up)
_add("Runtime", lifecycle.status)
_add("Runtime", lifecycle.down)
_add("Work", runs.run)
_add("Work", workflows.graph)
_add("Work", explaining.explain)
_add("Data", ingestion.ingest)
_add_group("Data", "collections", collections.app)
_add_group("Data", "cache", cache.app)
_add("Machine", profiling.profile)
_add("Machine", simulation.simulate)
_add("Machine", diagnosis.models)
_add("Machine", diagnosis.doctor)
_add("Machine", diagnosis.version)
