"""Specs for the state machine: well-known shapes, and random ones with everything."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from msgspec.structs import replace

from herasys_rt.graph.spec import NodeOptions, NodeRef, Retry, WorkflowSpec
from tests.pure.core.kernel_lab import spec_of

Shape = tuple[tuple[tuple[str, int], ...], bool]
"""((kind, bit mask of parents), ...) and whether the first node is an output too."""

SHAPES: st.SearchStrategy[Shape] = st.tuples(
    st.lists(
        st.tuples(
            st.sampled_from(["embed", "search", "llm", "rerank", "dice", "write"]),
            st.integers(0, 31),
        ),
        min_size=1,
        max_size=5,
    ).map(tuple),
    st.booleans(),
)

CLASSIC: tuple[Shape, ...] = (
    ((("embed", 0), ("search", 1), ("llm", 2)), False),  # chain
    ((("llm", 0), ("embed", 1), ("rerank", 1), ("llm", 6)), True),  # diamond
    ((("embed", 0), ("embed", 0), ("llm", 3)), False),  # twins, fan-in
    ((("embed", 0), ("search", 0), ("llm", 3)), False),  # fan-in from two pools
    ((("embed", 0), ("write", 1), ("search", 0)), False),  # effect aside
    ((("write", 0), ("write", 0)), True),  # nothing but effects
    ((("dice", 0), ("llm", 1)), False),  # sampled above pure
    ((("llm", 0),), False),  # nothing but an answer
)

OPTIONS: tuple[NodeOptions, ...] = (
    NodeOptions(),
    NodeOptions(timeout_s=4.0),
    NodeOptions(retry=Retry(4, 3.0, 2.0, 10.0, 0.5)),
    NodeOptions(timeout_s=9.0, retry=Retry(2, 0.0, retry_on=("broken", "node_timeout"))),
    NodeOptions(priority=1),
    NodeOptions(cache=False, cache_ttl_s=2.0),
    NodeOptions(cache_ttl_s=3.0),
)


def shaped(shape: Shape) -> WorkflowSpec:
    """The spec of a shape; nodes without a path to the output are part of the game."""
    lines: list[str] = []
    for at, (kind, mask) in enumerate(shape[0]):
        parents = [f"n{p}" for p in range(at) if mask >> p & 1]
        lines.append(" ".join([f"n{at}", kind, *parents]))
    last = f"n{len(lines) - 1}"
    return spec_of(*lines, outputs=f"n0 {last}" if shape[1] and len(lines) > 1 else last)


def dressed(spec: WorkflowSpec, how: int) -> WorkflowSpec:
    """The spec with options for some of its nodes."""
    nodes = [
        replace(node, options=OPTIONS[(how // 7**at + 2 * at + 1) % len(OPTIONS)])
        for at, node in enumerate(spec.nodes)
    ]
    return replace(spec, nodes=tuple(nodes))


def collections_of(spec: WorkflowSpec) -> tuple[tuple[str, ...], ...]:
    """``docs`` for every search and whatever lies below one."""
    below: dict[str, bool] = {}
    for node in spec.nodes:
        above = list(node.parents)
        if node.region and isinstance(
            over := spec.region_index[node.region].items, NodeRef
        ):
            above.append(over.node)
        below[node.id] = node.verb == "pg.search" or any(below[p] for p in above)
    return tuple(("docs",) if reads else () for reads in below.values())


class Branchy(NamedTuple):
    """The shape of a random spec: (kind, parents, how, which) per node, and what its
    regions go over."""

    nodes: tuple[tuple[str, int, int, int], ...]
    over: int


BRANCHY: st.SearchStrategy[Branchy] = st.builds(
    Branchy,
    st.lists(
        st.tuples(
            st.sampled_from(["embed", "search", "llm", "llm", "rerank", "dice", "write"]),
            st.integers(0, 63),
            st.integers(0, 11),
            st.integers(0, 7),
        ),
        min_size=2,
        max_size=7,
    ).map(tuple),
    st.integers(0, 8),
)

MAX_ITEMS = 3

SET_PIECES: dict[str, WorkflowSpec] = {
    "map": spec_of("l llm", "e embed % in=r", "a llm e", regions={"r": "l"}, outputs="a l"),
    "map over an input": spec_of(
        "e embed % in=r", "f search e in=r", "a llm f", regions={"r": "$xs"}
    ),
    "branch": spec_of("c llm", "t embed if=c", "e search unless=c", "j rerank c?t:e"),
    "branch as output": spec_of(
        "c llm", "t embed if=c", "e search unless=c", outputs="c?t:e"
    ),
    "branch with ancestors": spec_of(
        "c llm", "p embed", "t search p if=c", "j rerank c?t:-", outputs="j c"
    ),
    "branch by input": spec_of("t embed if=$f", "w write unless=$f", "j rerank $f?t:-"),
    "branch in a region": spec_of(
        "c llm % in=r",
        "t embed % in=r if=c",
        "e search % in=r unless=c",
        "j rerank c?t:e in=r",
        regions={"r": "$xs"},
        outputs="j c",
    ),
    "region in a branch": spec_of(
        "c llm",
        "e embed % in=r if=c",
        "f search % in=s",
        "j rerank c?e:- f",
        regions={"r": "$xs", "s": 2},
        outputs="j c",
    ),
    "region over a region": spec_of(
        "l llm",
        "e embed % in=r",
        "f search % in=s",
        regions={"r": "l", "s": "e"},
        outputs="f e l",
    ),
}


LISTS: dict[str, WorkflowSpec] = {
    "list": spec_of("m many $ts"),
    "list below": spec_of("q embed", "m many $ts if=q", "a llm m", outputs="a m q"),
    "list in a region": spec_of("m many $ts in=r", "a llm m", regions={"r": 2}),
    "list of a node": spec_of("l llm", "m many l", outputs="m l"),
    "texts": spec_of("m many ~$ts"),
    "best": spec_of("m best $ts"),
    "best of a node": spec_of("l llm", "m best l", "n best l", outputs="m n l"),
    "best below a node": spec_of("q llm", "m best $ts q"),
    "list by items": spec_of("m many $ts % in=r", "a llm m", regions={"r": "$xs"}),
    "texts of a node": spec_of("l llm", "m many ~l", "n many l", outputs="m n l"),
    "texts in a region": spec_of(
        "l llm in=r", "m many ~l in=r", "a llm m", regions={"r": 2}
    ),
    "gathered list": spec_of("e llm % in=r", "m many e", regions={"r": "$ts"}),
    "uncached list": spec_of("m many $ts", options={"m": OPTIONS[5]}),
    "hurried list": spec_of("m many $ts", options={"m": OPTIONS[3]}),
}
"""Specs with nodes at list ports."""


def branchy(shape: Branchy) -> WorkflowSpec:
    """A spec of a shape. Conditions and lists that nodes give are outputs as well, so
    that from the end of a run one can tell what should have happened."""
    nodes, over = shape
    lines: list[str] = []
    shown: dict[str, None] = {}
    outside: list[str] = []
    members: dict[str, list[str]] = {"r": [], "s": []}
    regions = _lists(over)
    for at, (kind, parents, how, which) in enumerate(nodes):
        before = [f"n{p}" for p in range(at)]
        region = "rs"[which % 2] if how in (6, 7, 8, 9) else ""
        if (
            region
            and str(regions[region]).startswith("n")
            and regions[region] not in outside
        ):
            region = ""  # its list is not there yet
        near = outside + (members[region] if region else [])
        words = [p for p in before if parents >> int(p[1:]) & 1]
        if region:
            words += ["%", f"in={region}"]
            members[region].append(f"n{at}")
        condition = near[which % len(near)] if near else "$f"
        if how in (1, 7):
            words.append(f"{'if' if which % 2 else 'unless'}={condition}")
            shown[condition] = None
        if how in (2, 8):
            words.append(f"{'if' if which % 3 else 'unless'}=$f")
        if how in (3, 9):
            sides = [before[-1] if before else "-", near[0] if near else "-"]
            words.append(f"{condition}?{sides[0]}:{sides[1]}")
            shown[condition] = None
        if how == 4:
            words.append(f"$f?{before[0] if before else '-'}:-")
        if not region:
            outside.append(f"n{at}")
        lines.append(" ".join([f"n{at}", kind, *words]))
    used = {r: over for r, over in regions.items() if members[r]}
    shown.update({over: None for over in used.values() if isinstance(over, str)})
    outputs = [f"n{len(nodes) - 1}", *[s for s in shown if not s.startswith("$")]]
    return spec_of(
        *lines,
        outputs=" ".join(dict.fromkeys(outputs)),
        regions=used,
        max_items=MAX_ITEMS,
    )


def _lists(over: int) -> dict[str, str | int]:
    choices: list[str | int] = ["n0", "$xs", 2, 0, "n1"]
    return {"r": choices[over % 5], "s": choices[(over + 1 + over // 5) % 5]}
