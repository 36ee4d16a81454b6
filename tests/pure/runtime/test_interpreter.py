"""Carrying out commands that the control path's tests do not meet."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from herasys_rt.core.commands import FinishRun
from herasys_rt.core.values import Value
from herasys_rt.errors import ValueLostError
from herasys_rt.links import Inbox, Outbox
from herasys_rt.messages import ToClient
from herasys_rt.runtime.interpreter import Interpreter
from herasys_rt.runtime.objects import ObjectHold


class Lossy(ObjectHold):
    """A store that has lost what it held, apart from ``value-2``."""

    def read(self, place: str, handle: Any) -> bytes:
        if place == "value-2":
            return b"here"
        raise ValueLostError("a large value was lost", hint="Again.", place=place)


def test_a_run_whose_large_output_is_lost_ends_as_failed_and_the_kernel_hears_of_it():
    with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as folder:
        client: Inbox[Any] = Inbox(Path(folder), "client", ToClient)
        outbox = Outbox()
        lost: list[tuple[str, ...]] = []
        clients = {"c": client.endpoint}
        interpreter = Interpreter(outbox, Lossy(), clients, {}, {}, lost=lost.append)
        large = [Value(b"digest", 1 << 20, place=f"value-{i}") for i in (1, 2, 3)]
        outputs = tuple(enumerate(large))
        interpreter.carry_out([FinishRun("run-1", "c", "succeeded", (), outputs)])
        (ended,) = client.receive(10)
        assert (ended.run_id, ended.status, ended.outputs) == ("run-1", "failed", ())
        assert ended.error.message == "a large value was lost" and ended.error.retryable
        assert lost == [("value-1", "value-3")]
        interpreter.close()
        outbox.close()
        client.close()
