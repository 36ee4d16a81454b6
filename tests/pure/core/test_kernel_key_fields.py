"""Every field that a run or a piece of one comes with: what it keeps two from sharing.

Two runs come that differ in one field only, three times: they have a signature in common,
or none and equal inputs, or overlapping lists. A field that is added to an event has no
line here, and the last tests say so.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from msgspec.structs import replace

from herasys_rt.core.commands import WorkItem
from herasys_rt.core.events import Hint, NodesRevealed, RunSubmitted, SpecRegistered
from herasys_rt.core.kernel import KernelConfig
from herasys_rt.core.values import Fact
from herasys_rt.graph.spec import WorkflowSpec
from tests.pure.core.kernel_lab import AGENT, Lab, inline, items, spec_of

WAYS = ("structure", "value", "items")
FLOW = spec_of("q llm", "m many q")
OTHER = spec_of("q llm", "m many q", name="other")
WORDS = inline(b"the same words")


def named(*words: str) -> tuple[bytes, ...]:
    return tuple(hashlib.sha256(word.encode()).digest() for word in words)


LIST = replace(WORDS, length=2, items=named("a", "b"))
"""What every run's model says: a list of two."""
SHORTER = replace(inline(b"other words"), length=1, items=named("a"))


def first(way: str) -> RunSubmitted:
    """The run that comes first; `second` has exactly one way to share its last node."""
    return RunSubmitted(
        "r1",
        FLOW.id,
        "client",
        "tenant",
        inline(b"inputs"),
        signatures=named("q1", "m" if way == "structure" else "m1"),
        collections=((), ("docs",)),
        seeds=named("sq1", "sm" if way == "value" else "sm1"),
        own_collections=((), ("docs",)),
        item_seeds=(b"", named("i" if way == "items" else "i1")[0]),
    )


def second(way: str) -> RunSubmitted:
    return replace(
        first(way),
        run_id="r2",
        signatures=named("q2", "m" if way == "structure" else "m2"),
        seeds=named("sq2", "sm" if way == "value" else "sm2"),
        item_seeds=(b"", named("i" if way == "items" else "i2")[0]),
    )


def changed(names: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return (names[0], named("another")[0])


def share(way: str, event: RunSubmitted) -> bool:
    """Whether the last node of ``event`` shares with that of the run that came first."""
    lab = Lab(KernelConfig(), slots=4)
    for spec in (FLOW, OTHER):
        lab.send(SpecRegistered(spec))
    lab.send(first(way))
    lab.send(event)
    asked: list[WorkItem] = []
    said = SHORTER if way == "items" else LIST
    for run_id, value in (("r1", LIST), (event.run_id, said)):
        if asking := [i for i in lab.running() if i.run_id == run_id and not i.node]:
            asked += items(lab.finish(asking[0], value))
    mine = [work for work in asked if work.node == 1]
    if way == "items":
        (lending,) = mine[:1]
        borrowing = items(lab.finish(lending, inline(b"vectors"))) or mine[1:]
        shared = borrowing[0].shared
        return shared is not None and bool(shared.borrowed)
    return len(mine) == 1


HINT = Hint(0, 0, WORDS, "tenant")
# field -> its change, and the ways to share that end with it
FIELDS: dict[str, tuple[Any, set[str]]] = {
    "signatures": (changed, {"structure"}),
    "collections": (lambda _: (("docs",), ("docs", "more")), {"structure"}),
    "seeds": (changed, {"value"}),
    "own_collections": (lambda _: ((), ("more",)), {"value"}),
    "item_seeds": (changed, {"items"}),
    "run_id": (lambda _: "r3", set()),
    "spec_id": (lambda _: OTHER.id, set()),
    "client": (lambda _: "another", set()),
    "tenant": (lambda _: "another", set()),  # it is in what is signed, and nowhere else
    "inputs": (lambda _: inline(b"others"), set()),
    "stream": (lambda _: True, set()),
    "priority": (lambda _: -1, set()),
    "deadline_s": (lambda _: 1e6, set()),
    "facts": (lambda _: {"x": Fact(False, 0)}, set()),
    "frontend": (lambda _: "frontend", set()),
    "labels": (lambda _: {"label": "b"}, set()),
    "seconds": (lambda _: (1.0, 2.0), set()),
    "kv_tokens": (lambda _: (1, 2), set()),
    "hints": (lambda _: (replace(HINT, generation=7),), set()),
}
NO_GRAPH = {"agent"}  # such a run has no nodes of its own


@pytest.mark.parametrize("way", WAYS)
def test_two_runs_that_differ_in_nothing_else_share(way: str):
    assert share(way, second(way))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_ends_these_ways_to_share_and_no_others(field: str, way: str):
    change, ends = FIELDS[field]
    event = second(way)
    other = replace(event, **{field: change(getattr(event, field))})
    assert other != event
    assert share(way, other) == (way not in ends)


def test_every_field_of_a_run_has_its_line():
    assert set(FIELDS) | NO_GRAPH == set(RunSubmitted.__struct_fields__)


def test_every_field_of_a_piece_is_one_of_a_run_or_decides_nothing():
    own = {"fragment", "parents"}
    assert set(NodesRevealed.__struct_fields__) - own <= set(FIELDS)
    spec = spec_of("a llm")
    lab = Lab(slots=4)
    revealed(lab, "r1", spec, 0, ())
    again = revealed(lab, "r2", spec, 5, ((0, "a"),))
    assert len(lab.running()) == 1 and again == []


def revealed(
    lab: Lab, run_id: str, spec: WorkflowSpec, number: int, parents: Any
) -> list[Any]:
    lab.send(SpecRegistered(AGENT))
    lab.send(SpecRegistered(spec))
    lab.send(RunSubmitted(run_id, AGENT.id, "c", "t", inline(b"i"), agent=True))
    signed = named("a")
    piece = NodesRevealed(
        run_id, number, spec.id, inline(b"i"), signatures=signed, parents=parents
    )
    return lab.send(piece)
