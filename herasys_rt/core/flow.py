"""How values, and the news that there will be none, travel from node to node.

Flat plans need only `feed`. With regions and conditions a node that ended may decide
others: a guard holds or not, a list has its length, a branch is not taken. What follows
from one event is worked off as a list of news that grows while it is read, so that no
chain is too long.
"""

from __future__ import annotations

from herasys_rt.core import flights, limits, relatives
from herasys_rt.core.conditions import Verdict, judge, length_of
from herasys_rt.core.fusion import Entry, Result
from herasys_rt.core.plan import Area
from herasys_rt.core.state import Ending, Fragment, Node, State, Template
from herasys_rt.core.transitions import FINISHED, move
from herasys_rt.errors import ErrorInfo


def spread(state: State, news: list[Node]) -> None:
    """Tell the successors of nodes that ended or were decided, and theirs, as far as it
    goes."""
    for node in news:  # grows while it is read
        if node.result is not None and not node.result.exact:
            flights.doubt(state, node)
        if node.fragment.plan.flat:
            feed(state, node)
        else:
            _tell(state, node, news)


def feed(state: State, node: Node) -> None:
    """Tell the successors of a succeeded node in a flat plan that its value is here."""
    fragment = node.fragment
    nodes = fragment.nodes
    for position in fragment.plan.successors[node.position]:
        child = nodes[position]
        child.missing -= 1
        if not child.missing:
            flights.capture(state, child)


def settled(state: State, node: Node) -> None:
    """Count a node that succeeded or is skipped, if its fragment waits for it."""
    fragment = node.fragment
    if fragment.plan.root[node.position] and node.element < 0:
        fragment.open -= 1
        if not fragment.open:
            state.endings.append(Ending(fragment))


def consider(state: State, node: Node, news: list[Node]) -> None:
    """Look at a waiting node that is in no flight: it is skipped, begins, or stays."""
    if node.needs is None:
        verdict = judge(node)
        if verdict is Verdict.SKIP:
            skip(state, node, news)
        elif verdict is not Verdict.OPEN:
            node.needs = verdict
            flights.prune(state, node)  # the branches not taken
            news.append(node)
            begin(state, node, news)
    elif isinstance(node, Template):
        begin(state, node, news)


def skip(state: State, node: Node, news: list[Node]) -> None:
    """A node will not run: what only it needed is let go."""
    move(node, "skipped", state.now)
    settled(state, node)
    flights.prune(state, node)
    news.append(node)


def begin(state: State, node: Node, news: list[Node]) -> None:
    """A node will run: it takes a completed result, or joins, or is launched; a template
    gets its elements once its list is known."""
    if isinstance(node, Template):
        expand(state, node, news)
        return
    fragment, position = node.fragment, node.position
    key = fragment.keys[position] if node.element < 0 else None
    if key is not None and fragment.plan.reuses[position]:
        listed = state.table.result(key, state.now)
        if listed is not None and limits.takes(state, node, listed.result):
            take(state, node, listed.entry, listed.result)
            flights.prune(state, node)
            return
    twin = state.table.live.get(key) if key is not None else None
    if twin is not None and key is not None and not limits.joins(state, node, key, twin):
        twin = key = None
    if twin is not None and key is not None:
        flights.join(state, twin, node, key)
    else:
        pools = fragment.plan.pools
        assert pools is not None
        revisions = fragment.revisions[position]
        flights.launch(state, node, key, pools[position], revisions)
    wait(state, node)


def wait(state: State, node: Node) -> None:
    """Count what a node in a flight misses; with nothing missing it feeds its flight."""
    needs, flight = node.needs, node.flight
    assert needs is not None and flight is not None
    if flight.payload is not None:
        flights.prune(state, node)
        return
    node.missing = 0
    for position in needs:
        node.missing += not relatives.seen(node, position).told
    if not node.missing:
        flights.capture(state, node)


def take(state: State, node: Node, entry: Entry, result: Result) -> None:
    """Give a node that nobody works for a completed result."""
    state.table.pin(entry)
    state.ledger.acquire(entry.value)
    node.entry = entry
    node.result = result
    node.reused = True
    move(node, "succeeded", state.now)
    settled(state, node)


