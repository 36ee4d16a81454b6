"""What became of a run, put together from the scheduler's last word on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from herasys_rt.core.commands import FinishFragment, FinishRun, NodeRecord
from herasys_rt.dsl.tracked import Origin
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph import codec
from herasys_rt.graph.expressions import resolve
from herasys_rt.graph.spec import WorkflowSpec, node_refs


class RunReport(msgspec.Struct, frozen=True):
    """A finished run. ``sources`` come from the nodes' provenance, never from text.

    ``usage`` is what its values took, whoever they were computed for; ``billed`` this run's
    part of it and of the engine time (``engine_s``): what several runs shared is divided
    among them, what was reused costs nothing.
    """

    run_id: str
    status: str
    output: Any
    sources: list[dict[str, Any]]
    usage: dict[str, int]
    error: ErrorInfo | None
    failed_node: str
    latency_s: float
    nodes: tuple[NodeRecord, ...]
    labels: dict[str, str] = {}
    billed: dict[str, float] = {}

    @classmethod
    def of(
        cls,
        message: FinishRun,
        spec: WorkflowSpec,
        inputs: dict[str, Any],
        latency_s: float,
    ) -> RunReport:
        """Build the report; outputs are decoded here, on the receiving side."""
        output: Any = None
        if message.status == "succeeded":
            output = output_of(spec, inputs, message)
            if tuple(output) == ("output",):
                output = output["output"]
        family = {node.id: node.parents for node in spec.nodes}
        metas = _metas(message.nodes)
        return cls(
            run_id=message.run_id,
            status=message.status,
            output=output,
            sources=_sources([r.node for r in node_refs(spec.outputs)], family, metas),
            usage=_usage(metas),
            error=_located(message),
            failed_node=message.failed_node,
            latency_s=latency_s,
            nodes=message.nodes,
            labels=message.labels,
            billed=_billed(message.nodes),
        )

    @classmethod
    def of_agent(
        cls, message: FinishRun, output: Any, origin: Origin, latency_s: float
    ) -> RunReport:
        """The report of an agent's run: its nodes are called ``fragment/id``.

        The result is the coroutine's; sources are looked for from the nodes that it came
        from, or from all when it does not tell.
        """
        nodes = tuple(
            msgspec.structs.replace(node, id=f"{node.fragment}/{node.id}")
            for node in message.nodes
        )
        family = {_base(node.id): node.parents for node in nodes}
        metas = _metas(nodes)
        roots = [f"{fragment}/{node}" for fragment, node in sorted(origin)]
        return cls(
            run_id=message.run_id,
            status=message.status,
            output=output if message.status == "succeeded" else None,
            sources=_sources(roots or list(family), family, metas),
            usage=_usage(metas),
            error=_located(message),
            failed_node=message.failed_node,
            latency_s=latency_s,
            nodes=nodes,
            labels=message.labels,
            billed=_billed(nodes),
        )

    @classmethod
    def without_nodes(
        cls,
        run_id: str,
        status: str,
        error: ErrorInfo,
        latency_s: float,
        labels: dict[str, str],
    ) -> RunReport:
        """The report of a run that never reached the kernel or lost it."""
        return cls(run_id, status, None, [], {}, error, "", latency_s, (), labels)

    def to_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        told = {
            "run_id": self.run_id,
            "status": self.status,
            "output": plain(self.output),
            "sources": plain(self.sources),
            "usage": self.usage,
            "billed": self.billed,
            "error": self.error.to_json() if self.error is not None else None,
            "latency_s": round(self.latency_s, 6),
            "nodes": [node_json(node) for node in self.nodes],
        }
        if self.labels:
            told["labels"] = dict(self.labels)
        return told


def plain(value: Any) -> Any:
    """JSON data of a value: arrays become lists, bytes hex."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def node_json(node: NodeRecord) -> dict[str, Any]:
    """A node as reports have it."""
    return {
        "id": node.id,
        "operator": node.operator,
        "instance": node.instance or None,
        "state": node.state,
        "queued_s": round(node.queued_s, 6),
        "run_s": round(node.run_s, 6),
        "share": round(node.share, 6),
        "fused_into": node.fused_into or None,
        "reused": node.reused,
        "shared_items": codec.decode(node.meta).get("shared_items", 0) if node.meta else 0,
        "parents": list(node.parents),
    }


def output_of(
    spec: WorkflowSpec, inputs: dict[str, Any], message: FinishRun | FinishFragment
) -> dict[str, Any]:
    """The outputs of a run or fragment that succeeded, by name."""
    values: dict[str, Any] = {
        spec.nodes[position].id: codec.decode(value.inline or b"\xc0")
        for position, value in message.outputs
    }
    for position, parts in message.gathered:
        values[spec.nodes[position].id] = [
            codec.decode(value.inline or b"\xc0") for value in parts
        ]
    return resolve(spec.outputs, inputs, values)


def _located(message: FinishRun) -> ErrorInfo | None:
    """The error with its place: run, node, operator, instance."""
    error = message.error
    if error is None or not message.failed_node:
        return error
    record = next((n for n in message.nodes if n.id == message.failed_node), None)
    where = f"node {message.failed_node!r}"
    if record is not None:
        where += f" ({record.operator}"
        where += f" on {record.instance})" if record.instance else ")"
    text = f"run {message.run_id} failed at {where}: {error.message}"
    return ErrorInfo(error.code, text, error.hint, error.retryable)


def _base(node_id: str) -> str:
    """The id of an element's node without the element: ``note[3]`` is of ``note``."""
    return node_id.partition("[")[0]


def _metas(nodes: tuple[NodeRecord, ...]) -> dict[str, list[dict[str, Any]]]:
    """What engines told of each node's value; of every element where there are many."""
    metas: dict[str, list[dict[str, Any]]] = {}
    for node in nodes:
        if node.meta:
            metas.setdefault(_base(node.id), []).append(codec.decode(node.meta))
    return metas


def _sources(
    roots: list[str],
    family: Mapping[str, tuple[str, ...]],
    metas: Mapping[str, list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    """From each root up to the nearest nodes that tell sources; each source once."""
    found: dict[tuple[Any, Any], dict[str, Any]] = {}
    frontier, seen = list(roots), set[str]()
    while frontier:
        node = frontier.pop(0)
        if node in seen:
            continue
        seen.add(node)
        here = [s for meta in metas.get(node, []) for s in meta.get("sources", [])]
        for source in here:
            found.setdefault((source.get("source"), source.get("id")), source)
        if not here:
            frontier.extend(_base(parent) for parent in family.get(node, ()))
    return list(found.values())


def _usage(metas: Mapping[str, list[dict[str, Any]]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for meta in (meta for several in metas.values() for meta in several):
        for name, count in meta.get("usage", {}).items():
            total[name] = total.get(name, 0) + count
    return total


def _billed(nodes: tuple[NodeRecord, ...]) -> dict[str, float]:
    total = {"engine_s": sum(node.billed_s for node in nodes)}
    for node in nodes:
        usage = codec.decode(node.meta).get("usage", {}) if node.share and node.meta else {}
        for name, count in usage.items():
            total[name] = total.get(name, 0.0) + count * node.share
    return {name: round(amount, 6) for name, amount in total.items()}
