"""Jobs in the kernel's terms: specs that hold, signatures that say what is equal."""

from __future__ import annotations

import hashlib

import pytest

from herasys_rt import policies
from herasys_rt.core.commands import AcceptRun, FinishFragment, FinishRun, StartBatch
from herasys_rt.core.events import (
    Event,
    InstanceUp,
    ItemFinished,
    NodesRevealed,
    PoolDeclared,
    RunClosed,
    RunSubmitted,
    SpecRegistered,
)
from herasys_rt.core.invariants import validate
from herasys_rt.core.kernel import KernelConfig, handle, new_state
from herasys_rt.core.values import Value
from herasys_rt.errors import ConfigError
from herasys_rt.graph import codec
from herasys_rt.graph.validation import check_inputs, validate_spec
from herasys_rt.workloads import NAMES, Job, Step, Truth, workload
from herasys_rt.workloads.mixture import Duplicates, Mixture
from herasys_rt.workloads.specs import Piece, Specs


def step(id: str, key: str = "", *parents: str, **more: object) -> Step:
    truth = Truth(tokens=12, prompt_key=key)
    return Step(id, "embed", "embedding", "embed@1", truth, parents, **more)  # pyright: ignore[reportArgumentType]


def job(id: str, *steps: Step, revealed: bool = False, tenant: str = "default") -> Job:
    return Job(id, "test", steps, revealed=revealed, tenant=tenant)


def pieces_of(specs: Specs, found: Job) -> list[Piece]:
    if not found.revealed:
        return [specs.run(found)]
    steps = [specs.step(found, i) for i in range(len(found.steps))]
    return [specs.agent(found), *steps]


@pytest.mark.parametrize("name", NAMES)
def test_every_piece_is_a_sound_spec_with_inputs_that_fit(name):
    specs = Specs()
    for found in workload(name).jobs(1, 6, None):
        for piece in pieces_of(specs, found):
            assert validate_spec(piece.spec) == []
            check_inputs(piece.spec, codec.decode(piece.inputs))
            assert len(piece.signatures) == len(piece.spec.nodes) == len(piece.steps)
            assert piece.collections == ((),) * len(piece.steps)
            for node, own in zip(piece.spec.nodes, piece.steps, strict=True):
                assert (node.verb, node.resource) == (own.verb, own.resource)


def test_jobs_of_equal_structure_share_one_spec():
    specs = Specs()
    jobs = workload("rag").jobs(1, 20, None)
    assert len({specs.run(found).spec.id for found in jobs}) == 1
    agents = workload("lats").jobs(1, 2, None)
    ids = {piece.spec.id for found in agents for piece in pieces_of(specs, found)}
    assert len(ids) == 3  # the agent's own, expand, evaluate


def test_inputs_differ_from_piece_to_piece():
    specs = Specs()
    for name in ("rag", "lats"):
        jobs = workload(name).jobs(1, 20, None)[:3]
        inputs = [piece.inputs for found in jobs for piece in pieces_of(specs, found)]
        assert len(set(inputs)) == len(inputs)


def test_equal_content_has_equal_signatures():
    specs = Specs()
    one = specs.run(job("1", step("a", "x"), step("b", "y", "a")))
    same = specs.run(job("2", step("a", "x"), step("b", "y", "a")))
    other = specs.run(job("3", step("a", "x"), step("b", "z", "a")))
    assert one.signatures == same.signatures
    assert one.signatures[0] == other.signatures[0]
    assert one.signatures[1] != other.signatures[1]


def test_equal_content_below_different_content_is_different():
    specs = Specs()
    one = specs.run(job("1", step("a", "x"), step("b", "y", "a")))
    other = specs.run(job("2", step("a", "z"), step("b", "y", "a")))
    assert one.signatures[1] != other.signatures[1]


def test_equal_content_of_another_operator_or_tenant_is_different():
    specs = Specs()
    one = specs.run(job("1", step("a", "x")))
    tenant = specs.run(job("2", step("a", "x"), tenant="other"))
    rerank = Step("a", "rerank", "rerank", "rerank@1", Truth(prompt_key="x"))
    signatures = {p.signatures for p in (one, tenant, specs.run(job("3", rerank)))}
    assert len(signatures) == 3


def test_without_a_key_nothing_is_equal():
    specs = Specs()
    one = specs.run(job("1", step("a"), step("b", "y", "a")))
    other = specs.run(job("2", step("a"), step("b", "y", "a")))
    assert not set(one.signatures) & set(other.signatures)


def test_a_node_is_equal_wherever_it_stands():
    specs = Specs()
    long = specs.run(job("1", step("q", "x"), step("d", "doc"), step("e", "y", "q", "d")))
    alone = specs.run(job("2", step("other", "doc")))
    assert long.signatures[1] == alone.signatures[0]


def test_a_revealed_step_is_signed_by_its_content_alone():
    specs = Specs()
    one = job("1", step("a", "x"), step("b", "y", "a"), revealed=True)
    other = job("2", step("a", "z"), step("b", "y", "a"), revealed=True)
    assert specs.step(one, 1).signatures == specs.step(other, 1).signatures
    assert specs.step(one, 0).signatures != specs.step(other, 0).signatures


