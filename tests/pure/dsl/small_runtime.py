"""Executes a spec node by node, as the contract of specs says: what a run must give.

Operators of tests compute nothing; here each verb is a plain function of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from herasys_rt.core.plan import spec_fault
from herasys_rt.dsl.workflow import Workflow
from herasys_rt.graph import codec
from herasys_rt.graph.expressions import resolve
from herasys_rt.graph.facts import fact_of
from herasys_rt.graph.reductions import REDUCTIONS
from herasys_rt.graph.spec import InputRef, Lit, NodeSpec, WorkflowSpec, decode_spec
from herasys_rt.graph.validation import validate_spec

Verbs = Mapping[str, Callable[[dict[str, Any]], Any]]


class Ran:
    """What a run gave, and how often each node ran."""

    def __init__(self, outputs: dict[str, Any], counts: dict[str, int]) -> None:
        self.outputs = outputs
        self.counts = counts

    @property
    def output(self) -> Any:
        return self.outputs["output"]


def run(workflow: Workflow[...], verbs: Verbs, **inputs: Any) -> Ran:
    """Run a workflow's spec after a trip over the wire."""
    return run_spec(decode_spec(workflow.spec.encoded), verbs, workflow.bind(**inputs))


def run_spec(spec: WorkflowSpec, verbs: Verbs, values: dict[str, Any]) -> Ran:
    """Run a spec with inputs that were checked."""
    assert validate_spec(spec) == []
    assert spec_fault(spec) is None
    known = {**verbs, "text.value": lambda args: args["value"]}
    outputs: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for node in spec.nodes:
        counts[node.id] = 0
        if not _taken(node, values, outputs):
            continue
        results: list[Any] = []
        for position, item in enumerate(_items(spec, node, values, outputs)):
            seen = _seen_from(spec, node, outputs, position)
            args = resolve(node.args, values, seen, item=item)
            results.append(codec.frozen(_output(node, args, known[node.verb])))
            counts[node.id] += 1
        outputs[node.id] = results if node.region else results[0]
    return Ran(resolve(spec.outputs, values, outputs), counts)


def _output(node: NodeSpec, args: dict[str, Any], verb: Callable[[Any], Any]) -> Any:
    if node.reduction is None:
        return verb(args)
    given = {k: v for k, v in args.items() if k not in node.reduction.params}
    return REDUCTIONS[node.reduction.function](args, verb(given))


def _taken(node: NodeSpec, inputs: dict[str, Any], outputs: dict[str, Any]) -> bool:
    for guard in node.guards:
        asked = resolve({"c": guard.condition}, inputs, outputs)["c"]
        if fact_of(asked)[0] != guard.holds:
            return False
    return True


def _items(
    spec: WorkflowSpec, node: NodeSpec, inputs: dict[str, Any], outputs: dict[str, Any]
) -> list[Any]:
    region = spec.region_index.get(node.region)
    if region is None:
        return [None]
    match region.items:
        case Lit(value):
            items = value
        case InputRef(name):
            items = inputs[name]
        case ref:
            items = outputs[ref.node]
    assert fact_of(items)[1] >= 0
    return list(items)


def _seen_from(
    spec: WorkflowSpec, node: NodeSpec, outputs: dict[str, Any], position: int
) -> dict[str, Any]:
    """The outputs as a node sees them: of its own region only its own item's."""
    if not node.region:
        return outputs
    mates = {n.id for n in spec.nodes if n.region == node.region}
    return {k: v[position] if k in mates else v for k, v in outputs.items()}
