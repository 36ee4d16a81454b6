"""What decides a node's value, written as bytes with holes: what is hashed into names.

A pre-image is a list of fields: format version, operator, verb, resource, model, trust
scope, then each argument by port name. An argument enters as the digest of its canonical
value, whether it was a literal or an input of the run. A reduction enters where there is
one. Lists, choices and expressions
enter with their form and all their parts: of a choice the condition and both sides, which
together decide the value. All but the digests is self-delimiting, so that two pre-images
are equal only when every field is. Labels, options, run ids and ids of nodes and regions
stay outside; so do guards, which decide whether a node runs and not what it gives.

Pre-images are of three kinds. Of the *structural* pre-image a node that is an
argument is a hole for its signature, and the list of the region that the node itself is in
is a field. Of the *value* pre-image it is its place among `NodeSpec.parents`, and the
region's list stays out: both enter later, by what they turned out to be. The *item*
pre-image of a node with a list port leaves out the list at it too, and what only a
reduction reads (places are those among the nodes that `item_args` name): with an item's
digest it decides one item of the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from herasys_rt.graph import codec
from herasys_rt.graph.checks import widened
from herasys_rt.graph.hashing import Hash
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    InputRef,
    ItemRef,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    WorkflowSpec,
    node_refs,
)
from herasys_rt.graph.types import PortType

FORMAT = 1
"""Version of the pre-image; part of every signature."""


class InputSlot(NamedTuple):
    """A hole for the digest of an input; ``as_float`` where a float is wanted of an int."""

    name: str
    as_float: bool


class NodeSlot(NamedTuple):
    """A hole for the signature of a node."""

    node: str


SCOPE: Literal[0] = 0
"""The hole for the digest of the trust scope."""

Slot = NodeSlot | InputSlot | Literal[0]


class Field(NamedTuple):
    """A part of a pre-image: bytes and holes, in order. ``name`` is a port's or one of
    the fixed ones (`HEAD`, ``scope``, ``region``)."""

    name: str
    parts: tuple[bytes | Slot, ...]
    is_argument: bool = False


HEAD = ("format", "operator", "verb", "resource", "model")
"""The fields before the trust scope."""


def structural_fields(
    spec: WorkflowSpec, node: NodeSpec, fingerprint: str, hashing: Hash
) -> tuple[Field, ...]:
    """The structural pre-image of a node, which ``fingerprint``'s model would serve."""
    return _Writer(spec, node, hashing).fields(fingerprint)


def value_fields(
    spec: WorkflowSpec, node: NodeSpec, fingerprint: str, hashing: Hash
) -> tuple[Field, ...]:
    """The value pre-image of a node: without what nodes and lists of regions give."""
    return _Writer(spec, node, hashing, "value").fields(fingerprint)


def item_fields(
    spec: WorkflowSpec, node: NodeSpec, fingerprint: str, hashing: Hash
) -> tuple[Field, ...]:
    """The item pre-image of a node: without the list at its list port, and without what
    nodes and lists of regions give. None where there is no such port, or where an item
    depends on what a collection holds at the time."""
    if node.list_port is None or node.collection is not None:
        return ()
    return _Writer(spec, node, hashing, "item").fields(fingerprint)


def item_args(node: NodeSpec) -> dict[str, Arg]:
    """The arguments that decide each item of an output beside the item of the list."""
    reads = () if node.reduction is None else node.reduction.params
    return {
        name: arg
        for name, _, arg in full_args(node)
        if name != node.list_port and name not in reads
    }


def full_args(node: NodeSpec) -> list[tuple[str, PortType, Arg]]:
    """Arguments that count by port name, sorted, defaults of those left out included."""
    types = {port.name: port.type for port in node.ports}
    args: dict[str, Arg] = {
        port.name: Lit(port.default) for port in node.ports if not port.required
    }
    args.update(node.args)
    for port in node.ports:
        if port.excluded:
            args.pop(port.name, None)
    return [(name, types.get(name, PortType.ANY), args[name]) for name in sorted(args)]


