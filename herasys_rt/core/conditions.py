"""What the conditions of a node say in a run, as far as they are decided."""

from __future__ import annotations

from enum import Enum, auto

from herasys_rt.core import relatives
from herasys_rt.core.needs import Condition, Needs
from herasys_rt.core.state import Node, Template


class Verdict(Enum):
    """What conditions say when they do not say that the node runs."""

    OPEN = auto()
    SKIP = auto()


def judge(node: Node) -> tuple[int, ...] | Verdict:
    """The positions a conditional node takes values from; or that it is skipped; or that
    this is not decided yet.

    For a template, conditions inside its own region stay out of account, and it needs
    what any of its elements may: those are judged one by one.
    """
    plan, position = node.fragment.plan, node.position
    needs = plan.needs[position]
    assert needs is not None
    taken: set[int] = set()
    is_open = False
    stack = [(needs, False)]
    if isinstance(node, Template):
        giver = plan.areas[plan.region[position]].giver
        if giver >= 0:
            stack.append((Needs(always=(giver,)), False))
    while stack:
        part, maybe = stack.pop()
        for at in part.always:
            parent = relatives.seen(node, at)
            if not maybe and _lacks(node, parent):
                return Verdict.SKIP
            is_open = is_open or _keeps_open(node, parent)
            taken.add(at)
        for condition, holds in part.guards:
            truth = _truth(node, condition)
            if truth is not None and truth != holds:
                return Verdict.SKIP
            is_open = is_open or (truth is None and not _inside(node, condition))
        for choice in part.choices:
            truth = _truth(node, choice.condition)
            if truth is not None:
                stack.append((choice.then if truth else choice.otherwise, maybe))
            elif _inside(node, choice.condition):
                stack += [(choice.then, True), (choice.otherwise, True)]
            else:
                is_open = True
    if is_open:
        return Verdict.OPEN
    return tuple([at for at in plan.asks[position] if at in taken])


def length_of(node: Node) -> int:
    """How long the list is that a succeeded node gave; -1 when it is none."""
    if isinstance(node, Template):
        return len(node.elements)
    assert node.result is not None and node.result.value is not None
    return node.result.value.length


def _truth(node: Node, condition: Condition) -> bool | None:
    """Whether a condition holds; None while that is not known."""
    if isinstance(condition, str):
        return node.fragment.facts[condition].truth
    parent = relatives.seen(node, condition)
    if parent.state != "succeeded" or _inside(node, condition):
        return None
    if isinstance(parent, Template):
        return bool(parent.elements)
    assert parent.result is not None and parent.result.value is not None
    return parent.result.value.truth


def _inside(node: Node, condition: Condition) -> bool:
    """Whether a template's condition is a node of its own region."""
    region = node.fragment.plan.region
    return (
        isinstance(node, Template)
        and isinstance(condition, int)
        and region[condition] == region[node.position]
    )


def _lacks(node: Node, parent: Node) -> bool:
    """Whether the parent has no value for the node. To a template, another one of its
    region lacks nothing once it has elements: some of them may have values."""
    if parent.state != "skipped":
        return False
    if isinstance(parent, Template) and _inside(node, parent.position):
        return not parent.expanded
    return True


def _keeps_open(node: Node, parent: Node) -> bool:
    """Whether the parent may still turn out to be skipped."""
    if isinstance(node, Template) and _inside(node, parent.position):
        return parent.state == "waiting" and parent.needs is None
    return relatives.unsettled(parent)
