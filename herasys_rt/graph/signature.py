"""Signatures: what a node computes, as 32 bytes (HeraSys section 3.3, eq. 2).

    Sig(v) = SHA-256(format, operator@version, verb, resource, model fingerprint,
                     trust scope, each argument by port name)

The bytes are those of `graph.preimage`. An argument that is a node enters with that node's
signature, which makes the signature *structural*: known before anything ran.

A node that may not fuse (sampled, effect) has the empty signature and gives its
successors a nonce of run and node: below it nothing fuses by structure. A node of a region
is as many executions as there are items and has the empty signature too; whoever takes
the list of its outputs is signed over the region's list and the node's own pre-image,
which together decide that list.

A *value seed* is the digest of all that decides a node's value except outputs of nodes and
the item of an element. With the digests of these it gives a key by content, also below a
node that may not fuse, and for an element of a region. An *item seed* is that of all that
decides one item of a list-valued node's output, but for the item of its list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from herasys_rt.errors import InputError
from herasys_rt.graph import codec
from herasys_rt.graph.checks import widened
from herasys_rt.graph.hashing import SHA256, Hash
from herasys_rt.graph.preimage import (
    SCOPE,
    Compiled,
    Field,
    InputSlot,
    NodeSlot,
    Slot,
    compiled,
    full_args,
    item_fields,
    structural_fields,
    value_fields,
)
from herasys_rt.graph.spec import (
    Arg,
    InputRef,
    Lit,
    NodeSpec,
    Sampling,
    WorkflowSpec,
    node_refs,
)
from herasys_rt.graph.types import PortType

UNSIGNED = b""
"""The signature of a node that may not fuse."""

Fingerprint = Callable[[NodeSpec], str]
"""Model and revision, tokenizer and template that would serve a node; ``""`` for none."""


class Signed(NamedTuple):
    """What names the work of a run; the tuples are per node, in spec order."""

    signatures: tuple[bytes, ...]
    """Structural signatures; ``b""`` where the node may not fuse."""
    seeds: tuple[bytes, ...]
    """Value seeds; ``b""`` where the node may not fuse.

    What a seed leaves out is what the nodes of `NodeSpec.parents` give, in that order,
    and the item of an element. A node of a region has a seed like any other."""
    item_seeds: tuple[bytes, ...]
    """Item seeds; ``b""`` where items are not shared, nothing at all when none are."""
    inputs: bytes
    """Names the run's inputs: the digest of their names and digests."""


class _Plan(NamedTuple):
    """What is constant of a node: its pre-images with holes, and what makes it sampled.

    Positions in holes count the trust scope, then the inputs in use, then the nodes in
    spec order. ``sample`` joins the pre-image of a node that draws and is shared by
    opt-in.
    """

    node_id: str
    structure: Compiled
    value: Compiled
    item: Compiled | None
    fusible: bool
    in_region: bool
    amount: Arg | None
    seed: Arg | None
    sample: int | None


