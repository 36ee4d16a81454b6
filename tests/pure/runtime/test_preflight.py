"""What no cluster of these nodes can hold is refused, with the numbers."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.config import Config, PoolConfig
from herasys_rt.errors import ClusterError
from herasys_rt.runtime.cluster import GPU_CLASS_LABEL, preflight


def node(cpus: float, gpus: float = 0.0, gpu_class: str = "") -> dict[str, Any]:
    labels = {GPU_CLASS_LABEL: gpu_class} if gpu_class else {}
    return {"Alive": True, "Labels": labels, "Resources": {"CPU": cpus, "GPU": gpus}}


def pools(*wanted: dict[str, Any]) -> Config:
    made = [
        PoolConfig(
            name=f"p{at}",
            resource="llm",
            engine="modelled",
            default=at == 0,
            **{"cpus": 0.5, **one},
        )
        for at, one in enumerate(wanted)
    ]
    return Config(pools=tuple(made))


@pytest.mark.parametrize(
    ("config", "nodes", "told"),
    [
        (pools({"gpus": 1, "gpu_class": "B"}), [node(8, 2, "A")], "no node has that label"),
        (pools({"gpus": 2}), [node(8, 1), node(8, 1)], "the largest node has 1"),
        (
            pools({"gpus": 2, "gpu_class": "A"}),
            [node(8, 1, "A"), node(8, 4, "B")],
            "the largest node has 1",
        ),
        (
            pools({"gpus": 1, "gpu_class": "A", "instances": 3}),
            [node(8, 2, "A"), node(8, 2, "B")],
            "need 3 GPUs on nodes of class A, and the cluster has 2",
        ),
        (
            pools({"gpus": 1, "gpu_class": "A"}, {"gpus": 2}),
            [node(8, 2, "A")],
            "need 3 GPUs, and the cluster has 2",
        ),
        (pools({"cpus": 3, "instances": 2}), [node(4)], "need 6 CPUs, and the cluster"),
        (pools({"cpus": 1}), [], "the largest node has 0"),
        (pools({"cpus": 1}), [{**node(4), "Alive": False}], "the largest node has 0"),
    ],
)
def test_what_no_node_can_hold_is_refused_with_the_numbers(config, nodes, told):
    with pytest.raises(ClusterError) as caught:
        preflight(config, nodes)
    assert told in caught.value.message
    assert caught.value.hint


def test_what_fits_passes():
    config = pools({"gpus": 1, "gpu_class": "A", "instances": 2}, {"gpus": 0.5, "cpus": 2})
    preflight(config, [node(4, 2, "A"), node(4, 1, "B")])
