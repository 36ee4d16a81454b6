"""A whole runtime in this process: Ray, PostgreSQL and the actors, in that order."""

from __future__ import annotations

import time
from pathlib import Path

from herasys_rt.config import Config
from herasys_rt.costs.profile import Profile, read_profile
from herasys_rt.links import Endpoint
from herasys_rt.runtime.cluster import join_ray, start_private_ray
from herasys_rt.runtime.launch import Progress, Runtime


class Stack:
    """Starts what a configuration names and stops exactly that.

    With ``config.ray.address`` (or ``joined``, when this process is already on a
    cluster) no Ray is started and none is stopped.
    """

    def __init__(self, config: Config, run_dir: Path, *, joined: bool = False) -> None:
        self._config = config
        self._run_dir = run_dir
        self._joined = joined
        self._postgres = None
        self._runtime: Runtime | None = None
        self._own_ray = False
        self.dsn = ""
        self.job_address = ""
        self.ray_address = ""

    def start(self, progress: Progress) -> Endpoint:
        """Start everything and wait until it serves. Errors: `EnvironmentFaultError`
        and its kinds, `ConfigError`, `UnknownModelError`; stop() clears up after any."""
        from herasys_rt.runtime.kernels import new_kernel
        from herasys_rt.runtime.registry import declare

        new_kernel(self._config)
        profile = _profile(self._config)
        for pool in self._config.pools:
            declare(pool, alone=True)  # Wrong names are told before anything starts.
        self._start_database(progress)
        self._start_ray(progress)
        import ray

        self.ray_address = ray.get_runtime_context().gcs_address
        names = ", ".join(pool.name for pool in self._config.pools)
        progress(f"starting the pools: {names}")
        on_cluster = self._joined or bool(self._config.ray.address)
        self._runtime = Runtime(
            self._config,
            self._run_dir,
            self.dsn,
            profile=profile,
            detached=bool(self._config.ray.address),
            multi_host=on_cluster,
            pin_retrieval_to=(
                ray.get_runtime_context().get_node_id() if self._postgres else None
            ),
        )
        return self._runtime.start(progress)

    def _start_database(self, progress: Progress) -> None:
        from herasys_rt.runtime.registry import needs_database

        if not any(needs_database(pool) for pool in self._config.pools):
            return
        from herasys_rt.engines.postgres.dsn import check_dsn
        from herasys_rt.engines.postgres.server import EmbeddedPostgres

        given = self._config.database.dsn
        if given is not None:
            self.dsn = given.get_secret_value()
            check_dsn(self.dsn)
            progress("the database answers")
            return
        begun_s = time.monotonic()
        self._postgres = EmbeddedPostgres(self._config.database.data_dir, self._run_dir)
        self.dsn = self._postgres.start()
        progress(f"PostgreSQL is up after {_since(begun_s)}")

    def _start_ray(self, progress: Progress) -> None:
        if self._joined:
            return
        begun_s = time.monotonic()
        if self._config.ray.address:
            join_ray(self._config.ray.address)
            progress(f"joined Ray at {self._config.ray.address} after {_since(begun_s)}")
            return
        progress("starting a private Ray")
        self.job_address = start_private_ray(self._config, self._run_dir)
        self._own_ray = True
        progress(f"Ray is up after {_since(begun_s)}")

    def alive(self) -> bool:
        """Whether the runtime still serves."""
        return self._runtime is not None and self._runtime.alive()

    def stop(self) -> None:
        """Stop what `start` started, in reverse. Idempotent."""
        if self._runtime is not None:
            self._runtime.stop()
            self._runtime = None
        if self._own_ray or self._config.ray.address:
            import ray

            ray.shutdown()
            self._own_ray = False
        if self._postgres is not None:
            self._postgres.stop()
            self._postgres = None


def _since(begun_s: float) -> str:
    return f"{time.monotonic() - begun_s:.1f} s"


def _profile(config: Config) -> Profile | None:
    path = config.scheduler.profile
    return read_profile(path) if path is not None else None
