"""`herasys cache`: results that are reused, and what that saves."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from herasys_rt.cli.options import ConfigOption, JsonOption, read_config
from herasys_rt.cli.output import Output, counted
from herasys_rt.errors import RuntimeStateError, UsageError

app = typer.Typer(no_args_is_help=True, help="Show or purge the results that are reused.")


@app.command("stats")
def stats(json: JsonOption = None) -> None:
    """Show what is kept, and what equal work that ran once has saved.

    [bold]Example[/bold]

    herasys cache stats
    """
    with Output(json) as output:
        from herasys_rt.cli import runtime

        status = runtime.status()
        cache = status.get("cache")
        if cache is None:
            what = "does not answer" if status.get("state") == "silent" else "is down"
            raise RuntimeStateError(
                f"the runtime {what}, so there is no cache",
                hint="`herasys up` starts it.",
            )
        _show(output, cache)
        output.emit({**cache, "error": None})


@app.command("purge")
def purge(
    tenant: Annotated[
        str | None,
        typer.Option(metavar="TENANT", help="Only what was made for this tenant."),
    ] = None,
    collection: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only what depends on this collection."),
    ] = None,
    signature: Annotated[
        str | None, typer.Option(metavar="HEX", help="Only the result of this signature.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
    json: JsonOption = None,
) -> None:
    """Forget results, in memory and on disk, so that they are computed again.

    Runs at work go on with what they have; what they make of it is not kept. While the
    runtime is down, what it has left on disk goes; the configuration says where that is.

    [bold]Examples[/bold]

    herasys cache purge --collection docs

    herasys cache purge --yes
    """
    with Output(json) as output:
        what = _named(tenant, collection, signature)
        if not yes:
            _ask(f"Forget {what}?")
        from herasys_rt.cli import runtime

        read = read_config(config)
        done = runtime.purge_cache(tenant, collection, signature, read)
        told = f"forgot {counted(done['entries'], 'result')} ({done['bytes']:,} bytes)"
        if done["stored"] is None:
            told += "; those on disk follow as soon as their store answers"
        elif done["stored"]:
            told += f", and {done['stored']:,} on disk"
        output.console.print(told, markup=False, highlight=False)
        output.emit({**done, "error": None})


def _named(tenant: str | None, collection: str | None, signature: str | None) -> str:
    """What is to be forgotten, in words."""
    parts = [
        f"of tenant {tenant!r}" if tenant is not None else "",
        f"that depend on collection {collection!r}" if collection is not None else "",
        f"of signature {signature}" if signature is not None else "",
    ]
    return " ".join(["the results", *filter(None, parts)]) if any(parts) else "all results"


def _ask(question: str) -> None:
    import sys

    if not sys.stdin.isatty():
        raise UsageError(
            "purging needs a yes and there is nobody to ask", hint="Add --yes."
        )
    typer.confirm(question, abort=True, err=True)


def _show(output: Output, cache: dict[str, Any]) -> None:
    nodes, store = cache["nodes"], cache.get("store")
    lines = [
        f"held: {counted(cache['entries'], 'result')}, {cache['bytes']:,} of "
        f"{cache['max_bytes']:,} bytes; purged {counted(cache['generation'], 'time')}",
        f"nodes: {nodes['executed']:,} executed, {nodes['joined']:,} joined another, "
        f"{nodes['reused']:,} reused a result (hit ratio {nodes['hit_ratio']:.1%})",
        f"saved: {nodes['saved_s']:,.1f} s of engine time and "
        f"{counted(nodes['saved_tokens'], 'token')}",
    ]
    if store is not None:
        lines.append(
            f"on disk ({store['state']}): {counted(store['entries'], 'result')}, "
            f"{store['bytes']:,} bytes; {cache['hints']['taken']:,} taken from there"
        )
    for line in lines:
        output.console.print(line, markup=False, highlight=False)
    if cache["operators"]:
        output.console.print(_table(cache["operators"], cache["held_bytes"]))


def _table(operators: list[dict[str, Any]], held: dict[str, int]) -> Any:
    from rich import box
    from rich.table import Table

    counts = ("seen", "executed", "joined", "reused", "shared_items")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("operator", "tenant"):
        table.add_column(title, overflow="fold")
    for title in (*counts, "saved s", "saved tokens", "bytes held"):
        table.add_column(title.replace("_", " "), justify="right")
    for entry in operators:
        table.add_row(
            entry["operator"],
            entry["tenant"],
            *(f"{entry[name]:,}" for name in counts),
            f"{entry['saved_s']:,.1f}",
            f"{entry['saved_tokens']:,}",
            f"{held.get(entry['operator'], 0):,}",
        )
    return table
