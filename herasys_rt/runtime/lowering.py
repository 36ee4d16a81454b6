"""From a work item to the arguments of its verb, on the host that executes it."""

from __future__ import annotations

from typing import Any

from herasys_rt.core.commands import WorkItem
from herasys_rt.core.values import Value
from herasys_rt.errors import HerasysError, InternalError, ValueLostError
from herasys_rt.graph import codec
from herasys_rt.graph.expressions import resolve
from herasys_rt.graph.spec import InputRef, Lit, WorkflowSpec
from herasys_rt.runtime.objects import ValueStore


def arguments_of(item: WorkItem, spec: WorkflowSpec, values: ValueStore) -> dict[str, Any]:
    """The concrete arguments of an item's node.

    Errors: `ValueLostError` for a stored value that is lost, `EnvironmentFaultError` for
    one that cannot be had now, `NodeError` for an expression that fails.
    """
    node = spec.nodes[item.node]
    inputs = codec.decode(values.unpack(item.inputs))
    outputs: dict[str, Any] = {
        spec.nodes[position].id: codec.decode(values.unpack(value))
        for position, value in item.upstream
    }
    for position, parts in item.gathered:
        outputs[spec.nodes[position].id] = [
            codec.decode(values.unpack(value)) for value in parts
        ]
    if item.element < 0:
        return resolve(node.args, inputs, outputs)
    if item.item is not None:
        current = codec.decode(values.unpack(item.item))
    else:
        current = _items(item, spec, inputs, values)[item.element]
    return resolve(node.args, inputs, outputs, item=current)


def _items(
    item: WorkItem, spec: WorkflowSpec, inputs: dict[str, Any], values: ValueStore
) -> list[Any]:
    """The list of the item's region."""
    if item.items is not None:
        return codec.decode(values.unpack(item.items))
    region = spec.nodes[item.node].region
    source = next((r.items for r in spec.regions if r.id == region), None)
    match source:
        case Lit(value):
            return value
        case InputRef(name):
            return inputs[name]
        case _:
            raise InternalError(
                f"region {region!r} came without its list",
                hint="This should not have happened; please report it with the workflow.",
            )


def values_in(item: WorkItem) -> list[Value]:
    """Every value an item refers to."""
    found = [item.inputs, *(value for _, value in item.upstream)]
    found.extend(value for _, parts in item.gathered for value in parts)
    found.extend(value for value in (item.items, item.item) if value is not None)
    found.extend(item.shared.lenders if item.shared is not None else ())
    return found


def lost_of(item: WorkItem, values: ValueStore) -> tuple[str, ...]:
    """The places of all values that an item needs and that are lost."""
    lost: dict[str, None] = {}
    for value in values_in(item):
        try:
            values.unpack(value)
        except ValueLostError:
            lost[value.place] = None
        except HerasysError:
            pass  # It may be there another time.
    return tuple(lost)
