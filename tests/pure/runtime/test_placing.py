"""Instances that wait for a place on the cluster: given up with the numbers, in time."""

from __future__ import annotations

from herasys_rt.config import PoolConfig
from herasys_rt.runtime.placing import Placing, no_place

LLM = PoolConfig(name="llm", resource="llm", engine="modelled", gpus=1, cpus=0.5)
HOPPER = LLM.model_copy(update={"gpu_class": "H100"})


def test_an_instance_is_stuck_when_nothing_got_a_place_for_as_long_as_patience():
    placing = Placing(0.0, patience_s=60.0)
    for index in range(3):
        placing.expect(LLM, index, f"answer-{index}")
    assert placing.stuck(59.0) is None
    placing.placed(["answer-1"], 59.0)
    assert placing.stuck(118.0) is None, "patience counts from the last that got one"
    placing.placed(["answer-1"], 118.0)
    assert placing.stuck(119.0) == (LLM, 0), "what was placed before counts once"
    placing.placed(["answer-0"], 119.5)
    assert placing.stuck(1_000.0) == (LLM, 2)
    placing.placed(["answer-2"], 1_001.0)
    assert placing.stuck(9_999.0) is None and placing.waiting() == []


def test_who_waits_for_nodes_has_patience_anew():
    placing = Placing(0.0, patience_s=60.0)
    placing.expect(LLM, 0, "answer")
    assert placing.stuck(60.0) == (LLM, 0)
    placing.wait_again(60.0)
    assert placing.stuck(100.0) is None
    assert placing.stuck(120.0) == (LLM, 0)


def test_the_error_names_the_pool_what_it_asks_for_and_what_there_is():
    error = no_place(LLM, 2, {"GPU": 4.0, "CPU": 16.0}, {"CPU": 3.5})
    assert error.code == "no_place"
    assert "instance llm-2" in error.message
    assert "asks for 1 GPUs and 0.5 CPUs" in error.message
    assert "0 of 4 GPUs, 3.5 of 16 CPUs" in error.message
    assert "ray.autoscaling" in error.hint
    assert "gpu-class" not in error.hint


def test_the_error_of_a_pool_with_a_class_names_the_class():
    error = no_place(HOPPER, 0, {"GPU": 4.0}, {"GPU": 2.0})
    assert "on a node of class H100" in error.message
    assert "gpu-class=H100" in error.hint
