"""How well the simulator predicts this machine: RAG runs on the real engines, and the
same runs simulated from a profile of them.

Prints one JSON object:

    mean_error, p95_error   largest absolute relative error over the concurrencies
    runs                    live runs in all
    length_scale            lengths are HeraSys's times this, the question's apart
    by_concurrency          live and simulated mean_s, p50_s, p95_s and throughput_rps

One private runtime (SmolLM2 on vLLM, MiniLM, PostgreSQL with pgvector; the default
configuration) serves a closed loop of RAG runs at each concurrency: a question of 12
tokens, 12 chunks of 25, an answer whose length is lognormal with mean 19 and forced. All
questions differ, so nothing fuses and nothing is reused. Before, between and after it is
profiled as `herasys profile` does, with texts drawn from the first of ``seeds``, runs
from the others; one profile is made of the four parts (medians, point by point), so that
a machine that grows slower or faster meanwhile does so for both.

The simulator is given the profile and what a run was, not how long it took: the token
ids of its prompt (from which its prefix cache finds what is cached) and the tokens of its
answer, in the same order, from as many clients. Kernel and policies are the live ones.
Nothing of the runs that are compared goes into the model.

``others_cpus`` is how many cores' worth of CPU time processes that are not ours took
meanwhile; more than a few hundredths of it is in the error.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from benchmarks._common import emit, facts, private_home, standard_arguments
from herasys_rt import connect
from herasys_rt.client.client import Client
from herasys_rt.config import Config, default_config
from herasys_rt.costs.profile import Point, PoolProfile, Profile, VerbProfile
from herasys_rt.costs.profile_fits import fit_batch, fit_steps
from herasys_rt.dsl import workflow
from herasys_rt.engines import prompting
from herasys_rt.figures import percentile
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.ingestion import ingest_spec
from herasys_rt.policies.presets import preset
from herasys_rt.profiling import FULL, Effort, profile_client
from herasys_rt.profiling_calls import Texts
from herasys_rt.sim.experiment import Experiment, Load, simulate
from herasys_rt.sim.machines import Machines
from herasys_rt.sim.profiled import profiled_cluster
from herasys_rt.workloads.arrivals import Job, Step, Truth
from herasys_rt.workloads.catalogue import QUESTION_TOKENS, RETRIEVED_CHUNKS
from herasys_rt.workloads.catalogue import rag as rag_lengths
from herasys_rt.workloads.mixture import Mixture, Part
from herasys_rt.workloads.prefix import Context
from operators import embed, generate, retrieve

LENGTH_SCALE = 1 / 8
CHUNK_TOKENS = 25
DOCUMENTS = 1000
CONCURRENCIES = (1, 8, 30)
PROFILE_SEED = 1
SEEDS = {1: 11, 8: 12, 30: 13}
RUNS = {1: 60, 8: 100, 30: 200}
QUICK_RUNS = {1: 40, 8: 60, 30: 100}
EFFORT = FULL._replace(repeats=1)
"""Of each part of the profile."""
QUICK_EFFORT = Effort(
    repeats=1, lengths=(16, 128, 512), decode=17, texts=(1, 8), text_tokens=(16, 64)
)
COLLECTION = "fidelity"
BLOCK_TOKENS = 32
"""Of vLLM's KV cache on a CPU: what prompts share comes in these."""
PROMPT = "Answer from the passages only.\n{context}\nQuestion: {question}"
_WANTED = ("llm", "embedding", "retrieval")


@workflow
def rag(question: str, tokens: int):
    """An answer of exactly so many tokens, from the nearest chunks."""
    found = retrieve(embed(question), collection=COLLECTION, top_k=RETRIEVED_CHUNKS)
    return generate(
        PROMPT, context=found, question=question, max_tokens=tokens, min_tokens=tokens
    )


class Live(NamedTuple):
    """A run that was: its latency, its prompt as the model read it, its usage."""

    latency_s: float
    prompt: tuple[int, ...]
    usage: Mapping[str, int]


class Recorded(msgspec.Struct, frozen=True):
    """A `Workload` of the very runs that were recorded, in their order."""

    recorded: tuple[Job, ...]
    name: str = "recorded"
    default_rate: float | None = None
    closed_loop_concurrency: int | None = 1

    @property
    def default_runs(self) -> int:
        """All of them."""
        return len(self.recorded)

    def jobs(self, seed: int, runs: int, rate: float | None) -> Sequence[Job]:
        """The first ``runs``; nothing is drawn."""
        del seed, rate
        return self.recorded[:runs]


