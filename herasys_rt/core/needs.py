"""What a node asks of others before its path is known: guards, choices, doubtful parents.

A node is *conditional* when it may turn out that it does not run, or not with all of its
parents: it has guards or choices, or takes the output of a conditional node. Everything
about it that a spec tells is a `Needs`; what of it holds in a run is judged by
`herasys_rt.core.flow`.
"""

from __future__ import annotations

from typing import NamedTuple

from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    Guard,
    InputRef,
    ItemRef,
    ListRef,
    NodeRef,
    NodeSpec,
    WorkflowSpec,
    conditions,
)

Condition = int | str
"""What a guard or a choice asks: the node at a position, or the input of a name."""


class Needs(NamedTuple):
    """Positions whose outputs are taken in any case, and what depends on conditions.

    Positions that guards and choices ask are among ``always``.
    """

    always: tuple[int, ...] = ()
    guards: tuple[tuple[Condition, bool], ...] = ()
    choices: tuple[Choice, ...] = ()


class Choice(NamedTuple):
    """Of two `Needs` the condition decides which one counts."""

    condition: Condition
    then: Needs
    otherwise: Needs


def needs_of(spec: WorkflowSpec, node: NodeSpec) -> Needs:
    """The needs of a node; the list of its region is not among them."""
    return _of_args(spec, tuple(node.args.values()), node.guards)


def conditions_on_items(spec: WorkflowSpec) -> list[ItemRef]:
    """Every condition that is an item of a region: nobody knows its truth in time."""
    asked = [guard.condition for node in spec.nodes for guard in node.guards]
    args = [arg for node in spec.nodes for arg in node.args.values()]
    asked += [ref for arg in (*args, *spec.outputs.values()) for ref in conditions(arg)]
    return [condition for condition in asked if isinstance(condition, ItemRef)]


def _of_args(
    spec: WorkflowSpec, args: tuple[Arg, ...], guards: tuple[Guard, ...] = ()
) -> Needs:
    always: dict[int, None] = {}
    choices: list[Choice] = []

    def ask(condition: InputRef | NodeRef | ItemRef) -> Condition:
        if isinstance(condition, NodeRef):
            position = spec.index[condition.node]
            always[position] = None
            return position
        return condition.name if isinstance(condition, InputRef) else condition.region

    stack = list(args[::-1])
    while stack:
        arg = stack.pop()
        match arg:
            case NodeRef(node):
                always[spec.index[node]] = None
            case ListRef(items):
                stack += items[::-1]
            case Expr():
                stack += list(arg.args.values())[::-1]
            case ChoiceRef(condition, then, otherwise):
                asked = ask(condition)
                then_needs, else_needs = (
                    _of_args(spec, (then,)),
                    _of_args(spec, (otherwise,)),
                )
                choices.append(Choice(asked, then_needs, else_needs))
            case _:
                pass
    asked_by_guards = [(ask(guard.condition), guard.holds) for guard in guards]
    return Needs(tuple(always), tuple(asked_by_guards), tuple(choices))
