"""How executions end, and what that means for everybody in the flight."""

from __future__ import annotations

from msgspec.structs import replace

from herasys_rt.core import borrowing, ends, flights, flow, remaining, reuse
from herasys_rt.core.events import ItemAborted, ItemFailed, ItemFinished, ItemStarted
from herasys_rt.core.fusion import Entry, Key, Result, agree
from herasys_rt.core.state import Flight, Node, State
from herasys_rt.core.timers import clear_timer, delay_s, set_timer
from herasys_rt.core.transitions import move
from herasys_rt.core.values import Value
from herasys_rt.errors import ErrorInfo


def current(state: State, flight_id: int, attempt: int, instance: str) -> Flight | None:
    """The flight that an outcome is about; None, and counted, when it is stale."""
    flight = state.flights.get(flight_id)
    if (
        flight is not None
        and flight.attempt == attempt
        and flight.batch is not None
        and flight.batch.instance.id == instance
    ):
        return flight
    state.totals.stale += 1
    return None


def vacate(state: State, flight: Flight) -> str:
    """Give back the flight's part of its slot; gives the name of the instance."""
    batch = flight.batch
    assert batch is not None
    instance = batch.instance
    if flight.timed:
        clear_timer(state, flight)
    flight.batch = None
    del instance.flights[flight.id]
    instance.reserved -= flight.kv_tokens
    batch.left -= 1
    if not batch.left:
        instance.busy -= 1
        pool = instance.pool
        pool.free[instance.id] = instance
        pool.idle_slots += 1
        state.dirty[pool.decl.pool] = pool
    return instance.id


def item_started(state: State, event: ItemStarted) -> None:
    """The engine began with an item."""
    flight = current(state, event.flight, event.attempt, event.instance)
    if flight is not None and flight.state == "starting":
        flight.state = "running"
        assert flight.leader is not None
        move(flight.leader, "running", state.now)


def item_finished(state: State, event: ItemFinished) -> None:
    """An item succeeded: keep its result if it may be reused, give it to the members."""
    for collection, revision in event.revisions.items():
        revise(state, collection, revision)
    flight = current(state, event.flight, event.attempt, event.instance)
    if flight is None:
        state.ledger.discard(event.value)
        if event.parts is not None:
            state.ledger.discard(event.parts)
        return
    instance = vacate(state, flight)
    lasts_s = reuse.lasts_s(state, flight)
    result = _result(state, flight, event, instance, lasts_s)
    entry = _keep(state, flight, event, result, lasts_s)
    sharing = flight.sharing
    if sharing is not None and not event.truncated:
        lent = _lent(state, flight, event)
        if lent is not None and entry is not None and sharing.places:
            state.table.keep_items(entry, sharing, lent, lasts_s, result.born_s)
        if lent is not None:
            borrowing.lend(state, sharing, lent, lasts_s, result.born_s)
        owner = reuse.owner_of(state, flight)
        state.savings.of(owner.operator, owner.tenant).shared_items += sharing.spared
    if event.parts is not None:
        state.ledger.discard(event.parts)  # unless somebody has it by now
    leader = flight.leader
    members = flights.retire(state, flight)
    if not members and entry is None:
        state.ledger.discard(event.value)
    for node in members:
        move(node, "succeeded", state.now)
        node.result = _share(state, node, result)
        node.entry = entry
        if event.value.place:
            state.ledger.acquire(event.value)
        if node.fragment.plan.root[node.position]:
            flow.settled(state, node)
    flow.spread(state, members)
    if state.tracker is not None:
        remaining.finished(state, members, leader, result)
    state.table.trim()


def item_failed(state: State, event: ItemFailed) -> None:
    """An item failed: try again where that may help, else tell every member."""
    flight = current(state, event.flight, event.attempt, event.instance)
    if flight is None:
        return
    instance = vacate(state, flight)
    if flight.state == "aborting":
        flights.retire(state, flight)
        return
    try_again(state, flight, event.error, instance, event.run_s)


