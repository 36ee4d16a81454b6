"""The named workloads: what the papers fix of them, and what every workload promises."""

from __future__ import annotations

import functools
import hashlib
import math
import statistics
import subprocess
import sys
from collections import Counter

import pytest

from herasys_rt.errors import ConfigError
from herasys_rt.workloads import NAMES, Job, workload
from herasys_rt.workloads.agents import Chat, ToolChain, TreeSearch
from herasys_rt.workloads.catalogue import LENGTH_SCALE
from herasys_rt.workloads.mixture import Duplicates, Mixture, Part
from tests.pure.workloads.jobs_check import calls, check_jobs, shared

HERASYS = ("rag", "rag_rerank", "web", "mixed", "mixed_long", "docs")
HEXAGENT = {
    "sharegpt": (100, 10.0),
    "bfcl": (400, 40.0),
    "lats": (100, 40.0),
    "agents_mixed": (100, 10.0),
}


@functools.cache
def jobs_of(name: str, runs: int = 200, seed: int = 1, rate: float | None = None):
    return workload(name).jobs(seed, runs, rate)


def without_duplicates(name: str) -> Mixture:
    found = workload(name)
    assert isinstance(found, Mixture)
    return Mixture(name, found.parts)


def steps_of(job: Job) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(step.id, step.verb, step.parents) for step in job.steps]


# Every workload


def test_the_names_are_those_of_the_papers():
    assert list(NAMES) == [*HERASYS, *HEXAGENT]


@pytest.mark.parametrize("name", NAMES)
def test_jobs_are_sound(name):
    jobs = jobs_of(name, runs=30, rate=5.0)
    assert len(jobs) == 30
    check_jobs(jobs)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_jobs(name):
    jobs = jobs_of(name, 10, seed=3, rate=2.0)
    assert workload(name).jobs(3, 10, 2.0) == jobs
    assert workload(name).jobs(4, 10, 2.0) != jobs


@pytest.mark.parametrize("name", NAMES)
def test_asking_for_more_runs_changes_none(name):
    assert list(jobs_of(name, 25, rate=2.0)[:10]) == jobs_of(name, 10, rate=2.0)


@pytest.mark.parametrize("name", NAMES)
def test_the_rate_changes_arrivals_and_nothing_else(name):
    slow, fast = jobs_of(name, 10, rate=1.0), jobs_of(name, 10, rate=100.0)
    loop = jobs_of(name, 10)
    assert [job.steps for job in slow] == [job.steps for job in fast]
    assert [job.steps for job in slow] == [job.steps for job in loop]
    assert {job.arrival_s for job in loop} == {None}
    for one, other in zip(slow, fast, strict=True):
        assert one.arrival_s == pytest.approx((other.arrival_s or 0) * 100)


@pytest.mark.parametrize("name", NAMES)
def test_one_run_is_enough(name):
    check_jobs(jobs_of(name, 1))


@pytest.mark.parametrize("runs", [0, -1, 200_001])
def test_a_number_of_runs_that_cannot_be_is_refused(runs):
    with pytest.raises(ConfigError, match=f"asked for {runs} runs"):
        jobs_of("rag", runs)


@pytest.mark.parametrize("rate", [0.0, -2.0, math.inf, math.nan])
def test_a_rate_that_cannot_be_is_refused(rate):
    with pytest.raises(ConfigError, match=f"rate of {rate:g} runs/s"):
        jobs_of("rag", 10, rate=rate)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="seed is -3"):
        jobs_of("rag", 10, seed=-3)


def test_a_huge_seed_and_a_huge_rate_are_taken():
    jobs = jobs_of("rag", 10, seed=2**200, rate=1e12)
    check_jobs(jobs)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match="known: rag, rag_rerank, web, mixed"):
        workload("ragg")


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_length_scale_that_cannot_be_is_refused(scale):
    with pytest.raises(ConfigError, match="length_scale"):
        workload("rag", scale)


