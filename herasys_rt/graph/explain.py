"""What a node's signature was made of, for people: why two nodes share or do not.

An `Explanation` holds the fields of the structural pre-image in words, each with a digest
of the very bytes that were hashed, so that two explanations can be held against each
other without the values. Values in it are shortened and what is secret is masked.
"""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import numpy as np

from herasys_rt.errors import InputError
from herasys_rt.graph.checks import nearest
from herasys_rt.graph.expressions import FUNCTIONS
from herasys_rt.graph.preimage import FORMAT, HEAD, Field, NodeSlot, Slot, full_args
from herasys_rt.graph.prompts import VAR
from herasys_rt.graph.signature import Signer
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
)

SHOWN_CHARACTERS = 120
"""So much of a value is shown."""
_MASKED_CHARACTERS = 4096
_MASK = "***"


class ExplainedField(msgspec.Struct, frozen=True):
    """A field of a pre-image in words. ``digest`` is of its bytes; ``nodes`` maps the
    nodes in it to their signatures, ``""`` where they have none."""

    name: str
    shown: str
    digest: str
    nodes: dict[str, str] = {}


class Explanation(msgspec.Struct, frozen=True):
    """How a node of a run was signed.

    ``signature`` and ``seed`` are hexadecimal, empty where there is none. ``obstacle``
    says why the node may not fuse by structure; empty when it may. ``collections`` maps
    those that the node depends on to their revisions, as known when the run was signed (0:
    nothing was heard of it).
    """

    run_id: str
    node: str
    signature: str
    seed: str
    obstacle: str
    fields: tuple[ExplainedField, ...]
    collections: dict[str, int]

    def of(self, run_id: str, node: str) -> Explanation:
        """The same with the names that run and node have outside."""
        return msgspec.structs.replace(self, run_id=run_id, node=node)

    def to_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return cast("dict[str, Any]", msgspec.to_builtins(self))


class Comparison(msgspec.Struct, frozen=True):
    """Two explanations held against each other.

    ``equal`` says that the two are one piece of work, ``verdict`` by what, or why not.
    ``field`` names the first field that differs, with its two sides; empty when none does.
    ``also`` names the other fields that differ.
    """

    equal: bool
    verdict: str
    field: str = ""
    left: str = ""
    right: str = ""
    also: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return cast("dict[str, Any]", msgspec.to_builtins(self))


@dataclass(frozen=True, slots=True)
class Secrets:
    """What must not be shown: values of ``names``, and what ``masked`` masks in a text."""

    names: Callable[[str], bool] = lambda _: False
    masked: Callable[[str], str] = lambda text: text


def explain(
    signer: Signer,
    node_id: str,
    inputs: Mapping[str, Any],
    tenant: str,
    run_id: str,
    revisions: Mapping[str, int],
    secrets: Secrets = Secrets(),
) -> Explanation:
    """How ``node_id`` was signed in a run.

    The first arguments are those of `Signer.signed`. An element is explained as the node
    it is of (``note[3]``: ``note``). Errors: `InputError` for a node that is none of the
    workflow's.
    """
    base = node_id.partition("[")[0]
    at = signer.spec.index.get(base)
    if at is None:
        raise _unknown_node(signer, node_id)
    signed = signer.signed(inputs, tenant, run_id)
    explainer = _Explainer(signer, inputs, tenant, run_id, secrets)
    return Explanation(
        run_id=run_id,
        node=node_id,
        signature=signed.signatures[at].hex(),
        seed=signed.seeds[at].hex(),
        obstacle=explainer.obstacle(at),
        fields=explainer.fields(at),
        collections={
            name: revisions.get(name, 0) for name in signer.collections(inputs)[at]
        },
    )


def compare(left: Explanation, right: Explanation) -> Comparison:
    """Whether two nodes are one piece of work, and the first field that says no."""
    found = list(_differences(left, right))
    if found:
        verdict = "They differ."
        if left.seed and left.seed == right.seed and left.signature != right.signature:
            verdict = (
                "They differ only in the nodes above them: with equal outputs they share "
                "by value."
            )
        also = tuple(name for name, _, _ in found[1:])
        return Comparison(False, verdict, *found[0], also)
    for one in (left, right):
        if one.obstacle and not one.signature:
            return Comparison(
                False,
                f"All fields are equal, and {one.node} {_decapitalised(one.obstacle)}",
            )
    at = " at equal revisions" if left.collections else ""
    return Comparison(True, f"They are equal by the structural signature{at}.")


