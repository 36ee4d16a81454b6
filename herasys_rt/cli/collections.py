"""`herasys collections`: what has been ingested."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from herasys_rt.cli.options import ConfigOption, JsonOption, read_config
from herasys_rt.cli.output import Output
from herasys_rt.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="List, show or drop collections.")

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="A collection.", show_default=False)
]


@contextlib.contextmanager
def _store(config: Path | None) -> Iterator[Any]:
    """The store that collections are in, for the time of one command."""
    loaded = read_config(config)
    from herasys_rt.cli import runtime
    from herasys_rt.engines.postgres.sync import open_store

    with runtime.database(loaded) as dsn, open_store(dsn) as store:
        yield store


@app.command("list")
def list_(config: ConfigOption = None, json: JsonOption = None) -> None:
    """List the collections.

    [bold]Example[/bold]

    herasys collections list
    """
    with Output(json) as output, _store(config) as store:
        found = [_plain(entry) for entry in store.list()]
        if found:
            output.console.print(_table(found))
        else:
            output.console.print(
                "There is no collection yet; `herasys ingest PATH --collection NAME` "
                "makes one."
            )
        output.emit({"collections": found, "error": None})


@app.command("show")
def show(name: NameArgument, config: ConfigOption = None, json: JsonOption = None) -> None:
    """Show one collection: dimensions, chunks, documents, revision, bytes.

    [bold]Example[/bold]

    herasys collections show handbook
    """
    with Output(json) as output, _store(config) as store:
        entry = _plain(store.show(name))
        for key, value in entry.items():
            output.console.print(f"{key:<12} {value}", markup=False, highlight=False)
        output.emit({**entry, "error": None})


@app.command("drop")
def drop(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
    json: JsonOption = None,
) -> None:
    """Drop a collection with all its chunks.

    [bold]Example[/bold]

    herasys collections drop handbook --yes
    """
    with Output(json) as output:
        if not yes:
            _refuse_without_terminal(name)
        with _store(config) as store:
            if not yes:
                _confirm(name, store.show(name).chunks)
            store.drop(name)
        output.console.print(f"dropped {name}", markup=False, highlight=False)
        output.emit({"dropped": name, "error": None})


def _refuse_without_terminal(name: str) -> None:
    import sys

    if not sys.stdin.isatty():
        raise UsageError(
            f"dropping {name!r} needs a yes and there is nobody to ask",
            hint="Add --yes.",
        )


def _confirm(name: str, chunks: int) -> None:
    question = f"Drop the collection {name!r} with its {chunks:,} chunks?"
    typer.confirm(question, abort=True, err=True)


def _plain(entry: Any) -> dict[str, Any]:
    """A store's entry as JSON data."""
    if isinstance(entry, dict):
        return entry
    import msgspec

    return msgspec.to_builtins(entry)


def _table(found: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    columns = list(found[0])
    table = Table()
    for column in columns:
        is_count = isinstance(found[0][column], int)
        table.add_column(column, justify="right" if is_count else "left", overflow="fold")
    for entry in found:
        table.add_row(*(_cell(entry[column]) for column in columns))
    return table


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
