"""What each ordering puts first, told by a kernel whose pools have one slot."""

from __future__ import annotations

import random
from typing import cast

import pytest

from herasys_rt import policies
from herasys_rt.core.commands import Command, StartBatch, WorkItem
from herasys_rt.core.events import (
    Event,
    InstanceDown,
    InstanceUp,
    ItemFailed,
    ItemFinished,
    NodesRevealed,
    RunCancelled,
    RunClosed,
    RunSubmitted,
    SpecRegistered,
)
from herasys_rt.core.invariants import validate
from herasys_rt.core.kernel import KernelConfig, handle, new_state
from herasys_rt.core.policy import PolicyNames
from herasys_rt.core.progress import Progress
from herasys_rt.core.state import Flight
from herasys_rt.core.values import Fact
from herasys_rt.errors import ConfigError
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.policies import ORDERINGS
from herasys_rt.policies.ordering import service_bin
from herasys_rt.policies.presets import PRESETS, preset
from tests.pure.core.kernel_lab import (
    AGENT,
    BUSY,
    POOLS,
    inline,
    listed,
    signatures_of,
    spec_of,
)

ONE = spec_of("a llm")
CHAIN = spec_of("a llm", "b llm a", "c llm b")
FORK = spec_of("a llm", "b llm a", "c llm a", "d llm b c")
LOPSIDED = spec_of("a llm", "x llm a", "y llm a", "z llm y", outputs="x z")


class Bench:
    """A kernel with one ordering and one LLM slot; predictions are given."""

    def __init__(self, ordering: str, pools: str = "llm", slots: int = 1) -> None:
        names = PolicyNames(ordering, "least_loaded", policies.DEFAULTS.batching)
        self.state = new_state(KernelConfig(), *policies.build(names))
        self.now = 0.0
        self.running: list[tuple[str, WorkItem]] = []
        for pool in POOLS.values():
            self.send(pool, 0.0)
        for pool in pools.split():
            self.send(InstanceUp(f"{pool}-1", pool, slots), 0.0)

    def send(self, event: Event, seconds: float = 1.0) -> list[Command]:
        self.now += seconds
        out = handle(self.state, event, self.now)
        validate(self.state)
        for command in out:
            if isinstance(command, StartBatch):
                self.running += [(command.instance, item) for item in command.items]
        return out

    def submit(self, run: str, spec: WorkflowSpec, *seconds: float) -> None:
        self.send(SpecRegistered(spec), 0.0)
        self.send(
            RunSubmitted(run, spec.id, "c", "t", inline(run.encode()), seconds=seconds)
        )

    def agent(self, run: str) -> None:
        self.send(SpecRegistered(AGENT), 0.0)
        self.send(RunSubmitted(run, AGENT.id, "c", "t", inline(b"x"), agent=True))

    def reveal(self, run: str, number: int, *parents: int, seconds: float = 1.0) -> None:
        self.send(SpecRegistered(ONE), 0.0)
        from_ = tuple((parent, "a") for parent in parents)
        self.send(
            NodesRevealed(
                run, number, ONE.id, inline(b"i"), parents=from_, seconds=(seconds,)
            )
        )

    def finish(self, run_s: float = 1.0) -> str:
        """End what is running; gives ``run/node`` of it."""
        instance, item = self.running.pop(0)
        name = f"{item.run_id}/{item.node}"
        self.send(ItemFinished(item.flight, item.attempt, instance, inline(b"v"), run_s))
        return name

    def progress(self, run: str) -> Progress:
        progress = self.state.runs[run].progress
        assert progress is not None
        return progress

    def drain(self, run_s: float = 1.0) -> list[str]:
        """End everything; gives the order."""
        order: list[str] = []
        while self.running:
            order.append(self.finish(run_s))
        return order


