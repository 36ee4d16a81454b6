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

    Counts begin with the runtime. Items that lists shared are counted beside the nodes, and
    not in what was saved.

    [bold]Examples[/bold]

    herasys cache stats

    herasys cache stats --json
    """
    with Output(json) as output:
        from herasys_rt.cli import runtime

        status = runtime.status()
        cache = status.get("cache")
        if cache is None:
            what = "does not answer" if status.get("state") == "silent" else "is down"
            raise RuntimeStateError(
                f"the runtime {what}, so that nothing is known of its cache",
                hint="`herasys up` starts it; what is on disk is counted then.",
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
        str | None,
        typer.Option(
            metavar="HEX",
            help="Only the result of this signature, in full (see `herasys explain`).",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
    json: JsonOption = None,
) -> None:
    """Forget results, in memory and on disk, so that they are computed again.

    Options combine: all that are named must fit. Runs at work go on with what they have;
    what they make of it is not kept. Without a runtime this purges what it has left on
    disk, where the configuration says.

    [bold]Examples[/bold]

    herasys cache purge --collection docs --tenant acme

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
        if not done["entries"] and done["stored"] == 0:
            results = what.removeprefix("all ").removeprefix("the ")
            told = f"nothing to forget: there are no {results}"
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

    counts = ("executed", "joined", "reused", "shared_items")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("operator", no_wrap=True)
    table.add_column("tenant", overflow="fold")
    for title in (*counts, "saved s", "saved tokens", "bytes held"):
        name = title.replace("_", "\n").replace(" ", "\n")
        table.add_column(name, justify="right", overflow="fold")
    told: set[str] = set()
    for entry in operators:
        # What is held is known by operator alone: it stands once, not for every tenant.
        first = entry["operator"] not in told
        told.add(entry["operator"])
        table.add_row(
            entry["operator"],
            entry["tenant"],
            *(f"{entry[name]:,}" for name in counts),
            f"{entry['saved_s']:,.1f}",
            f"{entry['saved_tokens']:,}",
            f"{held.get(entry['operator'], 0):,}" if first else "",
        )
    return table
