"""Step times: what was measured, what the roofline says, what every back end keeps."""

from __future__ import annotations

import csv
import math
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._common import find_data, no_data
from herasys_rt.costs.backends import step_times
from herasys_rt.costs.grid import GridSteps, StepGrid
from herasys_rt.costs.hardware import gpu
from herasys_rt.costs.layered import LayeredSteps, StepParts
from herasys_rt.costs.measured import measured_file, measured_settings
from herasys_rt.costs.models import model
from herasys_rt.costs.profile_fits import token_edge
from herasys_rt.costs.steps import StepTimes, attended_pairs

SECTION_6 = {
    # setting: prefill of 1k, 2k, 4k, 8k; decode behind 2,048 tokens of 1, 16, 64, 256
    ("llama-3.1-70b", "a100-80g", 4): ((199, 374, 738, 1489), (28.9, 32.3, 45.6, 94.2)),
    ("llama-3.1-70b", "h100", 4): ((71, 136, 285, 578), (16.5, 16.8, 22.3, 38.3)),
    ("llama-3.1-70b", "h200", 4): ((70, 138, 272, 625), (12.6, 13.2, 17.4, 35.1)),
    ("qwen3-235b-a22b", "a100-80g", 8): ((107, 182, 322, 608), (13.5, 28.6, 56.5, 91.9)),
    ("qwen3-235b-a22b", "h100", 8): ((54, 88, 139, 252), (9.1, 18.2, 31.1, 44.7)),
    ("qwen3-235b-a22b", "h200", 4): ((70, 105, 167, 351), (10.5, 21.4, 37.1, 47.8)),
}
SETTINGS = sorted(SECTION_6)
ROOFLINES = [*SETTINGS, ("llama-3-8b", "rtx-4090", 1), ("qwen3-coder-30b-a3b", "h20", 1)]


@cache
def measured(setting: tuple[str, str, int]) -> StepTimes:
    return step_times(*setting, "measured")


@cache
def roofline(setting: tuple[str, str, int]) -> StepTimes:
    return step_times(*setting, "roofline")


def every_back_end() -> list[StepTimes]:
    found = [measured(setting) for setting in measured_settings()]
    return [*found, *(roofline(setting) for setting in ROOFLINES)]


def off(value_s: float, wanted_ms: float) -> float:
    return abs(value_s * 1e3 / wanted_ms - 1.0)


def test_attended_pairs_are_those_of_a_causal_chunk_behind_a_cache():
    assert attended_pairs(4) == 8
    assert attended_pairs(4, cached=10) == 48
    assert attended_pairs(0, cached=10) == 0


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_measured_back_end_reproduces_its_measurements(setting):
    steps = measured(setting)
    prefill, decode = SECTION_6[setting]
    for tokens, ms in zip((1024, 2048, 4096, 8192), prefill, strict=True):
        assert off(steps.prefill_s(tokens), ms) < 0.02
    for batch, ms in zip((1, 16, 64, 256), decode, strict=True):
        assert off(steps.decode_s(batch, batch * 2048), ms) < 0.02


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_being_monotone_costs_little_anywhere_on_the_grid(setting):
    steps, grid = measured(setting), measured_file(*found(setting)).steps
    assert isinstance(grid, StepGrid)
    errors = [off(steps.prefill_s(tokens), ms) for tokens, ms in grid.prefill]
    for batch, row in zip(grid.batches, grid.decode, strict=True):
        for context, ms in zip(grid.contexts, row, strict=True):
            if ms is not None:
                errors.append(off(steps.decode_s(batch, batch * context), ms))
    assert max(errors) < 0.03
    assert sum(errors) / len(errors) < 0.005


def found(setting: tuple[str, str, int]):
    name, card, tp = setting
    return model(name), gpu(card), tp


def test_the_grids_are_those_of_the_published_table():
    path = find_data("profiles", "derived_step_latency.csv")
    if path is None:
        pytest.skip(no_data("profiles", "derived_step_latency.csv"))
    cards = {"a100_sxm": "a100-80g", "h100_sxm": "h100", "h200_sxm": "h200"}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 546
    for row in rows:
        setting = row["model"], cards[row["gpu"]], int(row["tp"])
        grid = measured_file(*found(setting)).steps
        assert isinstance(grid, StepGrid)
        size, ms = int(row["tokens_or_ctx"]), float(row["latency_ms"])
        if row["phase"] == "prefill":
            assert dict(grid.prefill)[size] == ms
        else:
            at = grid.batches.index(int(row["batch"]))
            assert grid.decode[at][grid.contexts.index(size)] == ms


def test_the_roofline_is_within_a_tenth_of_what_was_measured_on_average():
    errors: list[float] = []
    for setting in SETTINGS:
        modelled, grid = roofline(setting), measured_file(*found(setting)).steps
        assert isinstance(grid, StepGrid)
        errors += [off(modelled.prefill_s(tokens), ms) for tokens, ms in grid.prefill]
        for batch, row in zip(grid.batches, grid.decode, strict=True):
            for context, ms in zip(grid.contexts, row, strict=True):
                if ms is not None:
                    errors.append(off(modelled.decode_s(batch, batch * context), ms))
    assert sum(errors) / len(errors) < 0.12
    assert max(errors) < 0.45


