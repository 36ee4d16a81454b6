"""A whole control path in one process: the real loops over real sockets, no Ray."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from herasys_rt.client.client import Client
from herasys_rt.client.hosting import HostedAgents
from herasys_rt.client.link import Link
from herasys_rt.config import Config, PoolConfig, ReuseConfig, SchedulerConfig
from herasys_rt.costs.forecast import ProfileForecast
from herasys_rt.engines.protocol import Engine, Item, Outcome, Sink, Snapshot
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.hashing import HASHES, HashName
from herasys_rt.links import Endpoint, Inbox, Outbox
from herasys_rt.messages import FuserLost, HostLost, Stop, ToFuser, ToHost, ToScheduler
from herasys_rt.runtime.fuser import FuserLoop
from herasys_rt.runtime.hints import Hinting
from herasys_rt.runtime.host import HostLoop
from herasys_rt.runtime.kernels import new_kernel
from herasys_rt.runtime.objects import InlineValues, ObjectHold
from herasys_rt.runtime.registry import declare
from herasys_rt.runtime.reuse_store import ReuseStore
from herasys_rt.runtime.scheduler import SchedulerLoop
from tests.pure.runtime.thread_frontends import Threads


class HandEngine:
    """An engine that ends items only when the test says so."""

    verbs = frozenset({"llm.generate", "embed", "rerank", "pg.search", "pg.write"})

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.items: dict[str, Item] = {}
        self.seen: list[Item] = []
        self.aborted: list[str] = []
        self.arrived = threading.Condition()

    def start(self, sink: Sink) -> None:
        self.sink = sink

    def describe(self) -> dict[str, Any]:
        return {"fingerprint": "hand"}

    def submit(self, items: Any) -> None:
        with self.arrived:
            for item in items:
                self.items[item.key] = item
                self.seen.append(item)
            self.arrived.notify_all()

    def wait_for(self, count: int) -> list[Item]:
        """The items seen so far, once there are ``count``."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.seen) >= count, 10)
            return list(self.seen)

    def finish(self, item: Item, value: Any, **outcome: Any) -> None:
        self.items.pop(item.key, None)
        assert self.sink is not None
        self.sink.finished(item.key, Outcome(value=value, **outcome))

    def fail(self, item: Item, error: ErrorInfo) -> None:
        self.items.pop(item.key, None)
        assert self.sink is not None
        self.sink.finished(item.key, Outcome(error=error))

    def abort(self, key: str) -> None:
        with self.arrived:
            self.aborted.append(key)
            self.arrived.notify_all()
        if self.items.pop(key, None) is not None:
            assert self.sink is not None
            self.sink.finished(key, Outcome(aborted=True))

    def snapshot(self) -> Snapshot:
        return Snapshot(len(self.items), 0)

    def close(self) -> None:
        self.items.clear()


OPERATOR_KEY = "the operator's"


