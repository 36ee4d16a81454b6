"""What an engine is given to execute a node."""

from __future__ import annotations

from herasys_rt.core import relatives
from herasys_rt.core.fusion import Result
from herasys_rt.core.state import FOREVER, Node, Payload, Template
from herasys_rt.core.values import Value


def payload_of(node: Node) -> Payload:
    """The payload of a node that misses nothing."""
    if not node.fragment.plan.flat:
        return _branched_payload(node)
    run, fragment = node.run, node.fragment
    nodes, plan = fragment.nodes, fragment.plan
    exact, expires_s, eldest_s = True, FOREVER, FOREVER
    placed = (fragment.inputs,) if fragment.inputs.place else ()
    upstream: list[tuple[int, Value]] = []
    for position in plan.parents[node.position]:
        result = nodes[position].result
        assert result is not None
        value = result.value
        assert value is not None
        upstream.append((position, value.bare()))
        if value.place:
            placed += (value,)
        if not result.exact:
            exact = False
        if result.expires_s < expires_s:
            expires_s = result.expires_s
        if result.eldest_s < eldest_s:
            eldest_s = result.eldest_s
    return Payload(
        plan.spec_id,
        node.position,
        run.id,
        run.tenant,
        fragment.inputs,
        tuple(upstream),
        exact,
        expires_s,
        eldest_s,
        placed,
    )


def _branched_payload(node: Node) -> Payload:
    """The payload in a plan with regions or conditions."""
    run, fragment = node.run, node.fragment
    plan, needs = fragment.plan, node.needs
    assert needs is not None
    used: list[Result] = []
    upstream: list[tuple[int, Value]] = []
    gathered: list[tuple[int, tuple[Value, ...]]] = []
    skipped: list[int] = []
    for position in plan.parents[node.position]:
        parent = relatives.seen(node, position)
        if position not in needs:
            skipped.append(position)
        elif isinstance(parent, Template):
            results = [_result_of(element) for element in parent.elements]
            gathered.append((position, tuple(_value_of(r) for r in results)))
            used += results
        else:
            result = _result_of(parent)
            upstream.append((position, _value_of(result)))
            used.append(result)
    items, item = _items(node, used)
    values = [fragment.inputs, *[_value_of(result) for result in used]]
    return Payload(
        spec_id=plan.spec_id,
        node=node.position,
        run_id=run.id,
        tenant=run.tenant,
        inputs=fragment.inputs,
        upstream=tuple(upstream),
        exact=all(result.exact for result in used),
        expires_s=min([result.expires_s for result in used], default=FOREVER),
        eldest_s=min([result.eldest_s for result in used], default=FOREVER),
        gathered=tuple(gathered),
        element=node.element,
        items=items,
        item=item,
        skipped=tuple(skipped),
        placed=tuple([value for value in values if value.place]),
    )


def _items(node: Node, used: list[Result]) -> tuple[Value | None, Value | None]:
    """(list, item) of an element whose region goes over what nodes produced."""
    fragment = node.fragment
    if node.element < 0:
        return None, None
    giver = fragment.plan.areas[fragment.plan.region[node.position]].giver
    if giver < 0:
        return None, None
    source = fragment.nodes[giver]
    if isinstance(source, Template):
        used.append(_result_of(source.elements[node.element]))
        return None, _value_of(used[-1])
    used.append(_result_of(source))
    return _value_of(used[-1]), None


def _result_of(node: Node) -> Result:
    assert node.result is not None
    return node.result


def _value_of(result: Result) -> Value:
    assert result.value is not None
    return result.value.bare()
