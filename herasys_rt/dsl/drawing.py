"""A graph as it is drawn: boxes, links and groups, whatever draws them.

`drawing_of` makes one of a workflow's spec, `drawing_of_report` one of a finished run
(``--json``), which is how an agent's graph is seen: it is known when it has been revealed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from herasys_rt.errors import UsageError
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    InputRef,
    ItemRef,
    ListRef,
    NodeRef,
    NodeSpec,
    Region,
    WorkflowSpec,
    node_refs,
)


@dataclass(frozen=True, slots=True)
class Box:
    """Something drawn as a box.

    ``id`` is a plain identifier, ``lines`` what is written in it, the title first.
    ``kind`` is input, node or output; ``state`` a node state or empty; ``group`` the id of
    the group it is drawn in, or empty.
    """

    id: str
    lines: tuple[str, ...]
    kind: str = "node"
    state: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """An arrow between boxes; ``dashed`` when it carries a decision and no value."""

    source: str
    target: str
    label: str = ""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """A frame around boxes."""

    id: str
    label: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Everything that is drawn, in reading order; links lead between its boxes."""

    title: str
    boxes: tuple[Box, ...]
    links: tuple[Link, ...]
    groups: tuple[Group, ...] = ()


def drawing_of(spec: WorkflowSpec) -> Drawing:
    """A workflow: inputs, nodes with operator and model, outputs; a link shows the port
    that it feeds, a dashed one the condition under which a node runs."""
    inputs = {declared.name: f"i{i}" for i, declared in enumerate(spec.inputs)}
    nodes = {node.id: f"n{i}" for i, node in enumerate(spec.nodes)}
    groups = {region.id: f"g{i}" for i, region in enumerate(spec.regions)}
    names = _Names(spec, inputs, nodes)
    boxes = [
        Box(inputs[declared.name], (f"{declared.name}: {declared.type.value}",), "input")
        for declared in spec.inputs
    ]
    for node in spec.nodes:
        lines = (node.id, node.operator, *([node.model] if node.model else []))
        boxes.append(Box(nodes[node.id], lines, group=groups.get(node.region, "")))
    outputs = [Box(f"o{i}", (name,), "output") for i, name in enumerate(spec.outputs)]
    links: list[Link] = []
    for node in spec.nodes:
        links.extend(_node_links(names, node, nodes[node.id]))
    for box, arg in zip(outputs, spec.outputs.values(), strict=True):
        links.extend(Link(source, box.id) for source in names.sources(arg))
    return Drawing(
        spec.name,
        (*boxes, *outputs),
        tuple(links),
        tuple(Group(groups[r.id], _group_label(names, r)) for r in spec.regions),
    )


def drawing_of_report(report: Mapping[str, Any]) -> Drawing:
    """A finished run from its ``--json`` report: nodes with operator, state and time,
    and links from the nodes whose results each one used.

    Errors: `UsageError` for something that is no report.
    """
    nodes = report.get("nodes")
    if not isinstance(nodes, list):
        raise _no_report("has no list of nodes")
    boxes: list[Box] = []
    ids: dict[str, str] = {}
    wanted: list[tuple[str, list[str]]] = []
    for i, entry in enumerate(cast("list[Any]", nodes)):
        record = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        if not isinstance(record.get("id"), str):
            raise _no_report(f"has a node without id at position {i}")
        state = str(record.get("state") or "")
        boxes.append(Box(f"n{i}", _record_lines(record, state), state=state))
        parents = cast("list[Any]", record.get("parents") or [])
        wanted.append((f"n{i}", [str(parent) for parent in parents]))
        ids[record["id"]] = f"n{i}"
    links = [
        Link(ids[parent], box)
        for box, parents in wanted
        for parent in dict.fromkeys(parents)
        if parent in ids and ids[parent] != box
    ]
    return Drawing(f"run {report.get('run_id') or ''}".strip(), tuple(boxes), tuple(links))


def _record_lines(record: Mapping[str, Any], state: str) -> tuple[str, ...]:
    run_s = record.get("run_s")
    spent = f" {run_s:.3g} s" if isinstance(run_s, int | float) and run_s > 0 else ""
    how = " (reused)" if record.get("reused") else ""
    how = " (joined)" if record.get("fused_into") else how
    lines = (record["id"], str(record.get("operator") or ""), f"{state}{spent}{how}")
    return tuple(line for line in lines if line)


def _no_report(problem: str) -> UsageError:
    return UsageError(
        f"this is no report of a run: it {problem}",
        hint="Make one with: herasys run FILE.py:NAME --json report.json",
    )


@dataclass(frozen=True)
class _Names:
    """Which boxes the references of a spec lead to."""

    spec: WorkflowSpec
    inputs: Mapping[str, str]
    nodes: Mapping[str, str]

    def sources(self, arg: Arg) -> list[str]:
        """Boxes that a value comes from, once each; an item comes from its list."""
        return list(dict.fromkeys(self._found(arg)))

    def _found(self, arg: Arg) -> Iterator[str]:
        match arg:
            case InputRef(name) if name in self.inputs:
                yield self.inputs[name]
            case NodeRef(name) if name in self.nodes:
                yield self.nodes[name]
            case ItemRef(name) if name in self.spec.region_index:
                yield from self._found(self.spec.region_index[name].items)
            case ListRef(items):
                for item in items:
                    yield from self._found(item)
            case ChoiceRef(condition, then, otherwise):
                if not self._guarded_by(condition, then, otherwise):
                    yield from self._found(condition)
                yield from self._found(then)
                yield from self._found(otherwise)
            case Expr(_, args):
                for part in args.values():
                    yield from self._found(part)
            case _:
                return

    def _guarded_by(self, condition: Arg, *sides: Arg) -> bool:
        """Whether dashed links to nodes of a choice already show what decides it."""
        inside = [ref.node for ref in node_refs({str(i): s for i, s in enumerate(sides)})]
        nodes = [self.spec.nodes[self.spec.index[name]] for name in inside]
        return any(guard.condition == condition for n in nodes for guard in n.guards)


def _node_links(names: _Names, node: NodeSpec, box: str) -> Iterator[Link]:
    shown: set[str] = set()
    for port, arg in node.args.items():
        for source in names.sources(arg):
            shown.add(source)
            yield Link(source, box, port.removeprefix("var:").removeprefix("arg:"))
    region = names.spec.region_index.get(node.region)
    inner = {names.nodes[n.id] for n in names.spec.nodes if n.region == node.region}
    if region is not None and not shown & inner:
        for source in names.sources(region.items):
            if source not in shown:
                yield Link(source, box, "each")
    for guard in node.guards:
        for source in names.sources(guard.condition):
            yield Link(source, box, f"if {'true' if guard.holds else 'false'}", dashed=True)


def _group_label(names: _Names, region: Region) -> str:
    match region.items:
        case NodeRef(name) | InputRef(name):
            return f"{region.id}: each of {name}"
        case _:
            return f"{region.id}: each item"