def time_out(state: State, flight: Flight, timeout_s: float) -> None:
    """An attempt took longer than its node allows: that is one failed try.

    Its slot stays in use until the instance lets go of it; the members do not wait for
    that.
    """
    assert flight.batch is not None
    instance = flight.batch.instance.id
    message = f"it ran longer than its timeout of {timeout_s:g} s on instance {instance}"
    if flight.effect:
        message += "; whether its effect has happened is not known"
    error = ErrorInfo(
        "node_timeout",
        message,
        "Give the node a longer timeout_s, or look into that instance's log.",
        retryable=not flight.effect,
    )
    heir = flights.detach(state, flight)
    try_again(state, heir, error, instance, timeout_s)


def try_again(
    state: State, flight: Flight, error: ErrorInfo, instance: str, run_s: float
) -> None:
    """A try failed: another one where that may help, else every member is told.

    An effect is never tried again: it may have happened; nor is what was given a value
    that is lost. Without a `Retry` of its own a flight is queued again at once, up to
    `KernelConfig.max_attempts` tries.
    """
    flight.tries += 1
    flight.spent_s += run_s
    retry = flight.options.retry
    if retry is None:
        most, may, wait_s = state.config.max_attempts, error.retryable, 0.0
    else:
        most = retry.max_attempts
        may = error.code in retry.retry_on if retry.retry_on else error.retryable
        wait_s = delay_s(retry, flight)
    assert flight.payload is not None
    may = may and not flight.payload.lost
    if may and flight.tries < most and not flight.effect:
        requeue(state, flight, avoid=instance, wait_s=wait_s)
    else:
        fail(state, flight, error, instance=instance, run_s=run_s)


def item_aborted(state: State, event: ItemAborted) -> None:
    """An abort took effect; an item nobody wanted aborted was dropped by its engine."""
    flight = state.flights.get(event.flight)
    if flight is not None and flight.state != "aborting":
        error = ErrorInfo(
            "item_dropped",
            f"instance {event.instance} stopped working on an item by itself",
            "Look into that instance's log.",
            retryable=True,
        )
        item_failed(state, ItemFailed(event.flight, event.attempt, event.instance, error))
        return
    flight = current(state, event.flight, event.attempt, event.instance)
    if flight is not None:
        vacate(state, flight)
        flights.retire(state, flight)


def lose(state: State, flight: Flight, instance: str, reason: str) -> None:
    """The instance is gone and with it this execution: the flight goes elsewhere.

    Its slot is gone too, so the caller has cleared ``flight.batch``.
    """
    if flight.state == "aborting":
        flights.retire(state, flight)
        return
    flight.losses = (*flight.losses, instance)
    if flight.effect:
        error = ErrorInfo(
            "effect_unknown",
            f"instance {instance} was lost ({reason}) while it executed an effect, which "
            "may or may not have happened; it was not repeated",
            "Check whether it happened, then run the workflow again if it did not.",
        )
        fail(state, flight, error, instance=instance)
    elif len(flight.losses) > state.config.max_losses:
        error = ErrorInfo(
            "instance_lost",
            f"the instances executing it were lost {len(flight.losses)} times: "
            f"{', '.join(flight.losses)} (the last one: {reason})",
            "Look into these instances' logs; this item may be what ends them.",
        )
        fail(state, flight, error, instance=instance)
    else:
        requeue(state, flight, avoid=instance)


def requeue(state: State, flight: Flight, avoid: str, wait_s: float = 0.0) -> None:
    """Queue a flight again, as the next attempt, where it stood in the order; after it
    has rested for ``wait_s``."""
    flight.attempt += 1
    flight.avoid = avoid
    if wait_s > 0:
        flight.state = "resting"
        assert flight.leader is not None
        move(flight.leader, "ready", state.now)
        set_timer(state, flight, state.now + wait_s)
    else:
        flight.state = "waiting"
        state.agenda.append(flight)


