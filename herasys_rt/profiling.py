"""Measuring running engines: workflows of one operator each, through an ordinary client.

Every call has texts of its own and asks for no reuse, so that engines really work. What
counts is the engine's own time (``run_s`` of the node's record), by tokens, items and
calls at once. The installed operators are used; this package has none itself.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from herasys_rt import profiling_calls as calls
from herasys_rt.config import Config, PoolConfig
from herasys_rt.costs import models
from herasys_rt.costs.profile import Point, PoolProfile, Profile, VerbProfile
from herasys_rt.costs.profile_fits import fit_batch, fit_steps
from herasys_rt.dsl import discover
from herasys_rt.errors import ConfigError, HerasysError
from herasys_rt.ids import new_id

if TYPE_CHECKING:
    from herasys_rt.client.client import Client

Say = Callable[[str], None]

PATIENCE_S = 600.0
"""Longest time for the calls of one point."""
_LEAST_WORDS = 4
"""Of a prompt: enough to tell prompts apart."""
_BUDGET = 2048
"""Tokens of an iteration, taken for engines that do not tell."""


class Effort(NamedTuple):
    """What is measured: how often, and at which sizes.

    ``lengths`` are prompts of a language model (close pairs find an edge of the token
    budget), ``decode`` tokens of each output, ``texts`` and ``text_tokens`` batches of
    other engines.
    """

    repeats: int
    lengths: tuple[int, ...]
    decode: int
    texts: tuple[int, ...]
    text_tokens: tuple[int, ...]


FULL = Effort(
    repeats=3,
    lengths=(16, 64, 128, 144, 256, 272, 512, 544, 1024, 1088, 2048),
    decode=33,
    texts=(1, 2, 4, 8, 16, 32),
    text_tokens=(16, 64, 200),
)
QUICK = Effort(
    repeats=1, lengths=(16, 128, 512), decode=17, texts=(1, 8, 32), text_tokens=(16, 64)
)


class Sample(NamedTuple):
    """One run: engine seconds by operator, what a client saw, and the run's usage."""

    run_s: Mapping[str, float]
    queued_s: float
    latency_s: float
    usage: Mapping[str, int]


class Runner(Protocol):
    """Runs calls; `ClientRunner`, or a test's own."""

    def together(
        self, declared: calls.AnyWorkflow, inputs: Sequence[Mapping[str, Any]]
    ) -> list[Sample]:
        """Run a workflow over all inputs at once. Errors: what the first failed with."""
        ...


