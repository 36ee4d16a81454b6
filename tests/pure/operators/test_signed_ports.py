"""Every port that an operator of the library declares decides its signature and its seed.

Nothing here lists ports: a port that is added later is tested by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import operators
from herasys_rt.dsl import workflow
from herasys_rt.dsl.operator import Operator, discover
from herasys_rt.graph.hashing import SHA256, XXH3, Hash
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.spec import (
    Arg,
    InputRef,
    InputSpec,
    Lit,
    NodeRef,
    NodeSpec,
    Port,
    WorkflowSpec,
)
from herasys_rt.graph.types import PortType

LIBRARY = {
    name: operator
    for name, operator in discover().items()
    if operator.verb and operators.__name__ in (operator.__module__ or "")
}

_BY_TYPE: dict[PortType, tuple[Any, ...]] = {
    PortType.TEXT: ("a", "b", "c"),
    PortType.TEXTS: (["a"], ["a", "b"], ["ab"]),
    PortType.INT: (1, 2, 3),
    PortType.FLOAT: (0.25, 0.5, 0.75),
    PortType.BOOL: (False, True),
    PortType.VECTOR: (np.zeros(2, np.float32), np.ones(2, np.float32)),
    PortType.VECTORS: (np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)),
    PortType.CHUNKS: ([{"id": "1", "text": "a"}], [{"id": "1", "text": "b"}]),
    PortType.DOCUMENTS: ([{"id": "1", "text": "a"}], [{"id": "2", "text": "a"}]),
    PortType.RECORDS: ([{"a": 1}], [{"a": 2}]),
    PortType.EMBEDDED: ({"chunks": [], "vectors": 1}, {"chunks": [], "vectors": 2}),
    PortType.JSON: ({"a": 1}, {"a": 2}, ["a"]),
    PortType.ANY: (1, "1", [1]),
}


def values_of(port: Port) -> list[Any]:
    """Values that a port takes, all different; its default first, if it has one."""
    values = list(port.constraint.choices or _BY_TYPE[port.type])
    if not port.required:
        values = [port.default, *(v for v in values if not _same(v, port.default))]
    return values


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(np.all(left == right))


def node_of(operator: Operator[...], **args: Arg) -> NodeSpec:
    return NodeSpec(
        "n",
        operator.id,
        operator.verb,
        operator.resource,
        args,
        operator.ports,
        operator.output,
        purity=operator.purity,
        collection=operator.collection,
        sampling=operator.sampling,
    )


def base_args(operator: Operator[...]) -> dict[str, Arg]:
    """Arguments that make a node which may fuse: required ports, and a seed."""
    args: dict[str, Arg] = {
        p.name: Lit(values_of(p)[0]) for p in operator.ports if p.required
    }
    if operator.sampling is not None:
        args[operator.sampling.seed] = Lit(7)
    return args


def names_of(node: NodeSpec, hashing: Hash = SHA256, **inputs: Any) -> tuple[bytes, bytes]:
    """Signature and seed of a node alone."""
    declared = tuple(InputSpec(name, PortType.ANY) for name in inputs)
    spec = WorkflowSpec("flow", declared, (node,), {"output": NodeRef(node.id)})
    signed = Signer(spec, lambda _: "model", hashing).signed(inputs, "tenant", "run")
    return signed.signatures[0], signed.seeds[0]


def ports_of(purity: str) -> list[Any]:
    return [
        pytest.param(operator, port, id=f"{operator.name}.{port.name}")
        for operator in LIBRARY.values()
        if operator.purity == purity
        for port in operator.ports
    ]


def test_the_whole_library_is_looked_at():
    exported = [getattr(operators, name) for name in operators.__all__]
    assert {o.id for o in exported if isinstance(o, Operator)} <= set(LIBRARY)
    assert len(LIBRARY) >= 10


@pytest.mark.parametrize(("operator", "port"), ports_of("pure"))
def test_every_value_of_every_port_is_told_apart(operator: Operator[...], port: Port):
    base = base_args(operator)
    variants = [node_of(operator, **base | {port.name: Lit(v)}) for v in values_of(port)]
    if operator.sampling is not None and port.name == operator.sampling.seed:
        variants.pop(0)  # None with temperature 0; below, it is the default
    for hashing in (SHA256, XXH3):
        named = [names_of(variant, hashing) for variant in variants]
        assert len({signature for signature, _ in named}) == len(variants) >= 2
        assert len({seed for _, seed in named}) == len(variants)


@pytest.mark.parametrize(("operator", "port"), ports_of("pure"))
def test_an_input_of_the_run_signs_like_the_same_literal(
    operator: Operator[...], port: Port
):
    base = base_args(operator)
    for value in values_of(port):
        literal = node_of(operator, **base | {port.name: Lit(value)})
        given = node_of(operator, **base | {port.name: InputRef("x")})
        assert names_of(given, x=value) == names_of(literal)


@pytest.mark.parametrize(("operator", "port"), ports_of("pure"))
def test_a_default_signs_like_the_same_value_given(operator: Operator[...], port: Port):
    if port.required:
        return
    base = base_args(operator)
    base.pop(port.name, None)
    given = base | {port.name: Lit(port.default)}
    assert names_of(node_of(operator, **base)) == names_of(node_of(operator, **given))


@pytest.mark.parametrize(("operator", "port"), ports_of("effect"))
def test_an_effect_is_never_named(operator: Operator[...], port: Port):
    for value in values_of(port):
        node = node_of(operator, **base_args(operator) | {port.name: Lit(value)})
        assert names_of(node) == (b"", b"")


@pytest.mark.parametrize("operator", list(LIBRARY.values()), ids=list(LIBRARY))
def test_no_operator_leaves_out_or_rewrites_what_it_is_given(operator: Operator[...]):
    # Texts enter as they are: nothing declares that case or blanks do not count.
    assert not [port.name for port in operator.ports if port.excluded]
    for port in operator.ports:
        if port.type == PortType.TEXT and operator.purity == "pure":
            named = {
                names_of(node_of(operator, **base_args(operator) | {port.name: Lit(text)}))
                for text in ("a b", "A b", "a  b", " a b", "a b ", "a b\n")
            }
            assert len(named) == 6


def test_of_a_tool_only_its_function_is_left_out_which_its_code_names():
    @operators.tool(pure=True, version="1")
    def add(left: int, right: int = 2) -> int:
        return left + right

    @workflow
    def flow(left: int):
        return add(left)

    (node,) = flow.spec.nodes
    assert {port.name for port in node.ports if port.excluded} == {"function", "tool"}
    assert "code" in {port.name for port in node.ports if not port.excluded}
