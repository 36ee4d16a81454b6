"""The Ray actors: thin shells around the loops, started, watched and ended by Ray calls.

Nothing on a run's path goes through an actor method; those serve set-up, large values,
health and the end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from herasys_rt.config import Config, PoolConfig
from herasys_rt.core import events
from herasys_rt.costs.profile import Profile
from herasys_rt.errors import ErrorInfo, HerasysError
from herasys_rt.graph.hashing import HASHES, HashName
from herasys_rt.links import Endpoint, Inbox, Outbox
from herasys_rt.messages import (
    FuserLost,
    HostFailed,
    HostLost,
    Stop,
    ToFuser,
    ToHost,
    ToScheduler,
)

log = logging.getLogger(__name__)

NAMESPACE = "herasys"
SCHEDULER_NAME = "herasys-scheduler"


def pack_endpoint(endpoint: Endpoint) -> bytes:
    """The endpoint as an actor's method returns it."""
    return msgspec.msgpack.encode(endpoint)


def unpack_endpoint(data: bytes) -> Endpoint:
    """The endpoint that an actor's method returned."""
    return msgspec.msgpack.decode(data, type=Endpoint)


class SchedulerActor:
    """Hosts the scheduler's loop in a thread of its own. ``store`` is the folder of kept
    results; None: none are."""

    def __init__(
        self,
        config: Config,
        pools: list[bytes],
        run_dir: str,
        tcp_host: str,
        store: str | None = None,
    ) -> None:
        from herasys_rt.runtime import places
        from herasys_rt.runtime.kernels import new_kernel
        from herasys_rt.runtime.objects import ObjectHold
        from herasys_rt.runtime.scheduler import SchedulerLoop

        logging.basicConfig(level=logging.INFO)
        declared = [msgspec.msgpack.decode(p, type=events.PoolDeclared) for p in pools]
        kernel = new_kernel(config)
        journal = None
        if config.scheduler.journal:
            limit = config.scheduler.journal_max_mb * 1024 * 1024
            journal = kernel.journal(Path(run_dir) / "journal.bin", limit)
        self._inbox: Inbox[ToScheduler] = Inbox(
            Path(run_dir), "sched", ToScheduler, tcp_host=tcp_host
        )
        self._objects = ObjectHold()
        self._outbox = Outbox()
        self._loop = SchedulerLoop(
            kernel.state,
            declared,
            self._inbox,
            Outbox(),
            self._objects,
            journal,
            hashing=HASHES[config.scheduler.fusion_hash],
            operator_key=places.write_operator_key(Path(run_dir)),
            store=Path(store) if store is not None else None,
        )
        for pool in config.pools:
            self._loop.roster.expect(pool)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="scheduler", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        import gc

        gc.collect()
        gc.freeze()  # What start-up made lives to the end; full collections skip it.
        # The kernel keeps much alive and leaves no cycles: looking for them at Python's
        # own pace costs a quarter of its events a second with 10,000 active nodes.
        gc.set_threshold(50_000, 20, 100)
        try:
            self._loop.run()
            self._ended.set()
        except Exception:
            # A kernel that broke an invariant must not go on: the process ends, its
            # watchers tell, and the log has the story.
            log.exception("the scheduler's loop broke")
            logging.shutdown()
            os._exit(70)

    def endpoint(self) -> bytes:
        """Where the scheduler listens."""
        return pack_endpoint(self._inbox.endpoint)

    def _tell(self, message: Any) -> None:
        self._outbox.send(self._inbox.endpoint, message)

    def watch_host(self, handles: list[Any], pool: str, index: int) -> None:
        """Report the end of a host's process as it happens, over all its restarts."""
        self._watch(
            handles[0],
            lambda why, gone, pid: self._tell(HostLost(pool, index, why, gone, pid)),
        )

    def watch_fuser(self, handles: list[Any]) -> None:
        """Report the end of the fuser's process as it happens."""
        self._watch(handles[0], lambda why, gone, pid: self._tell(FuserLost(why)))

    def _watch(self, handle: Any, report: Any) -> None:
        import ray
        from ray import exceptions

        def stand_by() -> None:
            pid = 0
            while not self._ended.is_set():
                try:
                    pid = ray.get(handle.ping.remote())
                    ray.get(handle.park.remote())
                    return  # It was told to stop.
                except exceptions.ActorUnavailableError as e:
                    report(type(e).__name__, False, pid)
                except exceptions.ActorDiedError as e:
                    report(type(e).__name__, False, pid)
                    # Said of a restarting actor too; a second call tells them apart.
                    if self._is_gone(handle):
                        report(type(e).__name__, True, pid)
                        return
                except exceptions.RayError as e:
                    report(type(e).__name__, True, pid)
                    return
                time.sleep(0.1)  # Ray itself answers late about a restarting actor.

        threading.Thread(target=stand_by, name="watch", daemon=True).start()

    @staticmethod
    def _is_gone(handle: Any) -> bool:
        import ray
        from ray import exceptions

        try:
            ray.get(handle.ping.remote(), timeout=60)
        except exceptions.ActorUnavailableError:
            return False
        except exceptions.GetTimeoutError:
            return False
        except exceptions.RayError:
            return True
        return False

    def keep(self, place: str, data: Any) -> None:
        """Keep a large value (a uint8 array) under its place."""
        self._objects.keep(place, data)

    def reference(self, place: str) -> list[Any]:
        """The reference of a large value, in a list; empty when it is not held."""
        ref = self._objects.handle(place)
        return [] if ref is None else [ref]

    def held(self) -> int:
        """How many large values are held."""
        return len(self._objects)

    def status(self) -> dict[str, Any]:
        """The scheduler's status as plain data, half a second old at most."""
        return self._loop.latest_status

    def stop(self) -> None:
        """End the loop: clients, hosts and the fuser are told."""
        self._tell(Stop())
        self._ended.wait(5)