def _differences(left: Explanation, right: Explanation) -> Iterator[tuple[str, str, str]]:
    """The fields that differ, in order, each with its two sides."""
    others = {field.name: field for field in right.fields}
    for mine in left.fields:
        theirs = others.pop(mine.name, None)
        if theirs is None or theirs.digest != mine.digest:
            yield mine.name, mine.shown, theirs.shown if theirs else "(no such field)"
    for theirs in others.values():
        yield theirs.name, "(no such field)", theirs.shown
    for name in sorted({*left.collections, *right.collections}):
        before, after = left.collections.get(name), right.collections.get(name)
        if before != after:
            yield f"collection {name}", _revision(before), _revision(after)


def _revision(revision: int | None) -> str:
    return "not read" if revision is None else revision_words(revision)


def revision_words(revision: int) -> str:
    """A collection's revision in words."""
    return f"revision {revision}" if revision else "no revision heard of"


def _decapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]


def _unknown_node(signer: Signer, node_id: str) -> InputError:
    known = [node.id for node in signer.spec.nodes]
    near = nearest(node_id, known)
    return InputError(
        f"the workflow {signer.spec.name!r} has no node {node_id!r}",
        hint=near.capitalize() if near else f"It has {', '.join(known)}.",
        code="unknown_node",
    )


class _Explainer:
    """Puts the pre-images of one run into words."""

    def __init__(
        self,
        signer: Signer,
        inputs: Mapping[str, Any],
        tenant: str,
        run_id: str,
        secrets: Secrets,
    ) -> None:
        self._signer = signer
        self._spec = signer.spec
        self._inputs = inputs
        self._tenant = tenant
        self._secrets = secrets
        self._words = _Words(secrets)
        self._filled = signer.fillings(inputs, tenant, run_id)
        self._alone = [signer.alone(at, inputs) for at in range(len(self._spec.nodes))]
        self._tainted: dict[str, str] = {}
        for node, fields, alone in zip(
            self._spec.nodes, signer.structures, self._alone, strict=True
        ):
            above = next(
                (self._tainted[n] for n in _nodes(fields) if n in self._tainted), None
            )
            if alone:
                self._tainted[node.id] = node.id
            elif above is not None:
                self._tainted[node.id] = above

    def obstacle(self, at: int) -> str:
        """Why a node may not fuse by structure; empty when it may."""
        node = self._spec.nodes[at]
        if self._alone[at]:
            return f"May not fuse: {self._alone[at]}."
        if node.region:
            return "Has no signature of its own: each element of its list fuses by value."
        above = self._tainted.get(node.id)
        if above is not None:
            return (
                f"May fuse by value only: it is below {above}, which may not fuse and "
                "gives its successors a mark of its run."
            )
        return ""

    def fields(self, at: int) -> tuple[ExplainedField, ...]:
        """The fields of a node's structural pre-image."""
        node = self._spec.nodes[at]
        args = {name: arg for name, _, arg in full_args(node)}
        region = self._spec.region_index.get(node.region)
        shown: dict[str, str] = dict(zip(HEAD, self._head(at), strict=True))
        told: list[ExplainedField] = []
        for field in self._signer.structures[at]:
            if field.is_argument:
                kind = "variable" if field.name.startswith(VAR) else "argument"
                name = f"{kind} {field.name.removeprefix(VAR)}"
                text = self._argument(node, field.name, args[field.name])
            elif field.name == "region":
                assert region is not None
                name, text = "region", f"once per item of {self._told(region.items)}"
            elif field.name == "reduction":
                assert node.reduction is not None
                name, text = "reduction", node.reduction.function
            else:
                name = field.name
                text = shown.get(name) or self._scope()
            told.append(ExplainedField(name, text, self._digest(field), self._nodes(field)))
        mark = self._signer.mark(at, self._inputs)
        if mark:
            told.append(ExplainedField("sample", f"{node.sample}", _digest(mark)))
        return tuple(told)

    def _head(self, at: int) -> tuple[str, ...]:
        node = self._spec.nodes[at]
        model = self._signer.models[at] or "none"
        return str(FORMAT), node.operator, node.verb, node.resource, model

    def _scope(self) -> str:
        if self._spec.share == "public":
            return "public: shared by all tenants"
        return f"tenant {self._tenant!r}"

    def _digest(self, field: Field) -> str:
        parts = field.parts
        filled = [part if isinstance(part, bytes) else self._filled[part] for part in parts]
        return _digest(b"".join(filled))

    def _nodes(self, field: Field) -> dict[str, str]:
        return {name: self._signature(name) for name in _nodes((field,))}

    def _signature(self, node: str) -> str:
        if self._alone[self._spec.index[node]]:
            return ""
        return self._filled[NodeSlot(node)].hex()

    def _argument(self, node: NodeSpec, name: str, arg: Arg) -> str:
        if self._secrets.names(name.removeprefix(VAR)):
            return _MASK
        return self._told(arg) + ("" if name in node.args else " (the default)")

    def _told(self, arg: Arg) -> str:
        match arg:
            case Lit(value):
                return self._words.of(value)
            case InputRef(name):
                secret = self._secrets.names(name)
                value = _MASK if secret else self._words.of(self._inputs[name])
                return f"{value} (input {name})"
            case NodeRef(node):
                signature = self._signature(node)
                mark = signature[:16] if signature else "a mark of this run"
                many = (
                    "the list of "
                    if self._spec.nodes[self._spec.index[node]].region
                    else ""
                )
                return f"{many}node {node} ({mark})"
            case ItemRef():
                return "the item"
            case ListRef(items):
                return f"[{', '.join(map(self._told, items))}]"
            case ChoiceRef(condition, then, otherwise):
                return (
                    f"{self._told(then)} if {self._told(condition)} "
                    f"else {self._told(otherwise)}"
                )
            case Expr(function, args):
                given = (f"{n}={self._part(function, n, args[n])}" for n in sorted(args))
                return f"{function}({', '.join(given)})"

    def _part(self, function: str, name: str, arg: Arg) -> str:
        """An argument of an expression; only names that its author gave tell of secrets."""
        known = FUNCTIONS.get(function)
        given = known is not None and name not in known.parameters
        return _MASK if given and self._secrets.names(name) else self._told(arg)


