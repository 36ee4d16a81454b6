"""What must hold between any two events, checked from scratch.

`validate` costs time proportional to the state: for tests, and live for those who hunt a
fault. Each check says which promise of the kernel it guards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from herasys_rt.core import graph_invariants, item_invariants
from herasys_rt.core.graph_invariants import every_node
from herasys_rt.core.instances import Pool
from herasys_rt.core.merged_priority import merged
from herasys_rt.core.ranks import member_rank
from herasys_rt.core.state import Flight, Payload, State, open_fragments
from herasys_rt.core.transitions import story
from herasys_rt.core.values import Value
from herasys_rt.errors import InternalError

_LEADS = {
    "waiting": "waiting",
    "borrowing": "waiting",
    "queued": "ready",
    "resting": "ready",
    "starting": "starting",
    "running": "running",
}


def validate(state: State) -> None:
    """Check everything. Errors: `InternalError` naming every broken promise."""
    faults = [fault for check in CHECKS for fault in check(state)]
    if faults:
        shown = "".join(f"\n  - {fault}" for fault in faults[:20])
        raise InternalError(
            f"{len(faults)} broken invariants:{shown}",
            hint="This is a fault of the scheduler; keep the journal and report it.",
            faults=tuple(faults),
        )


def capacity(state: State) -> Iterator[str]:
    """No instance holds more than its slots; idle slots and free lists are exact."""
    for pool in state.pools.values():
        for instance in pool.instances.values():
            held = list(instance.flights.values())
            batches = {id(f.batch): f.batch for f in held}
            if len(batches) != instance.busy or instance.busy > instance.slots:
                yield (
                    f"instance {instance.id} counts {instance.busy} busy slots, holds "
                    f"{len(batches)} batches and has {instance.slots}"
                )
            if instance.reserved != sum(flight.kv_tokens for flight in held):
                yield f"instance {instance.id} counts {instance.reserved} reserved tokens"
            if (instance.id in pool.free) != (instance.busy < instance.slots):
                yield f"instance {instance.id} is wrongly listed as free or not"
            sizes = Counter(id(f.batch) for f in held)
            for batch in batches.values():
                if batch is None or batch.instance is not instance:
                    yield f"instance {instance.id} holds a flight without its slot"
                elif not 0 < batch.left == sizes[id(batch)] <= _most(pool):
                    yield f"a batch on {instance.id} counts {batch.left} items left"
        idle = sum(i.slots - i.busy for i in pool.instances.values())
        if idle != pool.idle_slots or not pool.free.keys() <= pool.instances.keys():
            yield f"pool {pool.decl.pool} counts {pool.idle_slots} idle slots of {idle}"


def conserving(state: State) -> Iterator[str]:
    """No slot is free while something it could do is queued; nothing waits for the dead."""
    for pool in state.pools.values():
        if pool.queued() and (pool.free or pool.hopeless):
            yield f"pool {pool.decl.pool} leaves {pool.queued()} flights queued"
    if state.agenda or state.dirty:
        yield "work of the last event is left over"


def queues(state: State) -> Iterator[str]:
    """Heaps are heaps and hold exactly the queued flights, ranked by their members."""
    found: Counter[int] = Counter()
    for pool in state.pools.values():
        for verb, queue in pool.queues.items():
            if fault := queue.fault():
                yield f"queue {pool.decl.pool}/{verb}: {fault}"
            for flight_id in queue.flights():
                found[flight_id] += 1
                flight = state.flights.get(flight_id)
                if flight is None or flight.state != "queued":
                    yield f"queue {pool.decl.pool}/{verb} holds flight {flight_id}"
                elif flight.pool is not pool or flight.verb != verb:
                    yield f"flight {flight_id} stands in another queue than its own"
                elif queue.rank(flight_id) != flight.rank:
                    yield f"flight {flight_id} stands at {queue.rank(flight_id)}"
    for flight in state.flights.values():
        if found[flight.id] != (flight.state == "queued"):
            yield f"flight {flight.id} ({flight.state}) is in {found[flight.id]} queues"
        if flight.is_ranked and flight.members:
            wishes = [member_rank(state, node) for node in flight.members.values()]
            if flight.sharing is not None:
                wishes += [b.flight.rank[:2] for b in flight.sharing.borrowers.values()]
            best = min(wishes)
            if flight.rank != (*best, flight.arrival):
                yield f"flight {flight.id} ranks {flight.rank}, its members {best}"
            yield from _merged(state, flight)


def _merged(state: State, flight: Flight) -> Iterator[str]:
    """The priority by eq. 3 that is kept is that of the members."""
    joint, kept = state.joint, flight.merged
    if joint is None:
        return
    members = {s: joint.terms(node, node.run) for s, node in flight.members.items()}
    for contested in (False, True):
        own = merged(members, joint.weights, contested)
        if kept is None or kept.value(contested) != own:
            yield f"flight {flight.id} is {own} by eq. 3, and {kept} is kept"


def membership(state: State) -> Iterator[str]:
    """Nodes and flights know each other; a flight is led by one of its members."""
    for flight in state.flights.values():
        for seat, node in flight.members.items():
            if node.flight is not flight or node.seat != seat:
                yield f"flight {flight.id} holds {node.label}, which is elsewhere"
            run = state.runs.get(node.run.id)
            there = node.run.fragments.get(node.fragment.number)
            if run is not node.run or there is not node.fragment:
                yield f"flight {flight.id} holds {node.label} of an ended fragment"
        yield from _leadership(flight)
        yield from _slot(state, flight)
    for node in every_node(state):
        flight = node.flight
        if flight is not None and (
            state.flights.get(flight.id) is not flight
            or flight.members.get(node.seat) is not node
        ):
            yield f"{node.label} is in flight {flight.id}, which does not hold it"


def payloads(state: State) -> Iterator[str]:
    """A flight has its payload from when its inputs are there, and goes on then."""
    for flight in state.flights.values():
        if flight.state != "waiting" and flight.payload is None:
            yield f"flight {flight.id} is {flight.state} without payload"
        if flight.state == "waiting" and flight.payload is not None:
            yield f"flight {flight.id} has its payload and is not queued"


def table(state: State) -> Iterator[str]:
    """The fusion table lists what lives, pins what is held and counts its bytes."""
    fusion = state.table
    for key, flight in fusion.live.items():
        if (
            state.flights.get(flight.id) is not flight
            or key not in flight.all_keys()
            or flight.state in ("aborting", "done")
        ):
            yield f"the table lists flight {flight.id}, which is {flight.state}"
    for flight in state.flights.values():
        for key in flight.all_keys():
            listed = fusion.live.get(key) is flight
            if listed != (flight.state != "aborting"):
                yield f"flight {flight.id} ({flight.state}) is listed wrongly"
        if flight.value_key is not None and flight.payload is None:
            yield f"flight {flight.id} has a key by value before its inputs"
        for node in flight.members.values():
            if node.claim is not None and node.claim not in flight.claims:
                yield f"{node.label} came to flight {flight.id} with another's claim"
    pins = Counter(id(node.entry) for node in every_node(state) if node.entry is not None)
    idle = {id(entry) for entry in fusion.idle()}
    entries = fusion.listed()
    for key, entry in fusion.completed.items():
        if key not in entry.results:
            yield "an entry is found by a key that it has not"
        elif entry.results[key].value is not entry.value:
            yield "an entry is found with another value"
    if len(entries) != fusion.entries:
        yield f"the table counts {fusion.entries} entries of {len(entries)}"
    if sum(len(entry.results) for entry in entries) != len(fusion.completed):
        yield "an entry has keys that do not lead to it"
    for entry in entries:
        if entry.pins != pins[id(entry)]:
            yield f"an entry counts {entry.pins} pins of {pins[id(entry)]}"
        if (id(entry) in idle) != (not entry.pins):
            yield "an entry is wrongly listed as idle or not"
    if len(idle) != sum(not entry.pins for entry in entries):
        yield "the idle list holds more than the table"
    size = sum(entry.size for entry in entries)
    if size != fusion.bytes:
        yield f"the table counts {fusion.bytes} bytes of {size}"
    over = size > fusion.max_bytes or fusion.entries > fusion.max_entries
    if over and idle:
        yield f"the table exceeds its bounds with {len(idle)} entries to evict"


def references(state: State) -> Iterator[str]:
    """Counts of placed values equal the references found from scratch."""
    counts = Counter(value.place for value in _values(state) if value.place)
    if dict(counts) != state.ledger.counts:
        wrong = sorted(
            place
            for place in {*counts, *state.ledger.counts}
            if counts[place] != state.ledger.counts.get(place, 0)
        )
        yield f"values counted wrongly: {', '.join(wrong)}"


def accounting(state: State) -> Iterator[str]:
    """Every submitted node is counted once; no ended run is referred to."""
    t = state.totals
    ended = t.executed + t.fused + t.reused + t.skipped + t.cancelled
    unfinished = sum(len(fragment.counted()) for fragment in open_fragments(state))
    if t.submitted != ended + unfinished:
        yield f"{t.submitted} nodes submitted, {ended} ended, {unfinished} unfinished"
    runs = t.runs_succeeded + t.runs_failed + t.runs_cancelled
    if t.runs_accepted != runs + len(state.runs):
        yield f"{t.runs_accepted} runs accepted, {runs} ended, {len(state.runs)} active"
    if len(state.runs) > state.config.max_active_runs:
        yield f"{len(state.runs)} runs are active"
    for run_id in state.ended:
        if run_id in state.runs:
            yield f"run {run_id} has ended and is active"
    if sum(len(mine) for mine in state.clients.values()) != len(state.runs):
        yield "clients and runs do not agree"
    bound = state.config.remembered_runs
    if len(state.ended) > bound or len(state.cancelled_early) > bound:
        yield "more run ids are remembered than allowed"


CHECKS: tuple[Callable[[State], Iterator[str]], ...] = (
    capacity,
    conserving,
    queues,
    membership,
    payloads,
    graph_invariants.fragments,
    graph_invariants.nodes,
    graph_invariants.progress,
    graph_invariants.conditions,
    graph_invariants.regions,
    graph_invariants.timers,
    table,
    item_invariants.items,
    references,
    accounting,
)


def _most(pool: Pool) -> int:
    return max(1, pool.decl.batch_limit) if pool.decl.batched else 1


def _leadership(flight: Flight) -> Iterator[str]:
    leader = flight.leader
    if flight.state == "aborting":
        if leader is not None or flight.members:
            yield f"flight {flight.id} is being aborted and has members"
        return
    if leader is None or flight.members.get(leader.seat) is not leader:
        yield f"flight {flight.id} ({flight.state}) has no leader among its members"
    for node in flight.members.values():
        wanted = _LEADS.get(flight.state) if node is leader else "joined"
        if node.state != wanted:
            yield f"{node.label} in a {flight.state} flight: {story(node)}"
        if (node is leader) == bool(node.fused_into):
            yield f"{node.label} leads or joined, yet says {node.fused_into!r}"


def _slot(state: State, flight: Flight) -> Iterator[str]:
    batch = flight.batch
    if (batch is not None) != (flight.state in ("starting", "running", "aborting")):
        yield f"flight {flight.id} is {flight.state} with slot: {batch is not None}"
    if batch is not None and (
        state.instances.get(batch.instance.id) is not batch.instance
        or batch.instance.flights.get(flight.id) is not flight
    ):
        yield f"flight {flight.id} is on {batch.instance.id}, which does not know it"


def _values(state: State) -> Iterator[Value]:
    """Every reference to a value, once per reference."""
    for run in state.runs.values():
        yield run.inputs
    for fragment in open_fragments(state):
        yield fragment.inputs
        for node in fragment.counted():
            if node.result is not None and node.result.value is not None:
                yield node.result.value
    for flight in state.flights.values():
        if flight.payload is not None:
            yield from _payload_values(flight.payload)
    for entry in state.table.listed():
        yield entry.value
        if entry.parts is not None:
            yield entry.parts


def _payload_values(payload: Payload) -> Iterator[Value]:
    yield payload.inputs
    yield from (value for _, value in payload.upstream)
    for _, values in payload.gathered:
        yield from values
    yield from (value for value in (payload.items, payload.item) if value is not None)
    yield from payload.lent
