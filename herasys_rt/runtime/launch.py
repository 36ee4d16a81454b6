"""Bringing a runtime up on a Ray this process is connected to, and taking it down."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from herasys_rt.config import Config, PoolConfig
from herasys_rt.costs.profile import Profile
from herasys_rt.errors import (
    ClusterError,
    EnvironmentFaultError,
    ErrorInfo,
    HerasysError,
    error_from_info,
)
from herasys_rt.links import Endpoint
from herasys_rt.runtime.actors import (
    NAMESPACE,
    SCHEDULER_NAME,
    FuserActor,
    HostActor,
    SchedulerActor,
    unpack_endpoint,
)
from herasys_rt.runtime.cluster import demand, preflight
from herasys_rt.runtime.places import store_folder
from herasys_rt.runtime.placing import Placing, no_place
from herasys_rt.runtime.registry import declare, needs_database

Progress = Callable[[str], None]

_POLL_S = 0.1
_CALL_TIMEOUT_S = 60.0
_THREADS = 32  # actor methods that may wait at once: one watcher call plus set-up calls


class Runtime:
    """The actors of one runtime: a scheduler, a fuser, a host per engine instance.

    ``detached`` actors outlive this process (an existing cluster); others end with it.
    ``dsn`` is handed to the engines that need a database. ``profile`` is what orderings
    predict from.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        dsn: str = "",
        *,
        profile: Profile | None = None,
        detached: bool = False,
        multi_host: bool = False,
        pin_retrieval_to: str | None = None,
    ) -> None:
        self._config = config
        self._run_dir = run_dir
        self._dsn = dsn
        self._profile = profile
        self._detached = detached
        self._tcp_host = _address_of_this_host() if multi_host else ""
        self._pin_retrieval_to = pin_retrieval_to
        self._scheduler: Any = None
        self._fuser: Any = None
        self._hosts: list[tuple[PoolConfig, int, Any]] = []
        self._started_s = time.monotonic()
        self._placing = Placing(self._started_s)
        self.scheduler_endpoint: Endpoint | None = None

    def start(self, progress: Progress) -> Endpoint:
        """Start everything and wait until every pool serves. Errors: `ClusterError`,
        or what the first engine that cannot start says. On error nothing is left.

        What the nodes cannot hold is refused at once, and what they have no room for
        after a minute; on a cluster that adds nodes (``ray.autoscaling``) neither: the
        start waits, and ``progress`` says for what.
        """
        import ray
        from ray import exceptions

        if not self._config.ray.autoscaling:
            preflight(self._config, ray.nodes())
        self._started_s = time.monotonic()
        self._placing = Placing(self._started_s)
        try:
            self._start_scheduler()
            self._start_fuser()
            for pool in self._config.pools:
                for index in range(pool.instances):
                    self._start_host(pool, index)
            self._await_pools(progress)
        except exceptions.RayError as e:
            self.stop()
            raise ClusterError(
                f"an actor of the runtime did not start: {type(e).__name__}: {e}",
                hint="The runtime's log has the details; `herasys doctor` checks memory "
                "and disk.",
            ) from e
        except BaseException:
            self.stop()
            raise
        assert self.scheduler_endpoint is not None
        return self.scheduler_endpoint

    def _options(self, name: str, **more: Any) -> dict[str, Any]:
        options: dict[str, Any] = {
            "namespace": NAMESPACE,
            "name": name,
            "max_concurrency": _THREADS,
            "max_task_retries": 0,
            **more,
        }
        if self._detached:
            options["lifetime"] = "detached"
        return options

    def _start_scheduler(self) -> None:
        import ray

        here = ray.get_runtime_context().get_node_id()
        pools = []
        for pool in self._config.pools:
            same = [p for p in self._config.pools if p.resource == pool.resource]
            pools.append(msgspec.msgpack.encode(declare(pool, alone=len(same) == 1)))
        store = _store_of(self._config)
        try:
            self._scheduler = (
                ray.remote(SchedulerActor)
                .options(
                    **self._options(SCHEDULER_NAME, num_cpus=0),
                    scheduling_strategy=_on_node(here),
                )
                .remote(
                    self._config,
                    pools,
                    str(self._run_dir),
                    self._tcp_host,
                    store[0] if store is not None else None,
                )
            )
            packed = _call(self._scheduler.endpoint.remote())
        except ValueError as e:
            raise ClusterError(
                f"a herasys runtime already serves on this cluster: {e}",
                hint="Connect to it, or take it down first with `herasys down`.",
            ) from e
        self.scheduler_endpoint = unpack_endpoint(packed)
        self._packed_endpoint = packed

    def _start_fuser(self) -> None:
        import ray

        here = ray.get_runtime_context().get_node_id()
        self._fuser = (
            ray.remote(FuserActor)
            .options(
                **self._options("herasys-fuser", num_cpus=0, max_restarts=-1),
                scheduling_strategy=_on_node(here),
            )
            .remote(
                self._scheduler,
                self._packed_endpoint,
                str(self._run_dir),
                self._tcp_host,
                self._profile,
                self._config.scheduler.fusion_hash,
                _store_of(self._config),
            )
        )
        self._scheduler.watch_fuser.remote([self._fuser])

    def _start_host(self, pool: PoolConfig, index: int) -> None:
        import ray

        options = self._options(
            f"herasys-host-{pool.name}-{index}", max_restarts=-1, **demand(pool)
        )
        if pool.engine == "pgvector":
            size = {"pool_size": self._config.database.pool_size, **pool.options}
            pool = pool.model_copy(update={"options": size})
        if needs_database(pool) and self._pin_retrieval_to:
            # The embedded server's socket is there.
            options["scheduling_strategy"] = _on_node(self._pin_retrieval_to)
            options.pop("label_selector", None)
        host = (
            ray.remote(HostActor)
            .options(**options)
            .remote(
                self._scheduler,
                self._packed_endpoint,
                pool,
                index,
                self._dsn,
                str(self._run_dir),
                self._tcp_host,
                self._config.scheduler.fusion_hash,
            )
        )
        self._hosts.append((pool, index, host))
        self._placing.expect(pool, index, host.ping.remote())
        self._scheduler.watch_host.remote([host], pool.name, index)

    def _await_pools(self, progress: Progress) -> None:
        """Wait for every instance; progress names the pools that came up."""
        told: set[str] = set()
        while True:
            status = _call(self._scheduler.status.remote())
            serving = 0
            for pool in status["pools"]:
                states = [instance["state"] for instance in pool["instances"]]
                if "failed" in states:
                    failed = pool["instances"][states.index("failed")]
                    raise _engine_error(failed["error"], failed["id"])
                # The first status may be older than the seats it is asked for.
                if set(states) != {"up"}:
                    continue
                serving += 1
                if pool["name"] not in told:
                    told.add(pool["name"])
                    progress(f"{_named(pool)} is up after {self._elapsed()}")
            if serving == len(status["pools"]) and status["fuser"] == "up":
                return
            self._await_places(progress)
            time.sleep(_POLL_S)

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._started_s:.1f} s"

    def _await_places(self, progress: Progress) -> None:
        """Give up on an instance that Ray finds no place for, or say that it waits."""
        import ray

        waiting = self._placing.waiting()
        if not waiting:
            return
        come, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        self._placing.placed(come, time.monotonic())
        stuck = self._placing.stuck(time.monotonic())
        if stuck is None:
            return
        error = no_place(*stuck, ray.cluster_resources(), ray.available_resources())
        if not self._config.ray.autoscaling:
            raise error
        progress(f"waiting for nodes since {self._elapsed()}: {error.message}")
        self._placing.wait_again(time.monotonic())

    def alive(self) -> bool:
        """Whether the scheduler still answers."""
        from ray import exceptions

        try:
            _call(self._scheduler.held.remote())
        except exceptions.RayError:
            return False
        return True

    def stop(self) -> None:
        """End exactly the actors of this runtime. Idempotent, never raises."""
        import ray

        if self._scheduler is not None:
            _quietly(lambda: ray.get(self._scheduler.stop.remote(), timeout=10))
        # Hosts close their engines (and an engine's child processes) on the scheduler's
        # word; whoever does not end soon is killed.
        parked = [host.park.remote() for _, _, host in self._hosts]
        _quietly(lambda: ray.wait(parked, num_returns=len(parked), timeout=5))
        for actor in [h for _, _, h in self._hosts] + [self._fuser, self._scheduler]:
            if actor is not None:
                _quietly(lambda actor=actor: ray.kill(actor, no_restart=True))
        self._hosts.clear()
        self._fuser = self._scheduler = None


