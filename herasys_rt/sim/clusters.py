"""Clusters by name: pools of modelled instances, as declarations without any model."""

from __future__ import annotations

import msgspec

from herasys_rt.errors import ConfigError

VERBS: dict[tuple[str, str], tuple[str, ...]] = {
    ("llm", "both"): ("llm.generate", "llm.prefill"),
    ("llm", "prefill"): ("llm.prefill",),
    ("llm", "decode"): ("llm.decode",),
    ("embedding", "both"): ("embed",),
    ("rerank", "both"): ("rerank",),
    ("retrieval", "both"): ("pg.search", "pg.text", "pg.hybrid", "pg.write", "pg.delete"),
    ("search", "both"): ("http.search",),
    ("python", "both"): ("python.call",),
}
"""(resource, role) -> what its instances can do. There are no others."""

BATCHED = ("embedding", "rerank")
"""Resources whose engines take whole batches; the others take one item per slot."""


class Group(msgspec.Struct, frozen=True):
    """``count`` equal instances of a pool, each on ``tp`` GPUs of a kind.

    ``gpu`` empty: a CPU. ``tp`` 0: what `parallelism` says of the model.
    """

    count: int = 1
    gpu: str = ""
    tp: int = 0


class PoolShape(msgspec.Struct, frozen=True):
    """A pool. ``model`` empty: the one that is simulated (of an LLM pool), or none.

    ``slots`` and ``batch_limit`` are as in the configuration of a runtime. An LLM pool
    computes at most ``token_budget`` tokens in one iteration (vLLM's
    ``max_num_batched_tokens``) and with ``prefix_cache`` finds prompts' heads again; its
    calls have at most ``context_tokens`` (vLLM's ``max_model_len``; 0: what the model
    says).
    ``share`` is what an instance has of its GPU.
    """

    name: str
    resource: str
    groups: tuple[Group, ...] = (Group(),)
    role: str = "both"
    model: str = ""
    slots: int = 1
    batch_limit: int = 1
    token_budget: int = 2048
    context_tokens: int = 0
    prefix_cache: bool = True
    share: float = 1.0
    default: bool = False

    @property
    def instances(self) -> int:
        """How many there are."""
        return sum(group.count for group in self.groups)

    @property
    def verbs(self) -> tuple[str, ...]:
        """What its instances can do; nothing for a role that its resource has not."""
        return VERBS.get((self.resource, self.role), ())


class Cluster(msgspec.Struct, frozen=True):
    """Pools, and the ``model`` that its LLM pools serve unless another one is named."""

    name: str
    pools: tuple[PoolShape, ...]
    model: str = "llama-3.1-70b"

    @property
    def split(self) -> bool:
        """Whether prefill and decode are pools of their own."""
        return any(pool.role != "both" for pool in self.pools)


_TP: dict[tuple[str, str], int] = {
    # HexAGenT's evaluation: Llama on four GPUs everywhere, Qwen on eight but on H200.
    ("llama-3.1-70b", "a100-80g"): 4,
    ("llama-3.1-70b", "h100"): 4,
    ("llama-3.1-70b", "h200"): 4,
    ("qwen3-235b-a22b", "a100-80g"): 8,
    ("qwen3-235b-a22b", "h100"): 8,
    ("qwen3-235b-a22b", "h200"): 4,
}


def parallelism(model: str, gpu: str) -> int:
    """GPUs of one instance where a cluster leaves it open: the papers', else one."""
    return _TP.get((model, gpu), 1)


_LONG = 2**20


def _split(name: str, *groups: Group) -> Cluster:
    """Equal pools for prefill and decode (HexAGenT section 5).

    Calls say themselves what of their prompts is cached (`Truth.cached_tokens`). Prompts
    as they are scaled (`workloads.catalogue.LENGTH_SCALE`) are longer than the models'
    own contexts: here KV memory is what bounds them.
    """
    prefill = PoolShape(
        "prefill", "llm", groups, "prefill", context_tokens=_LONG, prefix_cache=False
    )
    decode = msgspec.structs.replace(prefill, name="decode", role="decode", slots=256)
    return Cluster(name, (prefill, decode))


CLUSTERS: tuple[Cluster, ...] = (
    # HeraSys's testbed: two cards for the LLM, three embedders and three rerankers on
    # the other two. Search: eight at once, as the workloads say.
    Cluster(
        "testbed-4x4090",
        (
            # 42,262 KV tokens hold some 16 calls of RAG; twice as many slots cost no
            # throughput, and whoever comes later is ordered by the kernel.
            PoolShape("llm", "llm", (Group(2, "rtx-4090"),), slots=32),
            PoolShape(
                "embedding",
                "embedding",
                (Group(3, "rtx-4090"),),
                model="bge-large",
                batch_limit=64,
                share=1 / 3,
            ),
            PoolShape(
                "rerank",
                "rerank",
                (Group(3, "rtx-4090"),),
                model="bge-reranker-large",
                batch_limit=64,
                share=1 / 3,
            ),
            PoolShape("retrieval", "retrieval", slots=32),
            PoolShape("search", "search", slots=8),
            PoolShape("python", "python", slots=8),
        ),
        model="llama-3-8b",
    ),
    _split("hetero-1", Group(2, "a100-80g"), Group(3, "h100"), Group(3, "h200")),
    _split("hetero-2", Group(3, "a100-80g"), Group(4, "h100"), Group(3, "h200")),
    _split("homog-h200", Group(4, "h200")),
    _split("homog-a100", Group(4, "a100-80g")),
)
"""The papers' clusters."""


def cluster(name: str) -> Cluster:
    """The cluster of this name. Errors: `ConfigError` that lists the known ones."""
    for known in CLUSTERS:
        if known.name == name:
            return known
    names = ", ".join(known.name for known in CLUSTERS)
    raise ConfigError(
        f"unknown cluster {name!r}; known: {names}",
        hint="Use one of the known names, or give the path of a cluster file (.yaml).",
        name=name,
        known=tuple(known.name for known in CLUSTERS),
    )


def in_turn(groups: tuple[Group, ...]) -> list[Group]:
    """One entry per instance, kinds taking turns: whoever prefers small numbers prefers
    no kind."""
    left = [group.count for group in groups]
    order: list[Group] = []
    while any(count > 0 for count in left):
        for i, group in enumerate(groups):
            if left[i] > 0:
                left[i] -= 1
                order.append(group)
    return order
