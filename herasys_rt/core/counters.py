"""The kernel's state in numbers, for whoever watches it."""

from __future__ import annotations

from herasys_rt.core.state import State, open_fragments


def counters(state: State) -> dict[str, dict[str, int] | dict[str, dict[str, int]]]:
    """What happened and what is there, for status output; plain counts and bytes.

    ``nodes``: the accounting of `totals.Totals` and ``unfinished`` (nodes of active
    runs), so that submitted is always the sum of executed, fused, reused, skipped,
    cancelled and unfinished. ``runs`` by status, ``fragments`` (an agent's) too. ``reuse``
    and ``events``. ``pools``: by name, flights queued and running, instances, slots and
    idle slots.
    """
    totals = state.totals
    return {
        "nodes": {
            "submitted": totals.submitted,
            "executed": totals.executed,
            "fused": totals.fused,
            "reused": totals.reused,
            "skipped": totals.skipped,
            "cancelled": totals.cancelled,
            "failed": totals.failed,
            "unfinished": sum(fragment.size for fragment in open_fragments(state)),
        },
        "runs": {
            "accepted": totals.runs_accepted,
            "refused": totals.runs_refused,
            "succeeded": totals.runs_succeeded,
            "failed": totals.runs_failed,
            "cancelled": totals.runs_cancelled,
            "active": len(state.runs),
        },
        "fragments": {
            "refused": totals.fragments_refused,
            "succeeded": totals.fragments_succeeded,
            "failed": totals.fragments_failed,
            "cancelled": totals.fragments_cancelled,
            "open": sum(1 for f in open_fragments(state) if f.run.agent is not None),
        },
        "reuse": {"entries": state.table.entries, "bytes": state.table.bytes},
        "events": {"stale": totals.stale},
        "pools": {
            name: {
                "queued": pool.queued(),
                "running": sum(len(i.flights) for i in pool.instances.values()),
                "instances": len(pool.instances),
                "slots": sum(i.slots for i in pool.instances.values()),
                "idle_slots": pool.idle_slots,
            }
            for name, pool in state.pools.items()
        },
    }
