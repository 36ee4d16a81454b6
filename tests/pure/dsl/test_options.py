"""Per-node options: what they become, and what is refused."""

from __future__ import annotations

from typing import Any, Unpack

import pytest

from herasys_rt.dsl import Options, edge, operator, param, retry, workflow
from herasys_rt.errors import GraphError
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.spec import NodeOptions, NodeSpec, Retry, Sampling
from herasys_rt.graph.types import PortType


@operator(
    name="o.draw",
    version="1",
    verb="draw",
    resource="cpu",
    output=PortType.TEXT,
    sampling=Sampling("heat", "seed"),
    ports={
        "text": edge(PortType.TEXT),
        "heat": param(PortType.FLOAT, minimum=0),
        "seed": param(PortType.INT, optional=True),
    },
)
def draw(
    text: Any, *, heat: float = 0.0, seed: int | None = None, **options: Unpack[Options]
):
    """Draws."""


@operator(
    name="o.plain",
    version="1",
    verb="plain",
    resource="cpu",
    output=PortType.TEXT,
    ports={"text": edge(PortType.TEXT)},
)
def plain(text: Any, **options: Unpack[Options]):
    """Does not."""


loose: Any = plain


def nodes_of(function: Any) -> tuple[NodeSpec, ...]:
    return workflow(name="flow")(function).spec.nodes


def faults_of(function: Any) -> str:
    with pytest.raises(GraphError) as caught:
        workflow(name="flow")(function)
    return "\n".join(str(fault) for fault in caught.value.fields["faults"])


def test_options_that_are_declared_for_the_type_checker_are_no_ports():
    assert [port.name for port in plain.ports] == ["text"]
    assert not plain.variadic


def test_a_call_takes_options_beside_its_arguments():
    rules = retry(max_attempts=5, initial_interval_s=1, retry_on="node_timeout")
    (node,) = nodes_of(
        lambda: plain(
            "x", timeout_s=2, retry=rules, priority=-3, cache=60, model="m", label="a"
        )
    )
    assert node.options == NodeOptions(
        timeout_s=2.0,
        retry=Retry(5, 1, 2.0, 30.0, 1.0, ("node_timeout",)),
        priority=-3,
        cache=True,
        cache_ttl_s=60.0,
    )
    assert type(node.options.timeout_s) is float
    assert (node.model, node.label) == ("m", "a")


@pytest.mark.parametrize(
    ("given", "cache", "ttl"),
    [(True, True, None), (False, False, None), (5, True, 5.0), (0.5, True, 0.5)],
)
def test_cache_is_off_on_or_for_a_time(given, cache, ttl):
    (node,) = nodes_of(lambda: plain("x", cache=given))
    assert (node.options.cache, node.options.cache_ttl_s) == (cache, ttl)


def test_without_options_a_node_has_the_defaults():
    (node,) = nodes_of(lambda: plain("x", timeout_s=None, retry=None, purity=None))
    assert node.options == NodeOptions()
    assert node.sample is None


def test_retry_takes_one_code_or_several():
    assert retry(retry_on=["a", "b"]).retry_on == ("a", "b")
    assert retry() == Retry()


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda q: loose("x", timeout_s="1"), "timeout_s: must be a literal number"),
        (lambda q: loose("x", timeout_s=True), "timeout_s: must be a literal number"),
        (lambda q: loose("x", timeout_s=q), "timeout_s: must be a literal number of"),
        (lambda q: loose("x", timeout_s=0), "timeout_s: must be a number of seconds above"),
        (lambda q: loose("x", timeout_s=float("nan")), "seconds above 0, got float nan"),
        (lambda q: loose("x", retry=3), "retry: must be a literal retry(...), got int 3"),
        (lambda q: loose("x", retry=retry(max_attempts=0)), "retry.max_attempts: must be"),
        (lambda q: loose("x", retry=retry(jitter=2)), "retry.jitter: must be a number"),
        (lambda q: loose("x", priority=1.5), "priority: must be a literal whole number"),
        (lambda q: loose("x", priority=True), "priority: must be a literal whole number"),
        (lambda q: loose("x", cache="no"), "cache: must be a literal False or number"),
        (lambda q: loose("x", cache=-1), "cache: must be a number of seconds above 0"),
        (lambda q: loose("x", purity="effect"), "purity: must be a literal 'pure'"),
        (lambda q: loose("x", purity="pure"), "'pure' is for nodes that draw random"),
        (lambda q: loose("x", model=3), "model: must be a literal name, got int 3"),
        (
            lambda q: loose("x", timeout=3),
            "no argument 'timeout' (did you mean 'timeout_s'",
        ),
    ],
)
def test_a_wrong_option_is_refused(function, line):
    assert line in faults_of(function)


def test_faults_of_options_are_told_with_all_others():
    found = faults_of(lambda: loose(3, timeout_s="1", priority="2", label="a b"))
    assert len(found.splitlines()) == 4


# Samples that are shared


def signed(function: Any) -> list[bytes]:
    spec = workflow(name="flow")(function).spec
    return list(Signer(spec, lambda node: "m").signed({}, "t", "r").signatures)


def test_a_sampled_node_that_opts_in_is_pure_and_numbered_among_its_equals():
    def flow():
        return {
            "a": draw("x", heat=0.5, purity="pure", label="a"),
            "b": draw("x", heat=0.5, purity="pure", label="b", timeout_s=3),
            "c": draw("x", heat=0.6, purity="pure", label="c"),
            "d": draw("x", heat=0.5, label="d"),
        }

    nodes = nodes_of(flow)
    assert [node.purity for node in nodes] == ["pure", "pure", "pure", "sampled"]
    assert [node.sample for node in nodes] == [0, 1, 0, None]
    signatures = signed(flow)
    assert [len(one) for one in signatures] == [32, 32, 32, 0]
    assert len(set(signatures)) == 4


def test_the_same_sample_of_another_workflow_is_equal():
    one = signed(lambda: draw("x", heat=0.5, purity="pure"))
    two = signed(lambda: {"n": draw("x", heat=0.5, purity="pure", label="other")})
    assert one == two


def test_samples_of_inlined_workflows_are_numbered_anew():
    @workflow
    def inner(q: str):
        return draw(q, heat=0.5, purity="pure")

    @workflow
    def outer(q: str):
        return {"a": inner(q), "b": inner(q), "c": inner("else")}

    assert [node.sample for node in outer.spec.nodes] == [0, 1, 0]
