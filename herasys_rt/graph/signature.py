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
node that may not fuse, and for an element of a region.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from herasys_rt.errors import InputError
from herasys_rt.graph import codec
from herasys_rt.graph.checks import widened
from herasys_rt.graph.preimage import (
    SCOPE,
    Compiled,
    Field,
    InputSlot,
    NodeSlot,
    Slot,
    compiled,
    full_args,
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


class _Plan(NamedTuple):
    """What is constant of a node: its pre-images with holes, and what makes it sampled.

    Positions in holes count the trust scope, then the inputs in use, then the nodes in
    spec order. ``sample`` joins the pre-image of a node that draws and is shared by
    opt-in.
    """

    node_id: str
    structure: list[bytes]
    structure_holes: tuple[tuple[int, int], ...]
    value: list[bytes]
    value_holes: tuple[tuple[int, int], ...]
    fusible: bool
    in_region: bool
    amount: Arg | None
    seed: Arg | None
    sample: int | None


class Signer:
    """Signs the runs of one spec; everything constant is computed once, here.

    ``fingerprint`` is asked once per node. A signer keeps no state between runs and may
    be shared by threads.
    """

    def __init__(
        self,
        spec: WorkflowSpec,
        fingerprint: Fingerprint,
        digest: codec.Digest = codec.digest,
    ) -> None:
        self._digest = digest
        self._public = spec.share == "public"
        models = [fingerprint(node) for node in spec.nodes]
        described = list(zip(spec.nodes, models, strict=True))
        structures = [structural_fields(spec, n, m, digest) for n, m in described]
        values = [value_fields(spec, n, m, digest) for n, m in described]
        used = [slot for fields in structures for slot in _slots(fields)]
        keys = dict.fromkeys(slot for slot in used if isinstance(slot, InputSlot))
        self._inputs = tuple(keys)
        positions: dict[Slot, int] = {SCOPE: 0}
        positions |= {slot: 1 + i for i, slot in enumerate(self._inputs)}
        first = len(positions)
        positions |= {NodeSlot(node.id): first + i for i, node in enumerate(spec.nodes)}
        self._plans = tuple(
            _plan(node, compiled(structure, positions), compiled(value, positions))
            for node, structure, value in zip(spec.nodes, structures, values, strict=True)
        )
        self._own_collections = _Collections([_collection_args(n) for n in spec.nodes])
        self._collections = _Collections(_gathered_collections(spec))

    def sign(
        self, inputs: Mapping[str, Any], tenant: str, run_id: str
    ) -> tuple[bytes, ...]:
        """A signature per node, in spec order; ``b""`` where the node may not fuse.

        ``inputs`` are checked inputs with defaults filled in. ``tenant`` is the trust
        scope unless the workflow is shared publicly. Errors: `InputError` for an input
        that is missing, `CodecError` for one outside the closed set.
        """
        return self._signatures(self._given(inputs, tenant), inputs, run_id)

    def value_seeds(self, inputs: Mapping[str, Any], tenant: str) -> tuple[bytes, ...]:
        """A value seed per node, in spec order; ``b""`` where the node may not fuse.

        What the seed leaves out is what the nodes of `NodeSpec.parents` give, in that
        order, and the item of an element. A node of a region has a seed like any other.
        Arguments and errors as of `sign`.
        """
        return self._seeds(self._given(inputs, tenant), inputs)

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
        digests = [_scope(tenant, self._public, self._digest)]
        for slot in self._inputs:
            value = _input(inputs, slot.name)
            if slot.as_float:
                value = widened(value, PortType.FLOAT)
            digests.append(codec.value_digest(value, self._digest))
        return digests

    def _signatures(
        self, given: list[bytes], inputs: Mapping[str, Any], run_id: str
    ) -> tuple[bytes, ...]:
        digest, digests = self._digest, given.copy()
        signatures: list[bytes] = []
        for plan in self._plans:
            mark = _sample_mark(plan, inputs)
            if mark is None:
                signatures.append(UNSIGNED)
                digests.append(_nonce(run_id, plan.node_id, digest))
                continue
            parts = plan.structure.copy()
            for index, position in plan.structure_holes:
                parts[index] = digests[position]
            signature = digest(b"".join(parts) + mark)
            signatures.append(UNSIGNED if plan.in_region else signature)
            digests.append(signature)
        return tuple(signatures)

    def _seeds(self, given: list[bytes], inputs: Mapping[str, Any]) -> tuple[bytes, ...]:
        digest = self._digest
        seeds: list[bytes] = []
        for plan in self._plans:
            mark = _sample_mark(plan, inputs)
            if mark is None:
                seeds.append(UNSIGNED)
                continue
            parts = plan.value.copy()
            for index, position in plan.value_holes:
                parts[index] = given[position]
            seeds.append(digest(b"".join(parts) + mark))
        return tuple(seeds)


def _slots(fields: tuple[Field, ...]) -> list[Slot]:
    return [part for f in fields for part in f.parts if not isinstance(part, bytes)]


def _plan(node: NodeSpec, structure: Compiled, value: Compiled) -> _Plan:
    amount, seed = _sampling_args(node, node.sampling)
    return _Plan(
        node.id,
        *structure,
        *value,
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
def _scope(tenant: str, public: bool, digest: codec.Digest) -> bytes:
    return codec.value_digest(["public"] if public else ["tenant", tenant], digest)


def _nonce(run_id: str, node_id: str, digest: codec.Digest) -> bytes:
    return digest(b"nonce" + codec.canonical([run_id, node_id]))
