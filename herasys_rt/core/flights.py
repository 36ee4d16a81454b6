"""Flights and who is in them: launching, joining, leaving, queueing."""

from __future__ import annotations

from herasys_rt.core import borrowing, limits, ranks, relatives
from herasys_rt.core.commands import AbortItem, AddSubscriber, Subscriber
from herasys_rt.core.fusion import Claim, Key, Result, Revisions
from herasys_rt.core.instances import Pool
from herasys_rt.core.payloads import payload_of
from herasys_rt.core.state import Flight, Node, NodeState, State, Template
from herasys_rt.core.timers import clear_timer
from herasys_rt.core.transitions import FINISHED, move
from herasys_rt.core.value_keys import value_key_of

_STANDING: dict[str, NodeState] = {
    "waiting": "waiting",
    "borrowing": "waiting",
    "queued": "ready",
    "resting": "ready",
    "starting": "starting",
    "running": "running",
}
"""Where the leader of a flight in each state stands."""


def launch(
    state: State, node: Node, key: Key | None, pool: Pool, revisions: Revisions = ()
) -> None:
    """A new flight, led by a node whose inputs are not complete yet."""
    plan = node.fragment.plan
    position = node.position
    flight = Flight(
        state.next_flight,
        key,
        pool,
        plan.spec.nodes[position].verb,
        plan.effect[position],
        node,
        plan.options[position],
        revisions if key is None else key[1],
    )
    if node.fragment.kv_tokens:
        flight.kv_tokens = node.fragment.kv_tokens[position]
    if node.fragment.passing:
        flight.passing = position in node.fragment.passing
    state.next_flight += 1
    state.flights[flight.id] = flight
    if key is not None:
        state.table.register(key, flight)
    _seat(flight, node)


def join(state: State, flight: Flight, node: Node, key: Key) -> None:
    """Make a waiting node a member of the live flight that its key leads to."""
    claim = next((each for each in flight.claims if each.key == key), None)
    _join(state, flight, node, claim)


def adopt(state: State, flight: Flight, members: list[Node], claim: Claim) -> None:
    """Make the members of a retired flight members of a live one that computes the same
    value; ``claim`` is what they came with. Its key leads to the live one from now on."""
    flight.claims = (*flight.claims, claim)
    if claim.key is not None:
        state.table.register(claim.key, flight)
    for node in members:
        _join(state, flight, node, claim)


def _join(state: State, flight: Flight, node: Node, claim: Claim | None) -> None:
    leader = flight.leader
    if leader is not None:
        node.fused_into = leader.label
    node.claim = claim
    _seat(flight, node)
    if node.state != "joined":
        move(node, "joined", state.now)
    if flight.is_ranked:
        ranks.rank_joiner(state, flight, node)
    elif flight.batch is not None and listens(node):
        state.out.append(
            AddSubscriber(
                flight.batch.instance.id, flight.id, flight.attempt, subscriber(node)
            )
        )


def leave(state: State, node: Node, to: NodeState) -> None:
    """Take an unfinished node out of its flight, to ``cancelled`` or ``skipped``.

    The last member takes the flight with it; a leader hands over to the member that
    joined first.
    """
    flight = node.flight
    assert flight is not None
    node.flight = None
    del flight.members[node.seat]
    move(node, to, state.now)
    if flight.leader is node:
        if flight.attempt > 1 or flight.batch is not None:
            node.result = _trace(flight)
        flight.leader = None
        if flight.members:
            _promote(state, flight)
    if not flight.members:
        drop(state, flight)
    elif flight.is_ranked:
        ranks.unrank(flight, node)


def drop(state: State, flight: Flight) -> None:
    """A flight nobody wants: forgotten, or aborted when it holds a slot."""
    state.table.forget(flight)
    clear_timer(state, flight)
    if flight.sharing is not None:
        borrowing.withdraw(state, flight.sharing)
    if flight.batch is not None:
        flight.state = "aborting"
        state.out.append(AbortItem(flight.batch.instance.id, flight.id, flight.attempt))
        return
    if flight.state == "queued":
        flight.pool.queues[flight.verb].remove(flight.id)
    retire(state, flight)


def conceal(state: State, flight: Flight) -> None:
    """Nobody finds a flight any more, and what it gives is not kept."""
    state.table.forget(flight)
    flight.key = flight.value_key = None
    for claim in flight.claims:
        claim.key = None


def retire(state: State, flight: Flight) -> list[Node]:
    """End a flight that is in no queue and no slot; gives its members, now without it."""
    state.table.forget(flight)
    if flight.sharing is not None:
        borrowing.withdraw(state, flight.sharing)
    del state.flights[flight.id]
    flight.state = "done"
    members = list(flight.members.values())
    for node in members:
        node.flight = None
    flight.members.clear()
    flight.leader = None
    payload = flight.payload
    if payload is not None:
        flight.payload = None
        for value in payload.placed:
            state.ledger.release(value)
    return members


def detach(state: State, flight: Flight) -> Flight:
    """Give a started flight's members to a new one that is in no slot.

    The old one keeps the slot until its abort takes effect, which may be never: whoever
    was in it need not wait for that.
    """
    heir = Flight(
        id=state.next_flight,
        key=flight.key,
        pool=flight.pool,
        verb=flight.verb,
        effect=flight.effect,
        leader=flight.leader,
        options=flight.options,
        revisions=flight.revisions,
        value_key=flight.value_key,
        claims=flight.claims,
        passing=flight.passing,
        members=flight.members,
        seats=flight.seats,
        attempt=flight.attempt,
        tries=flight.tries,
        spent_s=flight.spent_s,
        losses=flight.losses,
        arrival=flight.arrival,
        payload=flight.payload,
        sharing=flight.sharing,
        queued_s=flight.queued_s,
        kv_tokens=flight.kv_tokens,
    )
    state.next_flight += 1
    state.flights[heir.id] = heir
    for node in heir.members.values():
        node.flight = heir
    for value in heir.payload.placed if heir.payload is not None else ():
        state.ledger.acquire(value)
    if heir.sharing is not None:
        heir.sharing.flight = heir
        flight.sharing = None
    flight.members = {}
    flight.leader = None
    drop(state, flight)
    for key in heir.all_keys():
        state.table.register(key, heir)
    return heir


