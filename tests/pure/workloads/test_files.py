"""The YAML form: what was written reads back, and every fault is told at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from herasys_rt.errors import ConfigError
from herasys_rt.workloads import NAMES, Workload, workload
from herasys_rt.workloads.agents import Chains, Chat, Reuse, ToolChain, TreeSearch
from herasys_rt.workloads.arrivals import Truth
from herasys_rt.workloads.documents import LongDocument, OwnDocuments
from herasys_rt.workloads.draws import Spread, Streams, fixed
from herasys_rt.workloads.files import parse_workload, read_workload, write_workload
from herasys_rt.workloads.graphs import Graph, StepShape
from herasys_rt.workloads.mixture import Duplicates, Mixture, Part
from herasys_rt.workloads.sources import Content
from herasys_rt.workloads.traces import Trace
from tests.pure.workloads.jobs_check import check_jobs

ROOT = Path(__file__).resolve().parents[3]

TEXTS = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
SPREADS = st.builds(
    Spread,
    mean=st.floats(0, 1000),
    sigma=st.floats(0, 3),
    law=st.sampled_from(["lognormal", "normal"]),
    low=st.floats(0, 10),
    high=st.floats(10, 1000),
    offset=st.floats(0, 10),
) | st.builds(fixed, st.integers(0, 1000))
REUSE: st.SearchStrategy[Reuse] = st.sampled_from(["blocks", "given", "none"])
SOURCES = [
    st.builds(LongDocument, kind=TEXTS, chunks=SPREADS, chunks_per_call=st.integers(1, 9)),
    st.builds(OwnDocuments, kind=TEXTS, hot_share=st.floats(0, 1), answer=SPREADS),
    st.builds(Chat, kind=TEXTS, turns=SPREADS, scale=st.floats(0.1, 10), reuse=REUSE),
    st.builds(ToolChain, kind=TEXTS, tool_docs=st.just((5, 50)), tool_s=SPREADS),
    st.builds(TreeSearch, kind=TEXTS, width=st.integers(1, 9), expansions=SPREADS),
    st.builds(
        Graph,
        kind=TEXTS,
        revealed=st.just(True),
        steps=st.tuples(
            st.builds(
                StepShape,
                id=st.just("think"),
                verb=st.just("llm.generate"),
                resource=st.just("llm"),
                operator=TEXTS,
                head=st.integers(1, 99),
                prompt=SPREADS,
                output=SPREADS.filter(
                    lambda spread: spread != fixed(0)
                ),  # a call says something
                model=st.none() | TEXTS,
            ),
            st.builds(
                StepShape,
                id=st.just("look"),
                verb=st.just("http.search"),
                resource=TEXTS,
                operator=st.just("web_search@1"),
                parents=st.just(("think",)),
                seconds=SPREADS,
                after_s=SPREADS,
            ),
        ),
    ),
]
MIXTURES = st.builds(
    Mixture,
    name=TEXTS,
    parts=st.lists(
        st.builds(Part, source=st.one_of(SOURCES), weight=st.floats(0.01, 100)),
        min_size=1,
        max_size=4,
        unique_by=lambda part: part.source.kind,
    ).map(tuple),
    duplicates=st.builds(Duplicates, share=st.floats(0, 0.99), exponent=st.floats(0, 3)),
    default_runs=st.integers(1, 1000),
    default_rate=st.floats(0.01, 1000),
)


def refused(text: str, folder: Path = Path()) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_workload(text, "w.yaml", folder)
    return caught.value.fields["faults"]


def only_part(found: Workload):
    assert isinstance(found, Mixture)
    (part,) = found.parts
    return part.source


# What was written reads back


@pytest.mark.parametrize("name", NAMES)
def test_named_workloads_read_back_as_they_were(name):
    assert parse_workload(write_workload(workload(name))) == workload(name)


@given(MIXTURES)
@settings(max_examples=60)
def test_any_mixture_reads_back_as_it_was(mixture):
    assert parse_workload(write_workload(mixture)) == mixture


def test_a_trace_reads_back_as_it_was(tmp_path):
    path = tmp_path / "é.csv"
    path.touch()
    found = Trace("Été ♥", "azure", str(path), 12, 3.5)
    assert parse_workload(write_workload(found)) == found


def test_files_of_lengths_read_back_as_they_were(tmp_path):
    path = tmp_path / "lengths.json"
    path.touch()
    sources = (Chat(pairs=str(path)), ToolChain(tasks=str(path)), Chains(str(path)))
    found = Mixture("m", tuple(Part(s) for s in sources), closed_loop_concurrency=4)
    assert parse_workload(write_workload(found)) == found


def test_what_has_no_form_is_not_written():
    with pytest.raises(TypeError, match="a Truth has no YAML form"):
        write_workload(Truth())  # pyright: ignore[reportArgumentType]

    class Own:
        kind = "own"

        def content(self, origin: str, streams: Streams) -> Content:
            return Content("own", ())

    with pytest.raises(TypeError, match="a Own has no YAML form"):
        write_workload(Mixture("own", (Part(Own()),)))


# What a file says


def test_a_named_workload_is_changed_where_the_file_says_so():
    found = parse_workload("base: mixed\nduplicates: 0.05\nruns: 7\nconcurrency: 100\n")
    like = workload("mixed")
    assert isinstance(found, Mixture)
    assert isinstance(like, Mixture)
    assert (found.name, found.parts) == ("mixed", like.parts)
    assert found.duplicates == Duplicates(0.05)
    assert (found.default_runs, found.closed_loop_concurrency) == (7, 100)


def test_a_rate_opens_a_closed_loop():
    found = parse_workload("base: mixed\nrate: 6\n")
    assert (found.default_rate, found.closed_loop_concurrency) == (6, None)


def test_a_concurrency_closes_an_open_loop():
    found = parse_workload("base: bfcl\nconcurrency: 6\n")
    assert (found.default_rate, found.closed_loop_concurrency) == (None, 6)


def test_lengths_of_a_named_workload_are_scaled():
    assert parse_workload("base: rag\nlength_scale: 0.125") == workload("rag", 0.125)


def test_parts_have_weights():
    found = parse_workload("parts: [{source: rag, weight: 3}, {source: web}]")
    kinds = [job.kind for job in found.jobs(1, 2000, None)]
    assert kinds.count("rag") / 2000 == pytest.approx(0.75, abs=0.04)
    assert found.closed_loop_concurrency == 30


def test_a_distribution_may_be_a_number_or_spelt_out():
    source = only_part(
        parse_workload(
            "parts:\n- source: chat\n  user: 50\n"
            "  output: {median: 100, sigma: 0.5, max: 900}\n"
            "  turns: {law: exponential, mean: 4, offset: 1, max: 9}\n"
        )
    )
    assert isinstance(source, Chat)
    assert source.user == fixed(50)
    assert source.output == Spread.of_median(100, 0.5, high=900)
    assert source.turns == Spread(4, law="exponential", offset=1, high=9)


def test_a_graph_of_ones_own():
    found = parse_workload(
        """
        parts:
          - source: graph
            kind: triage
            steps:
              - {id: sort, verb: llm.generate, head: 400, prompt: 80, output: 5}
              - {id: fetch, verb: http.search, seconds: 0.3, parents: [sort]}
              - {id: rank, verb: rerank, items: 20, item_tokens: 90, parents: [fetch]}
              - id: reply
                verb: llm.generate
                head: 400
                prompt: {mean: 700, sigma: 0.5}
                output: {mean: 200, sigma: 0.6, max: 800}
                parents: [sort, rank]
        """
    )
    jobs = found.jobs(1, 20, None)
    check_jobs(jobs)
    sort, fetch, rank, reply = jobs[0].steps
    assert [s.resource for s in jobs[0].steps] == ["llm", "search", "rerank", "llm"]
    assert [s.operator for s in (sort, fetch)] == ["generate@1", "web_search@1"]
    assert (rank.truth.items, rank.truth.tokens) == (20, 1800)
    assert fetch.truth.seconds == 0.3
    assert sort.truth.prompt_tokens == 480
    assert reply.parents == ("sort", "rank")


def test_one_step_more_leaves_the_lengths_of_the_others():
    head = "parts: [{source: graph, kind: k, steps: ["
    drawn = "{mean: 90, sigma: 1}"
    a = f"{{id: a, verb: llm.generate, prompt: {drawn}, output: {drawn}}}"
    b = "{id: b, verb: embed, items: {mean: 9, sigma: 1}}"
    one = parse_workload(f"{head}{a}]}}]").jobs(1, 30, None)
    two = parse_workload(f"{head}{b}, {a}]}}]").jobs(1, 30, None)
    assert [job.steps[0].truth for job in one] == [job.steps[1].truth for job in two]


def test_a_revealed_graph_may_wait_between_its_steps():
    text = (
        "parts: [{source: graph, kind: k, revealed: true, steps: ["
        "{id: a, verb: embed}, {id: b, verb: embed, parents: [a], after_s: 2}]}]"
    )
    (job,) = parse_workload(text).jobs(1, 1, None)
    assert job.revealed
    assert [step.after_s for step in job.steps] == [0.0, 2.0]


def test_a_file_without_a_name_is_called_after_itself(tmp_path):
    path = tmp_path / "nächtlich.yaml"
    path.write_text("parts: [{source: web}]", encoding="utf-8")
    assert read_workload(path).name == "nächtlich"
    assert read_workload(path).jobs(1, 1, None)[0].id == "nächtlich-0"


def test_paths_are_relative_to_the_file(tmp_path):
    (tmp_path / "trace.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,12,3\n"
    )
    path = tmp_path / "w.yaml"
    path.write_text("trace: {format: azure, path: trace.csv}\nruns: 1\n")
    found = read_workload(str(path))
    assert len(found.jobs(1, found.default_runs, found.default_rate)) == 1
    assert found.closed_loop_concurrency is None


def test_a_trace_without_times_is_a_closed_loop_unless_it_has_a_rate(tmp_path):
    (tmp_path / "t").touch()
    text = "trace: {format: claude_code, path: t}\n"
    assert parse_workload(text, folder=tmp_path).closed_loop_concurrency == 30
    assert parse_workload(text + "rate: 2", folder=tmp_path).closed_loop_concurrency is None


# Faults


def test_every_fault_is_told_at_once_with_its_line(tmp_path):
    faults = refused(
        """\