def _store_of(config: Config) -> tuple[str, int] | None:
    """Where results are kept and how many bytes of them; None when they are not."""
    reuse = config.scheduler.reuse
    if reuse.store == "none" or not config.scheduler.fusion:
        return None
    return str(store_folder(config)), reuse.store_max_bytes


def _call(pending: Any) -> Any:
    """The answer of an actor call, within a minute."""
    import ray

    return ray.get(pending, timeout=_CALL_TIMEOUT_S)


def _quietly(action: Callable[[], Any]) -> None:
    """Run a clean-up step; what is already gone needs no cleaning."""
    from ray import exceptions

    try:
        action()
    except (exceptions.RayError, ValueError):
        return


def _named(pool: dict[str, Any]) -> str:
    """``pool llm (vllm, smollm2-135m, 2 instances)``."""
    count = len(pool["instances"])
    facts = [pool["engine"], pool["model"], f"{count} instances" if count > 1 else None]
    return f"pool {pool['name']} ({', '.join(filter(None, facts))})"


def _on_node(node_id: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def _engine_error(error: dict[str, str], instance: str) -> HerasysError:
    info = ErrorInfo(error["code"], error["message"], error.get("hint", ""))
    built = error_from_info(info)
    if isinstance(built, EnvironmentFaultError) or built.code != "engine_start":
        return built
    return ClusterError(
        f"instance {instance} did not start: {info.message}", hint=info.hint
    )


def _address_of_this_host() -> str:
    """The address other hosts of the cluster reach this one by."""
    import ray

    try:
        return ray.util.get_node_ip_address()
    except (AttributeError, OSError):
        return socket.gethostbyname(socket.gethostname())


def existing_scheduler() -> Endpoint | None:
    """The endpoint of the runtime that already serves on the joined cluster."""
    import ray
    from ray import exceptions

    try:
        actor = ray.get_actor(SCHEDULER_NAME, namespace=NAMESPACE)
    except ValueError:
        return None
    try:
        return unpack_endpoint(_call(actor.endpoint.remote()))
    except exceptions.RayError as e:
        raise ClusterError(
            f"the runtime on this cluster does not answer: {type(e).__name__}",
            hint="End its actors (named herasys-*), then connect again.",
        ) from e
