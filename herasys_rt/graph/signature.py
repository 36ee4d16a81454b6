"""Structural signatures: what a node computes, as 32 bytes (HeraSys section 3.3, eq. 2).

    Sig(v) = SHA-256(format, operator@version, verb, resource, model fingerprint,
                     trust scope, each argument by port name)

An argument enters as the digest of its canonical value, whether it was a literal or an
input of the run, or as the signature of the node that produces it. Everything before an
argument's 32 bytes is self-delimiting, so that two pre-images are equal only when every
field is. Labels, run ids and node ids stay outside.

A node that may not fuse (sampled, effect) has the empty signature and gives its
successors a nonce of run and node: below it nothing fuses by structure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from herasys_rt.errors import InputError
from herasys_rt.graph import codec
from herasys_rt.graph.checks import widened
from herasys_rt.graph.spec import (
    Arg,
    InputRef,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    Sampling,
    WorkflowSpec,
)
from herasys_rt.graph.types import PortType

FORMAT = 1
"""Version of the pre-image; part of every signature."""

UNSIGNED = b""
"""The signature of a node that may not fuse."""

Fingerprint = Callable[[NodeSpec], str]
"""Model and revision, tokenizer and template that would serve a node; ``""`` for none."""

_SCOPE = 0  # position of the trust scope among a run's digests


class _Plan(NamedTuple):
    """A node's pre-image: ``pieces[i]`` then digest ``slots[i]``, ..., then ``tail``.

    Slots count the trust scope, then the inputs in use, then the nodes in spec order.
    """

    node_id: str
    pieces: tuple[bytes, ...]
    slots: tuple[int, ...]
    tail: bytes
    fusible: bool
    amount: Arg | None
    seed: Arg | None


class Signer:
    """Signs the runs of one spec; everything constant is hashed once, here.

    ``fingerprint`` is asked once per node. A signer keeps no state between runs and may
    be shared by threads.
    """

    def __init__(self, spec: WorkflowSpec, fingerprint: Fingerprint) -> None:
        self._public = spec.share == "public"
        self._inputs = _used_inputs(spec)
        first_node = 1 + len(self._inputs)
        slot_of = {key: 1 + i for i, key in enumerate(self._inputs)}
        node_slot = {node.id: first_node + i for i, node in enumerate(spec.nodes)}
        self._plans = tuple(
            _plan(node, fingerprint(node), _Slots(spec, slot_of, node_slot))
            for node in spec.nodes
        )
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
        for name, as_float in self._inputs:
            value = _given(inputs, name)
            if as_float:
                value = widened(value, PortType.FLOAT)
            digests.append(codec.digest(codec.canonical(value)))
        signatures: list[bytes] = []
        for plan in self._plans:
            if plan.fusible and not _draws(plan, inputs):
                signature = _signature(plan, digests)
                digests.append(signature)
            else:
                signature = UNSIGNED
                digests.append(_nonce(run_id, plan.node_id))
            signatures.append(signature)
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


class _Slots(NamedTuple):
    """Where an argument's digest is found when a run is signed."""

    spec: WorkflowSpec
    inputs: dict[tuple[str, bool], int]
    nodes: dict[str, int]

    def of_input(self, name: str, wanted: PortType) -> int:
        return self.inputs[_input_key(self.spec, name, wanted)]


def _plan(node: NodeSpec, fingerprint: str, slots: _Slots) -> _Plan:
    pieces: list[bytes] = []
    found: list[int] = []
    head = [FORMAT, node.operator, node.verb, node.resource, fingerprint]
    open_piece = codec.canonical(head)

    def close(slot: int) -> None:
        nonlocal open_piece
        pieces.append(open_piece)
        found.append(slot)
        open_piece = b""

    close(_SCOPE)
    for name, wanted, arg in _full_args(node):
        items = arg.items if isinstance(arg, ListRef) else (arg,)
        many = len(items) if isinstance(arg, ListRef) else -1
        open_piece += codec.canonical([name, many])
        for item in items:
            match item:
                case Lit(value):
                    literal = codec.canonical(widened(value, wanted))
                    open_piece += b"v" + codec.digest(literal)
                case InputRef(input_name):
                    open_piece += b"v"
                    close(slots.of_input(input_name, wanted))
                case NodeRef(source):
                    open_piece += b"n"
                    close(slots.nodes[source])
    fusible = node.purity == "pure"
    amount, seed = _sampling_args(node, node.sampling)
    return _Plan(node.id, tuple(pieces), tuple(found), open_piece, fusible, amount, seed)


def _full_args(node: NodeSpec) -> list[tuple[str, PortType, Arg]]:
    """Arguments by port name, sorted, with the defaults of those that were left out."""
    types = {port.name: port.type for port in node.ports}
    args: dict[str, Arg] = {
        port.name: Lit(port.default) for port in node.ports if not port.required
    }
    args.update(node.args)
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


def _used_inputs(spec: WorkflowSpec) -> tuple[tuple[str, bool], ...]:
    """Every input in use, with whether it stands where a float is wanted."""
    used: dict[tuple[str, bool], None] = {}
    for node in spec.nodes:
        for _, wanted, arg in _full_args(node):
            for item in arg.items if isinstance(arg, ListRef) else (arg,):
                if isinstance(item, InputRef):
                    used[_input_key(spec, item.name, wanted)] = None
    return tuple(used)


def _input_key(spec: WorkflowSpec, name: str, wanted: PortType) -> tuple[str, bool]:
    typed_float = any(i.name == name and i.type == PortType.FLOAT for i in spec.inputs)
    return name, wanted == PortType.FLOAT and not typed_float


def _collection_args(spec: WorkflowSpec) -> tuple[tuple[Arg, ...], ...]:
    """Per node the arguments that name collections, ancestors' first, once each."""
    gathered: list[tuple[Arg, ...]] = []
    for node in spec.nodes:
        mine: list[Arg] = []
        for parent in node.parents:
            mine.extend(gathered[spec.index[parent]])
        if node.collection is not None:
            mine.extend(a for n, _, a in _full_args(node) if n == node.collection)
        once: list[Arg] = []
        once.extend(arg for i, arg in enumerate(mine) if arg not in mine[:i])
        gathered.append(tuple(once))
    return tuple(gathered)


def _scope(tenant: str, public: bool) -> bytes:
    scope = ["public"] if public else ["tenant", tenant]
    return codec.digest(codec.canonical(scope))


def _nonce(run_id: str, node_id: str) -> bytes:
    return codec.digest(b"nonce" + codec.canonical([run_id, node_id]))


def _signature(plan: _Plan, digests: list[bytes]) -> bytes:
    hashed = hashlib.sha256()
    for piece, slot in zip(plan.pieces, plan.slots, strict=True):
        hashed.update(piece)
        hashed.update(digests[slot])
    hashed.update(plan.tail)
    return hashed.digest()
