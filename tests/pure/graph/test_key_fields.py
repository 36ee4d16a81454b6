"""Every field of what a workflow is made of: which names of work it decides.

For each field there is a change of it alone and the names that differ after it. A field
that is added to one of these structs has no such line, and the last test says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from herasys_rt.graph import preimage, spec
from herasys_rt.graph.hashing import HASHES, Hash
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Constraint,
    Expr,
    Guard,
    InputRef,
    InputSpec,
    ItemRef,
    ListRef,
    Lit,
    NodeOptions,
    NodeRef,
    NodeSpec,
    Port,
    Reduction,
    Region,
    Retry,
    Sampling,
    WorkflowSpec,
)
from herasys_rt.graph.types import PortType

PORTS = (
    Port("texts", PortType.TEXTS),
    Port("more", PortType.ANY, required=False, default="none"),
    Port("heat", PortType.FLOAT, required=False, default=0.5, is_param=True),
    Port("seed", PortType.INT, required=False, is_param=True, optional=True),
    Port("shelf", PortType.TEXT, required=False, default="docs", is_param=True),
    Port("unread", PortType.TEXT, required=False, default="x", excluded=True),
)


def plain(name: str, arg: Arg, **fields: Any) -> NodeSpec:
    return NodeSpec(
        name, "ask@1", "do", "llm", {"more": arg}, PORTS[1:2], PortType.TEXT, **fields
    )


ABOVE = plain("above", InputRef("x"))
IT = NodeSpec(
    "it",
    "list@1",
    "do",
    "llm",
    {"texts": ListRef((Lit("a"), NodeRef("above"))), "more": InputRef("x")},
    PORTS,
    PortType.TEXTS,
    model="small",
    sampling=Sampling("heat", "seed"),
    sample=0,
    list_port="texts",
)
READS = replace(IT, id="reads", list_port=None, collection="shelf")
EACH = plain("each", ItemRef("r"), region="r")
TAKES = plain("takes", NodeRef("each"))

INPUTS = (InputSpec("x", PortType.ANY), InputSpec("z", PortType.ANY))
BASE = WorkflowSpec(
    "flow",
    INPUTS,
    (ABOVE, EACH, TAKES, IT, READS),
    {"output": NodeRef("takes")},
    regions=(Region("r", InputRef("z")),),
)
GIVEN = {"x": 1, "z": ["a", "b"], "w": ["c"]}


class Names(NamedTuple):
    """What names the work: of ``it`` by structure, by value and item by item, of ``reads``
    with the collections whose revisions are in its keys, of ``takes`` by structure."""

    structure: bytes
    value: bytes
    items: bytes
    reads: Any
    takes: bytes


ALL = frozenset({"structure", "value", "items", "reads"})
WHOLE = ALL | {"takes"}


def names_of(flow: WorkflowSpec) -> Names:
    signer = Signer(flow, lambda node: f"{node.model}")
    signed = signer.signed(GIVEN, "tenant", "run")
    it, reads, takes = flow.index["it"], flow.index["reads"], flow.index["takes"]
    return Names(
        signed.signatures[it],
        signed.seeds[it],
        signed.item_seeds[it] if signed.item_seeds else b"",
        (
            signed.signatures[reads],
            signed.seeds[reads],
            signer.collections(GIVEN)[reads],
            signer.own_collections(GIVEN)[reads],
        ),
        signed.signatures[takes],
    )


Change = Callable[[WorkflowSpec], WorkflowSpec]


def node(**fields: Any) -> Change:
    """Other fields of ``it`` and ``reads``."""
    return lambda flow: replace(
        flow,
        nodes=tuple(
            replace(n, **fields) if n.id in ("it", "reads") else n for n in flow.nodes
        ),
    )


def one(name: str, /, **fields: Any) -> Change:
    """Other fields of one node."""
    return lambda flow: replace(
        flow, nodes=tuple(replace(n, **fields) if n.id == name else n for n in flow.nodes)
    )


def args(**changed: Arg) -> Change:
    return node(args={**IT.args, **changed})


def port(name: str, /, **fields: Any) -> Change:
    return node(ports=tuple(replace(p, **fields) if p.name == name else p for p in PORTS))


def flow(**fields: Any) -> Change:
    return lambda whole: replace(whole, **fields)


def declared(**fields: Any) -> Change:
    return flow(inputs=(replace(INPUTS[0], **fields), INPUTS[1]))


def sampled(**fields: Any) -> Change:
    return node(sampling=replace(Sampling("heat", "seed"), **fields))


def region(**fields: Any) -> Change:
    return flow(regions=(replace(BASE.regions[0], **fields),))


def guarded(**fields: Any) -> Change:
    return node(guards=(replace(Guard(InputRef("x"), True), **fields),))


def option(**fields: Any) -> Change:
    return node(options=NodeOptions(**fields))


def retried(**fields: Any) -> Change:
    return node(options=NodeOptions(retry=Retry(**fields)))


def bounded(**fields: Any) -> Change:
    return port("more", constraint=Constraint(**fields))


def then(*changes: Change) -> Change:
    def all_of(whole: WorkflowSpec) -> WorkflowSpec:
        for change in changes:
            whole = change(whole)
        return whole

    return all_of


def expression(**changed: Arg) -> Change:
    return args(more=Expr("record", {"a": Lit(1), "b": Lit(2), **changed}))


def reduced(**fields: Any) -> Change:
    return one("it", reduction=replace(Reduction("ranked"), **fields))


MADE_OF_ITEMS = frozenset({"structure", "value"})
CHOICE = ChoiceRef(InputRef("x"), Lit(1), Lit(2))
CHOSEN = args(more=CHOICE)
NOTHING = frozenset[str]()
UNUSED = InputSpec("unused", PortType.ANY, required=False)

# field -> (a change to start from, or None; the change of the field; what differs)
Case = tuple[type[Any], str, Change | None, Change, frozenset[str]]
CASES: list[Case] = [
    # what decides a value
    (NodeSpec, "operator", None, node(operator="list@2"), ALL),
    (NodeSpec, "operator", None, node(operator="lists@1"), ALL),
    (NodeSpec, "verb", None, node(verb="redo"), ALL),
    (NodeSpec, "resource", None, node(resource="cpu"), ALL),
    (NodeSpec, "model", None, node(model="large"), ALL),
    (NodeSpec, "args", None, args(more=Lit(2)), ALL),
    (NodeSpec, "args", None, args(texts=Lit(["b"])), ALL - {"items"}),
    (NodeSpec, "args", None, args(extra=Lit(1)), ALL),
    (NodeSpec, "args", None, args(seed=Lit(0)), ALL),
    (NodeSpec, "ports", None, port("shelf", default="books"), ALL),
    (NodeSpec, "purity", None, node(purity="effect"), ALL),
    (NodeSpec, "purity", None, node(purity="sampled"), ALL),
    (NodeSpec, "sampling", None, node(sampling=None), ALL),
    (NodeSpec, "sample", None, node(sample=1), ALL),
    (NodeSpec, "sample", None, node(sample=None), ALL),
    (NodeSpec, "collection", None, one("reads", collection=None), frozenset({"reads"})),
    (NodeSpec, "collection", None, one("it", collection="shelf"), frozenset({"items"})),
    (NodeSpec, "region", None, one("it", region="r"), frozenset({"structure"})),
    (NodeSpec, "region", None, one("takes", region="r"), frozenset({"takes"})),
    (NodeSpec, "list_port", None, one("it", list_port=None), frozenset({"items"})),
    (NodeSpec, "by_text", None, one("it", by_text=True), NOTHING),
    (NodeSpec, "reduction", None, one("it", reduction=Reduction("ranked")), MADE_OF_ITEMS),
    (Reduction, "function", reduced(), reduced(function="other"), MADE_OF_ITEMS),
    (Reduction, "params", reduced(), reduced(params=("more",)), MADE_OF_ITEMS | {"items"}),
    (Port, "name", None, port("shelf", name="board"), ALL),
    (Port, "type", args(heat=Lit(1)), port("heat", type=PortType.INT), ALL),
    (Port, "default", None, port("more", default=1), NOTHING),
    (Port, "default", None, port("heat", default=0.25), ALL),
    (Port, "excluded", None, port("more", excluded=True), ALL),
    (Port, "excluded", None, port("unread", excluded=False), ALL),
    (Port, "required", None, port("heat", required=True), ALL),
    (Port, "required", None, port("more", required=True), NOTHING),
    (Sampling, "amount", None, sampled(amount="more"), NOTHING),
    (Sampling, "amount", None, sampled(amount="nothing"), ALL),
    (Sampling, "seed", None, sampled(seed="shelf"), ALL),
    (WorkflowSpec, "nodes", None, one("above", operator="ask@2"), ALL - {"items", "value"}),
    (WorkflowSpec, "share", None, flow(share="public"), WHOLE),
    (WorkflowSpec, "regions", None, region(items=Lit(["a"])), frozenset({"takes"})),
    (Region, "items", None, region(items=InputRef("x")), frozenset({"takes"})),
    (Lit, "value", None, args(more=Lit(1.0)), ALL),
    (Lit, "value", None, args(more=Lit(1)), NOTHING),
    (InputRef, "name", None, args(more=InputRef("z")), ALL),
    (
        NodeRef,
        "node",
        args(more=NodeRef("above")),
        args(more=NodeRef("takes")),
        ALL - {"items"},
    ),
    (ListRef, "items", None, args(more=ListRef((Lit(1),))), ALL),
    (ListRef, "items", None, args(more=ListRef((Lit(1), Lit(1)))), ALL),
    (
        ChoiceRef,
        "condition",
        CHOSEN,
        args(more=replace(CHOICE, condition=NodeRef("above"))),
        ALL,
    ),
    (ChoiceRef, "then", CHOSEN, args(more=replace(CHOICE, then=Lit(3))), ALL),
    (ChoiceRef, "otherwise", CHOSEN, args(more=replace(CHOICE, otherwise=Lit(3))), ALL),
    (
        Expr,
        "function",
        expression(),
        args(more=Expr("other", {"a": Lit(1), "b": Lit(2)})),
        ALL,
    ),
    (Expr, "args", expression(), expression(a=Lit(3)), ALL),
    (
        Expr,
        "args",
        expression(),
        args(more=Expr("record", {"a": Lit(1), "c": Lit(2)})),
        ALL,
    ),
    # what does not
    (NodeSpec, "id", None, one("above", id="up"), NOTHING),
    (NodeSpec, "label", None, node(label="label"), NOTHING),
    (NodeSpec, "streams", None, node(streams=True), NOTHING),
    (NodeSpec, "output", None, node(output=PortType.ANY), NOTHING),
    (NodeSpec, "guards", None, guarded(), NOTHING),
    (NodeSpec, "options", None, node(options=NodeOptions(cache=False)), NOTHING),
    (Guard, "condition", guarded(), guarded(condition=NodeRef("above")), NOTHING),
    (Guard, "holds", guarded(), guarded(holds=False), NOTHING),
    (NodeOptions, "timeout_s", None, option(timeout_s=1.0), NOTHING),
    (NodeOptions, "retry", None, option(retry=Retry()), NOTHING),
    (NodeOptions, "priority", None, option(priority=9), NOTHING),
    (NodeOptions, "cache", None, option(cache=False), NOTHING),
    (NodeOptions, "cache_ttl_s", None, option(cache_ttl_s=1.0), NOTHING),
    (Retry, "max_attempts", retried(), retried(max_attempts=9), NOTHING),
    (Retry, "initial_interval_s", retried(), retried(initial_interval_s=9.0), NOTHING),
    (Retry, "backoff_factor", retried(), retried(backoff_factor=9.0), NOTHING),
    (Retry, "max_interval_s", retried(), retried(max_interval_s=9.0), NOTHING),
    (Retry, "jitter", retried(), retried(jitter=0.5), NOTHING),
    (Retry, "retry_on", retried(), retried(retry_on=("busy",)), NOTHING),
    (Port, "is_param", None, port("shelf", is_param=False), NOTHING),
    (Port, "optional", None, port("more", optional=True), NOTHING),
    (Port, "constraint", None, bounded(non_empty=True), NOTHING),
    (Port, "doc", None, port("more", doc="words"), NOTHING),
    (Constraint, "minimum", None, bounded(minimum=0), NOTHING),
    (Constraint, "maximum", None, bounded(maximum=9), NOTHING),
    (Constraint, "non_empty", None, bounded(non_empty=True), NOTHING),
    (Constraint, "choices", None, bounded(choices=("a",)), NOTHING),
    (WorkflowSpec, "name", None, flow(name="other"), NOTHING),
    (WorkflowSpec, "doc", None, flow(doc="words"), NOTHING),
    (WorkflowSpec, "inputs", None, flow(inputs=(*INPUTS[::-1], UNUSED)), NOTHING),
    (WorkflowSpec, "outputs", None, flow(outputs={"all": NodeRef("it")}), NOTHING),
    (WorkflowSpec, "agent", None, flow(agent=True), NOTHING),
    (InputSpec, "type", None, declared(type=PortType.INT), NOTHING),
    (InputSpec, "required", None, declared(required=False), NOTHING),
    (InputSpec, "default", None, declared(default=7), NOTHING),
    (InputSpec, "optional", None, declared(optional=True), NOTHING),
    (
        InputSpec,
        "name",
        None,
        flow(inputs=(InputSpec("w", PortType.ANY), *INPUTS)),
        NOTHING,
    ),
    (Region, "max_items", None, region(max_items=2), NOTHING),
    (
        Region,
        "id",
        None,
        then(region(id="s"), one("each", region="s", args={"more": ItemRef("s")})),
        NOTHING,
    ),
    (
        ItemRef,
        "region",
        None,
        then(region(id="s"), one("each", region="s", args={"more": ItemRef("s")})),
        NOTHING,
    ),
]


def _renamed(flow: WorkflowSpec) -> WorkflowSpec:
    """Where the node above has another id, who takes it says so."""
    if "above" in flow.index:
        return flow
    return args(texts=ListRef((Lit("a"), NodeRef("up"))))(flow)


@pytest.mark.parametrize(
    ("kind", "field", "start", "change", "differs"),
    CASES,
    ids=[f"{kind.__name__}.{field}" for kind, field, *_ in CASES],
)
def test_a_field_decides_these_names_and_no_others(
    kind: type[Any],
    field: str,
    start: Change | None,
    change: Change,
    differs: frozenset[str],
):
    before = start(BASE) if start is not None else BASE
    after = _renamed(change(before))
    assert after != before
    left, right = names_of(before), names_of(after)
    found = {name for name in Names._fields if getattr(left, name) != getattr(right, name)}
    assert found == differs


def test_the_order_in_which_arguments_are_given_decides_nothing():
    given = {**IT.args, "extra": Lit(1), "other": Lit(2)}
    turned = dict(reversed(given.items()))
    left, right = (node(args=order)(BASE) for order in (given, turned))
    assert names_of(left) == names_of(right)


def test_an_argument_is_told_by_the_name_of_its_port():
    left, right = (args(**{name: Lit(1)})(BASE) for name in ("extra", "extrb"))
    assert not set(names_of(left)[:4]) & set(names_of(right)[:4])


@pytest.mark.parametrize("other", ["pool:m@2", "pool:n@1", "poll:m@1", "pool:m", "m@1", ""])
def test_a_model_is_told_by_all_that_its_fingerprint_says(other: str):
    def signed(fingerprint: str) -> list[bytes]:
        signed = Signer(BASE, lambda _: fingerprint).signed(GIVEN, "tenant", "run")
        names = [*signed.signatures, *signed.seeds, *signed.item_seeds]
        return [name for name in names if name]

    assert not set(signed(other)) & set(signed("pool:m@1"))


def test_every_field_of_every_struct_has_its_line():
    """A field that was added: decide what it changes, and say so above."""
    told = {(kind, field) for kind, field, *_ in CASES}
    structs = [
        found
        for found in vars(spec).values()
        if isinstance(found, type) and hasattr(found, "__struct_fields__")
    ]
    assert len(structs) >= 17
    derived = {spec.Edge}  # made of the arguments of nodes, and in no spec
    fields = {
        (kind, field)
        for kind in structs
        if kind not in derived
        for field in kind.__struct_fields__
    }
    assert told == fields


def test_every_fixed_field_of_a_preimage_has_its_line():
    heads = {"format", "operator", "verb", "resource", "model"}
    assert set(preimage.HEAD) == heads
    written = preimage.structural_fields(BASE, EACH, "m", Signer(BASE, str).hashing)
    assert {f.name for f in written if not f.is_argument} == heads | {"scope", "region"}


WRITTEN = {1: {"sha256": "2253b49b0812fe82", "xxh3": "328714d1757fb27e"}}
"""The digest of all names of `BASE`, by format and hash."""


@pytest.mark.parametrize("hashing", list(HASHES.values()), ids=list(HASHES))
def test_what_is_written_otherwise_has_another_format(hashing: Hash):
    """Names outlive this version: raise `preimage.FORMAT` when they are made otherwise."""
    signed = Signer(BASE, lambda node: f"{node.model}", hashing).signed(GIVEN, "t", "r")
    names = [*signed.signatures, *signed.seeds, *signed.item_seeds, signed.inputs]
    digest = hashlib.sha256(b"".join(names)).hexdigest()[:16]
    assert WRITTEN[preimage.FORMAT][hashing.name] == digest
