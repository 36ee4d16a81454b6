"""What a workflow compiles to: a `WorkflowSpec` of `NodeSpec`s.

A spec is plain frozen data in the canonical codec; its digest is its id, so registering
it twice is registering it once. It holds no code: an operator has already lowered to one
verb and a set of arguments when the workflow was traced.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec

from herasys_rt.graph import codec
from herasys_rt.graph.types import PortType


class Lit(msgspec.Struct, frozen=True, tag="lit"):
    """An argument known when the workflow was traced."""

    value: Any


class InputRef(msgspec.Struct, frozen=True, tag="in"):
    """An argument that is an input of the run."""

    name: str


class NodeRef(msgspec.Struct, frozen=True, tag="node"):
    """An argument that is the output of another node: an edge."""

    node: str


class ListRef(msgspec.Struct, frozen=True, tag="list"):
    """An argument that is a list of arguments: a join, or literals mixed with edges."""

    items: tuple[Lit | InputRef | NodeRef, ...]


Arg = Lit | InputRef | NodeRef | ListRef


class Constraint(msgspec.Struct, frozen=True):
    """What a value must satisfy beyond its type; checked before anything runs.

    ``minimum``/``maximum`` bound numbers (inclusive); ``non_empty`` asks for text that is
    not blank or a list that is not empty; ``choices`` lists the allowed strings.
    """

    minimum: float | None = None
    maximum: float | None = None
    non_empty: bool = False
    choices: tuple[str, ...] = ()


class Port(msgspec.Struct, frozen=True):
    """A named, typed argument of an operator.

    A port may be an edge; a parameter (``is_param``) is a literal or a run's input. A
    port without ``required`` takes ``default``; an ``optional`` one also takes None.
    """

    name: str
    type: PortType
    required: bool = True
    default: Any = None
    is_param: bool = False
    optional: bool = False
    constraint: Constraint = Constraint()
    doc: str = ""


class Sampling(msgspec.Struct, frozen=True):
    """Which arguments decide whether a node draws random numbers.

    The node is sampled when argument ``amount`` is above 0 and argument ``seed`` is None.
    Either may be an input, so that purity is known only per run.
    """

    amount: str
    seed: str

    @staticmethod
    def draws(amount: Any, seed: Any) -> bool:
        """Whether these two values make a node sampled; an odd amount counts as drawing."""
        if seed is not None or amount is None:
            return False
        return not isinstance(amount, int | float) or amount > 0


class Edge(msgspec.Struct, frozen=True):
    """``source`` node's output feeds ``port`` of ``target`` node."""

    source: str
    target: str
    port: str


class NodeSpec(msgspec.Struct, frozen=True):
    """One operator invocation, lowered.

    ``operator`` is ``name@version``; ``verb`` what an engine is asked to do; ``resource``
    and ``model`` choose the pool (``model`` None: that resource's default pool);
    ``purity`` is pure, sampled or effect; a pure node with ``sampling`` may still be
    sampled in a run whose inputs say so (its signature is then empty). ``collection``
    names the argument that holds a collection's name when the value depends on that
    collection's content.
    """

    id: str
    operator: str
    verb: str
    resource: str
    args: dict[str, Arg]
    ports: tuple[Port, ...]
    output: PortType
    model: str | None = None
    purity: str = "pure"
    streams: bool = False
    collection: str | None = None
    label: str = ""
    sampling: Sampling | None = None

    @property
    def parents(self) -> tuple[str, ...]:
        """Ids of the nodes whose outputs this node takes, in argument order, once each."""
        return tuple(dict.fromkeys(ref.node for ref in node_refs(self.args)))


class InputSpec(msgspec.Struct, frozen=True):
    """A declared input of a workflow; an ``optional`` one also takes None."""

    name: str
    type: PortType
    required: bool = True
    default: Any = None
    optional: bool = False


class WorkflowSpec(msgspec.Struct, frozen=True, dict=True):
    """A workflow: inputs, nodes in topological order, named outputs.

    ``outputs`` maps an output's name to the argument it is read from; a workflow that
    returns one value has the single output ``"output"``. ``share`` is ``"tenant"`` or,
    by the author's opt-in, ``"public"``.
    """

    name: str
    inputs: tuple[InputSpec, ...]
    nodes: tuple[NodeSpec, ...]
    outputs: dict[str, Arg]
    share: str = "tenant"
    doc: str = ""

    @cached_property
    def encoded(self) -> bytes:
        """The spec in the canonical codec.

        Through the decoder once: a field declared float may hold an int in the process
        that traced the workflow, and the id must be the same on either side of a link.
        """
        return codec.encode(_spec_decoder.decode(codec.encode(self)))

    @cached_property
    def id(self) -> str:
        """``spec-`` and the first 32 hex digits of the SHA-256 of `encoded`."""
        return "spec-" + codec.digest(self.encoded).hex()[:32]

    @cached_property
    def index(self) -> dict[str, int]:
        """Node id -> position in `nodes`."""
        return {node.id: i for i, node in enumerate(self.nodes)}

    @cached_property
    def input_ports(self) -> dict[str, tuple[tuple[str, Port], ...]]:
        """Input name -> every (node id, port) that it feeds directly, in order."""
        fed: dict[str, list[tuple[str, Port]]] = {item.name: [] for item in self.inputs}
        for node in self.nodes:
            for port in node.ports:
                arg = node.args.get(port.name)
                if isinstance(arg, InputRef):
                    fed.setdefault(arg.name, []).append((node.id, port))
        return {name: tuple(ports) for name, ports in fed.items()}

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Every edge, in the order of nodes and arguments."""
        return tuple(
            Edge(ref.node, node.id, port)
            for node in self.nodes
            for port, arg in node.args.items()
            for ref in node_refs({port: arg})
        )


_spec_decoder = codec.typed_decoder(WorkflowSpec)


def decode_spec(data: bytes) -> WorkflowSpec:
    """The spec of canonical bytes. Errors: `CodecError`."""
    try:
        return _spec_decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as e:
        raise codec.CodecError(f"bytes are no workflow spec: {e}") from e


def node_refs(args: dict[str, Arg]) -> list[NodeRef]:
    """Every edge among arguments, in order."""
    found: list[NodeRef] = []
    for arg in args.values():
        parts = arg.items if isinstance(arg, ListRef) else (arg,)
        found.extend(part for part in parts if isinstance(part, NodeRef))
    return found


def input_refs(args: dict[str, Arg]) -> list[InputRef]:
    """Every reference to a run's input among arguments, in order."""
    found: list[InputRef] = []
    for arg in args.values():
        parts = arg.items if isinstance(arg, ListRef) else (arg,)
        found.extend(part for part in parts if isinstance(part, InputRef))
    return found


def resolve(
    args: dict[str, Arg], inputs: dict[str, Any], outputs: dict[str, Any]
) -> dict[str, Any]:
    """Concrete argument values from a run's inputs and its nodes' outputs."""

    def one(arg: Arg) -> Any:
        match arg:
            case Lit(value):
                return value
            case InputRef(name):
                return inputs[name]
            case NodeRef(node):
                return outputs[node]
            case ListRef(items):
                return [one(item) for item in items]

    return {name: one(arg) for name, arg in args.items()}
