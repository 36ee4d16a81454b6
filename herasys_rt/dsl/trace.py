"""One tracing of a workflow: gathers nodes and faults, gives a `WorkflowSpec`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

from herasys_rt.dsl.building import ANY_VALUE, Builder, holds_symbol
from herasys_rt.dsl.symbols import Input
from herasys_rt.errors import Fault, GraphError, UsageError
from herasys_rt.graph.shapes import Shape, shape_of
from herasys_rt.graph.spec import Arg, NodeSpec, WorkflowSpec
from herasys_rt.graph.validation import needed_nodes, validate_spec

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


@contextmanager
def entered(trace: Trace) -> Generator[None]:
    """While this is entered, operators add their nodes to ``trace``."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


class Trace(Builder):
    """The nodes and faults of a workflow while its function runs.

    Faults are recorded and tracing goes on wherever it can; `finish` reports all of them
    at once.
    """

    def __init__(self, name: str, share: str, doc: str = "") -> None:
        super().__init__(name, share)
        self._doc = doc

    @contextmanager
    def running(self) -> Generator[None]:
        """While this is entered, operators add their nodes here.

        Whatever the workflow's function raises becomes one more fault; the error itself
        is kept as the cause.
        """
        cause: Exception | None = None
        with entered(self):
            try:
                yield
            except Exception as e:
                if e is not self._stopped:
                    cause = e
                    self.record(self.name, f"its body raised {type(e).__name__}: {e}")
        if cause is not None or self._stopped is not None:
            self._finished = True
            raise GraphError.of(self.name, self._all_faults()) from cause

    def finish(
        self,
        returned: object,
        check: Callable[[dict[str, Shape]], list[Fault]] = lambda _: [],
    ) -> WorkflowSpec:
        """The spec of everything traced; ``check`` is asked for faults of its outputs.

        Errors: `GraphError` with all faults.
        """
        outputs = self._outputs(returned)
        shapes = {name: shape_of(arg, self.scope) for name, arg in outputs.items()}
        for fault in check(shapes) if outputs else []:
            self.record(fault.where, fault.problem, fault.fits)
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
            for fault in validate_spec(spec, complete=not self.faults)
            if not self._explains(fault) and not (cut_short and fault.where == "output")
        ]
        return self.faults + found

    def _explains(self, later: Fault) -> bool:
        """Whether a fault already known, there or at an item of it, is the reason."""
        places = (later.where, later.where + "[", later.where + ".")
        return any(
            f.where == places[0] or f.where.startswith(places[1:]) for f in self.faults
        )

    def _spec(self, nodes: tuple[NodeSpec, ...], outputs: dict[str, Arg]) -> WorkflowSpec:
        return WorkflowSpec(
            name=self.name,
            inputs=tuple(self._inputs.values()),
            nodes=nodes,
            outputs=outputs,
            share=self.share,
            doc=self._doc,
            regions=tuple(self.regions_of(nodes)),
        )

    def _outputs(self, returned: object) -> dict[str, Arg]:
        named = {"output": returned}
        if isinstance(returned, dict):
            named = cast("dict[str, object]", returned)
        outputs: dict[str, Arg] = {}
        for name, value in named.items():
            where = f"output {name}"
            if isinstance(value, Input) or not holds_symbol(value):
                got = repr(value) if isinstance(value, Input) else type(value).__name__
                fit = "return a node, or a dict of name: node"
                self.record(where, f"is {got}, which is no node", fit)
                continue
            arg = self.lower(value, ANY_VALUE, where)
            if arg is not None:
                outputs[str(name)] = arg
        if not named:
            self.record("output", "is an empty dict", "return a node, or a dict of nodes")
        return outputs
