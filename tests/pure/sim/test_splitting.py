"""Graphs cut ahead: parts, pipelines, heads; and calls in two stages."""

from __future__ import annotations

from msgspec.structs import replace

from herasys_rt.sim.splitting import HEAD_TOKENS, split
from herasys_rt.sim.staging import staged
from herasys_rt.workloads import Job, workload
from tests.pure.sim.sim_lab import step


def job(*steps: object) -> Job:
    return Job("j", "kind", tuple(steps), 0.0)  # type: ignore[arg-type]


def edges(made: Job) -> dict[str, tuple[str, ...]]:
    return {s.id: s.parents for s in made.steps}


def test_lists_are_cut_and_whoever_follows_waits_for_all_parts() -> None:
    made = split(
        job(
            step("e", "embedding", items=5, tokens=50, prompt_key="k"),
            step("r", "rerank", "e", items=12, tokens=120),
            step("a", "llm", "r", prompt_tokens=9),
        ),
        2,
    )
    assert edges(made) == {
        "e.0": (),
        "e.1": (),
        "r.0": ("e.0",),
        "r.1": ("e.1",),
        "a": ("r.0", "r.1"),
    }
    truths = {s.id: s.truth for s in made.steps}
    assert (truths["e.0"].items, truths["e.0"].tokens) == (3, 30)
    assert (truths["e.1"].items, truths["e.1"].tokens) == (2, 20)
    assert (truths["e.0"].prompt_key, truths["r.0"].prompt_key) == ("k/0of2", "")


def test_what_has_one_item_stays_whole() -> None:
    whole = job(step("e", "embedding", items=1), step("s", "retrieval", "e"))
    assert split(whole, 2) == whole
    assert split(whole, 1) is whole


def test_heads_of_prompts_that_wait_are_computed_ahead() -> None:
    made = split(
        job(
            step("s", "retrieval"),
            step("a", "llm", "s", prompt_tokens=99, prefix=(1, 2, 3, 4), output_tokens=5),
            step("b", "llm", prompt_tokens=99),
        ),
        1,
        partial_prefill=True,
    )
    head = made.steps[1]
    assert (head.id, head.verb, head.parents) == ("a.head", "llm.prefill", ())
    assert (head.truth.prompt_tokens, head.truth.prefix) == (HEAD_TOKENS, (1, 2, 3))
    assert edges(made)["a"] == ("s",)
    assert [s.id for s in made.steps] == ["s", "a.head", "a", "b"]


def test_agents_have_no_graph_to_cut() -> None:
    (revealed,) = workload("lats").jobs(0, 1, 1.0)
    assert split(revealed, 2, partial_prefill=True) is revealed


def test_a_call_in_two_stages_keeps_its_id_for_those_who_wait() -> None:
    made = staged(
        replace(
            job(
                step("a", "llm", after_s=0.5, prompt_tokens=9, output_tokens=4),
                step("t", "python", "a"),
            ),
            revealed=True,
        )
    )
    first, second, tool = made.steps
    assert (first.id, first.verb, first.after_s) == ("a.prefill", "llm.prefill", 0.5)
    assert (second.id, second.verb, second.after_s) == ("a", "llm.decode", 0.0)
    assert second.parents == ("a.prefill",)
    assert tool.parents == ("a",)
    assert (first.truth.output_tokens, second.truth.output_tokens) == (0, 4)
