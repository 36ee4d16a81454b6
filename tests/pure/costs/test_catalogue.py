"""Hardware and models by name, and what fits on what."""

from __future__ import annotations

import msgspec
import pytest

from herasys_rt.costs.backends import step_times
from herasys_rt.costs.hardware import GPUS, gpu
from herasys_rt.costs.memory import check_parallelism, kv_bytes_held, kv_capacity_tokens
from herasys_rt.costs.models import MODELS, model
from herasys_rt.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "billions", "active_billions", "kv_bytes"),
    [
        ("llama-3-8b", 8.03, 8.03, 131_072),
        ("llama-3.1-70b", 70.55, 70.55, 327_680),
        ("qwen3-235b-a22b", 235.1, 22.2, 192_512),
        ("qwen3-coder-30b-a3b", 30.5, 3.35, 98_304),
        ("smollm2-135m", 0.1345, 0.1345, 23_040),
    ],
)
def test_sizes_follow_from_the_architecture(name, billions, active_billions, kv_bytes):
    arch = model(name)
    assert arch.parameters / 1e9 == pytest.approx(billions, rel=2e-3)
    assert arch.active_parameters / 1e9 == pytest.approx(active_billions, rel=2e-3)
    assert arch.kv_bytes_per_token == kv_bytes
    assert arch.weight_bytes == 2 * arch.parameters


@pytest.mark.parametrize(
    ("name", "card", "tp", "tokens"),
    [
        ("llama-3.1-70b", "a100-80g", 4, 448_000),
        ("llama-3.1-70b", "h100", 4, 448_000),
        ("llama-3.1-70b", "h200", 4, 1_120_000),
        ("qwen3-235b-a22b", "a100-80g", 8, 275_000),
        ("qwen3-235b-a22b", "h100", 8, 275_000),
        ("qwen3-235b-a22b", "h200", 4, 194_000),
    ],
)
def test_kv_capacity_is_what_the_weights_leave(name, card, tp, tokens):
    assert kv_capacity_tokens(model(name), gpu(card), tp) == pytest.approx(tokens, rel=0.01)
    assert step_times(name, card, tp).kv_capacity_tokens == pytest.approx(tokens, rel=0.01)


def test_more_gpus_than_kv_heads_hold_heads_twice():
    qwen = model("qwen3-235b-a22b")
    assert kv_bytes_held(qwen, 4) == qwen.kv_bytes_per_token
    assert kv_bytes_held(qwen, 8) == 2 * qwen.kv_bytes_per_token == 385_024
    assert step_times(qwen, "h100", 8).kv_bytes_per_token == 192_512


def test_names_are_forgiving_and_aliases_resolve():
    assert gpu(" H100 ").name == "h100"
    assert gpu("RTX_4090") is gpu("4090") is gpu("rtx-4090")
    assert gpu("RTX4090").name == "rtx-4090"
    older, newer = model("meta-llama/Meta-Llama-3-8B-Instruct"), model("Llama_3.1-8b")
    assert (older.context_tokens, newer.context_tokens) == (8_192, 131_072)
    assert msgspec.structs.replace(newer, context_tokens=8_192) == older


@pytest.mark.parametrize("find", [gpu, model])
def test_an_unknown_name_lists_the_known_ones(find):
    known = [entry.name for entry in (GPUS if find is gpu else MODELS)]
    with pytest.raises(ConfigError) as caught:
        find("abacus")
    assert "'abacus'" in caught.value.message
    assert all(name in caught.value.message for name in known)
    assert caught.value.hint


def test_a_model_larger_than_memory_is_refused_with_the_numbers_and_what_would_fit():
    with pytest.raises(ConfigError) as caught:
        step_times("llama-3.1-70b", "rtx-4090", 4)
    assert "141.1 GB" in caught.value.message
    assert "96 GB" in caught.value.message
    assert "86.4 GB" in caught.value.message
    assert "tensor parallelism of 8 or more" in caught.value.hint
    assert kv_capacity_tokens(model("llama-3.1-70b"), gpu("rtx-4090"), 8) > 0


def test_a_model_that_fits_on_no_number_of_gpus_asks_for_other_gpus():
    tiny = msgspec.structs.replace(gpu("rtx-4090"), memory_bytes=1_000_000_000)
    with pytest.raises(ConfigError, match="does not fit") as caught:
        step_times("qwen3-235b-a22b", tiny, 8)
    assert "more memory" in caught.value.hint


@pytest.mark.parametrize("tp", [0, -1, 3, 128])
def test_parallelism_that_does_not_divide_the_heads_is_refused_with_what_does(tp):
    with pytest.raises(ConfigError) as caught:
        step_times("llama-3.1-70b", "h100", tp)
    assert f"tensor parallelism of {tp}" in caught.value.message
    assert "64 query and 8 key/value heads" in caught.value.message
    assert caught.value.hint == "Use one of 1, 2, 4, 8, 16, 32, 64."


def test_heads_that_are_no_power_of_two_are_divided_as_they_can_be():
    smollm = model("smollm2-135m")
    for tp in (1, 3, 9):
        check_parallelism(smollm, tp)
    with pytest.raises(ConfigError, match="9 query and 3 key/value heads"):
        check_parallelism(smollm, 2)


def test_an_unmeasured_setting_is_refused_with_those_there_are():
    with pytest.raises(ConfigError) as caught:
        step_times("llama-3-8b", "h100", 1, "measured")
    assert "llama-3-8b on 1 x h100" in caught.value.message
    assert "qwen3-235b-a22b on 4 x h200" in caught.value.message
    assert "roofline" in caught.value.hint
    assert step_times("llama-3-8b", "h100", 1, "auto").prefill_s(1024) > 0


def test_an_unknown_back_end_lists_the_known_ones():
    with pytest.raises(ConfigError, match="measured, roofline, auto"):
        step_times("llama-3-8b", "h100", 1, "guess")


def test_hardware_and_models_of_ones_own_are_given_as_structs():
    card = msgspec.structs.replace(gpu("h100"), name="h999", memory_bytes_s=10e12)
    faster = step_times("llama-3.1-70b", card, 4)
    slower = step_times("llama-3.1-70b", "h100", 4, "roofline")
    assert faster.decode_s(1, 1000) < slower.decode_s(1, 1000)
    assert faster.prefill_s(4096) == pytest.approx(slower.prefill_s(4096))
