"""Structural signatures: what a node computes, as 32 bytes (HeraSys section 3.3, eq. 2).

    Sig(v) = SHA-256(format, operator@version, verb, resource, model fingerprint,
                     trust scope, each argument by port name)

An argument enters as the digest of its canonical value, whether it was a literal or an
input of the run, or as the signature of the node that produces it. Lists, choices and
expressions enter with their form and all their parts: of a choice the condition and both
sides, which together decide the value. Everything before 32 bytes is self-delimiting, so
that two pre-images are equal only when every field is. Labels, options, run ids and ids of
nodes and regions stay outside; so do guards, which decide whether a node runs and not
what it gives.

A node that may not fuse (sampled, effect) has the empty signature and gives its
successors a nonce of run and node: below it nothing fuses by structure. A node of a region
is as many executions as there are items and has the empty signature too; whoever takes
the list of its outputs is signed over the region's list and the node's own pre-image,
which together decide that list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from herasys_rt.errors import InputError
from herasys_rt.graph import codec
from herasys_rt.graph.checks import widened
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
    Sampling,
    WorkflowSpec,
    node_refs,
)
from herasys_rt.graph.types import PortType

FORMAT = 1
"""Version of the pre-image; part of every signature."""

UNSIGNED = b""
"""The signature of a node that may not fuse."""

Fingerprint = Callable[[NodeSpec], str]
"""Model and revision, tokenizer and template that would serve a node; ``""`` for none."""


class _Plan(NamedTuple):
    """A node's pre-image: ``pieces[i]`` then digest ``slots[i]``, ..., then ``tail``.

    Slots count the trust scope, then the inputs in use, then the nodes in spec order.
    ``sample`` joins the pre-image of a node that draws and is shared by opt-in.
    """

    node_id: str
    pieces: tuple[bytes, ...]
    slots: tuple[int, ...]
    tail: bytes
    fusible: bool
    in_region: bool
    amount: Arg | None
    seed: Arg | None
    sample: int | None


class Signer:
    """Signs the runs of one spec; everything constant is hashed once, here.

    ``fingerprint`` is asked once per node. A signer keeps no state between runs and may
    be shared by threads.
    """

    def __init__(self, spec: WorkflowSpec, fingerprint: Fingerprint) -> None:
        self._public = spec.share == "public"
        drafts = [_Draft(spec, node, fingerprint(node)) for node in spec.nodes]
        used = [slot for draft in drafts for slot in draft.slots]
        keys = dict.fromkeys(slot for slot in used if isinstance(slot, _InputSlot))
        self._inputs = tuple(keys)
        positions: dict[_Slot, int] = {_SCOPE: 0}
        positions |= {slot: 1 + i for i, slot in enumerate(self._inputs)}
        first_node = len(positions)
        positions |= {node.id: first_node + i for i, node in enumerate(spec.nodes)}
        self._plans = tuple(draft.plan(positions) for draft in drafts)
        self._collections = _collection_args(spec)
        fixed = all(isinstance(a, Lit) for args in self._collections for a in args)
        self._fixed_collections = self._names({}) if fixed else None

    def sign(
        self, inputs: Mapping[str, Any], tenant: str, run_id: str
    ) -> tuple[bytes, ...]:
        """A signature per node, in spec order; ``b""`` where the node may not fuse.

        ``inputs`` are checked inputs with defaults filled in. ``tenant`` is the trust
        scope unless the workflow is shared publicly. Errors: `InputError` for an input
        that is missing, `CodecError` for one outside the closed set.
        """
        digests = [_scope(tenant, self._public)]
        for slot in self._inputs:
            value = _given(inputs, slot.name)
            if slot.as_float:
                value = widened(value, PortType.FLOAT)
            digests.append(codec.digest(codec.canonical(value)))
        signatures: list[bytes] = []
        for plan in self._plans:
            draws = _draws(plan, inputs)
            if plan.fusible and not (draws and plan.sample is None):
                digest = _signature(plan, digests, plan.sample if draws else None)
                signatures.append(UNSIGNED if plan.in_region else digest)
            else:
                digest = _nonce(run_id, plan.node_id)
                signatures.append(UNSIGNED)
            digests.append(digest)
        return tuple(signatures)

    def collections(self, inputs: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """Per node, in spec order, the sorted names of the collections it depends on.

        A node depends on the collection it names and on those of all its ancestors.
        """
        return self._fixed_collections or self._names(inputs)

    def _names(self, inputs: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        return tuple(
            tuple(sorted({str(_value(arg, inputs)) for arg in args}))
            for args in self._collections
        )


class _InputSlot(NamedTuple):
    """The digest of an input; ``as_float`` where a float is wanted of an int."""

    name: str
    as_float: bool


_SCOPE: Literal[0] = 0
_Slot = str | _InputSlot | Literal[0]
"""What a digest is of: a node by id, an input, or the trust scope."""


class _Draft:
    """A node's pre-image while it is written, with slots by name."""

    def __init__(self, spec: WorkflowSpec, node: NodeSpec, fingerprint: str) -> None:
        self._spec = spec
        self._node = node
        self._floats = {i.name for i in spec.inputs if i.type == PortType.FLOAT}
        self._bound: list[str] = []
        self.pieces: list[bytes] = []
        self.slots: list[_Slot] = []
        head = [FORMAT, node.operator, node.verb, node.resource, fingerprint]
        self._open = codec.canonical(head)
        self._close(_SCOPE)
        region = spec.region_index.get(node.region)
        if region is not None:
            self._open += b"r"
            self._argument(region.items, PortType.ANY)
        for name, wanted, arg in _full_args(node):
            many = len(arg.items) if isinstance(arg, ListRef) else -1
            self._open += codec.canonical([name, many])
            for item in arg.items if isinstance(arg, ListRef) else (arg,):
                self._argument(item, wanted)

    def plan(self, positions: Mapping[_Slot, int]) -> _Plan:
        """The pre-image with slots by position."""
        node = self._node
        amount, seed = _sampling_args(node, node.sampling)
        return _Plan(
            node.id,
            tuple(self.pieces),
            tuple(positions[slot] for slot in self.slots),
            self._open,
            node.purity == "pure",
            bool(node.region),
            amount,
            seed,
            node.sample,
        )

    def _close(self, slot: _Slot) -> None:
        self.pieces.append(self._open)
        self.slots.append(slot)
        self._open = b""

    def _argument(self, arg: Arg, wanted: PortType) -> None:
        """Write an argument: a letter for its form, then what decides its value."""
        match arg:
            case Lit(value):
                literal = codec.canonical(widened(value, wanted))
                self._open += b"v" + codec.digest(literal)
            case InputRef(name):
                self._open += b"v"
                self._close(_InputSlot(name, self._as_float(name, wanted)))
            case NodeRef(source):
                self._open += b"n" if self._is_single(source) else b"g"
                self._close(source)
            case ItemRef(region):
                self._open += b"i" + codec.canonical(self._depth(region))
            case ListRef(items):
                self._open += b"l" + codec.canonical(len(items))
                for item in items:
                    self._argument(item, wanted)
            case ChoiceRef(condition, then, otherwise):
                self._open += b"c"
                self._argument(condition, PortType.ANY)
                self._argument(then, wanted)
                self._argument(otherwise, wanted)
            case Expr("each", args):
                self._each(args)
            case Expr("own", {"node": NodeRef(source), "item": ItemRef(region)}):
                self._open += b"o" + codec.canonical(self._depth(region))
                self._close(source)
            case Expr(function, args):
                self._open += b"e" + codec.canonical([function, sorted(args)])
                for name in sorted(args):
                    self._argument(args[name], PortType.ANY)

    def _each(self, args: Mapping[str, Arg]) -> None:
        """The item enters by how far away it was bound: regions have no names here."""
        item = args["item"]
        assert isinstance(item, ItemRef)  # validate_spec has seen to it
        self._open += b"m"
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


