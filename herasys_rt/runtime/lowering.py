"""From a work item to the arguments of its verb, on the host that executes it."""

from __future__ import annotations

from typing import Any

import msgspec

from herasys_rt.core.commands import WorkItem
from herasys_rt.core.values import Value
from herasys_rt.errors import InternalError
from herasys_rt.graph import codec
from herasys_rt.graph.expressions import resolve
from herasys_rt.graph.facts import fact_of, items_of, text_items_of
from herasys_rt.graph.hashing import Hash
from herasys_rt.graph.spec import InputRef, Lit, WorkflowSpec
from herasys_rt.runtime.objects import ValueStore


def arguments_of(item: WorkItem, spec: WorkflowSpec, values: ValueStore) -> dict[str, Any]:
    """The concrete arguments of an item's node.

    Errors: `EnvironmentFaultError` for a stored value that was lost, `NodeError` for an
    expression that fails.
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


def with_facts(
    value: Value, content: Any, hashing: Hash, *, itemise: bool, itemise_texts: bool
) -> Value:
    """The value with the facts of its content that decisions need, with ``itemise`` the
    digests of its items among them, with ``itemise_texts`` those of its records' texts."""
    truth, length = fact_of(content)
    if truth and length < 0:
        return value
    return msgspec.structs.replace(
        value,
        truth=truth,
        length=length,
        items=items_of(content, hashing) if itemise else (),
        texts=text_items_of(content, hashing) if itemise_texts else (),
    )
