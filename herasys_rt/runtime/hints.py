"""The fuser's side of the store: what is kept of results, and what is offered of them."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from herasys_rt.core.commands import DropKept, KeepResult
from herasys_rt.core.events import Hint
from herasys_rt.errors import HerasysError
from herasys_rt.messages import StoreFacts
from herasys_rt.runtime.objects import ValueStore
from herasys_rt.runtime.reuse_store import Found, ReuseStore

log = logging.getLogger(__name__)

_AGAIN_S = 30.0
"""For so long the kernel is taken to hold what was offered or kept. Where it has let go of
it before, the result is computed again."""
_REMEMBERED = 65_536
_HINTED_BYTES = 4 * 1024 * 1024
"""What one run is offered at most."""


class Hinting:
    """Offers stored results to the kernel, and stores what it says is worth keeping.

    Nothing is offered or kept before the `begin` of a generation.
    """

    def __init__(
        self,
        store: ReuseStore,
        values: ValueStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._values = values
        self._clock = clock
        self._generation: int | None = None
        self._lately: OrderedDict[bytes, float] = OrderedDict()

    def begin(self, generation: int) -> None:
        """The kernel has purged so often."""
        self._generation = generation
        self._store.begin(generation)

    def keep(self, command: KeepResult) -> None:
        """Store a result when there is time for it."""
        self._store.keep(command, lambda: self._values.unpack(command.value))
        self._remember(command.signature)

    def drop(self, command: DropKept, done: Callable[[int], None]) -> None:
        """Carry a purge out; ``done`` hears how many results it took, in another thread."""
        self._generation = command.generation
        self._lately.clear()
        self._store.purge(command, done)

    def offers(self, signatures: Sequence[bytes]) -> tuple[Hint, ...]:
        """What the store has for the nodes with these signatures, as far as the kernel is
        not known to hold it. The last nodes come first: they spare the others."""
        generation = self._generation
        if generation is None:
            return ()
        made: list[Hint] = []
        room = _HINTED_BYTES
        for node in range(len(signatures) - 1, -1, -1):
            signature = signatures[node]
            if not signature or self._is_held(signature):
                continue
            found = self._store.find(signature)
            if found is None:
                continue
            room -= len(found.data) + len(found.meta)
            if room < 0 and made:
                break
            hint = self._hint(node, generation, found)
            if hint is not None:
                self._remember(signature)
                made.append(hint)
        return tuple(made)

    def facts(self) -> StoreFacts:
        """How the store is."""
        return self._store.facts()

    def close(self) -> None:
        """Write what is queued. Idempotent."""
        self._store.close()

    def _hint(self, node: int, generation: int, found: Found) -> Hint | None:
        kept = found.kept
        try:
            packed = self._values.pack(found.data, kept.value.digest)
        except HerasysError as e:
            log.warning("a stored result was not offered: %s", e)
            return None
        return Hint(
            node=node,
            generation=generation,
            value=replace(kept.value, inline=packed.inline, place=packed.place),
            tenant=kept.tenant,
            meta=found.meta,
            revisions=kept.revisions,
            ttl_s=found.left_s,
            run_s=kept.run_s,
            tokens=kept.tokens,
            age_s=kept.age_s + found.passed_s,
            eldest_age_s=kept.eldest_age_s + found.passed_s,
        )

    def _is_held(self, signature: bytes) -> bool:
        since_s = self._lately.get(signature)
        return since_s is not None and self._clock() - since_s < _AGAIN_S

    def _remember(self, signature: bytes) -> None:
        self._lately[signature] = self._clock()
        self._lately.move_to_end(signature)
        if len(self._lately) > _REMEMBERED:
            self._lately.popitem(last=False)