def test_fcfs_goes_by_the_call_and_workflow_fcfs_by_the_run() -> None:
    orders: dict[str, list[str]] = {}
    for name in ("fcfs", "workflow_fcfs"):
        bench = Bench(name)
        bench.submit("r1", CHAIN)
        bench.submit("r2", CHAIN)
        orders[name] = bench.drain()
    assert orders["fcfs"] == ["r1/0", "r2/0", "r1/1", "r2/1", "r1/2", "r2/2"]
    assert orders["workflow_fcfs"] == ["r1/0", "r1/1", "r1/2", "r2/0", "r2/1", "r2/2"]


def test_depth_goes_by_the_run_and_then_by_the_layers_below() -> None:
    bench = Bench("depth")
    bench.submit("r1", LOPSIDED)
    bench.submit("r2", ONE)
    assert bench.drain() == ["r1/0", "r1/2", "r1/1", "r1/3", "r2/0"]


def test_srtf_goes_by_what_is_left_of_the_run() -> None:
    bench = Bench("srtf")
    bench.submit("first", ONE, 1.0)  # holds the slot
    bench.submit("long", CHAIN, 5.0, 5.0, 5.0)
    bench.submit("short", CHAIN, 1.0, 1.0, 1.0)
    bench.submit("middle", ONE, 9.0)
    assert bench.drain() == [
        "first/0", "short/0", "short/1", "short/2", "middle/0", "long/0", "long/1",
        "long/2",
    ]  # fmt: skip


def test_a_node_of_which_nothing_is_predicted_counts_with_what_its_kind_took() -> None:
    bench = Bench("srtf")
    bench.submit("first", ONE, -1.0)
    bench.submit("holds", ONE, 1.0)
    bench.finish(run_s=6.0)  # the mean from now on
    bench.submit("five", ONE, 5.0)
    bench.submit("unknown", ONE, -1.0)
    bench.submit("seven", ONE, 7.0)
    assert bench.drain() == ["holds/0", "five/0", "unknown/0", "seven/0"]


def test_srtf_corrects_what_is_predicted_by_what_its_kind_took() -> None:
    bench = Bench("srtf")
    bench.submit("first", ONE, 2.0)
    bench.submit("before", ONE, 2.0)
    bench.finish(run_s=6.0)  # three times as long, and 6 s is the mean
    bench.submit("three", ONE, 3.0)  # 9 s are expected
    bench.submit("unknown", ONE, -1.0)
    bench.submit("one", ONE, 1.0)  # 3 s
    expected = {run: bench.progress(run).remaining_s for run in ("three", "unknown", "one")}
    assert expected == pytest.approx({"three": 9.0, "unknown": 6.0, "one": 3.0})
    assert bench.progress("before").remaining_s == 2.0  # as it was when it was revealed
    assert bench.drain() == ["before/0", "one/0", "unknown/0", "three/0"]


def test_the_horizon_is_not_corrected_by_what_was_measured_beside_others() -> None:
    bench = Bench("llf")
    bench.submit("first", CHAIN, 2.0, 2.0, 2.0)
    bench.finish(run_s=6.0)
    bench.submit("next", CHAIN, 2.0, 2.0, 2.0)
    progress = bench.progress("next")
    assert progress.horizon_s == 6.0
    assert progress.pieces[0].tails == [6.0, 4.0, 2.0]
    assert progress.remaining_s == pytest.approx(18.0)


def test_srtf_scales_the_rest_by_how_wrong_predictions_were() -> None:
    bench = Bench("srtf")
    bench.submit("a", CHAIN, 10.0, 10.0, 10.0)
    bench.submit("b", CHAIN, 12.0, 12.0, 12.0)
    assert bench.finish(run_s=40.0) == "a/0"  # four times as long as predicted
    progress = bench.state.runs["a"].progress
    assert progress is not None
    assert progress.remaining_s == pytest.approx(20.0 * (40 + 3) / (10 + 3))
    assert bench.drain() == ["b/0", "b/1", "b/2", "a/1", "a/2"]


