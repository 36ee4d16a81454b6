"""Signatures and seeds of random graphs: what follows from a change, and what does not."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from herasys_rt.graph import codec, preimage
from herasys_rt.graph.hashing import HASHES, SHA256, XXH3
from herasys_rt.graph.signature import Signed, Signer
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    Guard,
    InputRef,
    InputSpec,
    ListRef,
    Lit,
    NodeOptions,
    NodeRef,
    NodeSpec,
    Port,
    Retry,
    WorkflowSpec,
    decode_spec,
    leaves,
)
from herasys_rt.graph.types import PortType
from tests.pure.graph.test_hashing import values

ROOT = Path(__file__).resolve().parents[3]
INPUTS = {"x": "text", "y": 2, "z": [1.5, None]}
PORTS = (
    Port("left", PortType.ANY),
    Port("right", PortType.ANY, required=False, default="none"),
)

literals = st.sampled_from([0, 1, True, 1.0, "1", "", None, [], ["1"], {"a": 1}])


leaf = st.one_of(
    literals.map(lambda value: ("lit", value)),
    st.sampled_from(list(INPUTS)).map(lambda name: ("input", name)),
    st.integers(0, 5).map(lambda at: ("node", at)),
)
recipes = st.recursive(
    leaf,
    lambda inner: st.tuples(
        st.sampled_from(["list", "choice", "text", "record"]), st.lists(inner, max_size=3)
    ),
    max_leaves=3,
)
"""Arguments before it is known which nodes there are."""


def argument(recipe: Any, names: list[str]) -> Arg:
    form, rest = recipe
    if form == "lit":
        return Lit(rest)
    if form == "input" or (form == "node" and not names):
        return InputRef(rest if form == "input" else "y")
    if form == "node":
        return NodeRef(names[rest % len(names)])
    parts = [argument(part, names) for part in rest]
    if form == "list" or len(parts) < 2:
        return ListRef(tuple(parts))
    if form == "choice":
        asked = NodeRef(names[-1]) if names else InputRef("x")
        return ChoiceRef(asked, parts[0], parts[1])
    if form == "text":
        return Expr("text", {"value": parts[0]})
    return Expr("record", {"a": parts[0], "b": parts[1]})


drafts = st.lists(
    st.tuples(
        recipes,
        st.none() | recipes,
        st.sampled_from(["ask@1", "ask@2"]),
        st.sampled_from(["pure", "pure", "effect"]),
    ),
    min_size=1,
    max_size=4,
)


def graph(draft: list[Any], *, pure: bool = False) -> WorkflowSpec:
    nodes: list[NodeSpec] = []
    for i, (left, right, operator, purity) in enumerate(draft):
        names = [node.id for node in nodes]
        args = {"left": argument(left, names)}
        if right is not None:
            args["right"] = argument(right, names)
        kind = "pure" if pure else purity
        nodes.append(
            NodeSpec(f"n{i}", operator, "do", "llm", args, PORTS, PortType.ANY, purity=kind)
        )
    return flow(nodes)


graphs = drafts.map(graph)
"""Up to four nodes, each of some of those before it."""
pure_graphs = drafts.map(lambda draft: graph(draft, pure=True))


def flow(nodes: list[NodeSpec]) -> WorkflowSpec:
    declared = tuple(InputSpec(name, PortType.ANY) for name in INPUTS)
    return WorkflowSpec("flow", declared, tuple(nodes), {"o": NodeRef(nodes[-1].id)})


def signed(spec: WorkflowSpec, run_id: str = "r", **inputs: Any) -> Signed:
    return Signer(spec, lambda _: "m").signed({**INPUTS, **inputs}, "t", run_id)


def ancestors(spec: WorkflowSpec) -> list[set[int]]:
    """Per node the positions of those that it depends on, itself included."""
    found: list[set[int]] = []
    for i, node in enumerate(spec.nodes):
        above = [found[spec.index[parent]] for parent in node.parents]
        found.append({i}.union(*above))
    return found


@given(graphs)
def test_a_graph_that_travelled_is_named_as_before(spec):
    for copy in (decode_spec(codec.encode(spec)), pickle.loads(pickle.dumps(spec))):
        assert signed(copy) == signed(spec)


_SCRIPT = """
import sys
from herasys_rt.graph import codec
from herasys_rt.graph.hashing import HASHES
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.spec import decode_spec
inputs, graphs, values = (codec.decode(bytes.fromhex(line)) for line in sys.stdin)
for hashing in HASHES.values():
    for graph in graphs:
        signed = Signer(decode_spec(graph), lambda _: "m", hashing).signed(inputs, "t", "r")
        print(*[name.hex() for name in (*signed.signatures, *signed.seeds, signed.inputs)])
    for value in values:
        print(hashing.of(value).hex())