def fail(
    state: State,
    flight: Flight,
    error: ErrorInfo,
    *,
    instance: str = "",
    run_s: float = 0.0,
) -> None:
    """Deliver an error to every member once; each member's fragment fails."""
    result = Result(
        value=None,
        meta=b"",
        exact=False,
        expires_s=0.0,
        instance=instance,
        queued_s=flight.queued_s,
        run_s=run_s,
        attempts=flight.attempt if instance else flight.attempt - 1,
        members=len(flight.members),
        spent_s=flight.spent_s,
    )
    members = flights.retire(state, flight)
    for node in members:
        move(node, "failed", state.now)
        node.result = result
    for node in members:
        if node.fragment.active:
            ends.finish(state, node.fragment, "failed", error=error, failed_node=node.id)


def revise(state: State, collection: str, revision: int) -> None:
    """A collection's content moved; revisions only move forward."""
    if revision > state.revisions.get(collection, 0):
        state.revisions[collection] = revision
        state.named_revisions.clear()


def _result(
    state: State, flight: Flight, event: ItemFinished, instance: str, lasts_s: float
) -> Result:
    """The result for the flight's own members; sets the others' in their claims."""
    payload, seen, whole = flight.payload, event.revisions, not event.truncated
    assert payload is not None
    born_s = min(state.now, payload.born_s)
    result = Result(
        value=event.value,
        meta=event.meta,
        exact=whole
        and payload.exact
        and (not seen or agree(flight.key, flight.revisions, seen.items())),
        expires_s=lasts_s if lasts_s < payload.expires_s else payload.expires_s,
        instance=instance,
        queued_s=flight.queued_s,
        run_s=event.run_s,
        attempts=flight.attempt,
        tokens=event.tokens,
        members=len(flight.members),
        spent_s=flight.spent_s + event.run_s,
        born_s=born_s,
        eldest_s=min(born_s, payload.eldest_s),
    )
    for claim in flight.claims:
        claim.result = replace(
            result,
            exact=whole and claim.exact and claim.agrees(seen.items()),
            expires_s=min(claim.expires_s, lasts_s),
            eldest_s=min(born_s, claim.eldest_s),
        )
    return result


def _lent(state: State, flight: Flight, event: ItemFinished) -> Value | None:
    """Where the items of an output lie; None when what it was made of was not stored."""
    if event.parts is not None:
        return event.parts
    payload = flight.payload
    assert payload is not None
    node = state.plans[payload.spec_id].spec.nodes[payload.node]
    return event.value if node.reduction is None else None


def _share(state: State, node: Node, result: Result) -> Result:
    """A member's own result: by its claim, and over at once when it is not to be cached."""
    if node.claim is not None and node.claim.result is not None:
        result = node.claim.result
    if node.fragment.plan.options[node.position].cache:
        return result
    return replace(result, expires_s=state.now)


def _keep(
    state: State, flight: Flight, event: ItemFinished, result: Result, lasts_s: float
) -> Entry | None:
    """Put a successful, complete result into the reuse table, held by the flight's
    members, under each of the flight's keys for which it is exact and not over already."""
    if event.truncated or not flight.options.cache:
        return None
    found: dict[Key, Result] = {}
    key, seen, now = flight.value_key, event.revisions, state.now
    if key is not None and lasts_s > now and (not seen or agree(key, key[1], seen.items())):
        lasting = result
        if not result.exact or result.expires_s != lasts_s:
            lasting = replace(result, exact=True, expires_s=lasts_s)
        found[key] = lasting
    if flight.key is not None and result.exact and result.expires_s > now:
        found[flight.key] = result
    for claim in flight.claims:
        its = claim.result
        if claim.key is not None and its is not None and its.exact and its.expires_s > now:
            found.setdefault(claim.key, its)
    if not found:
        return None
    size = event.value.size + len(event.meta)
    owner = reuse.owner_of(state, flight)
    pins = len(flight.members)
    entry = state.table.store(found, event.value, size, now, owner, pins)
    if entry is not None and state.config.reuse_store:
        passing = {claim.key for claim in flight.claims if claim.passing}
        for key, lasting in entry.results.items():
            if key is not flight.value_key:
                own = flight.passing if key is flight.key else key in passing
                reuse.keep(state, key, lasting, owner, passing=own)
    return entry
