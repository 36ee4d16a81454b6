"""Frontends in threads instead of Ray actors, up and down as a test says."""

from __future__ import annotations

import threading
from typing import Any

from herasys_rt.client.frontend import Frontend
from herasys_rt.client.link import Link
from herasys_rt.ids import new_id
from herasys_rt.messages import FromAgent, Stop


class Mortal(Frontend):
    """A frontend whose words do not get out any more once it is dead."""

    dead = False

    def _tell(self, message: FromAgent) -> None:
        if not self.dead:
            super()._tell(message)

    def die(self) -> None:
        self.dead = True
        self._link._outbox.post = lambda peer, message: None


class Threads:
    """Keeps frontends as `runtime.frontend.Frontends` does; `held` ones do not come up
    by themselves."""

    def __init__(self, runtime: Any, link: Link, count: int, tenant: str) -> None:
        self.names = [new_id("frontend") for _ in range(count)]
        self.frontends: dict[str, Mortal] = {}
        self._made = (runtime.endpoint, link.endpoint, tenant)
        self._outbox = runtime.outbox
        self._threads: dict[str, threading.Thread] = {}
        self._watcher: Any = None
        self.held = False

    def start(self, watcher: Any) -> None:
        self._watcher = watcher
        for name in self.names:
            self.begin(name)

    def begin(self, name: str) -> None:
        if self.held:
            return
        frontend = self.frontends[name] = Mortal(name, *self._made)
        thread = self._threads[name] = threading.Thread(target=frontend.run)
        thread.start()
        self._watcher.up(name, frontend.endpoint)

    def kill(self, name: str) -> None:
        """What a client hears when the process dies."""
        frontend = self.frontends.pop(name)
        frontend.die()
        self._outbox.send(frontend.endpoint, Stop())
        self._threads.pop(name).join(10)
        heir = new_id("frontend")
        self._watcher.lost(name, "killed by the test", heir)
        self.names = [heir if n == name else n for n in self.names]
        self.begin(heir)

    def stop(self) -> None:
        for thread in self._threads.values():
            thread.join(10)
            assert not thread.is_alive()