"""


@settings(max_examples=3)
@given(
    st.lists(graphs, min_size=10, max_size=10),
    st.lists(values, min_size=20, max_size=20),
    st.integers(1, 2**32 - 1),
)
def test_random_graphs_and_values_are_named_equally_in_another_process(
    flows, things, hash_seed
):
    here: list[str] = []
    for hashing in HASHES.values():
        for flow in flows:
            signer = Signer(flow, lambda _: "m", hashing)
            names = signer.signed(INPUTS, "t", "r")
            each = (*names.signatures, *names.seeds, names.inputs)
            here.append(" ".join(name.hex() for name in each))
        here += [hashing.of(thing).hex() for thing in things]
    sent = [INPUTS, [codec.encode(flow) for flow in flows], things]
    there = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input="\n".join(codec.encode(part).hex() for part in sent),
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": f"{hash_seed}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.splitlines() == here


@given(pure_graphs)
def test_names_of_nodes_and_what_changes_no_value_change_nothing(spec):
    def renamed(node: NodeSpec) -> NodeSpec:
        return msgspec.structs.replace(
            node,
            id=f"other-{node.id}",
            label="label",
            streams=True,
            options=NodeOptions(1.0, Retry(1), 9, False, 2.0),
            guards=(Guard(InputRef("x"), True),),
            args={name: moved(arg) for name, arg in node.args.items()},
        )

    def moved(arg: Arg) -> Arg:
        match arg:
            case NodeRef(node):
                return NodeRef(f"other-{node}")
            case ListRef(items):
                return ListRef(tuple(map(moved, items)))
            case ChoiceRef(condition, then, otherwise):
                return ChoiceRef(moved(condition), moved(then), moved(otherwise))  # pyright: ignore
            case Expr(function, args):
                return Expr(function, {name: moved(part) for name, part in args.items()})
            case _:
                return arg

    other = flow([renamed(node) for node in spec.nodes])
    assert signed(other, run_id="other")[:2] == signed(spec)[:2]


@given(pure_graphs, st.sampled_from(["operator", "verb", "resource"]), st.data())
def test_a_change_reaches_the_node_and_all_below_it_and_no_other(spec, field, data):
    at = data.draw(st.integers(0, len(spec.nodes) - 1))
    nodes = list(spec.nodes)
    nodes[at] = msgspec.structs.replace(nodes[at], **{field: "changed"})
    before, after = signed(spec), signed(flow(nodes))
    for i, above in enumerate(ancestors(spec)):
        assert (before.signatures[i] != after.signatures[i]) == (at in above)
        assert (before.seeds[i] != after.seeds[i]) == (i == at)


@given(pure_graphs)
def test_an_input_reaches_those_that_take_it_and_all_below_them(spec):
    before, after = signed(spec), signed(spec, x="other")
    takes = [
        any(leaf == InputRef("x") for arg in node.args.values() for leaf in leaves(arg))
        for node in spec.nodes
    ]
    for i, above in enumerate(ancestors(spec)):
        assert (before.seeds[i] != after.seeds[i]) == takes[i]
        changed = before.signatures[i] != after.signatures[i]
        assert changed == any(takes[j] for j in above)


@given(graphs)
def test_below_what_may_not_fuse_runs_share_by_value_alone(spec):
    one, two = signed(spec, run_id="1"), signed(spec, run_id="2")
    assert one.seeds == two.seeds
    for i, above in enumerate(ancestors(spec)):
        alone = spec.nodes[i].purity == "effect"
        tainted = any(spec.nodes[j].purity == "effect" for j in above)
        assert (one.signatures[i] == b"") == (one.seeds[i] == b"") == alone
        if not alone:
            assert (one.signatures[i] != two.signatures[i]) == tainted


@given(pure_graphs, pure_graphs)
def test_two_nodes_share_when_and_only_when_they_are_the_same_work(left, right):
    """Against an independent account of what a node computes: a nest of plain values."""
    told = [repr(account) for spec in (left, right) for account in accounts(spec)]
    named = [name for spec in (left, right) for name in signed(spec).signatures]
    for account, name in zip(told, named, strict=True):
        assert [name == other for other in named] == [account == other for other in told]


def accounts(spec: WorkflowSpec) -> list[Any]:
    told: list[Any] = []

    def of(arg: Arg) -> Any:
        match arg:
            case Lit(value):
                return ("value", value)
            case InputRef(name):
                return ("value", INPUTS[name])
            case NodeRef(node):
                return ("node", told[spec.index[node]])
            case ListRef(items):
                return ("list", [of(item) for item in items])
            case ChoiceRef(condition, then, otherwise):
                return ("choice", of(condition), of(then), of(otherwise))
            case Expr(function, args):
                return (function, [(name, of(args[name])) for name in sorted(args)])
            case _:
                raise AssertionError(arg)

    for node in spec.nodes:
        right = node.args.get("right", Lit("none"))
        told.append((node.operator, of(node.args["left"]), of(right)))
    return told


@given(graphs)
def test_both_hashes_tell_the_same_apart(spec):
    inputs = dict(INPUTS)
    patterns = set[tuple[int, ...]]()
    for hashing in (SHA256, XXH3):
        names = Signer(spec, lambda _: "m", hashing).signed(inputs, "t", "r")
        ordered = [*names.signatures, *names.seeds]
        patterns.add(tuple(ordered.index(name) for name in ordered))
    assert len(patterns) == 1


def test_another_format_names_everything_anew(monkeypatch):
    spec = flow([NodeSpec("a", "ask@1", "do", "llm", {}, PORTS[1:], PortType.ANY)])
    before = signed(spec)
    monkeypatch.setattr(preimage, "FORMAT", preimage.FORMAT + 1)
    after = signed(spec)
    assert before.signatures != after.signatures
    assert before.seeds != after.seeds


IN_THE_PREIMAGE = {
    *("operator", "verb", "resource", "args", "ports", "sample", "region"),
    "reduction",
}
DECIDES_WHETHER = {"purity", "sampling"}
BY_OTHER_MEANS = {"model": "the fingerprint", "collection": "the key's revisions"}
CHANGES_NOTHING = {
    *("id", "label", "streams", "guards", "options"),
    *("list_port", "by_text"),
}
FOLLOWS = {"output": "follows from operator and arguments, of a tool it is in the code"}


def test_every_field_of_a_node_is_accounted_for():
    """A field that is added must be put into one of these, and in the pre-image or not."""
    sides = [
        IN_THE_PREIMAGE,
        DECIDES_WHETHER,
        set(BY_OTHER_MEANS),
        CHANGES_NOTHING,
        set(FOLLOWS),
    ]
    assert sum(map(len, sides)) == len(set().union(*sides))
    assert set().union(*sides) == set(NodeSpec.__struct_fields__)
