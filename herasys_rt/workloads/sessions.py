"""Delta-encoded sessions of a coding agent, with its sub-agents, as steps.

Of a session's requests each names blocks of 64 tokens: the first ``k`` of an earlier
request ``p`` and then runs of ids. Ids are the session's own; what sessions share is the
head, tool definitions and system text, whose lengths alone are recorded: heads of equal
lengths are taken as equal.
"""

from __future__ import annotations

import msgspec

from herasys_rt.workloads.arrivals import BLOCK_TOKENS, Step, Truth
from herasys_rt.workloads.prefix import named_blocks
from herasys_rt.workloads.records import length_fault
from herasys_rt.workloads.sources import generate


class Row(msgspec.Struct, rename={"prompt": "in", "model": "m"}):
    """A request, or with ``sub`` the start of a sub-agent; times in seconds, of a
    sub-agent's requests from its own start."""

    a: int | str = 0
    t: float = 0.0
    prompt: int | None = None
    out: int = 0
    model: str = ""
    p: int = -1
    k: int = 0
    tail: list[tuple[int, int]] = []
    api_time: float | None = None
    think_time: float | None = None
    sub: str | None = None
    tool: int = 0
    sys: int = 0


class Session(msgspec.Struct):
    """One line of the file."""

    id: str
    block: int
    rows: list[Row]
    tool: int = 0
    sys: int = 0


class _Ended(msgspec.Struct, frozen=True):
    """A step and when it had ended, as recorded; ``timed`` if its own time is known."""

    step: Step
    end_s: float
    timed: bool


class _Agent:
    """The main agent or a sub-agent: when it started, what its prompts begin with, and
    its latest request (at first the one that it was started after)."""

    def __init__(self, start_s: float, head: tuple[int, int], last: _Ended | None) -> None:
        self.start_s = start_s
        self.head = head
        self.last = last


def session_steps(session: Session) -> tuple[Step, ...]:
    """The requests of a session as steps, each after those it had to wait for.

    A request waits for its agent's one before it, and of the main agent also for the
    sub-agents that were started since; a sub-agent starts after whatever of these had
    ended last by then. What passed in between is the step's ``after_s``. Errors:
    `ValueError` for a session that contradicts itself.
    """
    return _Reading(session).steps()


class _Reading:
    def __init__(self, session: Session) -> None:
        if session.block < BLOCK_TOKENS or session.block % BLOCK_TOKENS:
            raise ValueError(f"blocks of {session.block} tokens, no multiple of 16")
        self._session = session
        self._each = session.block // BLOCK_TOKENS
        self._blocks: list[tuple[int, ...]] = []
        """Per request the ids of its blocks of 16 tokens."""
        self._steps: list[Step] = []
        main = _Agent(0.0, (session.tool, session.sys), None)
        self._agents: dict[int | str, _Agent] = {0: main}
        self._waited_for: list[_Agent] = []
        """Sub-agents started since the main agent's latest request."""

    def steps(self) -> tuple[Step, ...]:
        for row in self._session.rows:
            if row.sub is not None:
                self._start(row, row.sub)
            else:
                self._request(row)
        if not self._steps:
            raise ValueError("no requests")
        return tuple(self._steps)

    def _start(self, row: Row, name: str) -> None:
        earlier = [self._agents[0].last, *(agent.last for agent in self._waited_for)]
        ended = [e for e in earlier if e is not None and e.end_s <= row.t]
        last = max(ended, key=lambda e: e.end_s, default=self._agents[0].last)
        agent = self._agents[name] = _Agent(row.t, (row.tool, row.sys), last)
        self._waited_for.append(agent)

    def _request(self, row: Row) -> None:
        agent = self._agents.get(row.a)
        number = len(self._steps)
        if agent is None:
            raise ValueError(f"request {number} is of agent {row.a!r}, which never started")
        if row.prompt is None or length_fault(row.prompt, row.out):
            fault = "no prompt" if row.prompt is None else length_fault(row.prompt, row.out)
            raise ValueError(f"request {number} has {fault}")
        before = [agent.last] if agent.last is not None else []
        if row.a == 0:
            before += [sub.last for sub in self._waited_for if sub.last is not None]
            self._waited_for.clear()
        before = list({one.step.id: one for one in before}.values())
        self._blocks.append(self._ids(row, number, agent.head))
        truth = Truth(
            prompt_tokens=row.prompt,
            output_tokens=row.out,
            prefix=self._blocks[-1][: row.prompt // BLOCK_TOKENS],
        )
        at_s = agent.start_s + row.t
        step = generate(
            f"request-{number}",
            truth,
            row.model or "request",
            tuple(one.step.id for one in before),
            _pause_s(row, at_s, before),
        )
        self._steps.append(step)
        agent.last = _Ended(step, at_s + (row.api_time or 0.0), row.api_time is not None)

    def _ids(self, row: Row, number: int, head: tuple[int, int]) -> tuple[int, ...]:
        kept: tuple[int, ...] = ()
        if row.p >= 0:
            if row.p >= number or not 0 <= row.k * self._each <= len(self._blocks[row.p]):
                raise ValueError(f"request {number} goes on from {row.p}:{row.k}, no such")
            kept = self._blocks[row.p][: row.k * self._each]
        if any(start < 0 or count < 0 for start, count in row.tail):
            raise ValueError(f"request {number} has blocks below 0")
        own: list[int] = []
        for start, count in row.tail:
            first, blocks = start * self._each, count * self._each
            own += named_blocks(f"claude_code/{self._session.id}", first, blocks)
        shared = sum(head) // self._session.block * self._each - len(kept)
        if shared > 0:
            shared = min(shared, len(own))
            name = f"claude_code/head/{head[0]}/{head[1]}"
            own[:shared] = named_blocks(name, len(kept), shared)
        return (*kept, *own)


def _pause_s(row: Row, at_s: float, before: list[_Ended]) -> float:
    """What passed between the end of what a request waited for and the request."""
    if len(before) == 1 and not before[0].timed and row.think_time is not None:
        return max(row.think_time, 0.0)
    return max(at_s - max((one.end_s for one in before), default=0.0), 0.0)