class ClientRunner:
    """`Runner` over a client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def together(
        self, declared: calls.AnyWorkflow, inputs: Sequence[Mapping[str, Any]]
    ) -> list[Sample]:
        """See `Runner`."""
        runs = [self._client.submit(declared, **one) for one in inputs]
        samples: list[Sample] = []
        for run in runs:
            run.result(PATIENCE_S)
            report = run.report()
            nodes = report["nodes"]
            samples.append(
                Sample(
                    {node["operator"]: node["run_s"] for node in nodes},
                    sum(node["queued_s"] for node in nodes),
                    report["latency_s"],
                    report["usage"],
                )
            )
        return samples


def profile_client(
    client: Client,
    config: Config,
    say: Say,
    drop: Callable[[str], None],
    *,
    effort: Effort = FULL,
    only: Sequence[str] = (),
    salt: str = "",
) -> Profile:
    """Measure the pools of a runtime (those named in ``only``, else all).

    ``salt`` names the texts, so that they can be drawn again; one runtime must not get
    the same twice, since engines keep what they computed. Empty: fresh ones.

    What a running pool does not tell of itself (GPU class, batch limit) is taken from the
    pool of its name in ``config``. Retrieval is measured on a collection of its own, whose
    name goes to ``drop`` in the end, whatever happened. Errors: `ConfigError` for pools
    that are not up, `RunError` and its kinds.
    """
    discover()
    pools = _chosen(client.status()["pools"], only)
    declared = {pool.name: pool for pool in config.pools}
    profiler = Profiler(ClientRunner(client), say, effort)
    if salt:
        profiler.texts = calls.Texts(salt)
    try:
        measured = tuple(profiler.pools(pools, declared))
    finally:
        if profiler.collection:
            drop(profiler.collection)
    machine = {"cores": os.cpu_count(), "system": platform.system()}
    return Profile(measured, control_s=profiler.control_s(), machine=machine)


def _chosen(pools: Sequence[dict[str, Any]], only: Sequence[str]) -> list[dict[str, Any]]:
    names = [pool["name"] for pool in pools]
    missing = [name for name in only if name not in names]
    if missing:
        raise ConfigError(
            f"no pool is called {', '.join(missing)}; there are {', '.join(names)}",
            hint="Name pools of `herasys status`.",
        )
    return [pool for pool in pools if not only or pool["name"] in only]


@dataclass
class Profiler:
    """Measures pools one after the other; `collection` is what it left behind."""

    runner: Runner
    say: Say
    effort: Effort
    texts: calls.Texts = field(default_factory=lambda: calls.Texts(new_id("profile")))
    collection: str = ""
    _beside_s: list[float] = field(default_factory=list[float])

    def pools(
        self, pools: Sequence[dict[str, Any]], declared: Mapping[str, PoolConfig]
    ) -> Iterator[PoolProfile]:
        """The profile of each pool that has something to measure."""
        measures: dict[str, Callable[[dict[str, Any]], list[VerbProfile]]] = {
            "embedding": self._embedding,
            "retrieval": self._retrieval,
            "rerank": self._rerank,
            "search": self._search,
            "python": self._python,
        }
        for pool in pools:
            self.say(f"measuring pool {pool['name']}")
            config = declared.get(pool["name"])
            if pool["resource"] == "llm":
                yield self._llm(pool, config)
            else:
                verbs = measures[pool["resource"]](pool)
                yield _pool_profile(pool, config, verbs)

    def control_s(self) -> float:
        """The median of what a run alone took beside engines and queues."""
        return statistics.median(self._beside_s) if self._beside_s else 0.0

    # --- language models ------------------------------------------------------------
    def _llm(self, pool: dict[str, Any], config: PoolConfig | None) -> PoolProfile:
        facts: dict[str, Any] = pool.get("facts") or {}
        room = int(facts.get("kv_capacity_tokens") or 0)
        budget = int(facts.get("max_num_batched_tokens") or _BUDGET)
        told = int(facts.get("context_tokens") or 0)
        context = told or _BUDGET
        call = calls.generate(pool["model"])
        slots = max(int(pool["slots"]), 1)
        template = self._template_tokens(call)

        def point(wanted: int, output: int, count: int) -> Point | None:
            prompt = max(wanted, template + _LEAST_WORDS)
            held = count * (prompt + output)
            if prompt + output > context or (room and held > room):
                return None
            return self._calls(call, prompt - template, output, count)

        long = min(512, context // 2)
        wanted = [(n, 1, 1) for n in self.effort.lengths]
        for count in _doubling(slots):
            wanted += [(64, 1, count), (64, self.effort.decode, count)]
        for count in dict.fromkeys((1, min(8, slots))):
            wanted += [(long, 1, count), (long, self.effort.decode, count)]
        points = [p for p in (point(*one) for one in dict.fromkeys(wanted)) if p]
        if not points:
            raise ConfigError(
                f"pool {pool['name']} is too small to measure: a context of {context} and "
                f"a KV cache of {room} tokens",
                hint="Leave it out: name the others with --pool.",
            )
        fit = fit_steps(points, budget)
        verb = VerbProfile(
            "llm.generate",
            tuple(points),
            steps=fit.steps,
            fit_error=round(fit.error, 4),
        )
        return msgspec.structs.replace(
            _pool_profile(pool, config, [verb]),
            kv_capacity_tokens=room,
            kv_bytes_per_token=_kv_bytes(str(pool["model"])),
            token_budget=budget,
            token_edge=fit.edge,
            context_tokens=told,
        )

    def _template_tokens(self, call: calls.AnyWorkflow) -> int:
        """Tokens that a prompt has beside its words; the call also warms the engine."""
        words = 32
        sample = self._run(call, [{"prompt": self.texts.of(words), "tokens": 2}])[0]
        return max(int(sample.usage.get("prompt_tokens", words)) - words, 0)

    def _calls(self, call: calls.AnyWorkflow, words: int, output: int, count: int) -> Point:
        """``count`` calls at once, repeated."""
        rounds = [
            self._run(
                call,
                [{"prompt": self.texts.of(words), "tokens": output} for _ in range(count)],
            )
            for _ in range(self.effort.repeats)
        ]
        samples = [sample for samples in rounds for sample in samples]
        return Point(
            _typical_s(rounds, "generate@1"),
            concurrency=count,
            samples=len(samples),
            prompt_tokens=_mean_of(samples, "prompt_tokens"),
            cached_tokens=_mean_of(samples, "cached_tokens"),
            output_tokens=_mean_of(samples, "completion_tokens"),
            latency_s=_latency_s(samples),
        )

    # --- other engines --------------------------------------------------------------
    def _embedding(self, pool: dict[str, Any]) -> list[VerbProfile]:
        call = calls.embed(pool["model"])
        self._run(call, [{"texts": [self.texts.of(8)]}])
        points: list[Point] = []
        for count in self.effort.texts:
            for length in self.effort.text_tokens:
                inputs = [
                    {"texts": [self.texts.of(length) for _ in range(count)]}
                    for _ in range(self.effort.repeats)
                ]
                samples = [self._run(call, [one])[0] for one in inputs]
                points.append(_point(samples, "embed_many@1", count, length * count))
        cuts = self._cuts(
            calls.chunk_documents(pool["model"]),
            "chunk_documents@1",
            lambda text: {"documents": [{"id": new_id("document"), "text": text}]},
        )
        return [_fitted("embed", points), cuts]

    def _cuts(
        self,
        call: calls.AnyWorkflow,
        operator: str,
        given: Callable[[str], Mapping[str, Any]],
    ) -> VerbProfile:
        """Cutting a text into chunks, the inputs that it is ``given`` as."""
        points: list[Point] = []
        for length in (200, 2000):
            samples = [
                self._run(call, [given(self.texts.of(length))])[0]
                for _ in range(self.effort.repeats + 1)
            ]
            points.append(_point(samples[1:], operator, 1, length))
        return _fitted("text.chunk", points)

    def _retrieval(self, _pool: dict[str, Any]) -> list[VerbProfile]:
        self._fill()
        verbs = [_fitted("pg.write", self._writes()), _fitted("pg.delete", self._deletes())]
        for verb, operator in (
            ("pg.search", "retrieve"),
            ("pg.text", "search_text"),
            ("pg.hybrid", "hybrid"),
        ):
            call = calls.search(operator, self.collection)
            self._run(call, [{"query": self.texts.of(8)}])
            samples = [
                self._run(call, [{"query": self.texts.of(8)}])[0]
                for _ in range(3 * self.effort.repeats)
            ]
            verbs.append(_fitted(verb, [_point(samples, f"{operator}@1", 1, 0)]))
        return verbs

    def _fill(self) -> None:
        """A collection to search in: as many chunks as the longest rerank asks for."""
        if self.collection:
            return
        collection = new_id("herasys-profile")
        self._write(collection, _documents(2 * max(self.effort.texts)))
        self.collection = collection

    def _writes(self) -> list[Point]:
        counts = (1, *self.effort.texts[1:])
        rounds = range(self.effort.repeats)
        return [
            _point(
                [self._write(self.collection, _documents(count)) for _ in rounds],
                "store@1",
                count,
                0,
            )
            for count in counts
        ]

    def _deletes(self) -> list[Point]:
        """Documents of its own, so that searches find as many as before."""
        names = _documents(3 * self.effort.repeats)
        self._write(self.collection, names)
        call = calls.delete(self.collection)
        samples = [self._run(call, [{"source": name}])[0] for name in names]
        return [_point(samples, "delete@1", 1, 0)]

    def _write(self, collection: str, documents: Sequence[str]) -> Sample:
        """Store a new text as each of these documents."""
        given = [{"id": name, "text": self.texts.of(60)} for name in documents]
        call = calls.ingest()
        inputs = {"documents": given, "collection": collection}
        return self._run(call, [inputs])[0]

    def _rerank(self, pool: dict[str, Any]) -> list[VerbProfile]:
        """The same passages again and again: engines may keep what they made of them, and
        do so in use."""
        self._fill()
        query = self.texts.of(8)
        points: list[Point] = []
        for count in self.effort.texts:
            call = calls.rerank(pool["model"], self.collection, count)
            self._run(call, [{"query": query}])
            samples = [
                self._run(call, [{"query": query}])[0] for _ in range(self.effort.repeats)
            ]
            tokens = _mean_of(samples, "tokens")
            points.append(_point(samples, "rerank@1", count, tokens))
        return [_fitted("rerank", points)]

    def _search(self, _pool: dict[str, Any]) -> list[VerbProfile]:
        """Searches may ask somebody who does not answer: what fails is left out."""
        self._fill()
        call = calls.web_search(self.collection)
        samples: list[Sample] = []
        for _ in range(3 * self.effort.repeats):
            try:
                samples += self._run(call, [{"query": self.texts.of(4)}])
            except HerasysError as e:
                self.say(f"http.search is left out: {e.message}")
                return []
        return [_fitted("http.search", [_point(samples, "web_search@1", 1, 0)])]

    def _python(self, _pool: dict[str, Any]) -> list[VerbProfile]:
        self.say("python.call is left out: a tool takes what its function takes")
        return [self._cuts(calls.chunk(), "chunk@1", lambda text: {"text": text})]

    def _run(
        self, call: calls.AnyWorkflow, inputs: Sequence[Mapping[str, Any]]
    ) -> list[Sample]:
        samples = self.runner.together(call, inputs)
        if len(samples) == 1:
            one = samples[0]
            beside_s = one.latency_s - one.queued_s - sum(one.run_s.values())
            self._beside_s.append(max(beside_s, 0.0) / max(len(one.run_s), 1))
        return samples


# --- from samples to profiles --------------------------------------------------------
def _doubling(most: int) -> list[int]:
    """1, 2, 4, ... and ``most``."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return [*counts, most] if most > 1 else counts


