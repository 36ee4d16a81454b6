"""`@workflow`: a function traced once into a `WorkflowSpec`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, overload

from herasys_rt.dsl.annotations import DeclaredOutput, declared_inputs
from herasys_rt.dsl.inlining import inline
from herasys_rt.dsl.mermaid import to_mermaid
from herasys_rt.dsl.symbols import Node
from herasys_rt.dsl.trace import Trace, current_trace
from herasys_rt.errors import Fault, GraphError
from herasys_rt.graph.checks import nearest
from herasys_rt.graph.spec import Arg, Lit, Port, WorkflowSpec, decode_spec
from herasys_rt.graph.validation import check_inputs

P = ParamSpec("P")


class Workflow(Generic[P]):
    """A declared workflow: its compiled ``spec``, ``name`` and documentation.

    It executes nothing by itself: submit it through a client. Called inside another
    workflow it becomes a part of that one, its nodes prefixed with its name.
    """

    def __init__(self, spec: WorkflowSpec, module: str = "", qualname: str = "") -> None:
        self.spec = spec
        self.name = spec.name
        self.__name__ = spec.name
        self.__qualname__ = qualname or spec.name
        self.__module__ = module
        self.__doc__ = spec.doc

    def __repr__(self) -> str:
        return f"<workflow {self.name}: {len(self.spec.nodes)} nodes>"

    def bind(self, /, **inputs: Any) -> dict[str, Any]:
        """The inputs of a run: given ones checked, defaults filled in.

        Errors: `InputError` with everything that does not fit.
        """
        return check_inputs(self.spec, inputs)

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        return to_mermaid(self.spec)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Take this workflow's nodes over into the one being traced.

        Gives the node of its single output, or a dict of nodes by output name. Errors:
        `UsageError` outside of a workflow.
        """
        trace = current_trace(f"workflow {self.name!r} was called")
        where = trace.name_node(self.name, "")
        bound = self._arguments(trace, where, args, kwargs)
        outputs = inline(trace, self.spec, where, bound)
        return outputs["output"] if list(outputs) == ["output"] else outputs

    def _arguments(
        self, trace: Trace, where: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Arg]:
        names = [declared.name for declared in self.spec.inputs]
        given = dict(zip(names, args, strict=False)) | kwargs
        if len(args) > len(names):
            trace.record(where, f"got {len(args)} positional inputs, takes {len(names)}")
        for name in given:
            if name not in names:
                trace.record(where, f"has no input {name!r}", nearest(name, names))
        bound: dict[str, Arg] = {}
        for declared in self.spec.inputs:
            spot = f"{where}.{declared.name}"
            if declared.name in given:
                port = Port(declared.name, declared.type, optional=declared.optional)
                arg = trace.lower(given[declared.name], port, spot)
            else:
                arg = Lit(declared.default)
                if declared.required:
                    trace.record(spot, f"missing; it takes {declared.type.value}")
            bound[declared.name] = Lit(None) if arg is None else arg
        return bound

    def __reduce__(self) -> str | tuple[Any, ...]:
        found: Any = sys.modules.get(self.__module__)
        for part in self.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is self and self.__module__ != "__main__":
            return self.__qualname__  # by reference: importable where it is read
        return _restore, (self.spec.encoded, self.__module__, self.__qualname__)


def _restore(encoded: bytes, module: str, qualname: str) -> Workflow[Any]:
    return Workflow(decode_spec(encoded), module, qualname)


@overload
def workflow(function: Callable[P, Any], /) -> Workflow[P]: ...
@overload
def workflow(
    *, name: str | None = None, share: str = "tenant"
) -> Callable[[Callable[P, Any]], Workflow[P]]: ...
def workflow(
    function: Callable[P, Any] | None = None,
    /,
    *,
    name: str | None = None,
    share: str = "tenant",
) -> Workflow[P] | Callable[[Callable[P, Any]], Workflow[P]]:
    """Declare a workflow by a function that calls operators and returns a node.

    The function runs once, now, with symbols for its inputs; what it calls becomes the
    graph. It returns one node, or a dict of nodes by output name; a return annotation is
    held against what they give. ``share="public"``
    lets equal work be shared across tenants: the author's explicit choice.

    Errors: `GraphError` with every fault of the graph.
    """

    def declare(function: Callable[P, Any]) -> Workflow[P]:
        spec = trace_function(function, name or function.__name__, share)
        return Workflow(spec, function.__module__, function.__qualname__)

    return declare if function is None else declare(function)


def trace_function(function: Callable[..., Any], name: str, share: str) -> WorkflowSpec:
    """The spec of a function traced with symbolic inputs. Errors: `GraphError`."""
    if not _is_plain(function):
        problem = "is asynchronous or a generator"
        raise GraphError.of(name, [Fault(name, problem, "an ordinary function")])
    inputs, faults = declared_inputs(function)
    declared_output = DeclaredOutput(function)
    faults.extend(declared_output.faults)
    trace = Trace(name, share, inspect.getdoc(function) or "")
    trace.faults.extend(faults)
    symbols = {declared.name: trace.add_input(declared) for declared in inputs}
    if any(fault.problem.startswith(("inputs are", "names with")) for fault in faults):
        raise GraphError.of(name, faults)  # the function cannot be called with symbols
    returned: Node | dict[str, Node] | None = None
    with trace.running():
        returned = _called(function, symbols)
    return trace.finish(returned, declared_output.check)


def _called(function: Callable[..., Any], symbols: dict[str, Any]) -> Any:
    signature = inspect.signature(function)
    positional = [
        symbols[p.name]
        for p in signature.parameters.values()
        if p.kind is p.POSITIONAL_ONLY
    ]
    named = {
        p.name: symbols[p.name]
        for p in signature.parameters.values()
        if p.kind is not p.POSITIONAL_ONLY
    }
    return function(*positional, **named)


def _is_plain(function: Callable[..., Any]) -> bool:
    return not (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    )
