"""What must hold of runs, their fragments and nodes between any two events.

Part of `herasys_rt.core.invariants`, which says how these checks are used.
"""

from __future__ import annotations

from collections.abc import Iterator

from herasys_rt.core import relatives
from herasys_rt.core.conditions import Verdict, judge, length_of
from herasys_rt.core.state import Fragment, Node, State, Template, open_fragments
from herasys_rt.core.transitions import FINISHED, story


def fragments(state: State) -> Iterator[str]:
    """Runs and fragments know each other; a fragment counts its nodes and its open ends,
    and has some of both left."""
    for run in state.runs.values():
        if state.clients.get(run.client, {}).get(run.id) is not run:
            yield f"run {run.id} is listed wrongly"
        if run.agent is None and list(run.fragments) != [0]:
            yield f"run {run.id} has fragments {list(run.fragments)}"
        size = sum(fragment.size for fragment in run.fragments.values())
        if run.agent is not None:
            size += sum(len(records) for records in run.agent.records.values())
            both = run.fragments.keys() & run.agent.records.keys()
            early = run.agent.early.keys() & {*run.fragments, *run.agent.records}
            if both or early:
                yield f"fragments {sorted(both | early)} of run {run.id} are two things"
        if size != run.size:
            yield f"run {run.id} counts {run.size} nodes of {size}"
        for number, fragment in run.fragments.items():
            if fragment.run is not run or fragment.number != number:
                yield f"fragment {number} of run {run.id} is listed wrongly"
            if not fragment.active:
                yield f"fragment {number} of run {run.id} has ended"
            yield from _ends(fragment)


def nodes(state: State) -> Iterator[str]:
    """Every node is in exactly one place, and somebody needs every unfinished one."""
    for node in every_node(state):
        done = node.state in FINISHED
        held = not done and node.flight is None
        if done and node.flight is not None:
            yield f"{node.label} is {node.state} in flight {node.flight.id}"
        if held and (node.needs is not None or node.state != "waiting"):
            yield f"{node.label} is {node.state} in no flight: {story(node)}"
        if node.state in ("failed", "cancelled"):
            yield f"{node.label} is {node.state} in an active run: {story(node)}"
        if (node.state == "succeeded") != _has_value(node):
            yield f"{node.label} is {node.state} with value: {_has_value(node)}"
        if not done and not relatives.needed(node):
            yield f"nobody needs {node.label}: {story(node)}"


def progress(state: State) -> Iterator[str]:
    """No leaked waiter: each node waits only for what is going to come."""
    for node in every_node(state):
        if node.flight is None or not relatives.hungry(node):
            continue
        if node.needs is None:
            yield f"{node.label} is in a flight and its conditions are open"
            continue
        parents = [relatives.seen(node, position) for position in node.needs]
        missing = [parent for parent in parents if parent.state != "succeeded"]
        if len(missing) != node.missing:
            yield f"{node.label} counts {node.missing} missing of {len(missing)}"
        if not missing:
            yield f"{node.label} has its inputs and its flight waits"
        for parent in missing:
            if parent.state in FINISHED:
                yield f"{node.label} waits for {parent.label}: {story(parent)}"


def conditions(state: State) -> Iterator[str]:
    """Whatever is decided is acted upon: an open node has open conditions, and nobody
    is in a flight whose conditions say otherwise."""
    for fragment in open_fragments(state):
        plan = fragment.plan
        for node in [] if plan.flat else [*fragment.nodes, *fragment.counted()]:
            if plan.needs[node.position] is None or not relatives.hungry(node):
                continue
            verdict = judge(node)
            if node.needs is None and verdict is not Verdict.OPEN:
                yield f"{node.label} stays open, and its conditions say {verdict}"
            if node.needs is not None and verdict != node.needs:
                yield f"{node.label} needs {node.needs}, its conditions say {verdict}"


def regions(state: State) -> Iterator[str]:
    """A template has its elements as soon as its list is known, one for each item, and
    ends with the last of them."""
    for fragment in open_fragments(state):
        for whole in fragment.nodes:
            if isinstance(whole, Template):
                yield from _region(fragment, whole)


def timers(state: State) -> Iterator[str]:
    """What is due is there to be treated; the driver was asked to wake in time."""
    if fault := state.due.fault():
        yield f"what is due: {fault}"
    waiting = {f.id for f in state.flights.values() if f.timed}
    overdue = {-1 - run.seq for run in state.deadlines.values()}
    if set(state.due.items()) != waiting | overdue:
        yield f"{state.due.items()} are due, {waiting} and {overdue} wait"
    for flight in state.flights.values():
        if flight.timed and flight.state not in ("starting", "running", "resting"):
            yield f"flight {flight.id} is {flight.state} and waits for a time"
        if flight.state == "resting" and not flight.timed:
            yield f"flight {flight.id} rests for ever"
    for seq, run in state.deadlines.items():
        if state.runs.get(run.id) is not run or run.seq != seq:
            yield f"run {run.id} is over and has a deadline"
    first = state.due.first()
    if first is not None and state.wake_s > first[1]:
        yield f"nobody will wake the kernel at {first[1]}"


def every_node(state: State) -> Iterator[Node]:
    """Every counted node of every open fragment."""
    for fragment in open_fragments(state):
        yield from fragment.counted()


def _ends(fragment: Fragment) -> Iterator[str]:
    where = f"fragment {fragment.number} of run {fragment.run.id}"
    if fragment.size != len(fragment.counted()):
        yield f"{where} counts {fragment.size} nodes"
    left = sum(
        fragment.plan.root[node.position] and node.state not in ("succeeded", "skipped")
        for node in fragment.nodes
    )
    if left != fragment.open or not left:
        yield f"{where} counts {fragment.open} open nodes of {left}"


def _region(fragment: Fragment, whole: Template) -> Iterator[str]:
    area = fragment.plan.areas[fragment.plan.region[whole.position]]
    giver = fragment.nodes[area.giver] if area.giver >= 0 else None
    if [(e.position, e.element) for e in whole.elements] != [
        (whole.position, i) for i in range(len(whole.elements))
    ]:
        yield f"{whole.label} has elements out of order"
    left = sum(element.state not in FINISHED for element in whole.elements)
    if whole.expanded and whole.left != left:
        yield f"{whole.label} counts {whole.left} elements left of {left}"
    if whole.expanded and not left and whole.state == "waiting":
        yield f"{whole.label} has no elements left and has not ended"
    if whole.state == "succeeded" and any(e.state != "succeeded" for e in whole.elements):
        yield f"{whole.label} has succeeded before its elements"
    known = giver is None or giver.state == "succeeded"
    if whole.state == "waiting" and whole.needs is not None and known:
        if not whole.expanded:
            yield f"{whole.label} has a list and no elements: {story(whole)}"
        elif giver is not None and len(whole.elements) != length_of(giver):
            yield f"{whole.label} has {len(whole.elements)} elements"
    if whole.elements and not whole.expanded:
        yield f"{whole.label} has elements before its list"
    if whole.state not in FINISHED and not relatives.needed(whole):
        yield f"nobody needs {whole.label}: {story(whole)}"


def _has_value(node: Node) -> bool:
    return node.result is not None and node.result.value is not None