def expand(state: State, whole: Template, news: list[Node]) -> None:
    """Give a template its elements if its list, and what is beside it, is known; a list
    that cannot be gone over ends the fragment."""
    fragment, needs = whole.fragment, whole.needs
    plan, position = fragment.plan, whole.position
    assert needs is not None
    area = plan.areas[plan.region[position]]
    length = _length(fragment, area)
    if whole.expanded or length is None or not _beside(whole, needs):
        return
    error = _unfit(state, fragment, area, length)
    if error is not None:
        failed = plan.spec.nodes[area.giver].id if area.giver >= 0 else ""
        state.endings.append(Ending(fragment, error, failed))
        return
    whole.expanded = True
    whole.left = length
    fragment.size += length
    fragment.run.size += length
    state.totals.submitted += length
    run = fragment.run
    mine = plan.parents[position] if plan.needs[position] is None else None
    whole.elements = [Node(run, fragment, position, mine, i) for i in range(length)]
    news.append(whole)
    for element in whole.elements:
        if mine is None:
            consider(state, element, news)
        else:
            begin(state, element, news)
    if not length:
        _complete(state, whole, news)


def _tell(state: State, node: Node, news: list[Node]) -> None:
    """Tell whoever sees a node that it ended; before that, that it will run, and that a
    template has its elements. What came together is told together, and an end once."""
    if node.told:
        return
    fragment, position = node.fragment, node.position
    plan, nodes, region = fragment.plan, fragment.nodes, fragment.plan.region
    ended = node.state in FINISHED
    node.told = ended
    for below in plan.successors[position]:
        child = nodes[below]
        near = region[position] >= 0 and region[below] == region[position]
        if not isinstance(child, Template):
            if node.element < 0:
                _hear(state, child, node, news)
        elif node.element >= 0:
            if near and child.expanded:
                _hear(state, child.elements[node.element], node, news)
        elif not child.expanded:
            if child.state == "waiting":
                consider(state, child, news)
        elif ended and not near:
            for element in child.elements:
                _hear(state, element, node, news)
    if ended and node.element >= 0:
        whole = nodes[position]
        assert isinstance(whole, Template)
        whole.left -= 1
        if not whole.left and whole.state == "waiting":
            _complete(state, whole, news)


def _hear(state: State, child: Node, parent: Node, news: list[Node]) -> None:
    """A node hears of one it sees."""
    if child.flight is None:
        if child.state == "waiting":
            consider(state, child, news)
    elif parent.state == "succeeded" and relatives.asks(child, parent.position):
        child.missing -= 1
        if not child.missing:
            flights.capture(state, child)


def _complete(state: State, whole: Template, news: list[Node]) -> None:
    """All elements of a template have ended."""
    gaps = any(element.state == "skipped" for element in whole.elements)
    move(whole, "skipped" if gaps else "succeeded", state.now)
    settled(state, whole)
    flights.prune(state, whole)
    news.append(whole)


def _length(fragment: Fragment, area: Area) -> int | None:
    """How many items a region has (-1: it goes over no list); None when not known yet."""
    if area.giver < 0:
        return fragment.facts[area.source].length if area.source else area.length
    giver = fragment.nodes[area.giver]
    return length_of(giver) if giver.state == "succeeded" else None


def _beside(whole: Template, needs: tuple[int, ...]) -> bool:
    """Whether the nodes of its region that a template needs have their elements."""
    region, nodes = whole.fragment.plan.region, whole.fragment.nodes
    for position in needs:
        other = nodes[position]
        if region[position] == region[whole.position]:
            assert isinstance(other, Template)
            if not other.expanded and other.state == "waiting":
                return False
    return True


def _unfit(state: State, fragment: Fragment, area: Area, length: int) -> ErrorInfo | None:
    """Why a region cannot go over its list; None when it can."""
    spec, most = fragment.plan.spec, state.config.max_run_nodes
    if area.giver >= 0:
        what = f"the output of node {spec.nodes[area.giver].id!r}"
    else:
        what = f"input {area.source!r}" if area.source else "a literal"
    where = f"region {area.id!r} of workflow {spec.name!r} goes over {what}"
    if length < 0:
        return ErrorInfo(
            "not_a_list",
            f"{where}, which is no list",
            "Give it a list; a single value needs no region.",
        )
    if length > area.max_items:
        return ErrorInfo(
            "too_many_items",
            f"{where}, which has {length} items; at most {area.max_items} are allowed",
            "Pass a shorter list, or raise max_items of map_over.",
        )
    if fragment.run.size + length > most:
        return ErrorInfo(
            "too_many_nodes",
            f"{where}, whose {length} items would make more than {most} nodes of run "
            f"{fragment.run.id}",
            "Split the list over several runs.",
        )
    return None