def test_srtf_expects_of_an_agent_what_its_kind_has_needed() -> None:
    bench = Bench("srtf")
    bench.agent("g1")
    for number in range(5):
        bench.reveal("g1", number, *range(number), seconds=2.0)
        bench.finish(2.0)
    bench.send(RunClosed("g1"))
    bench.submit("holds", ONE, 1.0)
    bench.agent("g2")
    bench.reveal("g2", 0, seconds=2.0)  # 10 s expected in all
    bench.submit("r", ONE, 6.0)
    assert bench.drain() == ["holds/0", "r/0", "g2/0"]


def test_llf_puts_first_what_could_wait_least() -> None:
    bench = Bench("llf")
    bench.submit("holds", ONE, 1.0)
    bench.submit("loose", LOPSIDED, 1.0, 1.0, 1.0, 9.0)
    bench.submit("tight", CHAIN, 1.0, 1.0, 1.0)
    # Keys: loose 2, then 3 and 4 on the way over y and 12 for x; tight 3, 4 and 5.
    assert bench.drain() == [
        "holds/0", "loose/0", "tight/0", "loose/2", "tight/1", "loose/3", "tight/2",
        "loose/1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "first"), [("llf", "long/0"), ("llf_2x", "short/0"), ("llf_4x", "short/0")]
)
def test_a_multiple_of_the_horizon_as_deadline_leaves_long_runs_more_time(
    name: str, first: str
) -> None:
    bench = Bench(name)
    assert bench.state.ordering.name == name
    bench.submit("holds", ONE, 1.0)
    bench.submit("long", CHAIN, 1.0, 1.0, 2.0)  # keys: its arrival and 0, 4 or 12 s
    bench.submit("short", ONE, 1.0)  # 1 s later, and 0, 1 or 3 s
    assert bench.drain()[1] == first


def test_the_horizon_of_an_agent_grows_with_what_it_reveals() -> None:
    bench = Bench("llf")
    bench.agent("g")
    bench.reveal("g", 0, seconds=3.0)
    run = bench.state.runs["g"]
    assert run.progress is not None
    assert run.progress.horizon_s == 1.0 + 3.0  # it thought for a second before
    bench.finish(30.0)  # how long it really took does not count
    bench.reveal("g", 1, 0, seconds=2.0)
    assert run.progress.horizon_s == 4.0 + 1.0 + 2.0
    bench.reveal("g", 2, 0, seconds=1.0)
    assert run.progress.horizon_s == 4.0 + 2.0 + 1.0


def test_plas_sums_a_program_and_atlas_follows_its_longest_chain() -> None:
    orders: dict[str, list[str]] = {}
    for name in ("plas", "atlas"):
        bench = Bench(name, slots=1)
        bench.submit("wide", spec_of("a llm", "b llm", "c llm", "d llm a b c"))
        bench.submit("deep", CHAIN)
        orders[name] = bench.drain(run_s=0.9)
    # Every sibling that ends puts the program's others back; of chains none is longer.
    assert orders["plas"][:5] == ["wide/0", "deep/0", "wide/1", "deep/1", "wide/2"]
    assert orders["atlas"][:4] == ["wide/0", "wide/1", "wide/2", "deep/0"]


@pytest.mark.parametrize(
    ("seconds", "number"),
    [(0.0, 0), (0.49, 0), (0.5, 1), (0.99, 1), (1.0, 2), (2.0, 3), (31.9, 6), (32.0, 7)],
)
def test_bins_of_service_double(seconds: float, number: int) -> None:
    assert service_bin(seconds) == number


