"""How a process comes to a client: of the runtime that is there, or of one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from herasys_rt.client.client import AsyncClient, Client, check_name
from herasys_rt.client.frontend import Frontend
from herasys_rt.client.hosting import HostedAgents
from herasys_rt.client.link import Link
from herasys_rt.config import Config
from herasys_rt.errors import InputError

if TYPE_CHECKING:
    from herasys_rt.runtime.attach import Attachment

_MOST_FRONTENDS = 256


def connect(
    config: Config | None = None,
    *,
    tenant: str = "default",
    frontends: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Client:
    """Connect to the runtime: the background one, the Ray job's, or a private one.

    Blocking, and free of any event loop, so it also works inside a running one. A
    private runtime is started with ``config`` (None: the laptop defaults) and ends with
    the client; ``on_progress`` hears how it comes up, and without it one line on standard
    error says that it begins, where that is a screen. ``tenant`` is the connection's
    isolation scope.

    ``frontends`` says how many processes of the cluster execute this client's agents, 0
    that they run in this process; None is 1 inside a Ray job and 0 elsewhere. They start
    with the first agent and end with the client.

    Errors: `InputError` for a tenant that is no name or a count that is none,
    `EnvironmentFaultError` and its kinds, `ConfigError`, `UnknownModelError`.
    """
    from herasys_rt.runtime.attach import attach

    check_name("tenant", tenant)
    _check_frontends(frontends)
    found = attach(config, on_progress)
    count = found.frontends if frontends is None else frontends
    link: Link | None = None
    try:
        link = Link(found.scheduler, tenant)
        link.open()  # Closes itself when nobody answers.
        hosted = _hosted(link, found, tenant, count) if count else None
    except BaseException:
        if link is not None:
            link.close()
        found.release()
        raise
    return Client(link, found.kind, found.release, found.dsn, hosted)


def _hosted(link: Link, found: Attachment, tenant: str, count: int) -> HostedAgents:
    from herasys_rt.runtime.frontend import Frontends

    leave = found.join_ray()
    keeper = Frontends(count, Frontend, (found.scheduler, link.endpoint, tenant))
    return HostedAgents(link, keeper, leave)


def _check_frontends(count: object) -> None:
    """Errors: `InputError`."""
    if count is None or (type(count) is int and 0 <= count <= _MOST_FRONTENDS):
        return
    raise InputError(
        f"frontends is a whole number from 0 to {_MOST_FRONTENDS}, not {count!r:.60}",
        hint="Leave it out: agents run in this process, in a Ray job in one of their own.",
    )


async def connect_async(
    config: Config | None = None,
    *,
    tenant: str = "default",
    frontends: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> AsyncClient:
    """The asynchronous twin of `connect`."""
    client = await asyncio.to_thread(
        connect, config, tenant=tenant, frontends=frontends, on_progress=on_progress
    )
    return AsyncClient(client)
