"""Who is above and below a node, and who needs it.

Outside of regions a position is one node. In a region it is as many as the list is long:
an element sees the same element of its region's nodes, and everybody outside sees the
`Template`, which stands for all of them.
"""

from __future__ import annotations

from herasys_rt.core.state import Node, Template


def seen(node: Node, position: int) -> Node:
    """The node that ``node`` sees at a position: a template, or its own element of it
    (the template while, or because, that has no elements)."""
    found = node.fragment.nodes[position]
    if node.element >= 0 and isinstance(found, Template) and found.expanded:
        region = node.fragment.plan.region
        if region[position] == region[node.position]:
            return found.elements[node.element]
    return found


def above(node: Node) -> list[Node]:
    """Everybody whose value the node might take or ask, in the order of positions in its
    arguments; for a template also who gives its list."""
    plan, nodes = node.fragment.plan, node.fragment.nodes
    if plan.flat:
        return [nodes[position] for position in plan.parents[node.position]]
    if node.element < 0:
        return [nodes[position] for position in plan.asks[node.position]]
    return [seen(node, position) for position in plan.parents[node.position]]


def needed(node: Node) -> bool:
    """Whether a run must not end without the node, or a successor waits for its value."""
    fragment, position = node.fragment, node.position
    plan, nodes = fragment.plan, fragment.nodes
    if plan.root[position]:
        return True
    if plan.flat:
        return any(hungry(nodes[below]) for below in plan.successors[position])
    region = plan.region[position]
    for below in plan.successors[position]:
        child = nodes[below]
        if node.element >= 0 and plan.region[below] == region:
            child = seen(node, below)
        if hungry(child) and asks(child, position):
            return True
    return False


def hungry(node: Node) -> bool:
    """Whether a node still needs its parents' values, or may yet."""
    flight = node.flight
    return flight.payload is None if flight is not None else node.state == "waiting"


def asks(node: Node, position: int) -> bool:
    """Whether a node takes the value at a position, or may yet."""
    return node.needs is None or position in node.needs


def unsettled(node: Node) -> bool:
    """Whether it is open if the node will have a value, unless something fails."""
    if node.state != "waiting" or node.flight is not None:
        return False
    if node.needs is None:
        return True
    return isinstance(node, Template) and node.fragment.plan.fickle[node.position]