@pytest.mark.parametrize("leaves", [False, True])
def test_a_fused_flight_has_the_best_key_of_its_members(leaves: bool) -> None:
    bench = Bench("srtf")
    bench.submit("holds", ONE, 1.0)
    shared = signatures_of(ONE, "same", "n")
    bench.send(SpecRegistered(CHAIN), 0.0)

    def join(run: str, seconds: float) -> None:
        bench.send(
            RunSubmitted(run, ONE.id, "c", "t", inline(b"x"), shared, seconds=(seconds,))
        )

    join("slow", 50.0)
    bench.submit("middle", ONE, 5.0)
    join("fast", 1.0)
    if leaves:
        bench.send(RunCancelled("fast"))
    rest = ["middle/0", "slow/0"] if leaves else ["slow/0", "middle/0"]
    assert bench.drain() == ["holds/0", *rest]


@pytest.mark.parametrize("ordering", sorted(ORDERINGS))
@pytest.mark.parametrize("seed", range(3))
def test_every_rank_is_the_present_key_whatever_happens(ordering: str, seed: int) -> None:
    """Random runs, agents, failures, losses, cancels: `validate` compares all ranks."""
    dice = random.Random(seed)
    bench = Bench(ordering, "embed pg llm rank", slots=2)
    specs = (
        CHAIN,
        FORK,
        spec_of("q embed", "s search q", "r rerank s", "a llm r q"),
        spec_of("l llm", "e embed % in=r", "a llm e", regions={"r": "l"}),
        spec_of("c llm", "t embed if=c", "e search unless=c", "j llm c?t:e"),
    )
    for spec in (*specs, AGENT):
        bench.send(SpecRegistered(spec), 0.0)
    bench.agent("g")
    for number in range(150):
        luck = dice.random()
        spec = dice.choice(specs)
        predicted = tuple(dice.random() * 9 for _ in spec.nodes) if luck < 0.2 else ()
        signatures = signatures_of(spec, str(dice.randrange(3)), str(number))
        if luck < 0.3 or not bench.running:
            bench.send(
                RunSubmitted(
                    f"r{number}", spec.id, "c", "t", inline(b"x"), signatures,
                    facts={"f": Fact(True)}, seconds=predicted,
                )
            )  # fmt: skip
        elif luck < 0.4:
            parents = tuple((dice.randrange(number + 1), "a") for _ in range(2))
            bench.send(
                NodesRevealed(
                    "g", number, spec.id, inline(b"x"), signatures,
                    parents=parents, seconds=predicted,
                )
            )  # fmt: skip
        elif luck < 0.45:
            bench.send(RunCancelled(f"r{dice.randrange(number)}"))
        elif luck < 0.47:
            down = "llm-1" if luck < 0.46 else "embed-1"
            bench.send(InstanceDown(down, "lost"))
            bench.running = [(i, item) for i, item in bench.running if i != down]
            bench.send(InstanceUp(down + "x", down.split("-")[0], 2))
        else:
            instance, item = bench.running.pop(dice.randrange(len(bench.running)))
            if luck < 0.5:
                bench.send(ItemFailed(item.flight, item.attempt, instance, BUSY))
            else:
                value = listed(dice.randrange(4), str(number))
                bench.send(ItemFinished(item.flight, item.attempt, instance, value, luck))


def test_round_robin_takes_each_instance_in_turn_and_lets_newcomers_in_fairly() -> None:
    names = PolicyNames("fcfs", "round_robin", policies.DEFAULTS.batching)
    state = new_state(KernelConfig(), *policies.build(names))
    started: list[str] = []

    def send(event: Event) -> None:
        out = handle(state, event, 1.0)
        validate(state)
        started.extend([c.instance for c in out if isinstance(c, StartBatch)])

    def submit(runs: range) -> None:
        for i in runs:
            send(RunSubmitted(f"r{i}", ONE.id, "c", "t", inline(b"x")))

    for event in (POOLS["llm"], SpecRegistered(ONE)):
        send(event)
    for i in (1, 2, 3):
        send(InstanceUp(f"llm-{i}", "llm", 9))
    submit(range(6))
    assert started == ["llm-1", "llm-2", "llm-3"] * 2
    send(InstanceUp("llm-0", "llm", 9))
    submit(range(6, 10))
    assert started[6:] == ["llm-0", "llm-1", "llm-2", "llm-3"]


