"""Declaring operators: what a node may take and what it lowers to.

An operator is declared by a typed function without a body. Its signature says which
arguments there are, their order and defaults; the decorator says their port types and
what an engine is asked to do:

    @operator(version="1", verb="rerank", resource="rerank", output=PortType.CHUNKS,
              ports={"query": edge(PortType.TEXT, non_empty=True),
                     "chunks": edge(PortType.CHUNKS),
                     "top_k": param(PortType.INT, minimum=1)})
    def rerank(query: str | Node, chunks: Node, *, top_k: int = 4,
               **options: Unpack[Options]):
        'The chunks that answer the query best.'

Every call takes the options of `dsl.options.Options` besides, which ``**options`` tells the
type checker. Operators register themselves by name and version. Packages offer theirs
through the entry-point group ``herasys_rt.operators``; `discover` loads those.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, ParamSpec

from herasys_rt.dsl.options import OPTIONS, settle
from herasys_rt.dsl.symbols import Node
from herasys_rt.dsl.trace import Trace, current_trace
from herasys_rt.errors import UsageError
from herasys_rt.graph.checks import nearest
from herasys_rt.graph.estimates import ESTIMATES, Estimate
from herasys_rt.graph.reductions import REDUCTIONS
from herasys_rt.graph.spec import (
    Arg,
    Constraint,
    Lit,
    NodeSpec,
    Port,
    Reduction,
    Sampling,
)
from herasys_rt.graph.types import PortType

P = ParamSpec("P")

ENTRY_POINTS = "herasys_rt.operators"


def edge(
    kind: PortType,
    *,
    non_empty: bool = False,
    optional: bool = False,
    choices: tuple[str, ...] = (),
    doc: str = "",
) -> Port:
    """A port that takes a node's output, an input or a literal."""
    constraint = Constraint(non_empty=non_empty, choices=choices)
    return Port("", kind, optional=optional, constraint=constraint, doc=doc)


def param(
    kind: PortType,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    non_empty: bool = False,
    choices: tuple[str, ...] = (),
    optional: bool = False,
    doc: str = "",
) -> Port:
    """A parameter: a literal or an input of the workflow, never a node's output."""
    constraint = Constraint(minimum, maximum, non_empty, choices)
    return Port("", kind, is_param=True, optional=optional, constraint=constraint, doc=doc)


@dataclass
class Call:
    """One call of an operator while it is lowered; an operator's ``prepare`` may edit it.

    ``args`` holds the values given by port name, defaults filled in (symbols among
    them); ``extras`` the keyword arguments that no port takes, where the operator allows
    them; ``ports`` the ports the node will have. ``prepare`` moves every extra into
    ``args`` and ``ports``, or refuses it. ``output`` and ``streams`` are the operator's,
    unless the arguments make them others.
    """

    where: str
    args: dict[str, Any]
    extras: dict[str, Any]
    ports: dict[str, Port]
    trace: Trace = field(repr=False)
    output: PortType = PortType.ANY
    streams: bool = False

    def fault(self, port: str, problem: str, fits: str = "") -> None:
        """Report what is wrong with an argument; the other faults are still found."""
        self.trace.record(f"{self.where}.{port}" if port else self.where, problem, fits)
        self.args.pop(port, None)


