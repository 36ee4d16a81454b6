"""A frontend's inside: it executes agents for one client, in a process of its own.

Orders come from the client over a link of their own. Fragments go to the runtime and come
back through the frontend's link to it, as they do in a client; what agents say of
themselves goes to the client, which owns the runs.
"""

from __future__ import annotations

import logging
import pickle
from collections import OrderedDict
from typing import Any, TypeGuard

from herasys_rt.client.agents import AgentLoop
from herasys_rt.client.inbox import inbox_for
from herasys_rt.client.link import Link
from herasys_rt.client.run import Run
from herasys_rt.dsl.agent import Agent
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph import codec
from herasys_rt.links import Endpoint, Outbox
from herasys_rt.messages import (
    AgentEnded,
    FromAgent,
    KnowAgent,
    StartAgent,
    Stop,
    StopAgent,
    ToFrontend,
)

log = logging.getLogger(__name__)

KNOWN_AGENTS = 256
"""So many agents a frontend keeps; the client counts along and sends one again."""

_ROUND_S = 1.0


class Frontend:
    """Executes the agents of the client at ``client`` in the runtime of ``scheduler``.

    `run` blocks until `Stop`. Errors of the constructor and of `run`: `RuntimeStateError`
    when the runtime does not answer (any more).
    """

    def __init__(
        self, name: str, scheduler: Endpoint, client: Endpoint, tenant: str
    ) -> None:
        self._client = client
        self._outbox = Outbox()
        self._inbox = inbox_for(scheduler, "frontend", ToFrontend)
        self._link = Link(scheduler, tenant, name)
        self._agents = AgentLoop(self._link, self._tell)
        self._known: OrderedDict[bytes, Agent[...] | ErrorInfo] = OrderedDict()
        self._stopping = False
        self._link.open()

    @property
    def endpoint(self) -> Endpoint:
        """Where the client's orders are taken."""
        return self._inbox.endpoint

    def run(self) -> None:
        """Serve until told to stop; coroutines that still run are cancelled then."""
        takers: dict[type, Any] = {
            KnowAgent: self._know,
            StartAgent: self._start,
            StopAgent: self._stop_agent,
            Stop: self._stop,
        }
        try:
            while not self._stopping:
                for message in self._inbox.receive(_ROUND_S):
                    takers[type(message)](message)
        finally:
            self._link.close()
            self._agents.close()
            self._outbox.close()
            self._inbox.close()

    def _tell(self, message: FromAgent) -> None:
        self._outbox.send(self._client, message)

    def _know(self, message: KnowAgent) -> None:
        self._known[message.digest] = _unpacked(message.data)
        if len(self._known) > KNOWN_AGENTS:
            self._known.popitem(last=False)

    def _start(self, message: StartAgent) -> None:
        agent = self._known[message.digest]
        if isinstance(agent, ErrorInfo):
            self._tell(AgentEnded(message.run_id, error=agent))
            return
        inputs = codec.decode(message.inputs)
        run = Run(message.run_id, agent.spec, inputs, self._link)
        self._link.adopt(run)
        self._agents.start(run, agent, inputs, stream=message.stream)

    def _stop_agent(self, message: StopAgent) -> None:
        run = self._link.release(message.run_id)
        if run is not None:
            run.fail(ErrorInfo("cancelled", f"run {run.id} has ended"), "cancelled")

    def _stop(self, _: Stop) -> None:
        self._stopping = True


def _unpacked(data: bytes) -> Agent[...] | ErrorInfo:
    """The agent, or why it cannot be had here. Runs user code: whatever it imports."""
    try:
        agent: object = pickle.loads(data)
    except Exception as e:
        log.exception("an agent could not be loaded")
        return ErrorInfo(
            "agent_not_loaded",
            f"the agent could not be loaded in its frontend: {type(e).__name__}: {e}",
            "Bring what it imports along in the job's working directory or runtime "
            "environment.",
        )
    if _is_agent(agent):
        return agent
    return ErrorInfo("agent_not_loaded", f"a {type(agent).__name__} is no agent")


def _is_agent(value: object) -> TypeGuard[Agent[...]]:
    return isinstance(value, Agent)