def test_the_roofline_adds_reading_and_all_reduces_to_the_larger_of_both_roofs():
    steps = step_times("llama-3-8b", "h100", 1, "roofline")
    arch = model("llama-3-8b")
    layers_s = 32 * 35e-6
    reading_s = arch.weight_bytes / (3.35e12 * 0.73)
    context_s = 1000 * arch.kv_bytes_per_token / (3.35e12 * 0.73)
    assert steps.decode_s(1, 1000) == pytest.approx(reading_s + context_s + layers_s)
    operations = 2 * arch.active_parameters * 4096 + 2 * 32 * 4096 * 4096**2
    computing_s = operations / (989e12 * 0.72)
    assert steps.prefill_s(4096) == pytest.approx(computing_s + layers_s)


def test_a_batch_touches_ever_more_experts_but_never_more_than_there_are():
    arch = model("qwen3-235b-a22b")
    one, many = arch.touched_bytes(1), arch.touched_bytes(10_000)
    assert one == pytest.approx(2 * arch.active_parameters)
    assert many == pytest.approx(arch.weight_bytes)
    assert one < arch.touched_bytes(8) < many


def test_a_4090_has_its_edge_at_256_tokens():
    parts = measured_file(*found(("llama-3-8b", "rtx-4090", 1))).steps
    assert isinstance(parts, StepParts)
    assert token_edge(parts.dense) == 256
    steps = measured(("llama-3-8b", "rtx-4090", 1))
    assert steps.prefill_s(272) > 1.3 * steps.prefill_s(256)
    assert steps.prefill_s(256) < 1.6 * steps.prefill_s(16)


def test_decoding_beside_prefill_costs_more_than_decoding_alone():
    steps = measured(("llama-3-8b", "rtx-4090", 1))
    alone = steps.decode_s(32, 32_000) - steps.decode_s(32, 0)
    beside = steps.mixed_s(224, 0, 32, 32_000) - steps.mixed_s(224, 0, 32, 0)
    assert beside == pytest.approx(1.9 * alone, rel=0.05)


def test_cached_tokens_are_attended_to_but_not_computed():
    for steps in every_back_end():
        whole, tail = steps.prefill_s(4096), steps.prefill_s(1024, cached=3072)
        assert steps.prefill_s(1024) <= tail < whole


def test_prompts_beyond_the_grid_grow_by_their_attention():
    steps = measured(("llama-3.1-70b", "h200", 4))
    longer = steps.prefill_s(65_536) / steps.prefill_s(16_384)
    assert longer > 4.0


def test_nothing_takes_no_time():
    for steps in every_back_end():
        assert steps.prefill_s(0, cached=100) == 0.0
        assert steps.decode_s(0, 0) == 0.0
        assert steps.mixed_s(0, 0, 0, 0) == 0.0


counts = st.integers(0, 20_000)
batches = st.integers(1, 600)


@pytest.mark.parametrize("at", range(len(measured_settings()) + len(ROOFLINES)))
@given(prefill=counts, cached=counts, batch=batches, context=st.integers(0, 500_000))
def test_every_back_end_keeps_the_protocol(at, prefill, cached, batch, context):
    steps = every_back_end()[at]
    pairs = attended_pairs(prefill, cached)
    alone, prompt = steps.decode_s(batch, context), steps.prefill_s(prefill, cached)
    mixed = steps.mixed_s(prefill, pairs, batch, context)
    tiny = 1e-12
    assert all(math.isfinite(s) and s >= 0.0 for s in (alone, prompt, mixed))
    assert steps.mixed_s(0, 0, batch, context) == alone
    assert steps.mixed_s(prefill, pairs, 0, 0) == pytest.approx(prompt)
    assert mixed >= alone - tiny
    assert mixed >= prompt - tiny
    # Non-decreasing: in tokens, in the cache, in context, in the batch at one mean context.
    assert steps.prefill_s(prefill + 17, cached) >= prompt - tiny
    assert steps.prefill_s(prefill, cached + 17) >= prompt - tiny
    assert steps.decode_s(batch, context + 999) >= alone - tiny
    assert steps.decode_s(batch + 1, context + math.ceil(context / batch)) >= alone - tiny
    assert steps.mixed_s(prefill + 1, pairs, batch, context) >= mixed - tiny
    assert steps.mixed_s(prefill, pairs + 1, batch, context) >= mixed - tiny
    assert steps.mixed_s(prefill, pairs, batch, context + 1) >= mixed - tiny


def test_a_grid_may_start_at_one_token_and_lack_its_far_corner():
    grid = StepGrid(
        prefill=((1, 2.0), (100, 4.0), (200, 6.0)),
        batches=(1, 2),
        contexts=(10, 20, 30),
        decode=((2.0, 3.0, 4.0), (3.0, 5.0, None)),
    )
    steps = GridSteps(grid, kv_capacity_tokens=1, kv_bytes_per_token=1)
    assert steps.decode_s(2, 60) == pytest.approx(0.007)
    assert steps.decode_s(1, 15) == pytest.approx(0.0025)
    assert steps.prefill_s(1) == pytest.approx(0.002)
    assert steps.prefill_s(200) == pytest.approx(0.006)


def test_parts_add_up():
    parts = StepParts(
        dense=((1, 10.0), (101, 110.0)),
        head=((0, 0.0), (10, 5.0)),
        pair_ms=0.001,
        sequence_ms=0.1,
        context_ms=0.01,
        mixed_context_ms=0.02,
    )
    steps = LayeredSteps(parts, kv_capacity_tokens=1, kv_bytes_per_token=1)
    assert steps.decode_s(10, 100) == pytest.approx((19 + 5 + 1 + 1) / 1e3)
    assert steps.prefill_s(51) == pytest.approx((60 + 0.5 + 1.3) / 1e3)
    both = 10 + 50 + 3 + 1 + 0.5 + 2
    assert steps.mixed_s(46, 1000, 5, 100) == pytest.approx(both / 1e3)
