"""Where what is told to a client or a frontend arrives."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from herasys_rt.links import Endpoint, Inbox, host_identity


def inbox_for(scheduler: Endpoint, name: str, kind: Any) -> Inbox[Any]:
    """An inbox that everybody reaches who reaches the scheduler.

    Its socket is beside the scheduler's, so that it is gone with the runtime at the
    latest.
    """
    tcp_host = _tcp_host(scheduler)
    if scheduler.host == host_identity():
        folder = Path(scheduler.ipc.removeprefix("ipc://")).parent
        return Inbox(folder, name, kind, tcp_host=tcp_host)
    return Inbox(Path(tempfile.gettempdir()), f"herasys-{name}", kind, tcp_host=tcp_host)


def _tcp_host(scheduler: Endpoint) -> str:
    """The interface to listen on when the runtime spans hosts: the one that leads there."""
    if not scheduler.tcp:
        return ""
    import socket

    host, port = scheduler.tcp.removeprefix("tcp://").rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return probe.getsockname()[0]
