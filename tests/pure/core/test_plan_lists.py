"""Whose items are looked at one by one, and where the digests of a list come from."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from herasys_rt.core.kernel import KernelConfig
from herasys_rt.core.lists import Texts
from herasys_rt.core.plan import plan_of
from herasys_rt.graph.facts import items_of
from herasys_rt.graph.hashing import HASHES, HashName
from herasys_rt.graph.spec import ListRef, Lit, NodeRef, WorkflowSpec
from tests.pure.core.kernel_lab import Lab, inline, item, spec_of


def itemised(spec: WorkflowSpec) -> set[str]:
    """Ids of the nodes whose output's items somebody looks at."""
    marks = plan_of(spec).itemised
    return {node.id for node, mark in zip(spec.nodes, marks, strict=True) if mark}


def with_list(*items: object) -> WorkflowSpec:
    """``a`` and ``e`` (of a region), and ``m`` over a list of these items."""
    spec = spec_of("a llm", "e llm % in=r", "m many a e", regions={"r": "$xs"})
    args = {**spec.nodes[2].args, "p0": ListRef(items)}  # pyright: ignore[reportArgumentType]
    return replace(spec, nodes=(*spec.nodes[:2], replace(spec.nodes[2], args=args)))


def test_items_are_told_of_what_a_region_goes_over_and_of_what_stands_at_a_list_port():
    spec = spec_of(
        "a llm", "b llm", "c llm", "e embed % in=r", "m many b c", regions={"r": "a"}
    )
    assert itemised(spec) == {"a", "b"}


def test_gathered_outputs_are_items_already():
    spec = spec_of(
        "e embed % in=r", "f embed % in=s", "m many e", regions={"r": "$xs", "s": "e"}
    )
    assert itemised(spec) == set()


def test_the_inputs_whose_items_are_told_are_those_at_regions_and_list_ports():
    spec = spec_of("e embed % $no in=r", "m many $texts $no", regions={"r": "$xs"})
    assert spec.itemised_inputs == ("xs", "texts")


def test_the_source_of_a_list_is_an_input_a_node_or_its_items():
    spec = spec_of("a llm", "m many $xs", "n many a", "o many -", "p llm a")
    assert plan_of(spec).lists == (None, "xs", 0, None, None)
    (digest,) = items_of(["x"])
    assert plan_of(with_list(Lit("x"), NodeRef("a"))).lists[2] == (digest, 0)
    assert plan_of(with_list(Lit("x"), NodeRef("e"))).lists[2] is None
    assert plan_of(with_list()).lists[2] is None


def test_a_literal_list_is_digested_once_per_spec():
    spec = spec_of("m many -")
    node = replace(spec.nodes[0], args={"p0": Lit(["x", "y"])})
    assert plan_of(replace(spec, nodes=(node,))).lists == (items_of(["x", "y"]),)


def test_a_host_is_told_to_digest_items_when_a_member_needs_them():
    plain, needing = spec_of("a embed", outputs="a"), spec_of("a embed", "m many a")
    assert not item(Lab().submit("r", plain)).itemise
    assert item(Lab().submit("r", needing)).itemise
    lab = Lab(up="")
    lab.submit("r1", plain)
    lab.submit("r2", needing)
    assert item(lab.up("embed-1", "embed")).itemise


def test_digests_of_items_stay_with_the_kernel():
    lab = Lab()
    spec = spec_of("a embed", "e llm % in=r", regions={"r": "a"}, outputs="a e")
    first = item(lab.submit("r", spec))
    value = replace(inline(b"list"), length=2, items=(b"1" * 32, b"2" * 32))
    started = item(lab.finish(first, value))
    assert started.items is not None and started.items.items == ()
    (end,) = lab.finish_all()
    assert dict(end.outputs)[0].items == ()


def texted(spec: WorkflowSpec) -> set[str]:
    """Ids of the nodes at the texts of whose output somebody looks."""
    marks = plan_of(spec).texts
    return {node.id for node, mark in zip(spec.nodes, marks, strict=True) if mark}


def test_the_source_of_a_list_may_be_the_texts_of_an_input_or_of_a_node():
    spec = spec_of("a llm", "b llm", "m many ~$xs", "n many ~a b", "o many b")
    assert plan_of(spec).lists == (None, None, Texts("xs"), Texts(0), 1)
    assert texted(spec) == {"a"} and itemised(spec) == {"b"}
    assert (spec.itemised_inputs, spec.itemised_texts) == ((), ("xs",))


def test_the_texts_of_a_node_of_the_same_region_are_told_and_of_another_one_are_not():
    near = spec_of("e llm in=r", "m many ~e in=r", regions={"r": 2})
    far = spec_of("e llm in=r", "m many ~e", regions={"r": 2})
    assert texted(near) == {"e"}
    assert texted(far) == set() and plan_of(far).lists == (None, None)


def test_a_host_is_told_to_digest_texts_when_a_member_needs_them():
    whole, texts = spec_of("a embed", "m many a"), spec_of("a embed", "m many ~a")
    asked = [item(Lab().submit("r", spec)) for spec in (whole, texts)]
    assert [(i.itemise, i.itemise_texts) for i in asked] == [(True, False), (False, True)]
    lab = Lab(up="")
    lab.submit("r1", whole)
    lab.submit("r2", texts)
    both = item(lab.up("embed-1", "embed"))
    assert both.itemise and both.itemise_texts


@pytest.mark.parametrize("name", HASHES)
def test_the_items_of_a_literal_list_are_named_by_the_runtimes_hash(name: HashName):
    hashing = HASHES[name]
    spec = with_list(Lit("x"), NodeRef("a"))
    assert plan_of(spec, hashing).lists[2] == (hashing.of("x"), 0)
    over = spec_of("e embed % in=r", regions={"r": 2})
    lab = Lab(KernelConfig(hashing=name))
    lab.submit("r1", over)
    assert lab.state.plans[over.id].areas[0].items == (hashing.of(0),) * 2
