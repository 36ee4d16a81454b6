"""What became of a run, put together from the scheduler's last word on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from herasys_rt.core.commands import FinishRun, NodeRecord
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph import codec
from herasys_rt.graph.spec import WorkflowSpec, node_refs, resolve


class RunReport(msgspec.Struct, frozen=True):
    """A finished run. ``sources`` come from the nodes' provenance, never from text."""

    run_id: str
    status: str
    output: Any
    sources: list[dict[str, Any]]
    usage: dict[str, int]
    error: ErrorInfo | None
    failed_node: str
    latency_s: float
    nodes: tuple[NodeRecord, ...]

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
        metas = [codec.decode(n.meta) if n.meta else {} for n in message.nodes]
        if message.status == "succeeded":
            values = {
                spec.nodes[position].id: codec.decode(value.inline or b"\xc0")
                for position, value in message.outputs
            }
            output = resolve(spec.outputs, inputs, values)
            if tuple(output) == ("output",):
                output = output["output"]
        return cls(
            run_id=message.run_id,
            status=message.status,
            output=output,
            sources=_sources(spec, metas),
            usage=_total(meta.get("usage", {}) for meta in metas),
            error=_located(message, spec),
            failed_node=message.failed_node,
            latency_s=latency_s,
            nodes=message.nodes,
        )

    @classmethod
    def without_nodes(
        cls, run_id: str, status: str, error: ErrorInfo, latency_s: float
    ) -> RunReport:
        """The report of a run that never reached the kernel or lost it."""
        return cls(run_id, status, None, [], {}, error, "", latency_s, ())

    def to_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return {
            "run_id": self.run_id,
            "status": self.status,
            "output": plain(self.output),
            "sources": plain(self.sources),
            "usage": self.usage,
            "error": self.error.to_json() if self.error is not None else None,
            "latency_s": round(self.latency_s, 6),
            "nodes": [_node_json(node) for node in self.nodes],
        }


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


def _node_json(node: NodeRecord) -> dict[str, Any]:
    return {
        "id": node.id,
        "operator": node.operator,
        "instance": node.instance or None,
        "state": node.state,
        "queued_s": round(node.queued_s, 6),
        "run_s": round(node.run_s, 6),
        "fused_into": node.fused_into or None,
        "reused": node.reused,
    }


def _located(message: FinishRun, spec: WorkflowSpec) -> ErrorInfo | None:
    """The error with its place: run, node, operator, instance."""
    error = message.error
    if error is None or not message.failed_node:
        return error
    position = spec.index.get(message.failed_node)
    record = message.nodes[position] if position is not None else None
    where = f"node {message.failed_node!r}"
    if record is not None:
        where += f" ({record.operator}"
        where += f" on {record.instance})" if record.instance else ")"
    text = f"run {message.run_id} failed at {where}: {error.message}"
    return ErrorInfo(error.code, text, error.hint, error.retryable)


def _sources(spec: WorkflowSpec, metas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """From each output up to the nearest nodes that tell sources; each source once."""
    found: dict[tuple[Any, Any], dict[str, Any]] = {}
    frontier = [spec.index[ref.node] for ref in node_refs(spec.outputs)]
    seen: set[int] = set()
    while frontier:
        position = frontier.pop(0)
        if position in seen:
            continue
        seen.add(position)
        here = metas[position].get("sources", []) if position < len(metas) else []
        for source in here:
            found.setdefault((source.get("source"), source.get("id")), source)
        if not here:
            frontier.extend(spec.index[p] for p in spec.nodes[position].parents)
    return list(found.values())


def _total(usages: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for usage in usages:
        for name, count in usage.items():
            total[name] = total.get(name, 0) + count
    return total