class Latencies(NamedTuple):
    """What is compared."""

    mean_s: float
    p50_s: float
    p95_s: float
    throughput_rps: float


# --- from live runs to what is simulated --------------------------------------------
def job_of(spec: WorkflowSpec, number: int, live: Live) -> Job:
    """A run as the simulator gets it: its work, and nothing of its times."""
    steps: list[Step] = []
    for node in spec.nodes:
        truth = Truth(prompt_key=f"{number}/{node.id}")
        if node.verb == "llm.generate":
            truth = msgspec.structs.replace(
                truth,
                prompt_tokens=live.usage["prompt_tokens"],
                output_tokens=live.usage["completion_tokens"],
                prefix=blocks(live.prompt),
            )
        elif node.verb == "embed":
            truth = msgspec.structs.replace(truth, tokens=live.usage["tokens"])
        steps.append(
            Step(node.id, node.verb, node.resource, node.operator, truth, node.parents)
        )
    return Job(f"run-{number}", spec.name, tuple(steps))


def blocks(prompt: Sequence[int]) -> tuple[int, ...]:
    """Ids of the whole KV blocks of a prompt: as vLLM does, by all the tokens before."""
    context = Context()
    for at in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        context.add(str(prompt[at : at + BLOCK_TOKENS]), BLOCK_TOKENS)
    return context.blocks


def latencies(seconds: Sequence[float], wall_s: float) -> Latencies:
    """Latencies of runs that took ``wall_s`` together."""
    return Latencies(
        sum(seconds) / len(seconds),
        percentile(seconds, 50),
        percentile(seconds, 95),
        len(seconds) / wall_s,
    )


def simulated(profile: Profile, jobs: Sequence[Job], concurrency: int) -> Latencies:
    """The same runs on the machine of the profile, under the live policies."""
    outcome = simulate(
        Experiment(
            Recorded(tuple(jobs)),
            Machines(profiled_cluster(profile), profile=profile),
            preset("workflow_fcfs"),
            load=Load(concurrency=concurrency),
        )
    )
    seconds = [record.latency_s for record in outcome.trace.records]
    return latencies(seconds, outcome.summary.makespan_s)


def compared(
    pairs: Mapping[int, tuple[Latencies, Latencies]],
) -> dict[str, Any]:
    """Figures of (live, simulated) by concurrency: the worst errors, then all."""
    errors = {
        name: [abs(error(getattr(a, name), getattr(b, name))) for a, b in pairs.values()]
        for name in ("mean_s", "p95_s")
    }
    return {
        "mean_error": round(max(errors["mean_s"]), 4),
        "p95_error": round(max(errors["p95_s"]), 4),
        "by_concurrency": {
            str(concurrency): _side_by_side(live, simulated)
            for concurrency, (live, simulated) in pairs.items()
        },
    }


def error(live: float, predicted: float) -> float:
    """How far a prediction lies above what was, as a fraction of it."""
    return predicted / live - 1.0


def _side_by_side(live: Latencies, simulated: Latencies) -> dict[str, Any]:
    told: dict[str, Any] = {
        "live": {k: round(v, 4) for k, v in live._asdict().items()},
        "simulated": {k: round(v, 4) for k, v in simulated._asdict().items()},
    }
    for name in ("mean_s", "p50_s", "p95_s", "throughput_rps"):
        key = f"{name.rpartition('_')[0]}_error"
        told[key] = round(error(getattr(live, name), getattr(simulated, name)), 4)
    return told


# --- the live side ------------------------------------------------------------------
def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def real_runtime() -> Iterator[Client]:
    """A private runtime of the default pools that RAG needs, with a database of its own;
    nothing of it is kept."""
    with (
        private_home() as place,
        connect(config_of(place / "data"), on_progress=say) as client,
    ):
        yield client


def config_of(data_dir: Path) -> Config:
    """The default configuration, cut to the pools that RAG needs."""
    config = default_config()
    return config.model_copy(
        update={
            "pools": tuple(pool for pool in config.pools if pool.resource in _WANTED),
            "database": config.database.model_copy(update={"data_dir": data_dir}),
        }
    )