class Operator(Generic[P]):
    """A declared operator; calling it inside a workflow adds a node.

    ``verb`` and ``resource`` say what an engine of which pool is asked; ``output`` the
    type it gives. ``purity`` is pure, sampled or effect; ``sampling`` names the arguments
    that make a pure operator sampled; ``streams`` that its text can be read while it is
    produced; ``collection`` the parameter that names the collection its value depends
    on. ``variadic`` lets calls carry further keyword arguments, for ``prepare`` to turn
    into ports. ``registered`` False keeps it out of the registry, for operators that are
    many and known by their object. ``estimate`` says how much work a node is, where the
    verb's own (`graph.estimates`) does not fit. ``list_port`` names the port whose list
    the output is aligned with, item by item, each depending on its own item alone: equal
    items of different calls are then computed once. ``by_text`` says that its items are
    records of which only the text counts, and ``reduction`` how the output is made of what
    an engine gave for the items, where it is not aligned itself. Errors: `UsageError` when
    the declaration contradicts itself or another operator has the same name and version.
    """

    def __init__(
        self,
        *,
        name: str,
        version: str,
        verb: str,
        resource: str,
        ports: tuple[Port, ...],
        output: PortType,
        purity: str = "pure",
        streams: bool = False,
        collection: str | None = None,
        sampling: Sampling | None = None,
        variadic: bool = False,
        prepare: Callable[[Call], None] | None = None,
        doc: str = "",
        registered: bool = True,
        estimate: Estimate | None = None,
        list_port: str | None = None,
        by_text: bool = False,
        reduction: Reduction | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.verb = verb
        self.resource = resource
        self.ports = ports
        self.output = output
        self.purity = purity
        self.streams = streams
        self.collection = collection
        self.sampling = sampling
        self.variadic = variadic
        self.prepare = prepare
        self.list_port = list_port
        self.by_text = by_text
        self.reduction = reduction
        self.positional = tuple(port.name for port in ports if not port.is_param)
        self.estimate = estimate or ESTIMATES.get(verb, Estimate(cost_key=verb))
        self.__name__ = self.__qualname__ = name
        self.__doc__ = doc
        self.__signature__: inspect.Signature | None = None
        self._check()
        if registered:
            register(self)

    @property
    def id(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"

    def __repr__(self) -> str:
        return f"<operator {self.id}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Node:
        """Add a node to the workflow being traced; gives the symbol of its output.

        Faults of the call are recorded with the workflow's others. Errors: `UsageError`
        outside of a workflow.
        """
        trace = current_trace(f"operator {self.name!r} was called")
        given: dict[str, Any] = dict(kwargs)
        label = given.get("label", "")
        where = trace.name_node(self.name, label if isinstance(label, str) else "")
        ports = {port.name: port for port in self.ports}
        call = Call(where, {}, {}, ports, trace, self.output, self.streams)
        settled = settle(given, self.sampling is not None, call.fault)
        self._bind(call, args, given)
        if self.prepare is not None:
            self.prepare(call)
        self._refuse_extras(call)
        return trace.add_node(
            NodeSpec(
                id=where,
                operator=self.id,
                verb=self.verb,
                resource=self.resource,
                args=_lowered(call),
                ports=tuple(call.ports.values()),
                output=call.output,
                model=settled.model,
                purity=self.purity,
                streams=call.streams,
                collection=self.collection,
                label=settled.label if where.startswith(settled.label or where) else "",
                sampling=self.sampling,
                options=settled.options,
                sample=0 if settled.shared_sample else None,
                list_port=self.list_port,
                by_text=self.by_text,
                reduction=self.reduction,
            )
        )

    def _bind(self, call: Call, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        for name, value in zip(self.positional, args, strict=False):
            if name in given:
                call.fault("", f"got two values for {name!r}")
            given.setdefault(name, value)
        if len(args) > len(self.positional):
            takes = ", ".join(self.positional) or "none"
            call.fault("", f"got {len(args)} positional arguments", f"it takes {takes}")
        for name, value in given.items():
            (call.args if name in call.ports else call.extras)[name] = value
        for port in self.ports:
            if not port.required:
                call.args.setdefault(port.name, port.default)

    def _refuse_extras(self, call: Call) -> None:
        known = [*call.ports, *OPTIONS]
        for name in call.extras:
            fits = nearest(name, known) or f"it takes {', '.join(known)}"
            call.fault("", f"has no argument {name!r}", fits)

    def _check(self) -> None:
        names = [port.name for port in self.ports]
        for name in names:
            if name in OPTIONS or names.count(name) > 1:
                self._misdeclared(f"port name {name!r} is reserved or given twice")
        if self.purity not in ("pure", "sampled", "effect"):
            self._misdeclared(f"purity is {self.purity!r}")
        if self.variadic and self.prepare is None:
            self._misdeclared("variadic needs a prepare that takes the further arguments")
        params = [port.name for port in self.ports if port.is_param]
        wanted = [self.collection] if self.collection else []
        wanted += [self.sampling.amount, self.sampling.seed] if self.sampling else []
        for name in wanted:
            if name not in params:
                self._misdeclared(f"{name!r} is none of its parameters")
        if self.list_port is not None:
            if self.list_port not in names or self.list_port in params:
                self._misdeclared(f"{self.list_port!r} is none of its edges")
            if self.purity == "effect" or self.collection is not None:
                self._misdeclared("its items depend on more than themselves")
        if self.list_port is None and (self.by_text or self.reduction is not None):
            self._misdeclared("without a list port there are no items")
        if self.reduction is not None:
            if self.reduction.function not in REDUCTIONS:
                self._misdeclared(f"there is no reduction {self.reduction.function!r}")
            for name in self.reduction.params:
                if name not in params:
                    self._misdeclared(f"{name!r} is none of its parameters")

    def _misdeclared(self, problem: str) -> NoReturn:
        raise UsageError(
            f"operator {self.id}: {problem}", hint="Correct the operator's declaration."
        )


def operator(
    *,
    version: str,
    verb: str,
    resource: str,
    output: PortType,
    ports: Mapping[str, Port],
    name: str | None = None,
    purity: str = "pure",
    streams: bool = False,
    collection: str | None = None,
    sampling: Sampling | None = None,
    prepare: Callable[[Call], None] | None = None,
    estimate: Estimate | None = None,
    list_port: str | None = None,
    by_text: bool = False,
    reduction: Reduction | None = None,
) -> Callable[[Callable[P, object]], Operator[P]]:
    """Make an `Operator` of a typed function without a body; see the module's text.

    The function's parameters are the ports in order (``model`` and ``label`` aside),
    their defaults the ports' defaults; ``**variables`` makes it variadic (and
    ``**options: Unpack[Options]`` does not). Errors:
    `UsageError` when the ports and the parameters do not match.
    """

    def declare(function: Callable[P, object]) -> Operator[P]:
        called = name or function.__name__
        signature = inspect.signature(function)
        operator: Operator[P] = Operator(
            name=called,
            version=version,
            verb=verb,
            resource=resource,
            ports=_ports(called, signature, ports),
            output=output,
            purity=purity,
            streams=streams,
            collection=collection,
            sampling=sampling,
            variadic=any(_takes_variables(p) for p in signature.parameters.values()),
            prepare=prepare,
            doc=inspect.getdoc(function) or "",
            estimate=estimate,
            list_port=list_port,
            by_text=by_text,
            reduction=reduction,
        )
        operator.positional = _positional(signature)
        operator.__module__ = function.__module__
        operator.__qualname__ = function.__qualname__
        operator.__signature__ = signature.replace(return_annotation=Node)
        return operator

    return declare


def _takes_variables(parameter: inspect.Parameter) -> bool:
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
        return False
    annotation = parameter.annotation
    shown = annotation if isinstance(annotation, str) else repr(annotation)
    return "Unpack[" not in shown


def _positional(signature: inspect.Signature) -> tuple[str, ...]:
    free = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(n for n, p in signature.parameters.items() if p.kind in free)


def _ports(
    called: str, signature: inspect.Signature, declared: Mapping[str, Port]
) -> tuple[Port, ...]:
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = {
        n: p
        for n, p in signature.parameters.items()
        if n not in OPTIONS and p.kind not in variadic
    }
    if set(parameters) != set(declared):
        odd = ", ".join(sorted(set(parameters) ^ set(declared)))
        raise UsageError(
            f"operator {called!r}: parameters and ports differ in {odd}",
            hint="Give every parameter of the function a port and the other way round.",
        )
    ports: list[Port] = []
    for name, parameter in parameters.items():
        port = declared[name]
        required = parameter.default is inspect.Parameter.empty
        default = None if required else parameter.default
        if isinstance(default, tuple):
            default = list(default)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        ports.append(
            Port(
                name=name,
                type=port.type,
                required=required,
                default=default,
                is_param=port.is_param,
                optional=port.optional,
                constraint=port.constraint,
                doc=port.doc,
            )
        )
    return tuple(ports)


def _lowered(call: Call) -> dict[str, Arg]:
    """Arguments in the order of ports; what could not be lowered left a fault behind."""
    lowered: dict[str, Arg] = {}
    for name, port in call.ports.items():
        if name in call.args:
            arg = call.trace.lower(call.args[name], port, f"{call.where}.{name}")
            if arg is not None:
                lowered[name] = arg
        elif not port.required:  # a refused argument; its default keeps the node whole
            lowered[name] = Lit(port.default)
    return lowered


# The registry

_registry: dict[str, Operator[...]] = {}


def register(operator: Operator[...]) -> None:
    """Make an operator known by ``name@version``.

    Declaring the very same operator again (a module read twice) replaces it. Errors:
    `UsageError` when another declaration has this name and version.
    """
    known = _registry.get(operator.id)
    if known is not None and _facts(known) != _facts(operator):
        raise UsageError(
            f"two different operators are called {operator.id}",
            hint="Give the new one another name or another version.",
        )
    _registry[operator.id] = operator


def find_operator(operator_id: str) -> Operator[...]:
    """The operator of a ``name@version``. Errors: `UsageError` listing the known ones."""
    found = _registry.get(operator_id)
    if found is None:
        known = ", ".join(sorted(_registry)) or "none"
        raise UsageError(
            f"no operator is called {operator_id!r}",
            hint=f"Known: {known}. Import its package or install it.",
        )
    return found


def discover() -> dict[str, Operator[...]]:
    """Load every installed package's operators; gives all that are known by id.

    Errors: `UsageError` naming the entry point that cannot be loaded.
    """
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except (ImportError, AttributeError) as e:
            raise UsageError(
                f"operators {entry.name!r} ({entry.value}) cannot be loaded: {e}",
                hint="Repair or uninstall that package.",
            ) from e
    return dict(sorted(_registry.items()))


def _facts(operator: Operator[...]) -> tuple[Any, ...]:
    return (
        operator.verb,
        operator.resource,
        operator.ports,
        operator.output,
        operator.purity,
        operator.streams,
        operator.collection,
        operator.sampling,
        operator.variadic,
        operator.list_port,
        operator.by_text,
        operator.reduction,
    )
