"""Pools and instances: who is there, and which flight goes where."""

from __future__ import annotations

from herasys_rt.core import flights, outcomes
from herasys_rt.core.commands import StartBatch, Subscriber, WorkItem
from herasys_rt.core.events import InstanceDown, InstanceUp, PoolDeclared, PoolFailed
from herasys_rt.core.instances import Batch, Instance, Pool, Turn
from herasys_rt.core.state import Flight, State
from herasys_rt.core.timers import clear_timer, longest_timeout_s, set_timer
from herasys_rt.core.transitions import move


def declare(state: State, event: PoolDeclared) -> None:
    """A pool exists, or is described anew; specs find their pools again."""
    pool = state.pools.get(event.pool)
    if pool is None:
        state.pools[event.pool] = Pool(event)
    else:
        pool.decl = event
    for plan in state.plans.values():
        plan.pools = None


def pool_failed(state: State, event: PoolFailed) -> None:
    """Nothing comes up any more: once nothing is up either, what waits there fails."""
    pool = state.pools.get(event.pool)
    if pool is not None:
        pool.failure = event.error
        if pool.hopeless:
            _give_up(state, pool)


def instance_up(state: State, event: InstanceUp) -> None:
    """An instance is ready for work; one of an undeclared pool is ignored."""
    pool = state.pools.get(event.pool)
    if pool is None or event.instance in state.instances:
        return
    begun = max([i.begun for i in pool.instances.values()], default=0)
    instance = Instance(event.instance, pool, max(event.slots, 0), begun=begun)
    state.instances[instance.id] = pool.instances[instance.id] = instance
    pool.failure = None
    if instance.slots > 0:
        pool.free[instance.id] = instance
        pool.idle_slots += instance.slots
        state.dirty[event.pool] = pool


def instance_down(state: State, event: InstanceDown) -> None:
    """An instance is gone; what it was doing goes elsewhere."""
    instance = state.instances.pop(event.instance, None)
    if instance is None:
        return
    pool = instance.pool
    del pool.instances[instance.id]
    if pool.free.pop(instance.id, None) is not None:
        pool.idle_slots -= instance.slots - instance.busy
    lost = list(instance.flights.values())
    instance.flights.clear()
    for flight in lost:
        clear_timer(state, flight)
        flight.batch = None
    for flight in lost:
        if flight.state != "done":
            outcomes.lose(state, flight, instance.id, event.reason)
    if pool.hopeless:
        _give_up(state, pool)


def dispatch(state: State, pool: Pool) -> None:
    """Start work while a slot is free and something is queued."""
    decl = pool.decl
    while pool.free:
        head = pool.head()
        if head is None:
            return
        instance = choose(state, pool, state.flights[head.flight])
        count = 1
        if decl.batched and decl.batch_limit > 1:
            size = state.batching.size(len(head.queue), pool.idle_slots, decl.batch_limit)
            count = max(1, min(size, decl.batch_limit))
        start(state, pool, instance, take(state, pool, head, instance, count))


def choose(state: State, pool: Pool, flight: Flight) -> Instance:
    """The best-scored instance with a free slot; the one that failed the flight last
    only when no other is free."""
    free = pool.free
    if len(free) == 1:
        return next(iter(free.values()))
    score, avoid = state.placement.score, flight.avoid
    best: Instance | None = None
    least = 0.0
    for instance in free.values():
        if instance.id == avoid:
            continue
        own = score(instance, flight)
        if best is None or own < least or (own == least and instance.id < best.id):
            best, least = instance, own
    assert best is not None  # the one to avoid is not alone
    return best


def take(
    state: State, pool: Pool, turn: Turn, instance: Instance, count: int
) -> list[Flight]:
    """The flight whose turn it is and what goes next in its queue, up to ``count`` in
    all; a later one that should avoid the instance ends the batch while another one is
    free."""
    queue = turn.queue
    queue.serve(turn.flight, turn.stood, turn.at)
    taken = [state.flights[turn.flight]]
    while len(taken) < count and (place := queue.place()) is not None:
        flight = state.flights[queue.taker(place)[3]]
        if flight.avoid == instance.id and len(pool.free) > 1:
            break
        queue.serve(flight.id, place[3], queue)
        taken.append(flight)
    return taken


def start(state: State, pool: Pool, instance: Instance, taken: list[Flight]) -> None:
    """Put flights into one slot of an instance."""
    batch = Batch(instance, len(taken))
    instance.busy += 1
    instance.begun += 1
    pool.idle_slots -= 1
    if instance.busy >= instance.slots:
        del pool.free[instance.id]
    now, here = state.now, instance.flights
    items: list[WorkItem] = []
    for flight in taken:
        flight.state = "starting"
        flight.batch = batch
        instance.reserved += flight.kv_tokens
        flight.ranks = flight.merged = None
        flight.queued_s += now - flight.ready_s
        here[flight.id] = flight
        leader = flight.leader
        assert leader is not None
        move(leader, "starting", now)
        if leader.fragment.plan.timed:  # else a member allows any time
            flight.timeout_s = longest_timeout_s(flight)
            set_timer(state, flight, now + flight.timeout_s)
        items.append(work_item(flight))
    state.out.append(StartBatch(instance.id, tuple(items), state.reason))


def work_item(flight: Flight) -> WorkItem:
    """The flight's next attempt as an engine gets it."""
    payload = flight.payload
    assert payload is not None
    subscribers: list[Subscriber] = []
    itemise = itemise_texts = False
    for node in flight.members.values():
        fragment, position = node.fragment, node.position
        if fragment.stream and flights.listens(node):
            subscribers.append(flights.subscriber(node))
        itemise = itemise or fragment.plan.itemised[position]
        itemise_texts = itemise_texts or fragment.plan.texts[position]
    return WorkItem(
        flight.id,
        flight.attempt,
        payload.spec_id,
        payload.node,
        payload.run_id,
        payload.tenant,
        payload.inputs,
        payload.upstream,
        payload.gathered,
        payload.element,
        payload.items,
        payload.item,
        payload.skipped,
        tuple(subscribers),
        itemise,
        payload.shared,
        itemise_texts,
    )


def _give_up(state: State, pool: Pool) -> None:
    """Fail everything queued in a pool that nothing will serve."""
    error = pool.failure
    assert error is not None
    for queue in pool.queues.values():
        while (first := queue.first()) is not None:
            queue.remove(first[3])
            flight = state.flights[first[3]]
            flight.state = "waiting"
            outcomes.fail(state, flight, error)
