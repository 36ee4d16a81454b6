"""`herasys explain`: what a node's signature was made of, and why two nodes differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from herasys_rt.cli.options import JsonOption
from herasys_rt.cli.output import Output
from herasys_rt.errors import InputError

if TYPE_CHECKING:
    from herasys_rt.graph.explain import Comparison, Explanation

_FAILURE: dict[str, Any] = {"explanations": [], "comparison": None}


def explain(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run's id, as in its report.", show_default=False
        ),
    ],
    node: Annotated[
        str,
        typer.Argument(
            metavar="NODE",
            help="A node of it; of an agent's run PIECE/NODE.",
            show_default=False,
        ),
    ],
    other: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN2] NODE2",
            help="Another node, of the same run or of RUN2, to compare it with.",
            show_default=False,
        ),
    ] = None,
    tenant: Annotated[
        str,
        typer.Option(
            metavar="TENANT", help="Whose runs they are; of others nothing is told."
        ),
    ] = "default",
    json: JsonOption = None,
) -> None:
    """Say what a node's signature was made of: why it was shared, or was not.

    Of two nodes, say the first thing in which they differ, what else does, and which
    nodes above them to ask about next. Whether a node joined or reused is in the run's
    report (`herasys run --json`). The runtime that `herasys up` started knows its latest
    runs. Values are shortened, and what is named like a secret is masked.

    [bold]Examples[/bold]

    herasys explain run-1f0c generate

    herasys explain run-1f0c embed run-2a77 embed --json
    """
    with Output(json, _FAILURE) as output:
        asked = [(run, node), *_other(run, other or [])]
        from herasys_rt.cli import runtime
        from herasys_rt.graph.explain import compare

        found = runtime.explain(asked, tenant)
        comparison = compare(found[0], found[1]) if len(found) == 2 else None
        if comparison is None:
            _show(output, found[0])
        else:
            _show_comparison(output, found, comparison)
        output.emit(
            {
                "explanations": [one.to_json() for one in found],
                "comparison": comparison.to_json() if comparison is not None else None,
                "error": None,
            }
        )


def _other(run: str, words: list[str]) -> list[tuple[str, str]]:
    if len(words) > 2:
        raise InputError(
            f"{len(words)} words follow NODE, and at most two can",
            hint="Give another node, or another run and its node.",
        )
    return [((run, *words)[-2], words[-1])] if words else []


def _show(output: Output, found: Explanation) -> None:
    from rich import box
    from rich.table import Table

    from herasys_rt.graph.explain import revision_words

    console = output.console
    console.print(f"Node {found.node} of {found.run_id}", highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("field", no_wrap=True)
    table.add_column("value", overflow="fold")
    for field in found.fields:
        table.add_row(field.name, _plain(field.shown))
    for name, revision in found.collections.items():
        table.add_row(_plain(f"collection {name}"), revision_words(revision))
    console.print(table)
    if found.obstacle:
        console.print(found.obstacle, highlight=False, markup=False)
    _line(output, "signature", found.signature or "none")
    _line(output, "value seed", found.seed or "none")


def _show_comparison(
    output: Output, found: list[Explanation], comparison: Comparison
) -> None:
    left, right = (f"{one.node} of {one.run_id}" for one in found)
    for name, one in zip((left, right), found, strict=True):
        _line(output, name, one.signature or "no signature")
    console = output.console
    console.print(comparison.verdict, highlight=False, markup=False)
    if comparison.field:
        console.print(
            f"The first difference is {comparison.field}:", highlight=False, markup=False
        )
        _line(output, f"  {left}", comparison.left)
        _line(output, f"  {right}", comparison.right)
    if comparison.also:
        _line(output, "Also different", ", ".join(comparison.also))
    above = _nodes_above(found, comparison.field)
    if above is not None:
        (one, other), (left_run, right_run) = above, (each.run_id for each in found)
        _line(output, "To go on", f"herasys explain {left_run} {one} {right_run} {other}")


def _nodes_above(found: list[Explanation], name: str) -> tuple[str, str] | None:
    """The nodes that differ in a field, of each side the first; None when none does."""
    sides = [field.nodes for one in found for field in one.fields if field.name == name]
    if len(sides) < 2:
        return None
    for left, right in zip(sides[0].items(), sides[1].items(), strict=False):
        if left[1] != right[1]:
            return left[0], right[0]
    return None


def _line(output: Output, name: str, value: str) -> None:
    text = f"{name}: {value}"
    output.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
