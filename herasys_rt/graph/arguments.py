"""Whether an argument may stand where it stands: references, types, ranges, branches.

Part of `graph.validation`, which walks a spec; here is what one argument is held against.
"""

from __future__ import annotations

from collections.abc import Iterator

from herasys_rt.errors import Fault
from herasys_rt.graph import codec
from herasys_rt.graph.checks import (
    ITEM_TYPES,
    constraint_fault,
    finite_fault,
    nearest,
    port_fault,
)
from herasys_rt.graph.expressions import FORMS, FUNCTIONS, Function, Parameter
from herasys_rt.graph.shapes import (
    LISTS,
    Scope,
    Shape,
    input_shape,
    joined,
    shape_of,
)
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    InputRef,
    ItemRef,
    ListRef,
    Lit,
    NodeRef,
    Port,
)
from herasys_rt.graph.types import PortType, fits

_LOOSE = (PortType.ANY, PortType.JSON)
_ANYTHING = Port("", PortType.ANY, optional=True)


def argument_faults(arg: Arg, port: Port, where: str, scope: Scope) -> Iterator[Fault]:
    """What keeps an argument from standing at a port, its parts included."""
    match arg:
        case Lit(value):
            fault = codec.fault_of(value, "value") or finite_fault(value, "value")
            fault = fault or port_fault(value, port)
            if fault:
                yield Fault(where, fault)
        case InputRef(name):
            yield from _input_faults(name, port, where, scope)
        case ListRef():
            yield from _list_faults(arg, port, where, scope)
        case ChoiceRef():
            yield from _choice_faults(arg, port, where, scope)
        case NodeRef() | ItemRef() | Expr():
            unknown = list(reference_faults(arg, where, scope))
            yield from unknown
            if port.is_param:
                problem = f"is a parameter and cannot take {described(arg)}"
                yield Fault(where, problem, "a literal or an input of the workflow")
            elif not unknown:
                yield from _shape_faults(arg, port, where, scope)


def reference_faults(arg: Arg, where: str, scope: Scope) -> Iterator[Fault]:
    """References of an argument that lead nowhere; faults inside its expressions."""
    match arg:
        case NodeRef(name):
            if name not in scope.nodes:
                problem = f"refers to node {name!r}, which does not exist"
                yield Fault(where, problem, nearest(name, scope.nodes))
        case InputRef(name):
            if name not in scope.inputs:
                problem = f"refers to input {name!r}, which is none"
                yield Fault(where, problem, nearest(name, scope.inputs))
        case ItemRef(name):
            if name not in scope.items and (not name or name != scope.region):
                problem = f"refers to the item of region {name!r} outside of it"
                yield Fault(where, problem, "only nodes of a region know its item")
        case Expr():
            yield from _expression_faults(arg, where, scope)
        case _:
            yield from argument_faults(arg, _ANYTHING, where, scope)


def described(arg: Arg) -> str:
    """An argument in the words of a fault."""
    match arg:
        case NodeRef(name):
            return f"the output of node {name!r}"
        case InputRef(name):
            return f"input {name!r}"
        case ItemRef(name):
            return f"the item of {name!r}"
        case Expr(function, _):
            return f"the value of {function}()"
        case Lit(value):
            return repr(value)
        case ListRef():
            return "a list of arguments"
        case ChoiceRef():
            return "the value of a choice"


def givers(wanted: PortType, scope: Scope) -> str:
    """What in the workflow would have fitted, for the reader of a fault."""
    nodes = scope.nodes if scope.earlier is None else scope.earlier
    names = [
        f"input {declared.name!r}"
        for declared in scope.inputs.values()
        if _gives(input_shape(declared), wanted)
    ]
    names += [
        f"node {name!r}" for name in nodes if _gives(shape_of(NodeRef(name), scope), wanted)
    ]
    if not names:
        return f"nothing before it gives {wanted}"
    return f"{wanted} comes from {', '.join(names)}"


def _gives(produced: Shape, wanted: PortType) -> bool:
    return produced.type != PortType.ANY and fits(produced.type, wanted)


def _source(arg: Arg) -> str:
    match arg:
        case NodeRef(name):
            return f"node {name!r}"
        case _:
            return described(arg)


