"""What a workflow compiles to: a `WorkflowSpec` of `NodeSpec`s.

A spec is plain frozen data in the canonical codec; its digest is its id, so registering
it twice is registering it once. It holds no code: an operator has already lowered to one
verb and a set of arguments when the workflow was traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


class ItemRef(msgspec.Struct, frozen=True, tag="item"):
    """An argument that is the current item of the region the node is in."""

    region: str


class ListRef(msgspec.Struct, frozen=True, tag="list"):
    """An argument that is a list of arguments: a join, or literals mixed with edges."""

    items: tuple[Arg, ...]


class ChoiceRef(msgspec.Struct, frozen=True, tag="choice"):
    """An argument that is ``then`` when the condition's value is true, else ``otherwise``.

    Only the taken side has to have a value; nodes of the other side never run.
    """

    condition: InputRef | NodeRef | ItemRef
    then: Arg
    otherwise: Arg


class Expr(msgspec.Struct, frozen=True, tag="expr"):
    """An argument computed where it is consumed, by a named pure function.

    For work that is too cheap to be dispatched (`graph.expressions` holds the functions:
    render a prompt, parse JSON, take a field). An expression that fails is its
    consumer's error.
    """

    function: str
    args: dict[str, Arg]


Arg = Lit | InputRef | NodeRef | ItemRef | ListRef | ChoiceRef | Expr


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
    port without ``required`` takes ``default``; an ``optional`` one also takes None. What
    stands at an ``excluded`` one changes nothing about the value: it is no part of the
    signature.
    """

    name: str
    type: PortType
    required: bool = True
    default: Any = None
    is_param: bool = False
    optional: bool = False
    constraint: Constraint = Constraint()
    doc: str = ""
    excluded: bool = False


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


class Guard(msgspec.Struct, frozen=True):
    """The node runs only when the condition's value is as ``holds`` says."""

    condition: InputRef | NodeRef | ItemRef
    holds: bool


class Region(msgspec.Struct, frozen=True):
    """Nodes that are executed once per item of a list (data-parallel fan-out).

    Inside, `ItemRef` is the item and a `NodeRef` to a node of the same region means the
    same item's; from outside, a `NodeRef` to a node of a region is the list of its
    outputs in the items' order (of an empty list: the empty list). Regions do not nest.
    A list longer than ``max_items`` fails the run (code ``too_many_items``).
    """

    id: str
    items: InputRef | NodeRef | Lit
    max_items: int = 10_000


class Retry(msgspec.Struct, frozen=True):
    """When and how a failed node is tried again, by one owner: the kernel.

    The n-th delay is uniform in [(1 - jitter) * d, d], d = min(initial_interval_s *
    backoff_factor**(n-1), max_interval_s). ``retry_on`` lists error codes; empty means
    every error that says of itself that it is retryable.
    """

    max_attempts: int = 3
    initial_interval_s: float = 0.5
    backoff_factor: float = 2.0
    max_interval_s: float = 30.0
    jitter: float = 1.0
    retry_on: tuple[str, ...] = ()


class Reduction(msgspec.Struct, frozen=True):
    """How a node's output is made of what its engine gave for each item of a list.

    ``function`` is one of `graph.reductions`; it takes the node's arguments and these
    parts. ``params`` are the arguments that only it reads: no part depends on them, and
    the engine does not get them.
    """

    function: str
    params: tuple[str, ...] = ()


class NodeOptions(msgspec.Struct, frozen=True):
    """What a call may ask for beyond its arguments; nothing of it changes the value.

    ``timeout_s`` bounds one attempt from its start (code ``node_timeout``, retryable).
    ``priority`` is added to the run's. ``cache`` False keeps the result out of the reuse
    cache; ``cache_ttl_s`` bounds how long it stays there (None: the verb's own limit) and
    how old a result may be that the node takes.
    """

    timeout_s: float | None = None
    retry: Retry | None = None
    priority: int = 0
    cache: bool = True
    cache_ttl_s: float | None = None


