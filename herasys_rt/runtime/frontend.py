"""Frontends: Ray actors that execute the agents of one client (decision 011).

Here is what Ray has to do with them: starting, watching, replacing and ending. What is
inside one is given by the client, which stands above this layer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from herasys_rt.ids import new_id
from herasys_rt.links import Endpoint
from herasys_rt.runtime.actors import pack_endpoint, unpack_endpoint

log = logging.getLogger(__name__)

_START_S = 120.0
"""How long a frontend may take to come up; making a job's environment is part of it."""
_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_END_S = 5.0
_THREADS = 4  # of an actor: one call waits for its end


class Inside(Protocol):
    """What a frontend does."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it takes orders."""
        ...

    def run(self) -> None:
        """Serve until told to stop."""
        ...


class Watcher(Protocol):
    """Who is told of frontends, on threads of their own."""

    def up(self, name: str, endpoint: Endpoint) -> None:
        """A frontend serves."""
        ...

    def lost(self, name: str, reason: str, heir: str) -> None:
        """A frontend is gone with all it did; ``heir`` is the name of the next one."""
        ...


class FrontendActor:
    """Hosts the inside of a frontend, made by ``make(name, *arguments)``, in a thread."""

    def __init__(
        self, make: Callable[..., Inside], name: str, arguments: tuple[Any, ...]
    ) -> None:
        logging.basicConfig(level=logging.INFO)
        self._inside = make(name, *arguments)
        self._ended = threading.Event()
        threading.Thread(target=self._serve, name="frontend", daemon=True).start()

    def _serve(self) -> None:
        try:
            self._inside.run()
            self._ended.set()
        except Exception:
            log.exception("the frontend broke")
            logging.shutdown()
            os._exit(70)  # Its client is told, and starts another.

    def endpoint(self) -> bytes:
        """Where the frontend takes orders."""
        return pack_endpoint(self._inside.endpoint)

    def park(self) -> None:
        """Returns when the frontend has ended; fails when the process dies."""
        self._ended.wait()


class Frontends:
    """The frontends of a client: ``count`` actors, each replaced when it is lost.

    They belong to the process that starts them and never outlive it; started in a Ray
    job, they have its runtime environment.
    """

    def __init__(
        self, count: int, make: Callable[..., Inside], arguments: tuple[Any, ...]
    ) -> None:
        self.names = [new_id("frontend") for _ in range(count)]
        self._make = make
        self._arguments = arguments
        self._actors: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()

    def start(self, watcher: Watcher) -> None:
        """Bring all of them up and tell ``watcher``; returns at once."""
        for name in self.names:
            thread = threading.Thread(
                target=self._keep, args=(name, watcher), name="frontends", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End all of them, those that were told to end by themselves first. Idempotent."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(_END_S)
        for actor in list(self._actors.values()):
            _kill(actor)  # Wakes the thread that still waits for it.
        for thread in self._threads:
            thread.join(_END_S)

    def _keep(self, name: str, watcher: Watcher) -> None:
        """Have a frontend, and after each the next one."""
        pause_s = _PAUSE_S
        while not self._stopping.is_set() and _has_ray():
            was_up, reason = self._live(name, watcher)
            if self._stopping.is_set():
                return
            log.warning("%s is gone: %s", name, reason)
            heir = new_id("frontend")
            watcher.lost(name, reason, heir)
            name = heir
            if was_up:
                pause_s = _PAUSE_S
            else:
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _live(self, name: str, watcher: Watcher) -> tuple[bool, str]:
        """One frontend from its start to its end: whether it was up, and why it ended."""
        import ray
        from ray import exceptions

        was_up = False
        actor = self._actors[name] = (
            ray.remote(FrontendActor)
            .options(
                num_cpus=0, max_concurrency=_THREADS, max_restarts=0, max_task_retries=0
            )
            .remote(self._make, name, self._arguments)
        )
        try:
            endpoint: Any = ray.get(actor.endpoint.remote(), timeout=_START_S)
            watcher.up(name, unpack_endpoint(endpoint))
            was_up = True
            ray.get(actor.park.remote())
            return was_up, "it ended by itself"
        except exceptions.GetTimeoutError:
            return was_up, f"it did not start within {_START_S:.0f} s"
        except exceptions.RayError as e:
            return was_up, f"{type(e).__name__}: {str(e).strip().splitlines()[0]}"
        finally:
            _kill(actor)
            del self._actors[name]


def _has_ray() -> bool:
    """Whether this process is still on a cluster: else Ray would start one of its own."""
    import ray

    return ray.is_initialized()


def _kill(actor: Any) -> None:
    import ray
    from ray import exceptions

    if _has_ray():
        with contextlib.suppress(exceptions.RayError, ValueError):
            ray.kill(actor, no_restart=True)
