"""``python -m operators > docs/operators.md``: the library as a page of Markdown."""

from __future__ import annotations

import sys
from typing import Any

from herasys_rt.dsl import Operator, discover
from herasys_rt.graph.estimates import Estimate, split_of

_HEAD = """# The operator library

Made by `python -m operators` from the declarations; a test holds it to them. Every
operator is called inside a `@workflow` or an `@agent`; `help(operators.generate)` and the
like say what it takes. Tools and own operators: [own-operators.md](own-operators.md).

| operator | gives | | verb | pool |
|---|---|---|---|---|
"""
_WORK = """
## How much work a node is

What the scheduler and the simulator know of a node before it has run, by
`herasys_rt.graph.estimates.workload`: its workload w in the unit named here, what a unit
costs being measured under the cost key, and into how many parts over data it may be cut,
whose results are put together in order.

| operator | cost key | unit | workload | split over |
|---|---|---|---|---|
"""
_FOOT = """
Generation is cut otherwise: the head of its prompt that is known before its parents have
ended (`herasys_rt.graph.prompts.prompt_head`) may be prefilled early, and its decode may
be ordered anew every {chunk} tokens.

`embed_documents` is `chunk_documents` and `embed_many`, `ingest` these and `store`; `react`
is an agent of `choose_tool` and the tools; `prompt` and `parse_json` are computed where
they are consumed and are no nodes.
"""


def page() -> str:
    """The page: every operator of this library, what it lowers to and what it costs."""
    library = [op for op in discover().values() if op.__module__.startswith("operators.")]
    what = "".join(
        f"| `{op.id}` | {op.output} | {op.purity} | `{op.verb}` | {op.resource} |\n"
        for op in library
    )
    work = "".join(_work(op) for op in library)
    chunks = {op.estimate.decode_chunk_tokens for op in library} - {None}
    return _HEAD + what + _WORK + work + _FOOT.format(chunk=chunks.pop())


def _work(op: Operator[Any]) -> str:
    how = op.estimate
    split = split_of(op.ports, how)
    cut = f"`{split}`" if split else ""
    cells = (f"`{op.id}`", f"`{how.cost_key}`", how.unit, _told(op, how), cut)
    return f"| {' | '.join(cells)} |\n"


def _told(op: Operator[Any], how: Estimate) -> str:
    if how.reads_prompt:
        times = " for each of `n`" if any(port.name == "n" for port in op.ports) else ""
        return f"prompt + `max_tokens`{times}"
    if how.unit == "calls":
        return "1"
    names = {port.name for port in op.ports}
    texts = " + ".join(f"`{name}`" for name in how.sizes if name in names)
    if not how.each:
        return texts
    each = f"`{how.each}`"
    return f"for each of {each}: {texts} + its own" if texts else f"length of {each}"


if __name__ == "__main__":
    sys.stdout.write(page())