def test_least_reserved_takes_the_instance_with_the_fewest_predicted_tokens() -> None:
    names = PolicyNames("fcfs", "least_reserved", policies.DEFAULTS.batching)
    state = new_state(KernelConfig(), *policies.build(names))
    started: list[tuple[str, WorkItem]] = []

    def send(event: Event) -> None:
        out = handle(state, event, 1.0)
        validate(state)
        for command in out:
            if isinstance(command, StartBatch):
                started.extend([(command.instance, item) for item in command.items])

    def submit(run: str, *tokens: int) -> str:
        send(RunSubmitted(run, ONE.id, "c", "t", inline(b"x"), kv_tokens=tokens))
        return started[-1][0]

    for event in (POOLS["llm"], SpecRegistered(ONE)):
        send(event)
    for i in (1, 2, 3):
        send(InstanceUp(f"llm-{i}", "llm", 9))
    assert [submit(f"a{i}", tokens) for i, tokens in enumerate((900, 100, 300))] == [
        "llm-1", "llm-2", "llm-3",
    ]  # fmt: skip
    assert submit("b", 250) == "llm-2"
    assert submit("c", 10) == "llm-3"  # 300 of 350 and 900
    instance, first = started[0]
    send(ItemFinished(first.flight, first.attempt, instance, inline(b"v"), 1.0))
    assert submit("d", 400) == "llm-1"  # the 900 are let go
    assert submit("unknown") == "llm-3"  # 310 of 400 and 350
    assert submit("again") == "llm-3"
    send(InstanceDown("llm-3", "lost"))
    assert state.instances["llm-1"].reserved + state.instances["llm-2"].reserved == 1060


def test_without_predictions_least_reserved_is_least_loaded() -> None:
    names = PolicyNames("fcfs", "least_reserved", policies.DEFAULTS.batching)
    placement = policies.build(names).placement
    state = new_state(KernelConfig(), *policies.build(names))
    for event in (POOLS["llm"], InstanceUp("a", "llm", 4), InstanceUp("b", "llm", 9)):
        handle(state, event, 1.0)
    one, two = state.instances["a"], state.instances["b"]
    one.busy, two.busy = 2, 3
    flight = cast(Flight, None)
    assert placement.score(one, flight) > placement.score(two, flight)
    two.reserved = 1
    assert placement.score(one, flight) < placement.score(two, flight)


def test_a_preset_is_known_by_name_and_an_ordering_is_one_too() -> None:
    static = preset("static_split")
    assert (static.fusion, static.split, static.partial_prefill) == (False, 2, True)
    assert static.policies.ordering == "depth"
    assert preset("llf").policies[:2] == ("llf", "least_loaded")
    assert preset("llf", "round_robin").policies[:2] == ("llf", "round_robin")
    assert preset("llf+round_robin").policies[:2] == ("llf", "round_robin")
    assert preset("per_call").policies[:2] == ("fcfs", "round_robin")
    assert preset("per_call").eager and not preset("fcfs+round_robin").eager
    assert set(PRESETS).isdisjoint(ORDERINGS)


@pytest.mark.parametrize("name", ["x", "", "x+least_loaded"])
def test_an_unknown_policy_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match="known: atlas, depth, fcfs"):
        preset(name)


@pytest.mark.parametrize(
    ("name", "placement"),
    [("llf+x", "least_loaded"), ("llf", "x"), ("llf+", "least_loaded")],
)
def test_an_unknown_placement_lists_the_known_ones(name: str, placement: str) -> None:
    with pytest.raises(
        ConfigError, match="known: least_loaded, least_reserved, round_robin"
    ) as told:
        preset(name, placement)
    assert told.value.message.startswith("unknown placement")