class _Writer:
    """Writes one pre-image."""

    def __init__(
        self,
        spec: WorkflowSpec,
        node: NodeSpec,
        hashing: Hash,
        domain: Literal["", "value", "item"] = "",
    ) -> None:
        self._spec = spec
        self._node = node
        self._hashing = hashing
        self._domain = domain
        self._deciding = item_args(node) if domain == "item" else None
        above = node.parents
        if self._deciding is not None:
            above = dict.fromkeys(ref.node for ref in node_refs(self._deciding))
        self._places = {name: i for i, name in enumerate(above)}
        self._floats = {i.name for i in spec.inputs if i.type == PortType.FLOAT}
        self._bound: list[str] = []
        self._parts: list[bytes | Slot] = []

    def fields(self, fingerprint: str) -> tuple[Field, ...]:
        node = self._node
        values = [FORMAT, node.operator, node.verb, node.resource, fingerprint]
        head = [codec.canonical(value) for value in values]
        head[0] = _ARRAY_OF_5 + head[0]
        if self._domain:
            head[0] = codec.canonical(self._domain) + head[0]
        fields = [Field(name, (data,)) for name, data in zip(HEAD, head, strict=True)]
        fields.append(Field("scope", (SCOPE,)))
        region = self._spec.region_index.get(node.region)
        if region is not None and not self._domain:
            self._parts.append(b"r")
            self._argument(region.items, PortType.ANY)
            fields.append(self._field("region"))
        reduction = node.reduction
        if reduction is not None and self._domain != "item":
            told = [reduction.function, sorted(reduction.params)]
            fields.append(Field("reduction", (codec.canonical(told),)))
        for name, wanted, arg in full_args(node):
            if self._deciding is not None and name not in self._deciding:
                if name == node.list_port:
                    listed = codec.canonical([name])
                    fields.append(Field(name, (listed,), is_argument=True))
                continue
            many = len(arg.items) if isinstance(arg, ListRef) else -1
            self._parts.append(codec.canonical([name, many]))
            for item in arg.items if isinstance(arg, ListRef) else (arg,):
                self._argument(item, wanted)
            fields.append(self._field(name, is_argument=True))
        return tuple(fields)

    def _field(self, name: str, *, is_argument: bool = False) -> Field:
        parts, self._parts = tuple(self._parts), []
        return Field(name, parts, is_argument)

    def _argument(self, arg: Arg, wanted: PortType) -> None:
        """Write an argument: a letter for its form, then what decides its value."""
        write = self._parts.append
        match arg:
            case Lit(value):
                write(b"v" + self._hashing.of(widened(value, wanted)))
            case InputRef(name):
                write(b"v")
                write(InputSlot(name, self._as_float(name, wanted)))
            case NodeRef(source):
                write(b"n" if self._is_single(source) else b"g")
                self._source(source)
            case ItemRef(region):
                write(b"i" + codec.canonical(self._depth(region)))
            case ListRef(items):
                write(b"l" + codec.canonical(len(items)))
                for item in items:
                    self._argument(item, wanted)
            case ChoiceRef(condition, then, otherwise):
                write(b"c")
                self._argument(condition, PortType.ANY)
                self._argument(then, wanted)
                self._argument(otherwise, wanted)
            case Expr("each", args):
                self._each(args)
            case Expr("own", {"node": NodeRef(source), "item": ItemRef(region)}):
                write(b"o" + codec.canonical(self._depth(region)))
                self._source(source)
            case Expr(function, args):
                write(b"e" + codec.canonical([function, sorted(args)]))
                for name in sorted(args):
                    self._argument(args[name], PortType.ANY)

    def _source(self, node: str) -> None:
        if self._domain:
            self._parts.append(codec.canonical(self._places[node]))
        else:
            self._parts.append(NodeSlot(node))

    def _each(self, args: Mapping[str, Arg]) -> None:
        """The item enters by how far away it was bound: regions have no names here."""
        item = args["item"]
        assert isinstance(item, ItemRef)  # validate_spec has seen to it
        self._parts.append(b"m")
        self._argument(args["items"], PortType.ANY)
        self._bound.append(item.region)
        self._argument(args["body"], PortType.ANY)
        self._bound.pop()

    def _depth(self, region: str) -> int:
        """How many bindings away an item was bound; the node's own region is outermost."""
        inner = self._bound[::-1]
        return inner.index(region) if region in inner else len(inner)

    def _is_single(self, source: str) -> bool:
        """Whether a reference is to one value, and not to the list of a region's."""
        region = self._spec.nodes[self._spec.index[source]].region
        return region in ("", self._node.region)

    def _as_float(self, name: str, wanted: PortType) -> bool:
        return wanted == PortType.FLOAT and name not in self._floats


_ARRAY_OF_5 = b"\x95"


class Compiled(NamedTuple):
    """A pre-image as bytes, with (index into them, position of what fills it) per hole."""

    parts: list[bytes]
    holes: tuple[tuple[int, int], ...]

    def filled(self, fillings: Sequence[bytes], mark: bytes) -> bytes:
        """The bytes that are hashed, ``mark`` at their end."""
        parts = self.parts.copy()
        for index, position in self.holes:
            parts[index] = fillings[position]
        parts.append(mark)
        return b"".join(parts)


def compiled(fields: tuple[Field, ...], positions: Mapping[Slot, int]) -> Compiled:
    """A pre-image ready to be filled; ``positions`` says where each hole's filling is."""
    parts: list[bytes] = []
    holes: list[tuple[int, int]] = []
    open_ = b""
    for field in fields:
        for part in field.parts:
            if isinstance(part, bytes):
                open_ += part
            else:
                parts += [open_, b""]
                holes.append((len(parts) - 1, positions[part]))
                open_ = b""
    return Compiled([*parts, open_], tuple(holes))