def fill(client: Client) -> None:
    """Store the chunks."""
    texts = Texts("fidelity corpus")
    documents = [
        {"id": f"d{number}", "text": texts.of(CHUNK_TOKENS)} for number in range(DOCUMENTS)
    ]
    client.submit(ingest_spec(), documents=documents, collection=COLLECTION).result(600)


def measure_part(client: Client, config: Config, effort: Effort, number: int) -> Profile:
    """A part of the profile: the runtime as `herasys profile` measures it."""
    from herasys_rt.engines.postgres.sync import open_store

    def drop(collection: str) -> None:
        with open_store(client.dsn) as store:
            store.drop(collection)

    salt = f"seed {PROFILE_SEED}, part {number}"
    return profile_client(client, config, say, drop, effort=effort, salt=salt)


def merged(parts: Sequence[Profile]) -> Profile:
    """One profile of several that measured the same points: their medians, fitted anew."""
    pools: list[PoolProfile] = []
    for number, pool in enumerate(parts[0].pools):
        verbs: list[VerbProfile] = []
        for at, verb in enumerate(pool.verbs):
            points = [part.pools[number].verbs[at].points for part in parts]
            typical = tuple(map(_typical, zip(*points, strict=True)))
            verbs.append(_fitted(verb, typical, pool.token_budget))
        pools.append(msgspec.structs.replace(pool, verbs=tuple(verbs)))
    control_s = statistics.median([part.control_s for part in parts])
    return msgspec.structs.replace(parts[0], pools=tuple(pools), control_s=control_s)


def _typical(points: Sequence[Point]) -> Point:
    return msgspec.structs.replace(
        points[0],
        seconds=statistics.median([point.seconds for point in points]),
        samples=sum(point.samples for point in points),
    )


def _fitted(verb: VerbProfile, points: tuple[Point, ...], budget: int) -> VerbProfile:
    if verb.steps is not None:
        fit = fit_steps(points, budget)
        return VerbProfile(verb.verb, points, steps=fit.steps, fit_error=fit.error)
    times, error = fit_batch(points)
    return VerbProfile(verb.verb, points, times, fit_error=error)


def drawn(seed: int, runs: int) -> list[dict[str, Any]]:
    """Inputs of that many runs: questions that all differ, and lengths of answers."""
    texts = Texts(f"questions {seed}")
    lengths = Mixture("rag", (Part(rag_lengths(LENGTH_SCALE)),)).jobs(seed, runs, None)
    return [
        {
            "question": texts.of(QUESTION_TOKENS),
            "tokens": job.steps[-1].truth.output_tokens,
        }
        for job in lengths
    ]


class Reader:
    """Tells the token ids of the prompt that the model was given for a run."""

    def __init__(self) -> None:
        from transformers import AutoTokenizer

        from herasys_rt.engines.models import resolve_model
        from herasys_rt.engines.vllm.chat import Chat

        (model,) = [p.model for p in default_config().pools if p.resource == "llm"]
        path = resolve_model(str(model)).path
        self._chat = Chat(AutoTokenizer.from_pretrained(path))

    def live(self, inputs: Mapping[str, Any], report: Mapping[str, Any]) -> Live:
        """A run from its report. The chunks it was made from are its sources."""
        if report["error"] is not None:
            raise SystemExit(f"a live run failed: {report['error']}")
        args = {
            "prompt": PROMPT,
            "var:context": report["sources"],
            "var:question": inputs["question"],
        }
        prompt = tuple(self._chat.tokens(prompting.render(args).messages))
        if len(prompt) != report["usage"]["prompt_tokens"]:
            raise SystemExit("the prompt is not the one that the model was given")
        return Live(report["latency_s"], prompt, report["usage"])


@dataclass
class Meter:
    """CPU time that others take: what the machine was busy with beside this process and
    those below it."""

    _busy_s: float = 0.0
    _own_s: float = 0.0
    _since_s: float = 0.0

    def begin(self) -> None:
        """From now."""
        self._busy_s, self._own_s = _machine_cpu_s(), _own_cpu_s()
        self._since_s = time.perf_counter()

    def others_cpus(self) -> float:
        """Cores that others kept busy since `begin`, on average."""
        spent_s = _machine_cpu_s() - self._busy_s - (_own_cpu_s() - self._own_s)
        return round(max(spent_s, 0.0) / (time.perf_counter() - self._since_s), 3)