def _documents(count: int) -> list[str]:
    return [new_id("document") for _ in range(count)]


def _point(samples: Sequence[Sample], operator: str, items: int, tokens: int) -> Point:
    return Point(
        _typical_s([[sample] for sample in samples], operator),
        samples=len(samples),
        items=items,
        tokens=tokens,
        latency_s=_latency_s(samples),
    )


def _typical_s(rounds: Sequence[Sequence[Sample]], operator: str) -> float:
    """The median over rounds of the slowest of a round: what else the machine did in one
    round does not count."""
    slowest = [max(sample.run_s[operator] for sample in one) for one in rounds]
    return round(statistics.median(slowest), 6)


def _latency_s(samples: Sequence[Sample]) -> float:
    return round(statistics.fmean(sample.latency_s for sample in samples), 6)


def _mean_of(samples: Sequence[Sample], name: str) -> int:
    return round(statistics.fmean(sample.usage.get(name, 0) for sample in samples))


def _fitted(verb: str, points: Sequence[Point]) -> VerbProfile:
    times, error = fit_batch(points)
    return VerbProfile(verb, tuple(points), times, fit_error=round(error, 4))


def _pool_profile(
    pool: Mapping[str, Any],
    config: PoolConfig | None,
    verbs: Sequence[VerbProfile],
) -> PoolProfile:
    return PoolProfile(
        pool=pool["name"],
        resource=pool["resource"],
        engine=pool["engine"],
        instance_class=(config.gpu_class if config else None) or "cpu",
        slots=int(pool["slots"]),
        verbs=tuple(verbs),
        model=pool["model"] or "",
        instances=max(len(pool.get("instances", ())), 1),
        batch_limit=config.batch_limit if config else 1,
    )


def _kv_bytes(model: str) -> int:
    """Bytes of a token's keys and values; 0 for a model that is in no catalogue."""
    try:
        return models.model(model).kv_bytes_per_token
    except ConfigError:
        return 0