def _nodes(fields: tuple[Field, ...]) -> list[str]:
    slots: list[bytes | Slot] = [part for field in fields for part in field.parts]
    return list(dict.fromkeys(s.node for s in slots if isinstance(s, NodeSlot)))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


class _Words(reprlib.Repr):
    """Values in words, shortened before they are written, and secrets masked."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets
        self.maxstring = SHOWN_CHARACTERS // 2
        self.maxother = SHOWN_CHARACTERS
        self.maxlist = self.maxtuple = self.maxdict = 4
        self.maxlevel = 3

    def of(self, value: Any) -> str:
        """A value in at most `SHOWN_CHARACTERS`."""
        text = self.repr(value)
        if len(text) <= SHOWN_CHARACTERS:
            return text
        return text[: SHOWN_CHARACTERS - 3] + "..."

    def repr_str(self, x: str, level: int) -> str:  # pyright: ignore[reportImplicitOverride]
        """A text, with how long it is when it is shortened."""
        masked = self._secrets.masked(x[:_MASKED_CHARACTERS])
        if max(len(x), len(masked)) <= self.maxstring:
            return repr(masked)
        return f"{masked[: self.maxstring]!r}... ({len(x)} characters)"

    def repr_bytes(self, x: bytes, level: int) -> str:
        """Bytes, by how many they are."""
        return f"{len(x)} bytes"

    def repr_dict(self, x: dict[str, Any], level: int) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A dict with the values of secret keys masked."""
        names = self._secrets.names
        return super().repr_dict({k: _MASK if names(k) else v for k, v in x.items()}, level)

    def repr_ndarray(self, x: np.ndarray[Any, Any], level: int) -> str:
        """An array, by its type and shape."""
        return f"{x.dtype} array of shape {x.shape}"