def _machine_cpu_s() -> float:
    used = psutil.cpu_times()
    return sum(used) - used.idle - getattr(used, "iowait", 0.0)


def _own_cpu_s() -> float:
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            total += used.user + used.system
    return total


def serve(
    client: Client, reader: Reader, seed: int, concurrency: int, runs: int
) -> tuple[list[Live], float]:
    """Live runs in their order, and the seconds that all took together."""
    inputs = drawn(seed, runs)
    reports: list[dict[str, Any]] = []
    started_s = time.perf_counter()
    for run in client.map(rag, inputs, concurrency=concurrency):
        reports.append(run.report())
        if len(reports) % 20 == 0:
            say(f"concurrency {concurrency}: {len(reports)} of {runs} runs")
    wall_s = time.perf_counter() - started_s
    live = [reader.live(*pair) for pair in zip(inputs, reports, strict=True)]
    return live, wall_s


def measure(quick: bool, keep: Path | None = None) -> dict[str, Any]:
    """The benchmark's result. ``keep`` takes profile and recorded runs, to look into."""
    runs, effort = (QUICK_RUNS, QUICK_EFFORT) if quick else (RUNS, EFFORT)
    reader, meter = Reader(), Meter()
    others: dict[str, float] = {}
    parts: list[Profile] = []
    recorded: dict[int, tuple[list[Live], float]] = {}
    with real_runtime() as client:
        say("storing chunks")
        fill(client)
        serve(client, reader, PROFILE_SEED, 1, 2)  # the first of everything is slow
        for number, concurrency in enumerate((0, *CONCURRENCIES)):
            if concurrency:
                meter.begin()
                seed, count = SEEDS[concurrency], runs[concurrency]
                recorded[concurrency] = serve(client, reader, seed, concurrency, count)
                others[str(concurrency)] = meter.others_cpus()
            meter.begin()
            parts.append(measure_part(client, config_of(Path()), effort, number))
            others[f"profile {number}"] = meter.others_cpus()
        nodes = client.status()["counters"]["nodes"]
    profile = merged(parts)
    if keep is not None:
        keep.write_bytes(msgspec.msgpack.encode((profile, recorded, others)))
    if nodes["executed"] != nodes["submitted"]:
        raise SystemExit(f"not every node was executed: {nodes}")
    return figures(profile, recorded, others)


def figures(
    profile: Profile,
    recorded: Mapping[int, tuple[list[Live], float]],
    others: Mapping[str, float],
) -> dict[str, Any]:
    """What the recorded runs and their simulations come to."""
    pairs: dict[int, tuple[Latencies, Latencies]] = {}
    for concurrency, (live, wall_s) in recorded.items():
        jobs = [job_of(rag.spec, number, one) for number, one in enumerate(live)]
        pairs[concurrency] = (
            latencies([one.latency_s for one in live], wall_s),
            simulated(profile, jobs, concurrency),
        )
    told = compared(pairs)
    return {
        "mean_error": told["mean_error"],
        "p95_error": told["p95_error"],
        "runs": sum(len(live) for live, _ in recorded.values()),
        "length_scale": LENGTH_SCALE,
        "by_concurrency": told["by_concurrency"],
        "prompt_tokens": _mean_usage(recorded, "prompt_tokens"),
        "cached_tokens": _mean_usage(recorded, "cached_tokens"),
        "output_tokens": _mean_usage(recorded, "completion_tokens"),
        "fit_error": {
            f"{pool.pool}/{verb.verb}": round(verb.fit_error, 4)
            for pool in profile.pools
            for verb in pool.verbs
        },
        "others_cpus": dict(others),
    }


def _mean_usage(recorded: Mapping[int, tuple[list[Live], float]], name: str) -> float:
    counts = [one.usage[name] for live, _ in recorded.values() for one in live]
    return round(sum(counts) / len(counts), 1)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    standard_arguments(parser)
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="keep the profile and the recorded runs"
    )
    args = parser.parse_args()
    seeds = [PROFILE_SEED, *SEEDS.values()]
    emit({**measure(args.quick, args.keep), **facts(seeds)}, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