name: " "
runs: 0
rate: -1
concurrency: 4
base: mixd
duplicates: 1.5
lenght_scale: 3
parts:
  - source: rag
    weight: 0
  - source: chat
    turns: {mean: 5, sgima: 3}
    pairs: nowhere.json
  - source: chat
    turns: {mean: many}
    output: {mean: 3, median: 3}
  - source: graph
    kind: x
    steps:
      - {id: a, verb: llm.generate}
      - {id: b, verb: embed, prompt: 3}
      - {id: c, verb: embd}
  - source: ragg
  - 3
""",
        tmp_path,
    )
    told = "\n".join(faults)
    for expected in (
        "the whole: takes one of base, parts and trace, got base and parts",
        "the whole: takes a rate (open loop) or a concurrency (closed loop), not both",
        "the whole: 2 parts are of the kind 'sharegpt'; kinds must differ",
        "name (line 1): is blank",
        "runs (line 2): Input should be greater than or equal to 1, got 0",
        "rate (line 3): Input should be greater than 0, got -1",
        "base (line 5): no workload 'mixd'; did you mean 'mixed'?",
        "duplicates (line 6): Input should be less than 1, got 1.5",
        "lenght_scale (line 7): unknown key; did you mean 'length_scale'?",
        "parts.#1.weight (line 10): Input should be greater than 0, got 0",
        "parts.#2.turns.sgima (line 12): unknown key; did you mean 'sigma'?",
        f"parts.#2.pairs (line 13): there is no file {tmp_path / 'nowhere.json'}",
        "parts.#3.turns.mean (line 15): ",
        "parts.#3.output (line 16): takes one of mean and median",
        "parts.#4.steps.#1 (line 20): an LLM call needs a prompt, a head or both",
        "parts.#4.steps.#2 (line 21): embed takes no prompt",
        "parts.#4.steps.#3.verb (line 22): no verb 'embd'; did you mean 'embed'?",
        "parts.#5.source (line 23): no source 'ragg'; did you mean 'rag'?",
        "parts.#6 (line 24): ",
    ):
        assert expected in told
    assert len(faults) == 19


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "takes one of base, parts and trace, got none"),
        ("runs: 5", "takes one of base, parts and trace, got none"),
        ("parts: []", "has 0 entries, and 1 to 1,000 are taken"),
        ("parts: rag", "is no list: 'rag'"),
        ("parts: [{source: graph, kind: k, steps: []}]", "has 0 entries"),
        ("base: [rag]", "should be a valid string"),
        ("base: rag\nrate: .nan", "finite number"),
        ("base: rag\nrate: .inf", "finite number"),
        ("base: rag\nruns: 200001", "less than or equal to 200000"),
        ("base: rag\nlength_scale: 0", "greater than 0"),
        ("base: rag\nduplicates: {share: 0.1, expnent: 1}", "did you mean 'exponent'?"),
        ("parts: [{source: rag}]\nlength_scale: 2", "length_scale goes with base"),
        ("trace: {format: zip, path: x}", "trace.format"),
        ("trace: {path: x}", "trace.format (line 1): this key is required"),
        ("parts: [{source: graph, steps: [{id: a, verb: embed}]}]", "this key is required"),
        ("parts: [{weight: 2}]", "no source ''"),
        ('base: rag\nname: "a\\0b"', "cannot be shown"),
        ('base: rag\nname: "\\ud800"', "unable to parse raw data as a unicode string"),
        ("parts: [{source: chat, turns: {law: uniform, mean: 3}}]", "law"),
        ("parts: [{source: chat, turns: 1001}]", "the mean is at most 1,000"),
        ("parts: [{source: chat, user: 1e99}]", "less than or equal to 2000000"),
        ("parts: [{source: chat, user: -1}]", "greater than or equal to 0"),
        ("parts: [{source: chat, user: {mean: 3, sigma: 6}}]", "at most 5, got 6"),
        (
            "parts: [{source: chat, user: {mean: 3, min: 9, max: 5}}]",
            "max 5 is below min 9",
        ),
        (
            "parts: [{source: chat, user: {median: 3, law: normal}}]",
            "median is for a lognormal; a normal takes mean",
        ),
        (
            "parts: [{source: chat, turns: {mean: 3, sigma: 1, law: exponential}}]",
            "an exponential has no sigma",
        ),
        ("parts: [{source: tool_chain, tool_docs: [9, 3]}]", "goes from 9 down to 3"),
        ("parts: [{source: own_documents, hot_share: 1.1}]", "less than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused(text, problem):
    assert problem in "\n".join(refused(text))


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ("{id: a, verb: embed}, {id: a, verb: embed}", "two steps have the id 'a'"),
        ("{id: a, verb: embed, parents: [a]}", "parent 'a', which is no step before it"),
        (
            "{id: first, verb: embed}, {id: b, verb: embed, parents: [frist]}",
            "did you mean 'first'?",
        ),
        ("{id: a, verb: embed, after_s: 1}", "has after_s, which needs revealed: true"),
        ("{id: 'a b', verb: embed}", "should match pattern"),
        ("{id: a, vreb: embed}", "vreb (line 1): unknown key; did you mean 'verb'?"),
        ("{id: a, verb: llm.generate, prompt: 3}", "an LLM call needs an output"),
        (
            "{id: a, verb: llm.generate, prompt: 3, output: 1, items: 2, seconds: 1}",
            "llm.generate takes no items, seconds",
        ),
        (
            "{id: a, verb: rerank, seconds: 1, items: 2}",
            "rerank with seconds takes no items",
        ),
        ("{id: a, verb: embed, resource: ''}", "is blank"),
    ],
)
def test_a_graph_that_cannot_be_is_refused(steps, problem):
    text = f"parts: [{{source: graph, kind: k, steps: [{steps}]}}]"
    assert problem in "\n".join(refused(text))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- 3", "holds a list"),
        ("parts: [", "line 1"),
        ("runs: 5\nruns: 6", "the key 'runs' is given twice"),
        ("base: !!python/name:os.system", "line 1"),
    ],
)
def test_what_is_no_workload_file_is_refused(text, problem):
    with pytest.raises(ConfigError, match=r"w\.yaml") as caught:
        parse_workload(text, "w.yaml")
    assert problem in caught.value.message


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml does not exist"):
        read_workload(tmp_path / "absent.yaml")


def test_a_folder_is_no_workload_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_workload(tmp_path)