def test_jobs_do_not_depend_on_the_hash_seed():
    code = (
        "import hashlib\n"
        "from herasys_rt.workloads import NAMES, workload\n"
        "found = [repr(workload(n).jobs(5, 12, 3.0)) for n in NAMES]\n"
        "print(hashlib.sha256(repr(found).encode()).hexdigest())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "4711", "PYTHONPATH": ":".join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=True,
    )
    here = repr([repr(workload(name).jobs(5, 12, 3.0)) for name in NAMES])  # another seed
    assert done.stdout.strip() == hashlib.sha256(here.encode()).hexdigest()


# HeraSys


@pytest.mark.parametrize("name", HERASYS)
def test_herasys_workloads_are_closed_loops(name):
    found = workload(name)
    assert found.default_rate is None
    assert found.closed_loop_concurrency == 30
    assert found.default_runs == 300


def test_rag_is_embed_search_answer():
    (job,) = jobs_of("rag", 1)
    assert steps_of(job) == [
        ("embed", "embed", ()),
        ("search", "pg.search", ("embed",)),
        ("answer", "llm.generate", ("search",)),
    ]
    assert not job.revealed
    embed, _, answer = (step.truth for step in job.steps)
    assert (embed.items, embed.tokens) == (1, 12)
    assert answer.prompt_tokens == 60 + 12 * 200 + 12


def test_rag_rerank_keeps_eight_of_twelve_chunks():
    (job,) = jobs_of("rag_rerank", 1)
    assert [step.verb for step in job.steps] == [
        "embed",
        "pg.search",
        "rerank",
        "llm.generate",
    ]
    rerank, answer = job.steps[2].truth, job.steps[3].truth
    assert (rerank.items, rerank.tokens) == (12, 12 * 212)
    assert answer.prompt_tokens == 60 + 8 * 200 + 12


def test_web_rewrites_searches_and_answers():
    jobs = jobs_of("web", 2000)
    rewrite, search, answer = jobs[0].steps
    assert (rewrite.truth.prompt_tokens, rewrite.truth.output_tokens) == (72, 20)
    assert answer.truth.prompt_tokens == 60 + 5 * 60 + 12
    assert search.verb == "http.search"
    taken = [job.steps[1].truth.seconds or 0.0 for job in jobs if not job.duplicate_of]
    assert statistics.median(taken) == pytest.approx(0.4, rel=0.05)
    assert statistics.stdev(map(math.log, taken)) == pytest.approx(0.5, rel=0.05)


def test_answers_have_the_papers_lengths():
    lengths = [
        s.truth.output_tokens for s in calls(without_duplicates("rag").jobs(1, 8000, None))
    ]
    uncapped = [length for length in lengths if length < 512]
    assert max(lengths) == 512
    assert len(uncapped) / len(lengths) > 0.98
    assert statistics.fmean(lengths) == pytest.approx(148, rel=0.02)  # the cap takes 1 %
    assert statistics.median(lengths) == pytest.approx(150 * math.exp(-0.18), rel=0.03)


def test_mixed_has_the_papers_shares():
    kinds = Counter(job.kind for job in jobs_of("mixed", 3000))
    shares = {kind: count / 3000 for kind, count in kinds.items()}
    expected = {"rag": 0.375, "rag_rerank": 0.375, "web": 0.25}
    assert shares == pytest.approx(expected, abs=0.02)


def test_mixed_long_adds_five_percent_of_long_documents():
    kinds = Counter(job.kind for job in jobs_of("mixed_long", 3000))
    assert kinds["long"] / 3000 == pytest.approx(0.05, abs=0.01)
    assert kinds["web"] / 3000 == pytest.approx(0.95 * 0.25, abs=0.02)


def test_a_part_of_a_mix_draws_what_it_draws_alone():
    mixed = [
        j.steps for j in without_duplicates("mixed").jobs(1, 100, None) if j.kind == "web"
    ]
    alone = [j.steps for j in without_duplicates("web").jobs(1, len(mixed), None)]
    assert mixed == alone