def test_parents_of_a_revealed_step_are_fragments():
    a, b = step("a", label="think"), step("b")
    found = job("1", a, b, step("c", "", "a", "b", label="act"), revealed=True)
    assert Specs().step(found, 2).parents == ((0, "think"), (1, "embed@1"))


def test_the_fingerprint_of_the_pool_is_part_of_signatures():
    found = job("1", step("a", "x"))
    one, other = Specs(lambda _: "pool-1"), Specs(lambda _: "pool-2")
    assert one.run(found).signatures != other.run(found).signatures


@pytest.mark.parametrize(
    "found",
    [job("1", step("a"), revealed=True), job("1", step("a", after_s=0.5))],
)
def test_a_job_that_is_revealed_is_no_known_graph(found):
    with pytest.raises(ConfigError, match="not known on its arrival"):
        Specs().run(found)


def test_names_may_be_any_text():
    found = Job("ä ♥-0", "ä ♥", (step("é", "ключ"),), tenant="租户")
    piece = Specs().run(found)
    assert validate_spec(piece.spec) == []
    assert codec.decode(piece.inputs)["origin"] == "ä ♥-0"


# On the kernel


class Bench:
    """A kernel that is fed with jobs and whose work ends at once."""

    def __init__(self) -> None:
        self.state = new_state(KernelConfig(), *policies.build())
        self.specs = Specs()
        self.known: set[str] = set()
        self.started = 0
        self.finished: dict[str, str] = {}
        self.fragments: list[FinishFragment] = []
        for resource, verb in (
            ("embedding", "embed"),
            ("retrieval", "pg.search"),
            ("llm", "llm.generate"),
        ):
            self.send(PoolDeclared(resource, resource, default=True, verbs=(verb,)))
            self.send(InstanceUp(f"{resource}-0", resource, 10_000))

    def send(self, event: Event) -> None:
        commands = handle(self.state, event, 0.0)
        validate(self.state)
        for command in commands:
            match command:
                case StartBatch():
                    for item in command.items:
                        self.started += 1
                        value = value_of(b"done")
                        self.send(
                            ItemFinished(
                                item.flight, item.attempt, command.instance, value, 0.1
                            )
                        )
                case FinishRun():
                    self.finished[command.run_id] = command.status
                case FinishFragment():
                    self.fragments.append(command)
                case AcceptRun():
                    pass
                case _:
                    raise AssertionError(command)

    def submit(self, found: Job, *, agent: bool = False) -> None:
        piece = self.register(self.specs.agent(found) if agent else self.specs.run(found))
        self.send(
            RunSubmitted(
                found.id,
                piece.spec.id,
                "client",
                found.tenant,
                value_of(piece.inputs),
                piece.signatures,
                piece.collections,
                agent=agent,
            )
        )

    def reveal(self, found: Job, position: int) -> None:
        piece = self.register(self.specs.step(found, position))
        self.send(
            NodesRevealed(
                found.id,
                position,
                piece.spec.id,
                value_of(piece.inputs),
                piece.signatures,
                piece.collections,
                parents=piece.parents,
            )
        )

    def register(self, piece: Piece) -> Piece:
        if piece.spec.id not in self.known:
            self.known.add(piece.spec.id)
            self.send(SpecRegistered(piece.spec))
        return piece


def value_of(data: bytes) -> Value:
    return Value(hashlib.sha256(data).digest(), len(data), data)


def test_the_kernel_runs_known_graphs_and_fuses_their_duplicates():
    rag = workload("rag")
    assert isinstance(rag, Mixture)
    mixture = Mixture("rag", rag.parts, Duplicates(0.3))
    jobs = mixture.jobs(1, 40, None)
    bench = Bench()
    for found in jobs:
        bench.submit(found)
    assert bench.finished == {found.id: "succeeded" for found in jobs}
    fresh = sum(not found.duplicate_of for found in jobs)
    assert fresh < 40
    assert bench.started == 3 * fresh
    assert bench.state.totals.submitted == 3 * 40


def test_the_kernel_embeds_a_hot_document_once():
    docs = workload("docs")
    assert isinstance(docs, Mixture)
    jobs = Mixture("docs", docs.parts).jobs(1, 20, None)
    bench = Bench()
    for found in jobs:
        bench.submit(found)
    keys = {s.truth.prompt_key for found in jobs for s in found.steps}
    assert bench.started == len(keys) < 7 * 20


def test_the_kernel_runs_agents_step_by_step():
    (found,) = workload("lats").jobs(1, 1, None)
    bench = Bench()
    bench.submit(found, agent=True)
    for position in range(len(found.steps)):
        bench.reveal(found, position)
    bench.send(RunClosed(found.id))
    assert bench.finished == {found.id: "succeeded"}
    assert {fragment.status for fragment in bench.fragments} == {"succeeded"}
    assert bench.started == len(bench.fragments) == len(found.steps)
    parents = [record.parents for f in bench.fragments for record in f.nodes]
    assert parents[-1] == (f"{len(found.steps) - 6}/expand",)
