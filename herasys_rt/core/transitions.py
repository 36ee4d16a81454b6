"""The life of a node, as a table.

waiting ──> ready ──> starting ──> running ──> succeeded | failed
   │          ^           │          │ ^
   │          └───────────┴──────────┘ └─ parked     (retry, lost instance)
   ├──> joined ──> succeeded | failed, or promoted to where its flight stands
   ├──> succeeded                                    (reused result)
   └──> skipped                                      (nobody needs it)
every unfinished state ──> cancelled | skipped
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from herasys_rt.errors import InternalError

if TYPE_CHECKING:
    from herasys_rt.core.state import Node

NodeState = Literal[
    "waiting",
    "ready",
    "joined",
    "starting",
    "running",
    "parked",
    "succeeded",
    "failed",
    "cancelled",
    "skipped",
]


def _to(*states: NodeState) -> frozenset[NodeState]:
    return frozenset(states)


FINISHED: Final = _to("succeeded", "failed", "cancelled", "skipped")
"""The ends."""

ALLOWED: Final[dict[NodeState, frozenset[NodeState]]] = {
    "waiting": FINISHED | _to("ready", "joined"),
    "joined": FINISHED | _to("waiting", "ready", "starting", "running"),
    "ready": _to("starting", "failed", "cancelled", "skipped"),
    "starting": FINISHED | _to("running", "ready"),
    "running": FINISHED | _to("ready", "parked"),
    "parked": _to("running", "ready", "failed", "cancelled", "skipped"),
    "succeeded": _to(),
    "failed": _to(),
    "cancelled": _to(),
    "skipped": _to(),
}
"""State -> states that may follow it. Nothing follows an end."""


def move(node: Node, to: NodeState, now: float) -> None:
    """Put a node into another state. Errors: `InternalError` with the node's story."""
    if to not in ALLOWED[node.state]:
        raise InternalError(
            f"node {node.label} cannot go from {node.state} to {to}; its story: "
            f"{story(node)}",
            hint="This is a fault of the scheduler; keep the journal and report it.",
            node=node.label,
            state=node.state,
            to=to,
        )
    node.state = to
    node.story.append((now, to))


def story(node: Node) -> str:
    """Every state of a node with the time it was entered, in seconds."""
    begin = f"waiting@{node.run.arrived_s:.6f}"
    return " -> ".join([begin, *(f"{state}@{at:.6f}" for at, state in node.story)])