def test_a_long_document_is_embedded_mapped_and_reduced():
    jobs = [j for j in jobs_of("mixed_long", 3000) if j.kind == "long"]
    chunks = [job.steps[0].truth.items for job in jobs]
    assert statistics.fmean(chunks) == pytest.approx(24, rel=0.12)
    for job, count in zip(jobs, chunks, strict=True):
        document, *maps, reduce = job.steps
        assert document.truth.tokens == 512 * count
        assert len(maps) == math.ceil(count / 4)
        assert {step.truth.output_tokens for step in maps} == {100}
        read = sum(step.truth.prompt_tokens - 72 for step in maps)
        assert read == 512 * count
        assert reduce.parents == tuple(step.id for step in maps)
        assert reduce.truth.prompt_tokens == 72 + 100 * len(maps)


def test_docs_runs_embed_hundreds_of_chunks():
    jobs = jobs_of("docs", 500)
    chunks = [sum(s.truth.items for s in j.steps if s.label == "document") for j in jobs]
    assert statistics.fmean(chunks) == pytest.approx(256, rel=0.15)
    job = jobs[0]
    assert [step.verb for step in job.steps] == ["embed"] * 5 + [
        "pg.search",
        "llm.generate",
    ]
    assert len(job.steps[5].parents) == 5


def test_docs_runs_share_hot_documents_by_zipfs_law():
    jobs = without_duplicates("docs").jobs(1, 2000, None)
    documents = [s for job in jobs for s in job.steps if s.label == "document"]
    hot = [s for s in documents if "/hot-" in s.truth.prompt_key]
    assert len(hot) / len(documents) == pytest.approx(0.5, abs=0.03)
    counts = Counter(step.truth.prompt_key for step in hot)
    assert counts["docs/hot-0"] == max(counts.values())
    # Without replacement within a run, so the head is flatter than 1/k.
    assert 1.3 < counts["docs/hot-0"] / counts["docs/hot-1"] < 2.2
    assert len(counts) > 90
    for job in jobs:
        keys = [s.truth.prompt_key for s in job.steps if s.label == "document"]
        assert len(set(keys)) == len(keys)


def test_a_hot_document_is_as_long_in_every_run():
    jobs = without_duplicates("docs").jobs(1, 300, None)
    sizes: dict[str, set[int]] = {}
    for step in (s for job in jobs for s in job.steps if s.label == "document"):
        sizes.setdefault(step.truth.prompt_key, set()).add(step.truth.items)
    assert all(len(found) == 1 for found in sizes.values())


def test_instructions_are_shared_by_all_runs_and_the_rest_by_duplicates():
    jobs = jobs_of("rag", 60)
    first, second = (job.steps[-1].truth.prefix for job in jobs[:2])
    assert shared(first, second) == 60 // 16
    repeated = next(job for job in jobs if job.duplicate_of)
    original = next(job for job in jobs if job.id == repeated.duplicate_of)
    assert repeated.steps == original.steps


def test_lengths_are_scaled_but_for_the_question():
    (job,) = workload("rag", 1 / 8).jobs(1, 1, None)
    assert job.steps[0].truth.tokens == 12
    assert job.steps[2].truth.prompt_tokens == 8 + 12 * 25 + 12
    outputs = [
        s.truth.output_tokens for s in calls(workload("rag", 1 / 8).jobs(1, 3000, None))
    ]
    assert min(outputs) == 8
    assert max(outputs) <= 64
    assert statistics.fmean(outputs) == pytest.approx(150 / 8, rel=0.1)


def test_no_scaled_length_falls_below_eight():
    (job,) = workload("web", 1e-6).jobs(1, 1, None)
    assert job.steps[0].truth.prompt_tokens == 8 + 12
    assert job.steps[0].truth.output_tokens == 8


# Duplicates


