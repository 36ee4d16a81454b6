"""One tracing of a workflow: gathers nodes and faults, gives a `WorkflowSpec`."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

import msgspec

from herasys_rt.dsl.symbols import Input, Node, Symbol, ref_of, trace_of
from herasys_rt.errors import Fault, GraphError, HerasysError, UsageError
from herasys_rt.graph import codec
from herasys_rt.graph.checks import widened
from herasys_rt.graph.spec import (
    Arg,
    InputRef,
    InputSpec,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    Port,
    Sampling,
    WorkflowSpec,
)
from herasys_rt.graph.types import PortType
from herasys_rt.graph.validation import needed_nodes, validate_spec

_LABEL = re.compile(r"[A-Za-z_][\w.\-]{0,99}", re.ASCII)

_current: ContextVar[Trace | None] = ContextVar("herasys_trace", default=None)


def current_trace(doing: str) -> Trace:
    """The trace in progress. Errors: `UsageError` outside of one, saying what to do."""
    trace = _current.get()
    if trace is None:
        raise UsageError(
            f"{doing} outside of a workflow: it declares a step and computes nothing",
            hint="Call it inside a function decorated with @workflow and submit that.",
        )
    return trace


class Trace:
    """The nodes and faults of a workflow while its function runs.

    Faults are recorded and tracing goes on wherever it can; `finish` reports all of them
    at once.
    """

    def __init__(self, name: str, share: str, doc: str = "") -> None:
        self.name = name
        self.faults: list[Fault] = []
        self._share = share
        self._doc = doc
        self._inputs: list[InputSpec] = []
        self._nodes: dict[str, NodeSpec] = {}
        self._inlined: set[str] = set()
        self._names: set[str] = set()
        self._stopped: HerasysError | None = None
        self._finished = False

    # Recording

    @contextmanager
    def running(self) -> Generator[None]:
        """While this is entered, operators add their nodes here.

        Whatever the workflow's function raises becomes one more fault; the error itself
        is kept as the cause.
        """
        token = _current.set(self)
        cause: Exception | None = None
        try:
            yield
        except Exception as e:
            if e is not self._stopped:
                cause = e
                self.record(self.name, f"its body raised {type(e).__name__}: {e}")
        finally:
            _current.reset(token)
        if cause is not None or self._stopped is not None:
            self._finished = True
            raise GraphError.of(self.name, self._all_faults()) from cause

    def record(self, where: str, problem: str, fits: str = "") -> Fault:
        """Note a fault; equal ones once."""
        fault = Fault(where, problem, fits)
        if fault not in self.faults:
            self.faults.append(fault)
        return fault

    def stop(self, fault: Fault) -> HerasysError:
        """The error that ends the tracing; after it, one that explains a stray symbol."""
        if self._finished:
            return UsageError(
                f"{fault.where} is a placeholder of workflow {self.name!r}, not a value",
                hint="Submit the workflow and read the run's result instead.",
            )
        self._stopped = GraphError.of(self.name, [fault])
        return self._stopped

    # Building

    def add_input(self, declared: InputSpec) -> Input:
        """Declare an input; gives the symbol that stands for it."""
        self._inputs.append(declared)
        ref = InputRef(declared.name)
        return Input(self, ref, declared.type, f"input {declared.name}")

    def name_node(self, operator: str, label: str) -> str:
        """An id that is free: the label, else the operator's name with a number."""
        if label and not _LABEL.fullmatch(label):
            self.record(operator, f"label {label!r} is no name", "letters, digits, _ - .")
            label = ""
        if label and label in self._names:
            self.record(label, "two nodes have this label", "labels must differ")
        name = label or operator
        numbered = (f"{name}_{n}" for n in range(2, len(self._names) + 3))
        free = next(n for n in (name, *numbered) if n not in self._names)
        self._names.add(free)
        return free

    def add_node(self, node: NodeSpec) -> Node:
        """Take a lowered node; gives the symbol that stands for its output."""
        self._nodes[node.id] = resolve_purity(node)
        return Node(self, NodeRef(node.id), node.output, f"node {node.id}")

    def lower(self, value: object, port: Port, where: str) -> Arg | None:
        """The argument that a value given for ``port`` becomes; None after a fault.

        Symbols become references, literals are copied, so that later changes to them are
        not seen. A list with symbols in it becomes a `ListRef`.
        """
        if isinstance(value, Symbol):
            return self._refer(value, where)
        if isinstance(value, list | tuple):
            items = list(cast("list[object]", value))
            if any(isinstance(item, Symbol) for item in items):
                item_port = Port(port.name, PortType.ANY)
                parts = [
                    self.lower(item, item_port, f"{where}[{i}]")
                    for i, item in enumerate(items)
                ]
                flat = [p for p in parts if p is not None and not isinstance(p, ListRef)]
                return ListRef(tuple(flat)) if len(flat) == len(parts) else None
            value = items
        return self._literal(value, port, where)

    def inline(
        self, spec: WorkflowSpec, prefix: str, args: Mapping[str, Arg]
    ) -> dict[str, Node]:
        """Add all nodes of another workflow, ids prefixed; gives its outputs."""
        renamed = {node.id: f"{prefix}.{node.id}" for node in spec.nodes}
        symbols: dict[str, Node] = {}
        for node in spec.nodes:
            inner = {
                port: _substituted(arg, args, renamed) for port, arg in node.args.items()
            }
            for port, arg in inner.items():
                if arg is None:
                    problem = "a list would stand inside a list of arguments"
                    self.record(f"{renamed[node.id]}.{port}", problem)
            kept = {port: arg for port, arg in inner.items() if arg is not None}
            moved = msgspec.structs.replace(node, id=renamed[node.id], args=kept)
            self._inlined.add(moved.id)
            symbols[node.id] = self.add_node(moved)
        return {
            name: symbols[arg.node]
            for name, arg in spec.outputs.items()
            if isinstance(arg, NodeRef)
        }

    def finish(self, returned: object) -> WorkflowSpec:
        """The spec of everything traced. Errors: `GraphError` with all faults."""
        outputs = self._outputs(returned)
        spec = self._spec(tuple(self._nodes.values()), outputs)
        needed = needed_nodes(spec)
        alive = tuple(n for n in spec.nodes if n.id in needed or n.id not in self._inlined)
        spec = self._spec(alive, outputs)
        self._finished = True
        faults = self._all_faults(spec)
        if faults:
            raise GraphError.of(self.name, faults)
        return spec

    def _all_faults(self, spec: WorkflowSpec | None = None) -> list[Fault]:
        """Recorded faults, then those of the graph as far as it came, each once."""
        cut_short = spec is None
        spec = spec or self._spec(tuple(self._nodes.values()), {})
        found = [
            fault
            for fault in validate_spec(spec)
            if not self._explains(fault) and not (cut_short and fault.where == "output")
        ]
        return self.faults + found

    def _explains(self, later: Fault) -> bool:
        """Whether a fault already known, there or at an item of it, is the reason."""
        places = (later.where, later.where + "[")
        return any(
            f.where == places[0] or f.where.startswith(places[1]) for f in self.faults
        )

    def _spec(self, nodes: tuple[NodeSpec, ...], outputs: dict[str, Arg]) -> WorkflowSpec:
        return WorkflowSpec(
            self.name, tuple(self._inputs), nodes, outputs, self._share, self._doc
        )

    def _outputs(self, returned: object) -> dict[str, Arg]:
        named = {"output": returned}
        if isinstance(returned, dict):
            named = cast("dict[str, object]", returned)
        outputs: dict[str, Arg] = {}
        for name, value in named.items():
            where = f"output {name}"
            if isinstance(value, Node):
                ref = self._refer(value, where)
                if ref is not None:
                    outputs[str(name)] = ref
            else:
                got = type(value).__name__ if not isinstance(value, Input) else repr(value)
                fit = "return a node, or a dict of name: node"
                self.record(where, f"is {got}, which is no node", fit)
        if not named:
            self.record("output", "is an empty dict", "return a node, or a dict of nodes")
        return outputs

    def _refer(self, symbol: Symbol, where: str) -> InputRef | NodeRef | None:
        if trace_of(symbol) is not self:
            problem = f"{symbol!r} belongs to another workflow"
            self.record(where, problem, "call that workflow here to take its nodes over")
            return None
        return ref_of(symbol)

    def _literal(self, value: object, port: Port, where: str) -> Arg | None:
        if _holds_symbol(value):
            problem = "a node or an input stands inside a dict or a nested list"
            self.record(where, problem, "pass it by itself, or in a flat list")
            return None
        fault = codec.fault_of(value, "value")
        if fault:
            self.record(where, fault, "None, bool, int, float, str, list, dict, ndarray")
            return None
        return Lit(widened(codec.frozen(value), port.type))