class NodeSpec(msgspec.Struct, frozen=True):
    """One operator invocation, lowered.

    ``operator`` is ``name@version``; ``verb`` what an engine is asked to do; ``resource``
    and ``model`` choose the pool (``model`` None: that resource's default pool);
    ``purity`` is pure, sampled or effect; a pure node with ``sampling`` may still be
    sampled in a run whose inputs say so (its signature is then empty). ``collection``
    names the argument that holds a collection's name when the value depends on that
    collection's content. ``list_port`` names the argument whose list the output is
    aligned with: item i of the output depends on item i of it and on the node's other
    arguments, and on nothing else. Equal items of different lists may then be shared; not
    those of a node with a ``collection``, whose content changes. ``by_text`` says that the
    items are records of which only the text counts. With a ``reduction`` it is what the
    engine gives that is aligned, and the output is made of it.
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
    region: str = ""
    guards: tuple[Guard, ...] = ()
    options: NodeOptions = NodeOptions()
    sample: int | None = None
    """By opt-in a node that draws random numbers may be shared: as this sample of the
    equal calls of its workflow. None: drawing, it is not shared."""
    list_port: str | None = None
    by_text: bool = False
    reduction: Reduction | None = None

    @property
    def parents(self) -> tuple[str, ...]:
        """Ids of the nodes that this one waits for, in argument order, once each: those
        whose outputs it takes and those that its guards ask. (`WorkflowSpec.parents_of`
        adds the node whose list its region goes over.)"""
        asked = {str(i): guard.condition for i, guard in enumerate(self.guards)}
        refs = [*node_refs(self.args), *node_refs(dict(asked))]
        return tuple(dict.fromkeys(ref.node for ref in refs))


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
    regions: tuple[Region, ...] = ()
    agent: bool = False
    """An agent's: it declares inputs only; its graph is revealed while it runs."""

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

    @cached_property
    def region_index(self) -> dict[str, Region]:
        """Region id -> region."""
        return {region.id: region for region in self.regions}

    def parents_of(self, node: NodeSpec) -> tuple[str, ...]:
        """Ids of all nodes that must have ended before ``node`` can start, once each: its
        `NodeSpec.parents`, and first the node that gives its region's list."""
        region = self.region_index.get(node.region)
        if region is None or not isinstance(region.items, NodeRef):
            return node.parents
        return tuple(dict.fromkeys((region.items.node, *node.parents)))

    def trust_scope(self, tenant: str) -> str:
        """Who shares caches below the runtime with a run of ``tenant``, the prefixes of a
        model among them. Whatever a tenant is called, its scope is that of no other, and
        none is what is public."""
        return "public" if self.share == "public" else f"tenant:{tenant}"

    @cached_property
    def asked_inputs(self) -> tuple[str, ...]:
        """Names of the inputs whose facts regions, guards and choices ask for, in order."""
        asked: list[Any] = [region.items for region in self.regions]
        asked += [guard.condition for node in self.nodes for guard in node.guards]
        args = [arg for node in self.nodes for arg in node.args.values()]
        asked += [c for arg in (*args, *self.outputs.values()) for c in conditions(arg)]
        names = [ref.name for ref in asked if isinstance(ref, InputRef)]
        return tuple(dict.fromkeys(names))

    @cached_property
    def itemised_inputs(self) -> tuple[str, ...]:
        """Names of the inputs whose items are looked at one by one, in order: regions go
        over them, or they stand at list ports."""
        lists: list[Arg | None] = [region.items for region in self.regions]
        lists += [listed_of(node) for node in self.nodes if not node.by_text]
        names = [arg.name for arg in lists if isinstance(arg, InputRef)]
        return tuple(dict.fromkeys(names))

    @cached_property
    def itemised_texts(self) -> tuple[str, ...]:
        """Names of the inputs whose records' texts are looked at one by one, in order."""
        found = [records_of(node) for node in self.nodes]
        names = [arg.name for arg in found if isinstance(arg, InputRef)]
        return tuple(dict.fromkeys(names))

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


def listed_of(node: NodeSpec) -> Arg | None:
    """What stands at a node's list port; None where it has none."""
    return node.args.get(node.list_port) if node.list_port else None


def records_of(node: NodeSpec) -> Arg | None:
    """The records whose texts are the items at a node's list port; None where the items
    are something else."""
    match listed_of(node):
        case arg if node.by_text:
            return arg
        case Expr("texts_of", {"items": records}):
            return records
        case _:
            return None


def leaves(arg: Arg) -> Iterator[Lit | InputRef | NodeRef | ItemRef]:
    """The literals and references that an argument is made of, in order.

    The item that an ``each`` expression binds is its own and no reference of the argument.
    """
    match arg:
        case ListRef(items):
            for item in items:
                yield from leaves(item)
        case ChoiceRef(condition, then, otherwise):
            yield condition
            yield from leaves(then)
            yield from leaves(otherwise)
        case Expr(function, args):
            bound = args.get("item") if function == "each" else None
            for part in args.values():
                yield from (leaf for leaf in leaves(part) if leaf != bound)
        case _:
            yield arg


def conditions(arg: Arg) -> Iterator[InputRef | NodeRef | ItemRef]:
    """What the choices in an argument ask, in order."""
    match arg:
        case ChoiceRef(condition, then, otherwise):
            yield condition
            yield from conditions(then)
            yield from conditions(otherwise)
        case ListRef(items):
            for item in items:
                yield from conditions(item)
        case Expr(_, args):
            for part in args.values():
                yield from conditions(part)
        case _:
            return


def node_refs(args: Mapping[str, Arg]) -> list[NodeRef]:
    """Every edge among arguments, in order."""
    found = (leaf for arg in args.values() for leaf in leaves(arg))
    return [leaf for leaf in found if isinstance(leaf, NodeRef)]