def mixture(share: float, exponent: float = 1.0) -> Mixture:
    parts = without_duplicates("web").parts
    return Mixture("web", parts, Duplicates(share, exponent))


@pytest.mark.parametrize("share", [0.05, 0.10, 0.15])
def test_duplicates_have_their_share(share):
    jobs = mixture(share).jobs(1, 4000, None)
    assert sum(bool(job.duplicate_of) for job in jobs) / 4000 == pytest.approx(
        share, abs=0.012
    )


def test_without_duplicates_nothing_is_repeated():
    assert not any(job.duplicate_of for job in mixture(0).jobs(1, 200, None))


def test_the_first_run_repeats_nothing():
    assert mixture(0.999).jobs(1, 5, None)[0].duplicate_of == ""


def test_duplicates_follow_zipfs_law_over_what_came_before():
    expected: Counter[int] = Counter()
    drawn: Counter[int] = Counter()
    for seed in range(25):
        jobs = mixture(0.5).jobs(seed, 400, None)
        ranks: dict[str, int] = {}
        for job in jobs:
            if job.duplicate_of:
                drawn[ranks[job.duplicate_of]] += 1
                harmonic = sum(1 / k for k in range(1, len(ranks) + 1))
                for rank in range(min(len(ranks), 8)):
                    expected[rank] += 1 / (rank + 1) / harmonic  # pyright: ignore[reportArgumentType]
            else:
                ranks[job.id] = len(ranks)
    for rank in range(8):
        assert drawn[rank] == pytest.approx(expected[rank], rel=0.12)


def test_the_share_of_duplicates_does_not_change_what_is_fresh():
    few, many = mixture(0.05).jobs(1, 200, 3.0), mixture(0.5).jobs(1, 200, 3.0)
    for one, other in zip(few, many, strict=True):
        assert one.arrival_s == other.arrival_s
        if not one.duplicate_of and not other.duplicate_of:
            assert one.steps == other.steps


def test_a_duplicate_is_of_a_run_of_its_kind():
    jobs = {job.id: job for job in jobs_of("mixed", 1000)}
    for job in jobs.values():
        if job.duplicate_of:
            assert jobs[job.duplicate_of].kind == job.kind
            assert not jobs[job.duplicate_of].duplicate_of


# HexAGenT


@pytest.mark.parametrize("name", HEXAGENT)
def test_hexagent_workloads_have_the_papers_runs_and_rates(name):
    found = workload(name)
    assert (found.default_runs, found.default_rate) == HEXAGENT[name]
    assert found.closed_loop_concurrency is None
    assert not any(job.duplicate_of for job in jobs_of(name, 50))


@pytest.mark.parametrize("name", HEXAGENT)
def test_agents_reveal_their_steps(name):
    assert all(job.revealed for job in jobs_of(name, 20))


def test_every_trace_has_its_one_scale():
    assert set(LENGTH_SCALE) == set(HEXAGENT)


def test_a_conversation_accumulates_its_history():
    jobs = jobs_of("sharegpt", 1000)
    turns = [len(job.steps) for job in jobs]
    assert statistics.fmean(turns) == pytest.approx(1 + 5.5, rel=0.06)
    assert max(turns) <= 40
    outputs = [step.truth.output_tokens for step in calls(jobs)]
    assert statistics.fmean(outputs) == pytest.approx(277, rel=0.03)
    users = [job.steps[0].truth.prompt_tokens for job in jobs]
    assert statistics.fmean(users) == pytest.approx(
        256 * LENGTH_SCALE["sharegpt"], rel=0.06
    )
    for job in jobs[:50]:
        for before, after in zip(job.steps, job.steps[1:], strict=False):
            assert after.parents == (before.id,)
            held = before.truth.prompt_tokens + before.truth.output_tokens
            assert after.truth.prompt_tokens > held
            whole = before.truth.prefix + before.truth.produced
            assert after.truth.prefix[: len(whole)] == whole