class FuserActor:
    """Hosts the fuser's loop in a thread of its own. ``store`` is the folder of kept
    results and how many bytes of them there may be; None: none are."""

    def __init__(
        self,
        scheduler: Any,
        endpoint: bytes,
        run_dir: str,
        tcp_host: str,
        profile: Profile | None,
        fusion_hash: HashName,
        store: tuple[str, int] | None = None,
    ) -> None:
        from herasys_rt.costs.forecast import ProfileForecast
        from herasys_rt.runtime.fuser import FuserLoop
        from herasys_rt.runtime.hints import Hinting
        from herasys_rt.runtime.objects import RayValues
        from herasys_rt.runtime.reuse_store import ReuseStore

        logging.basicConfig(level=logging.INFO)
        self._inbox: Inbox[ToFuser] = Inbox(
            Path(run_dir), "fuser", ToFuser, tcp_host=tcp_host
        )
        values = RayValues(scheduler, HASHES[fusion_hash])
        hinting = None
        if store is not None:
            folder, max_bytes = store
            hinting = Hinting(ReuseStore(Path(folder), max_bytes), values)
        loop = FuserLoop(
            self._inbox,
            Outbox(),
            unpack_endpoint(endpoint),
            values,
            forecast=ProfileForecast(profile) if profile is not None else None,
            hinting=hinting,
        )
        self._ended = threading.Event()

        def serve() -> None:
            try:
                loop.run()
                self._ended.set()
            except Exception:
                log.exception("the fuser's loop broke")
                logging.shutdown()
                os._exit(70)  # Ray starts it again; clients go to the scheduler.

        threading.Thread(target=serve, name="fuser", daemon=True).start()

    def endpoint(self) -> bytes:
        """Where the fuser listens."""
        return pack_endpoint(self._inbox.endpoint)

    def ping(self) -> int:
        """The process id."""
        return os.getpid()

    def park(self) -> None:
        """Returns when the loop has ended; fails when the process dies."""
        self._ended.wait()


def _end_process(fault: ErrorInfo) -> None:
    """An engine that is dead cannot be mended in its process; Ray starts a fresh one."""
    log.error("the engine is dead: %s", fault.message)
    logging.shutdown()
    os._exit(70)


class HostActor:
    """Hosts one engine and its loop. Loading happens beside the constructor, so that a
    restart by Ray loads and announces itself without anybody asking."""

    def __init__(
        self,
        scheduler: Any,
        endpoint: bytes,
        pool: PoolConfig,
        index: int,
        dsn: str,
        run_dir: str,
        tcp_host: str,
        fusion_hash: HashName,
    ) -> None:
        logging.basicConfig(level=logging.INFO)
        self._scheduler = scheduler
        self._hashing = HASHES[fusion_hash]
        self._endpoint = unpack_endpoint(endpoint)
        self._pool = pool
        self._index = index
        self._dsn = dsn
        self._run_dir = Path(run_dir)
        self._tcp_host = tcp_host
        self._ended = threading.Event()
        threading.Thread(target=self._serve, name="host", daemon=True).start()

    def _serve(self) -> None:
        from herasys_rt.runtime.host import HostLoop
        from herasys_rt.runtime.objects import RayValues
        from herasys_rt.runtime.registry import create_engine

        outbox = Outbox()
        try:
            # On another node of the cluster nobody has made it.
            self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            engine = create_engine(self._pool, self._dsn)
            inbox: Inbox[ToHost] = Inbox(
                self._run_dir, self._pool.name, ToHost, tcp_host=self._tcp_host
            )
            loop = HostLoop(
                engine,
                inbox,
                outbox,
                self._endpoint,
                RayValues(self._scheduler, self._hashing),
                on_broken=_end_process,
            )
            engine.start(loop)
        except Exception as e:
            self._fail(outbox, e)
            return
        try:
            loop.run(self._pool.name, self._index)
            with contextlib.suppress(OSError):
                self._run_dir.rmdir()  # Only where nothing else is in it.
            self._ended.set()
        except Exception:
            log.exception("the host's loop broke")
            logging.shutdown()
            os._exit(70)  # Ray starts it again; its work moves.

    def _fail(self, outbox: Outbox, error: Exception) -> None:
        log.exception("engine of pool %s did not start", self._pool.name)
        if isinstance(error, HerasysError):
            info = error.info()
        else:
            info = ErrorInfo(
                "engine_start",
                f"the engine of pool {self._pool.name!r} did not start: "
                f"{type(error).__name__}: {error}",
                "Run `herasys doctor`; the runtime's log has the details.",
            )
        outbox.send(self._endpoint, HostFailed(self._pool.name, self._index, info))

    def ping(self) -> int:
        """The process id."""
        return os.getpid()

    def park(self) -> None:
        """Returns when the loop has ended; fails when the process dies."""
        self._ended.wait()
