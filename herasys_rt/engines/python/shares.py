"""CPUs and GPUs of one instance, lent to calls that ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from herasys_rt.errors import NodeError

_SLACK = 1e-9  # sums of tenths


class Shares:
    """What an instance has; belongs to one event loop. First come, first served."""

    def __init__(self, cpus: float, gpus: float) -> None:
        self._has = {"cpus": cpus, "gpus": gpus}
        self._free = dict(self._has)
        self._turn = asyncio.Lock()
        self._returned = asyncio.Event()

    @asynccontextmanager
    async def held(self, name: str, cpus: float, gpus: float) -> AsyncGenerator[None]:
        """While entered, the call has them. Errors: `NodeError` (``tool_resources``) for
        more than there ever is."""
        wanted = {"cpus": cpus, "gpus": gpus}
        for key, amount in wanted.items():
            if amount > self._has[key] + _SLACK:
                raise NodeError(
                    f"tool {name!r} asks for {amount:g} {key}, an instance of its pool has "
                    f"{self._has[key]:g}",
                    hint=f"Give the python pool more ({key}: {amount:g} in the "
                    "configuration), or ask for less.",
                    code="tool_resources",
                )
        if not (cpus or gpus):  # nobody's turn to wait for
            yield
            return
        async with self._turn:
            while any(n > self._free[key] + _SLACK for key, n in wanted.items()):
                self._returned.clear()
                await self._returned.wait()
            for key, amount in wanted.items():
                self._free[key] -= amount
        try:
            yield
        finally:
            for key, amount in wanted.items():
                self._free[key] += amount
            self._returned.set()