def capture(state: State, feeder: Node) -> None:
    """Take a flight's payload from a member that has all its inputs; at most once.

    Ancestors that only other members' inputs needed are let go.
    """
    flight = feeder.flight
    if flight is None or flight.payload is not None:
        return
    payload = payload_of(feeder)
    if len(flight.members) > 1 and not limits.feeds(state, feeder, payload):
        flight = _part(state, feeder)
    flight.payload = payload
    for value in payload.placed:
        state.ledger.acquire(value)
    flight.value_key = value_key_of(state, feeder, flight)
    if feeder.fragment.item_seeds:
        flight.sharing = borrowing.sharing_of(feeder, flight)
    state.agenda.append(flight)
    if len(flight.members) > 1:
        for node in list(flight.members.values()):
            if node.missing:
                prune(state, node)


def _part(state: State, feeder: Node) -> Flight:
    """Give a node whose inputs others in its flight must not have one of its own; theirs
    waits for another feeder."""
    flight = feeder.flight
    assert flight is not None
    del flight.members[feeder.seat]
    if flight.leader is feeder:
        _promote(state, flight)
    else:
        feeder.fused_into = ""
        move(feeder, "waiting", state.now)
    launch(state, feeder, None, flight.pool, flight.revisions)
    own = feeder.flight
    assert own is not None
    return own


def doubt(state: State, node: Node) -> None:
    """What a node gives is not what structural keys mean by it: nobody who comes from now
    on joins, by structure, what its fragment is to make of it."""
    fragment = node.fragment
    plan, nodes = fragment.plan, fragment.nodes
    if fragment.doubted is None:
        fragment.doubted = set()
    doubted, before = fragment.doubted, len(fragment.doubted)
    stack = [node.position]
    while stack:
        for below in plan.successors[stack.pop()]:
            child = nodes[below]
            flight = child.flight
            if below in doubted or child.state in FINISHED:
                continue
            if flight is not None:
                if flight.payload is not None:
                    continue  # It has its inputs from elsewhere.
                state.table.forget(flight)
                flight.key = None
            doubted.add(below)
            stack.append(below)
    if fragment.keys and len(doubted) > before:
        fragment.keys = [
            None if i in doubted else key for i, key in enumerate(fragment.keys)
        ]


def prune(state: State, fed: Node) -> None:
    """Let go of ancestors that nobody needs now that ``fed`` needs no inputs any more."""
    stack = [fed]
    while stack:
        for parent in relatives.above(stack.pop()):
            if parent.state not in FINISHED and not relatives.needed(parent):
                _let_go(state, parent, stack)


def _let_go(state: State, node: Node, stack: list[Node]) -> None:
    """Skip an unfinished node and note whose ancestors to look at."""
    if node.flight is not None:
        leave(state, node, "skipped")
    else:
        move(node, "skipped", state.now)
    node.told = True  # nobody asks any more
    stack.append(node)
    if isinstance(node, Template):
        for element in node.elements:
            if element.state not in FINISHED:
                _let_go(state, element, stack)
    elif node.element >= 0:
        whole = node.fragment.nodes[node.position]
        assert isinstance(whole, Template)
        whole.left -= 1
        if not whole.left and whole.state == "waiting":
            _let_go(state, whole, stack)


def enqueue(state: State, flight: Flight) -> None:
    """Put a flight that has its payload into its pool's queue, unless it waits for items
    of others."""
    if flight.arrival < 0:
        flight.arrival = state.next_arrival
        state.next_arrival += 1
    leader = flight.leader
    assert leader is not None
    if flight.sharing is not None and not borrowing.ready(state, flight):
        flight.state = "borrowing"
        ranks.rank(state, flight)
        ranks.press(flight.sharing)
        return
    flight.state = "queued"
    flight.ready_s = state.now
    if leader.state != "ready":  # it is when the flight has rested
        move(leader, "ready", state.now)
    ranks.rank(state, flight)
    pool = flight.pool
    pool.enqueue(flight, leader.run.tenant)
    state.dirty[pool.decl.pool] = pool


def listens(node: Node) -> bool:
    """Whether the node's run wants its text as it is produced."""
    return node.fragment.stream and node.fragment.plan.listens[node.position]


def subscriber(node: Node) -> Subscriber:
    """Where a listening node's text goes."""
    return Subscriber(node.run.client, node.run.id, node.position, node.fragment.number)


def _seat(flight: Flight, node: Node) -> None:
    node.flight = flight
    node.seat = flight.seats
    flight.members[node.seat] = node
    flight.seats += 1


def _promote(state: State, flight: Flight) -> None:
    flight.leader = node = next(iter(flight.members.values()))
    node.fused_into = ""
    move(node, _STANDING[flight.state], state.now)


def _trace(flight: Flight) -> Result:
    """What a leader's record says of an execution it left."""
    return Result(
        value=None,
        meta=b"",
        exact=False,
        expires_s=0.0,
        instance=flight.batch.instance.id if flight.batch is not None else "",
        queued_s=flight.queued_s,
        run_s=0.0,
        attempts=flight.attempt if flight.batch is not None else flight.attempt - 1,
    )
