"""The few calls by which commands reach the runtime. Imported only by who needs it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from herasys_rt.config import Config

if TYPE_CHECKING:
    from herasys_rt.client.client import Client
    from herasys_rt.graph.explain import Explanation

Progress = Callable[[str], None]


def start(config: Config, address: str | None, progress: Progress) -> dict[str, Any]:
    """Start the background runtime, on the cluster at ``address`` if given; its status."""
    from herasys_rt.runtime import daemon

    if address is not None:
        ray = config.ray.model_copy(update={"address": address})
        config = config.model_copy(update={"ray": ray})
    daemon.up(config, on_progress=progress)
    return status()


def stop(progress: Progress) -> bool:
    """Stop the background runtime; False when none was up."""
    from herasys_rt.runtime import daemon

    return bool(daemon.down(on_progress=progress))


def status() -> dict[str, Any]:
    """What the background runtime says of itself; ``state`` is ``up`` or ``down``."""
    from herasys_rt.client.background import runtime_status

    return runtime_status()


def explain(nodes: list[tuple[str, str]], tenant: str) -> list[Explanation]:
    """How (run, node) pairs were signed by the background runtime."""
    from herasys_rt.client.background import explained

    return explained(nodes, tenant)


def purge_cache(
    tenant: str | None, collection: str | None, signature: str | None, config: Config
) -> dict[str, Any]:
    """Purge the background runtime's cache, or without one what it has left on disk: what
    went, as plain data."""
    from herasys_rt.client.background import purge_runtime

    return purge_runtime(tenant, collection, signature, config)


def connect(config: Config | None, tenant: str | None, progress: Progress) -> Client:
    """A client of the background runtime, or of a private one that ends with it."""
    from herasys_rt.client.connecting import connect as connect_

    if tenant is None:
        return connect_(config, on_progress=progress)
    return connect_(config, tenant=tenant, on_progress=progress)


@contextlib.contextmanager
def database(config: Config) -> Iterator[str]:
    """A DSN of the database that collections are in.

    The configured one, else the running runtime's, else an embedded server that is
    started for the time of this context.
    """
    if config.database.dsn is not None:
        yield config.database.dsn.get_secret_value()
        return
    from herasys_rt.runtime import places

    state = places.read_state()
    if state is not None and state.get("dsn"):
        yield str(state["dsn"])
        return
    from herasys_rt.engines.postgres.server import EmbeddedPostgres

    run_dir = places.new_run_dir()
    try:
        with EmbeddedPostgres(config.database.data_dir, run_dir) as server:
            yield server.start()
    finally:
        places.remove_run_dir(run_dir)