def _shape_faults(arg: Arg, port: Port, where: str, scope: Scope) -> Iterator[Fault]:
    shape = shape_of(arg, scope)
    if not fits(shape.type, port.type):
        problem = f"takes {port.type}, got {shape} from {_source(arg)}"
        yield Fault(where, problem, givers(port.type, scope))
    elif shape.optional and not port.optional:
        problem = f"takes {port.type}, and {described(arg)} may be None"
        yield Fault(where, problem, "give the choice an 'otherwise'")


def _input_faults(name: str, port: Port, where: str, scope: Scope) -> Iterator[Fault]:
    declared = scope.inputs.get(name)
    if declared is None:
        yield from reference_faults(InputRef(name), where, scope)
        return
    loose = declared.type in _LOOSE
    if not (loose or fits(declared.type, port.type)):
        problem = f"takes {port.type}, got {declared.type} from input {name!r}"
        yield Fault(where, problem, givers(port.type, scope))
    elif declared.optional and not (loose or port.optional):
        yield Fault(where, f"takes {port.type}, and input {name!r} may be None")
    elif not declared.required and declared.default is not None:
        fault = (
            port_fault(declared.default, port)
            if declared.type == PortType.RECORDS
            else constraint_fault(declared.default, port.constraint)
        )
        if fault:
            yield Fault(where, f"default of input {name!r} {fault}")


def _list_faults(arg: ListRef, port: Port, where: str, scope: Scope) -> Iterator[Fault]:
    item_type = ITEM_TYPES.get(port.type)
    if item_type is None:
        yield Fault(where, f"takes {port.type}, not a list of arguments")
        return
    if port.constraint.non_empty and not arg.items:
        yield Fault(where, "is empty")
    item = Port(port.name, item_type, is_param=port.is_param, optional=True)
    for i, part in enumerate(arg.items):
        yield from argument_faults(part, item, f"{where}[{i}]", scope)


def _choice_faults(arg: ChoiceRef, port: Port, where: str, scope: Scope) -> Iterator[Fault]:
    if port.is_param:
        problem = "is a parameter and cannot take the value of a choice"
        yield Fault(where, problem, "a literal or an input of the workflow")
        return
    yield from reference_faults(arg.condition, f"{where}: the condition", scope)
    then, otherwise = shape_of(arg.then, scope), shape_of(arg.otherwise, scope)
    if joined(then, otherwise) is None:
        problem = (
            f"the two sides of a choice differ: {described(arg.then)} is {then}, "
            f"{described(arg.otherwise)} is {otherwise}"
        )
        yield Fault(where, problem, "give both sides the same type")
        return
    for side in (arg.then, arg.otherwise):
        if isinstance(side, Lit) and side.value is None and not port.optional:
            problem = f"takes {port.type}, and the value of a choice may be None"
            yield Fault(where, problem, "give the choice an 'otherwise'")
        else:
            yield from argument_faults(side, port, where, scope)


# Inside expressions


def _expression_faults(expr: Expr, where: str, scope: Scope) -> Iterator[Fault]:
    here = f"{where}: {expr.function}"
    if expr.function == "each":
        yield from _each_faults(expr, here, scope)
    elif expr.function == "own":
        yield from _own_faults(expr, here, scope)
    elif expr.function == "choose":
        yield from _choose_faults(expr, here, scope)
    elif expr.function in FUNCTIONS:
        yield from _call_faults(FUNCTIONS[expr.function], expr, here, scope)
    else:
        known = [*FUNCTIONS, *FORMS]
        fits_here = nearest(expr.function, known) or f"known are {', '.join(known)}"
        problem = f"there is no expression {expr.function!r}"
        yield Fault(where, problem, fits_here)


def _call_faults(
    function: Function, expr: Expr, where: str, scope: Scope
) -> Iterator[Fault]:
    parameters = function.parameters
    for name, parameter in parameters.items():
        if parameter.required and name not in expr.args:
            yield Fault(where, f"{name!r} is missing")
    for name, arg in expr.args.items():
        if name in parameters:
            yield from _parameter_faults(parameters[name], name, arg, where, scope)
        elif function.variadic:
            yield from reference_faults(arg, f"{where}.{name}", scope)
        else:
            yield Fault(where, f"has no argument {name!r}", nearest(name, parameters))


