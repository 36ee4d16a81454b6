"""Carrying out commands that the control path's tests do not meet."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from herasys_rt.core.commands import FinishRun
from herasys_rt.core.values import Value
from herasys_rt.errors import EnvironmentFaultError
from herasys_rt.links import Inbox, Outbox
from herasys_rt.messages import ToClient
from herasys_rt.runtime.interpreter import Interpreter
from herasys_rt.runtime.objects import ObjectHold


class Lossy(ObjectHold):
    """A store that has lost what it held."""

    def read(self, handle: Any) -> bytes:
        raise EnvironmentFaultError("a large value was lost", hint="Again.")


def test_a_run_whose_large_output_is_lost_ends_as_failed():
    with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as folder:
        client: Inbox[Any] = Inbox(Path(folder), "client", ToClient)
        outbox = Outbox()
        interpreter = Interpreter(outbox, Lossy(), {"c": client.endpoint}, {}, {})
        large = Value(b"digest", 1 << 20, place="value-1")
        interpreter.carry_out([FinishRun("run-1", "c", "succeeded", (), ((0, large),))])
        (ended,) = client.receive(10)
        assert (ended.run_id, ended.status, ended.outputs) == ("run-1", "failed", ())
        assert ended.error.message == "a large value was lost"
        interpreter.close()
        outbox.close()
        client.close()