def test_a_function_calling_chain_has_the_papers_lengths():
    jobs = jobs_of("bfcl", 600)
    counts = [len(job.steps) for job in jobs]
    assert statistics.fmean(counts) == pytest.approx(11, rel=0.03)
    outputs = [step.truth.output_tokens for step in calls(jobs)]
    assert statistics.fmean(outputs) == pytest.approx(34, rel=0.03)
    grown = [
        b.truth.prompt_tokens - a.truth.prompt_tokens - a.truth.output_tokens
        for job in jobs
        for a, b in zip(job.steps, job.steps[1:], strict=False)
    ]
    assert statistics.fmean(grown) == pytest.approx(735 * LENGTH_SCALE["bfcl"], rel=0.03)


def test_runs_with_the_same_tools_share_their_documents():
    jobs = jobs_of("bfcl", 200)
    firsts = Counter(job.steps[0].truth.prefix[0] for job in jobs)
    assert len(firsts) == 20
    by_tools: dict[int, list[Job]] = {}
    for job in jobs:
        by_tools.setdefault(job.steps[0].truth.prefix[0], []).append(job)
    one, other, *_ = next(group for group in by_tools.values() if len(group) > 1)
    common = shared(one.steps[0].truth.prefix, other.steps[0].truth.prefix)
    scale = LENGTH_SCALE["bfcl"]
    assert int(3082 * scale) // 16 <= common <= 6892 * scale // 16


def test_a_tree_search_fans_out_and_joins():
    jobs = jobs_of("lats", 150)
    expansions = [len(job.steps) / 10 for job in jobs]
    assert statistics.fmean(expansions) == pytest.approx(16, rel=0.06)
    found = calls(jobs)
    assert statistics.fmean(s.truth.prompt_tokens for s in found) == pytest.approx(
        467 * LENGTH_SCALE["lats"], rel=0.02
    )
    assert statistics.fmean(s.truth.output_tokens for s in found) == pytest.approx(
        73, rel=0.02
    )
    steps = {step.id: step for step in jobs[0].steps}
    assert steps["expand-0-0"].parents == ()
    assert steps["evaluate-0-3"].parents == ("expand-0-3",)
    assert steps["expand-1-2"].parents == tuple(f"evaluate-0-{i}" for i in range(5))


def test_answers_of_one_expansion_have_one_prompt_and_never_fuse():
    job = jobs_of("lats", 1)[0]
    answers = [step.truth for step in job.steps if step.id.startswith("expand-0-")]
    assert len({truth.prefix for truth in answers}) == 1
    assert len({truth.output_tokens for truth in answers}) > 1
    assert {truth.prompt_key for truth in answers} == {""}


def test_the_agents_mix_is_equal_thirds():
    kinds = Counter(job.kind for job in jobs_of("agents_mixed", 150))
    assert {kind: count / 150 for kind, count in kinds.items()} == pytest.approx(
        {"sharegpt": 1 / 3, "bfcl": 1 / 3, "lats": 1 / 3}, abs=0.08
    )


@pytest.mark.parametrize("name", HEXAGENT)
def test_the_length_scale_is_one_number_for_all_lengths(name):
    one, two = workload(name).jobs(1, 20, None), workload(name, 2.0).jobs(1, 20, None)
    for a, b in zip(calls(one), calls(two), strict=True):
        assert b.truth.output_tokens == pytest.approx(2 * a.truth.output_tokens, abs=1)
        assert b.truth.prompt_tokens == pytest.approx(2 * a.truth.prompt_tokens, abs=90)


@pytest.mark.parametrize("kind", [Chat, ToolChain, TreeSearch])
def test_the_scale_of_prompts_leaves_outputs_as_they_are(kind):
    def of(source):
        return calls(Mixture("m", (Part(source),)).jobs(1, 20, None))

    for a, b in zip(of(kind()), of(kind(prompt_scale=3.0)), strict=True):
        assert b.truth.output_tokens == a.truth.output_tokens
        assert b.truth.prompt_tokens > a.truth.prompt_tokens