def _parameter_faults(
    parameter: Parameter, name: str, arg: Arg, where: str, scope: Scope
) -> Iterator[Fault]:
    spot = f"{where}.{name}"
    broken = list(reference_faults(arg, spot, scope))
    yield from broken
    shape = shape_of(arg, scope)
    if broken or _accepts(parameter, shape):
        return
    if shape.optional and _accepts(parameter, shape._replace(optional=False)):
        yield Fault(spot, f"{described(arg)} may be None")
    else:
        wanted = " or ".join(parameter.types)
        yield Fault(spot, f"takes {wanted}, got {shape} from {_source(arg)}")


def _accepts(parameter: Parameter, shape: Shape) -> bool:
    if shape.optional and not parameter.optional:
        return False
    if not parameter.types or (shape.type == PortType.ANY):
        return True
    loose = {PortType.ANY, PortType.JSON}
    return any(kind == shape.type for kind in parameter.types) or any(
        fits(shape.type, kind) for kind in parameter.types if kind not in loose
    )


def _choose_faults(expr: Expr, where: str, scope: Scope) -> Iterator[Fault]:
    yield from _parts_faults(expr, ("condition", "then", "otherwise"), where, scope)
    parts = [expr.args.get(name, Lit(None)) for name in ("then", "otherwise")]
    then, otherwise = (shape_of(part, scope) for part in parts)
    if joined(then, otherwise) is None:
        problem = (
            f"the two sides differ: {described(parts[0])} is {then}, "
            f"{described(parts[1])} is {otherwise}"
        )
        yield Fault(where, problem, "give both sides the same type")


def _each_faults(expr: Expr, where: str, scope: Scope) -> Iterator[Fault]:
    bound = expr.args.get("item")
    if sorted(expr.args) != ["body", "item", "items"] or not isinstance(bound, ItemRef):
        problem = f"takes items, item (a reference) and body, got {', '.join(expr.args)}"
        yield Fault(where, problem)
        return
    items = expr.args["items"]
    yield from reference_faults(items, f"{where}.items", scope)
    fault = list_fault(items, scope)
    if fault:
        yield Fault(f"{where}.items", fault)
    if bound.region in scope.items:
        yield Fault(where, f"the item of {bound.region!r} is bound twice")
    region = scope.regions.get(bound.region)
    if region is not None and region.items != items:
        yield Fault(where, f"its items are not those of region {bound.region!r}")
    yield from reference_faults(expr.args["body"], f"{where}.body", scope.within(expr))


def _own_faults(expr: Expr, where: str, scope: Scope) -> Iterator[Fault]:
    source, item = expr.args.get("node"), expr.args.get("item")
    fitting = isinstance(source, NodeRef) and isinstance(item, ItemRef)
    if sorted(expr.args) != ["item", "node"] or not fitting:
        yield Fault(where, f"takes node and item, got {', '.join(expr.args)}")
        return
    assert isinstance(source, NodeRef)
    assert isinstance(item, ItemRef)
    yield from reference_faults(source, where, scope)
    node = scope.nodes.get(source.node)
    if item.region not in scope.items:
        yield Fault(where, f"{described(item)} is bound nowhere around it")
    elif node is not None and node.region != item.region:
        yield Fault(where, f"node {node.id!r} is no node of region {item.region!r}")
    elif node is not None and node.region == scope.region:
        yield Fault(where, f"node {node.id!r} has one output in its own region")


def _parts_faults(
    expr: Expr, names: tuple[str, ...], where: str, scope: Scope
) -> Iterator[Fault]:
    for name in names:
        if name not in expr.args:
            yield Fault(where, f"{name!r} is missing")
    for name, arg in expr.args.items():
        if name not in names:
            yield Fault(where, f"has no argument {name!r}", nearest(name, names))
        yield from reference_faults(arg, f"{where}.{name}", scope)


def list_fault(items: Arg, scope: Scope) -> str | None:
    """Why a region cannot go over ``items``; None when it can."""
    shape = shape_of(items, scope)
    if isinstance(items, Lit) and not isinstance(items.value, list | tuple):
        return f"{described(items)} is no list"
    if shape.optional:
        return f"{described(items)} may be None"
    if shape.type not in LISTS:
        return f"{described(items)} is {shape}, and only lists can be gone over"
    return None