class LocalRuntime:
    """Loops in threads; hosts and the fuser can be ended and started again. ``store`` is
    where results are kept, if they are."""

    def __init__(
        self,
        run_dir: Path,
        pools: list[PoolConfig],
        engines: dict[str, Engine],
        scheduler: SchedulerConfig,
        store: Path | None = None,
    ):
        self.run_dir = run_dir
        self.store = store
        self.journal_path = run_dir / "journal.bin"
        self.config = Config(pools=tuple(pools), scheduler=scheduler)
        self.hashing = HASHES[scheduler.fusion_hash]
        self.outbox = Outbox()
        self._closed = False
        self.threads: list[threading.Thread] = []
        self.clients: list[Client] = []
        self.outboxes: list[Outbox] = []
        self._inbox: Inbox[Any] = Inbox(run_dir, "sched", ToScheduler)
        self.endpoint = self._inbox.endpoint
        kernel = new_kernel(self.config)
        self.state = kernel.state
        self.loop = SchedulerLoop(
            kernel.state,
            [declare(p, alone=True) for p in pools],
            self._inbox,
            self._outbox(),
            ObjectHold(),
            kernel.journal(self.journal_path),
            hashing=self.hashing,
            operator_key=OPERATOR_KEY,
            store=store,
        )
        for pool in pools:
            self.loop.roster.expect(pool)
        self._start(self.loop.run)
        self.fuser: Endpoint | None = None
        self.fuser_loop: FuserLoop | None = None
        self.fuser_thread: threading.Thread | None = None
        self.hinting: Hinting | None = None
        self.hosts: list[Endpoint] = []
        self.host_loops: list[HostLoop] = []
        for pool in pools:
            self.start_host(pool.name, engines[pool.name])

    def _start(self, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        self.threads.append(thread)
        return thread

    def _outbox(self) -> Outbox:
        self.outboxes.append(Outbox())
        return self.outboxes[-1]

    def start_host(self, pool: str, engine: Engine) -> None:
        inbox: Inbox[Any] = Inbox(self.run_dir, pool, ToHost)
        values = InlineValues(self.hashing)
        loop = HostLoop(engine, inbox, self._outbox(), self.endpoint, values)
        engine.start(loop)
        self.hosts.append(inbox.endpoint)
        self.host_loops.append(loop)
        self._start(lambda: loop.run(pool, 0))

    def lose_host(self, pool: str) -> None:
        """What the scheduler hears when a host's process dies."""
        self.outbox.send(self.hosts.pop(), Stop())
        self.outbox.send(self.endpoint, HostLost(pool, 0, "killed by the test"))

    def start_fuser(self, forecast: ProfileForecast | None = None) -> None:
        inbox: Inbox[Any] = Inbox(self.run_dir, "fuser", ToFuser)
        self.fuser = inbox.endpoint
        values = InlineValues(self.hashing)
        if self.store is not None:
            self.hinting = Hinting(ReuseStore(self.store, 1_000_000), values)
        loop = FuserLoop(
            inbox,
            self._outbox(),
            self.endpoint,
            values,
            forecast=forecast,
            hinting=self.hinting,
        )
        self.fuser_loop = loop
        self.fuser_thread = self._start(loop.run)

    def lose_fuser(self) -> None:
        assert self.fuser is not None and self.fuser_thread is not None
        self.outbox.send(self.fuser, Stop())
        if self.store is not None:
            self.fuser_thread.join(10)  # The next one needs its folder.
        self.outbox.send(self.endpoint, FuserLost("killed by the test"))

    def connect(self, tenant: str = "default") -> Client:
        link = Link(self.endpoint, tenant)
        link.open()
        client = Client(link, "test", lambda: None)
        self.clients.append(client)
        return client

    def close(self) -> None:
        """End everything and check that nothing is left. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for client in self.clients:
            client.close()
        self.outbox.send(self.endpoint, Stop())
        for peer in [*self.hosts, *([self.fuser] if self.fuser else [])]:
            self.outbox.send(peer, Stop())
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive(), "a loop did not end"
        self.outbox.close()
        left = [p.name for p in self.run_dir.iterdir() if p.is_socket()]
        assert left == [], f"sockets were left behind: {left}"


@pytest.fixture
def fusion_hash() -> HashName:
    """The hash of the runtimes of a test, which may be parametrised by this name."""
    return "sha256"


@pytest.fixture
def start_runtime(fusion_hash: HashName) -> Iterator[Callable[..., LocalRuntime]]:
    """Start a `LocalRuntime` with the given engine per pool; ended after the test."""
    started: list[LocalRuntime] = []
    with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as folder:

        def start(
            *,
            fuser: bool = True,
            ordering: str = "workflow_fcfs",
            store: Path | None = None,
            **engines: Engine,
        ) -> LocalRuntime:
            resources = {"search": "retrieval"}
            pools = [
                PoolConfig(
                    name=name,
                    resource=resources.get(name, name),  # pyright: ignore[reportArgumentType]
                    engine="modelled",
                    slots=4,
                )
                for name in engines
            ]
            reuse = ReuseConfig(store="none" if store is None else "disk")
            scheduler = SchedulerConfig(
                ordering=ordering, reuse=reuse, fusion_hash=fusion_hash
            )
            runtime = LocalRuntime(Path(folder), pools, engines, scheduler, store)
            started.append(runtime)
            if fuser:
                runtime.start_fuser()
            return runtime

        yield start
        for runtime in started:
            runtime.close()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose name leaves room for socket paths."""
    with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def hand_engine() -> type[HandEngine]:
    """The engine class whose items end when the test says so."""
    return HandEngine


@pytest.fixture
def connect_hosted(start_runtime: Any) -> Callable[..., tuple[Client, Threads]]:
    """``connect_hosted(runtime, count)``: a client with frontends, and their keeper."""

    def connect(
        runtime: LocalRuntime, count: int = 1, tenant: str = "default"
    ) -> tuple[Client, Threads]:
        link = Link(runtime.endpoint, tenant)
        link.open()
        keeper = Threads(runtime, link, count, tenant)
        client = Client(link, "test", lambda: None, hosted=HostedAgents(link, keeper))
        runtime.clients.append(client)
        return client, keeper

    return connect