def _full_args(node: NodeSpec) -> list[tuple[str, PortType, Arg]]:
    """Arguments by port name, sorted, with the defaults of those that were left out."""
    types = {port.name: port.type for port in node.ports}
    args: dict[str, Arg] = {
        port.name: Lit(port.default) for port in node.ports if not port.required
    }
    args.update(node.args)
    for port in node.ports:
        if port.excluded:
            args.pop(port.name, None)
    return [(name, types.get(name, PortType.ANY), args[name]) for name in sorted(args)]


def _sampling_args(
    node: NodeSpec, sampling: Sampling | None
) -> tuple[Arg | None, Arg | None]:
    if sampling is None:
        return None, None
    args = {name: arg for name, _, arg in _full_args(node)}
    return args.get(sampling.amount), args.get(sampling.seed)


def _draws(plan: _Plan, inputs: Mapping[str, Any]) -> bool:
    if plan.amount is None:
        return False
    seed = None if plan.seed is None else _value(plan.seed, inputs)
    return Sampling.draws(_value(plan.amount, inputs), seed)


def _value(arg: Arg, inputs: Mapping[str, Any]) -> Any:
    match arg:
        case Lit(value):
            return value
        case InputRef(name):
            return _given(inputs, name)
        case _:  # validate_spec lets only literals and inputs stand at parameters
            raise TypeError(f"a parameter cannot be {arg}")


def _given(inputs: Mapping[str, Any], name: str) -> Any:
    try:
        return inputs[name]
    except KeyError:
        raise InputError(
            f"input {name!r} is missing, so the run cannot be signed",
            hint="Pass the inputs through check_inputs first.",
        ) from None


def _collection_args(spec: WorkflowSpec) -> tuple[tuple[Arg, ...], ...]:
    """Per node the arguments that name collections, ancestors' first, once each."""
    gathered: list[tuple[Arg, ...]] = []
    for node in spec.nodes:
        mine: list[Arg] = []
        for parent in _sources(spec, node):
            mine.extend(gathered[spec.index[parent]])
        if node.collection is not None:
            mine.extend(a for n, _, a in _full_args(node) if n == node.collection)
        once: list[Arg] = []
        once.extend(arg for i, arg in enumerate(mine) if arg not in mine[:i])
        gathered.append(tuple(once))
    return tuple(gathered)


def _sources(spec: WorkflowSpec, node: NodeSpec) -> list[str]:
    """Ids of the nodes that decide a node's value: not those that only its guards ask."""
    region = spec.region_index.get(node.region)
    args = dict(node.args)
    if region is not None:
        args[""] = region.items
    return list(dict.fromkeys(ref.node for ref in node_refs(args)))


@lru_cache(maxsize=1024)
def _scope(tenant: str, public: bool) -> bytes:
    scope = ["public"] if public else ["tenant", tenant]
    return codec.digest(codec.canonical(scope))


def _nonce(run_id: str, node_id: str) -> bytes:
    return codec.digest(b"nonce" + codec.canonical([run_id, node_id]))


def _signature(plan: _Plan, digests: list[bytes], sample: int | None) -> bytes:
    hashed = hashlib.sha256()
    for piece, slot in zip(plan.pieces, plan.slots, strict=True):
        hashed.update(piece)
        hashed.update(digests[slot])
    hashed.update(plan.tail)
    if sample is not None:
        hashed.update(b"s" + codec.canonical(sample))
    return hashed.digest()