class Signer:
    """Signs the runs of one spec; everything constant is computed once, here.

    ``fingerprint`` is asked once per node. A signer keeps no state between runs and may
    be shared by threads. Of its methods ``inputs`` are checked inputs with defaults
    filled in, and ``tenant`` is the trust scope unless the workflow is shared publicly.
    They raise `InputError` for an input that is missing and `CodecError` for one outside
    the closed set.
    """

    def __init__(
        self, spec: WorkflowSpec, fingerprint: Fingerprint, hashing: Hash = SHA256
    ) -> None:
        self.spec = spec
        self.hashing = hashing
        self.models = tuple(fingerprint(node) for node in spec.nodes)
        """What ``fingerprint`` said, in spec order."""
        described = list(zip(spec.nodes, self.models, strict=True))
        self.structures = [structural_fields(spec, n, m, hashing) for n, m in described]
        """The structural pre-images, in spec order."""
        values = [value_fields(spec, n, m, hashing) for n, m in described]
        items = [item_fields(spec, n, m, hashing) for n, m in described]
        self._shares_items = any(items)
        used = [slot for fields in self.structures for slot in _slots(fields)]
        self._inputs = tuple(
            dict.fromkeys(slot for slot in used if isinstance(slot, InputSlot))
        )
        self._input_names = codec.canonical([declared.name for declared in spec.inputs])
        positions: dict[Slot, int] = {SCOPE: 0}
        positions |= {slot: 1 + i for i, slot in enumerate(self._inputs)}
        first = len(positions)
        positions |= {NodeSlot(node.id): first + i for i, node in enumerate(spec.nodes)}
        self._positions = positions
        self._plans = tuple(
            _plan(node, *[compiled(fields, positions) for fields in written])
            for node, *written in zip(
                spec.nodes, self.structures, values, items, strict=True
            )
        )
        self._own_collections = _Collections([_collection_args(n) for n in spec.nodes])
        self._collections = _Collections(_gathered_collections(spec))

    def signed(self, inputs: Mapping[str, Any], tenant: str, run_id: str) -> Signed:
        """All names of a run at once; each input is hashed once."""
        given, marks = self._given(inputs, tenant), self._marks(inputs)
        return Signed(
            self._signatures(self._nodes(given, marks, run_id), marks),
            self._seeds(given, marks),
            self._item_seeds(given, marks),
            self._inputs_name(given, inputs),
        )

    def fillings(
        self, inputs: Mapping[str, Any], tenant: str, run_id: str
    ) -> dict[Slot, bytes]:
        """What fills the holes of `structures` in a run: of a node its signature, or its
        nonce when it may not fuse."""
        given, marks = self._given(inputs, tenant), self._marks(inputs)
        filled = [*given, *self._nodes(given, marks, run_id)]
        return {slot: filled[at] for slot, at in self._positions.items()}

    def mark(self, at: int, inputs: Mapping[str, Any]) -> bytes:
        """What sampling adds to the pre-image of the node at a position."""
        return _sample_mark(self._plans[at], inputs) or b""

    def alone(self, at: int, inputs: Mapping[str, Any]) -> str:
        """Why the node at a position may fuse with nothing; empty when it may."""
        if _sample_mark(self._plans[at], inputs) is not None:
            return ""
        if self.spec.nodes[at].purity == "effect":
            return "it has effects, which every run wants for itself"
        return "it draws random numbers, without a seed and without being shared by opt-in"

    def own_collections(self, inputs: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """Per node, in spec order, the names of the collections that it names itself."""
        return self._own_collections.names(inputs)

    def collections(self, inputs: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """Per node, in spec order, the sorted names of the collections it depends on.

        A node depends on the collection it names and on those of all its ancestors.
        """
        return self._collections.names(inputs)

    def _given(self, inputs: Mapping[str, Any], tenant: str) -> list[bytes]:
        """The digests of what a run is given: its trust scope, then the inputs in use."""
        of = self.hashing.of
        digests = [_scope(tenant, self.spec.share == "public", self.hashing)]
        for name, as_float in self._inputs:
            value = _input(inputs, name)
            digests.append(of(widened(value, PortType.FLOAT) if as_float else value))
        return digests

    def _marks(self, inputs: Mapping[str, Any]) -> list[bytes | None]:
        return [_sample_mark(plan, inputs) for plan in self._plans]

    def _nodes(
        self, given: list[bytes], marks: list[bytes | None], run_id: str
    ) -> list[bytes]:
        """What each node hands to its successors: its signature, or a nonce."""
        digest, filled, first = self.hashing.digest, given.copy(), len(given)
        for plan, mark in zip(self._plans, marks, strict=True):
            if mark is None:
                filled.append(digest(b"nonce" + codec.canonical([run_id, plan.node_id])))
                continue
            filled.append(digest(plan.structure.filled(filled, mark)))
        return filled[first:]

    def _signatures(
        self, nodes: list[bytes], marks: list[bytes | None]
    ) -> tuple[bytes, ...]:
        return tuple(
            UNSIGNED if mark is None or plan.in_region else name
            for plan, name, mark in zip(self._plans, nodes, marks, strict=True)
        )

    def _seeds(self, given: list[bytes], marks: list[bytes | None]) -> tuple[bytes, ...]:
        digest = self.hashing.digest
        return tuple(
            UNSIGNED if mark is None else digest(plan.value.filled(given, mark))
            for plan, mark in zip(self._plans, marks, strict=True)
        )

    def _item_seeds(
        self, given: list[bytes], marks: list[bytes | None]
    ) -> tuple[bytes, ...]:
        if not self._shares_items:
            return ()
        digest = self.hashing.digest
        return tuple(
            UNSIGNED
            if mark is None or plan.item is None
            else digest(plan.item.filled(given, mark))
            for plan, mark in zip(self._plans, marks, strict=True)
        )

    def _inputs_name(self, given: list[bytes], inputs: Mapping[str, Any]) -> bytes:
        parts = [self._input_names]
        for declared in self.spec.inputs:
            at = self._positions.get(InputSlot(declared.name, as_float=False))
            value = inputs.get(declared.name)
            parts.append(self.hashing.of(value) if at is None else given[at])
        return self.hashing.digest(b"".join(parts))


def _slots(fields: tuple[Field, ...]) -> list[Slot]:
    return [part for f in fields for part in f.parts if not isinstance(part, bytes)]


def _plan(node: NodeSpec, structure: Compiled, value: Compiled, item: Compiled) -> _Plan:
    amount, seed = _sampling_args(node, node.sampling)
    return _Plan(
        node.id,
        structure,
        value,
        item if item.holes else None,  # it has its trust scope at least
        fusible=node.purity == "pure",
        in_region=bool(node.region),
        amount=amount,
        seed=seed,
        sample=node.sample,
    )


def _sample_mark(plan: _Plan, inputs: Mapping[str, Any]) -> bytes | None:
    """What sampling adds to a pre-image; None of a node that may not fuse."""
    if not plan.fusible:
        return None
    if plan.amount is None or not _draws(plan.amount, plan.seed, inputs):
        return b""
    return None if plan.sample is None else b"s" + codec.canonical(plan.sample)


def _sampling_args(
    node: NodeSpec, sampling: Sampling | None
) -> tuple[Arg | None, Arg | None]:
    if sampling is None:
        return None, None
    args = {name: arg for name, _, arg in full_args(node)}
    return args.get(sampling.amount), args.get(sampling.seed)


def _draws(amount: Arg, seed: Arg | None, inputs: Mapping[str, Any]) -> bool:
    given = None if seed is None else _value(seed, inputs)
    return Sampling.draws(_value(amount, inputs), given)


def _value(arg: Arg, inputs: Mapping[str, Any]) -> Any:
    match arg:
        case Lit(value):
            return value
        case InputRef(name):
            return _input(inputs, name)
        case _:  # validate_spec lets only literals and inputs stand at parameters
            raise TypeError(f"a parameter cannot be {arg}")


def _input(inputs: Mapping[str, Any], name: str) -> Any:
    try:
        return inputs[name]
    except KeyError:
        raise InputError(
            f"input {name!r} is missing, so the run cannot be signed",
            hint="Pass the inputs through check_inputs first.",
        ) from None


class _Collections:
    """Names of collections per node, from the arguments that hold them."""

    def __init__(self, args: Sequence[tuple[Arg, ...]]) -> None:
        self._args = args
        fixed = all(isinstance(arg, Lit) for mine in args for arg in mine)
        self._fixed = self._named({}) if fixed else None

    def names(self, inputs: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """Per node the sorted names, once each."""
        return self._named(inputs) if self._fixed is None else self._fixed

    def _named(self, inputs: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        return tuple(
            tuple(sorted({str(_value(arg, inputs)) for arg in args})) for args in self._args
        )


def _collection_args(node: NodeSpec) -> tuple[Arg, ...]:
    """The argument that names a node's collection, if any."""
    if node.collection is None:
        return ()
    return tuple(arg for name, _, arg in full_args(node) if name == node.collection)


def _gathered_collections(spec: WorkflowSpec) -> list[tuple[Arg, ...]]:
    """Per node the arguments that name collections, ancestors' first, once each."""
    gathered: list[tuple[Arg, ...]] = []
    for node in spec.nodes:
        mine: list[Arg] = []
        for parent in _sources(spec, node):
            mine.extend(gathered[spec.index[parent]])
        mine.extend(_collection_args(node))
        once: list[Arg] = []
        once.extend(arg for i, arg in enumerate(mine) if arg not in mine[:i])
        gathered.append(tuple(once))
    return gathered


def _sources(spec: WorkflowSpec, node: NodeSpec) -> list[str]:
    """Ids of the nodes that decide a node's value: not those that only its guards ask."""
    region = spec.region_index.get(node.region)
    args = dict(node.args)
    if region is not None:
        args[""] = region.items
    return list(dict.fromkeys(ref.node for ref in node_refs(args)))


@lru_cache(maxsize=1024)
def _scope(tenant: str, public: bool, hashing: Hash) -> bytes:
    return hashing.of(["public"] if public else ["tenant", tenant])