def resolve_purity(node: NodeSpec) -> NodeSpec:
    """The node with its purity settled when literals already decide whether it samples."""
    if node.purity != "pure" or node.sampling is None:
        return node
    amount = node.args.get(node.sampling.amount)
    seed = node.args.get(node.sampling.seed, Lit(None))
    if not (isinstance(amount, Lit) and isinstance(seed, Lit)):
        return node
    numeric = isinstance(amount.value, int | float)
    if numeric and Sampling.draws(amount.value, seed.value):
        return msgspec.structs.replace(node, purity="sampled")
    return node


def _holds_symbol(value: object, depth: int = 0) -> bool:
    if isinstance(value, Symbol):
        return True
    if depth > 50:  # the codec refuses what is nested this deeply
        return False
    if isinstance(value, dict):
        parts = list(cast("dict[object, object]", value).values())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(cast("list[object]", value))
    else:
        return False
    return any(_holds_symbol(part, depth + 1) for part in parts)


def _substituted(
    arg: Arg, inputs: Mapping[str, Arg], renamed: Mapping[str, str]
) -> Arg | None:
    """An inner argument as the outer workflow sees it; None when lists would nest."""
    match arg:
        case Lit():
            return arg
        case InputRef(name):
            return inputs[name]
        case NodeRef(node):
            return NodeRef(renamed[node])
        case ListRef(items):
            parts = [_substituted(item, inputs, renamed) for item in items]
            flat = [p for p in parts if p is not None and not isinstance(p, ListRef)]
            return ListRef(tuple(flat)) if len(flat) == len(parts) else None
