"""Which pool's model a node is signed with."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from herasys_rt.core.events import PoolDeclared
from herasys_rt.core.instances import Pool
from herasys_rt.core.plan import pool_for
from herasys_rt.dsl import workflow
from herasys_rt.graph.spec import NodeSpec
from herasys_rt.messages import PoolFacts
from herasys_rt.runtime.fuser import pool_of
from operators import embed, retrieve


@workflow
def read(question: str):
    return retrieve(embed(question), collection="docs", top_k=1)


def node(model: str | None) -> NodeSpec:
    found = read.spec.nodes[-1]
    return replace(found, resource="r", verb="v", model=model)


@pytest.mark.parametrize("default", [0, 1, None])
@pytest.mark.parametrize(
    "names", [((), ()), (("a",), ("b",)), (("a", "b"), ("b",)), ((), ("b",))]
)
@pytest.mark.parametrize("model", [None, "a", "b"])
def test_a_node_is_signed_with_the_model_of_the_pool_that_serves_it(
    model: str | None, names: tuple[tuple[str, ...], ...], default: int | None
):
    """Known fault 18: the revision of the one that answers, whatever else has the name."""
    wanted = node(model)
    other = Pool(PoolDeclared("other", "another resource", ("a", "b"), True, verbs=("v",)))
    pools = [
        Pool(PoolDeclared(f"p{i}", "r", mine, i == default, verbs=("v",)))
        for i, mine in enumerate(names)
    ]
    serving = pool_for(wanted, (other, *pools))
    told = [
        PoolFacts(p.decl.pool, p.decl.resource, p.decl.names, p.decl.default)
        for p in (other, *pools)
    ]
    if isinstance(serving, Pool):
        found = pool_of(wanted, told)
        assert found is not None and found.pool == serving.decl.pool
