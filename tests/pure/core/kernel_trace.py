"""What values were made of, and which of them may be a run's own.

Part of `tests.pure.core.kernel_model`; it shares no code with the kernel.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from herasys_rt.core.commands import NodeRecord, WorkItem
from herasys_rt.core.state import Payload
from herasys_rt.core.values import Fact, Value
from herasys_rt.graph.spec import (
    InputRef,
    Lit,
    NodeRef,
    NodeSpec,
    WorkflowSpec,
    node_refs,
)
from tests.pure.core.kernel_lab import form_of, takes_inputs
from tests.pure.core.kernel_meaning import facts_of
from tests.pure.core.kernel_shapes import MAX_ITEMS

Given = bytes | tuple[bytes, ...] | None
"""What a node was given for a parent: a digest, those of a list, nothing."""


AGENTS_TENANT = "tenant-0"

WRITTEN = (hashlib.sha256(b"\0").digest(),) * MAX_ITEMS
"""The digests of the items of a list that is written down: they are all 0."""

Part = tuple[str, str, bytes, str]
"""An item of an output: the operator and tenant that it was computed for, of what, and
what else decided it."""


@dataclass(frozen=True)
class Made:
    """What a value was made of: ``given`` is per node that the arguments name, in order;
    ``inputs`` is empty where they do not matter, ``item`` where nobody told it. ``cut_s``
    is when it was truncated, infinity when it is whole; ``born_s`` when it was computed,
    or the first of the items that it borrowed."""

    operator: str
    form: str
    tenant: str
    inputs: bytes
    given: tuple[Given, ...]
    run_id: str
    element: int
    item: bytes
    list_of: tuple[bytes, bytes]
    all_inputs: bytes
    revision: int
    begun_s: float
    cut_s: float
    born_s: float


@dataclass
class Piece:
    """What the model knows of a static run, or of a fragment of an agent's."""

    spec: WorkflowSpec
    inputs: Value
    known_revision: int
    purged_s: float = 0.0
    begun_s: float = 0.0
    ends: list[str] = field(default_factory=list[str])
    nodes: tuple[NodeRecord, ...] = ()

    @property
    def facts(self) -> dict[str, Fact]:
        """What is told of its inputs."""
        return facts_of(self.spec, self.inputs.digest)


@dataclass
class Trace:
    """Follows values back through all that may have made them: they must be a run's own.

    ``made`` and ``values`` are all values ever made, ``known`` those that the run told:
    (position, element) -> value. Equal values may have been made of different things, of
    which one must fit; a node may have been given another value than its parent has in
    this run, where that was computed twice.
    """

    made: dict[bytes, dict[Made, None]]
    run_id: str
    tenant: str
    piece: Piece
    known: dict[tuple[int, int], Value]
    values: dict[bytes, Value]
    found: dict[tuple[int, int, bytes], bool] = field(
        default_factory=dict[tuple[int, int, bytes], bool]
    )

    def explains(self, position: int, element: int, digest: bytes) -> bool:
        """Whether a node, or an element of one, may have this value."""
        what = (position, element, digest)
        if what not in self.found:
            ways = self.made.get(digest, {})
            self.found[what] = any(self._fits(position, element, one) for one in ways)
        return self.found[what]

    def _fits(self, position: int, element: int, made: Made) -> bool:
        piece, spec = self.piece, self.piece.spec
        node = spec.nodes[position]
        may_be_s = node.options.cache_ttl_s
        return (
            (made.operator, made.form) == (node.operator, form_of(node))
            and made.tenant == self.tenant
            and made.inputs == (piece.inputs.digest if takes_inputs(node) else b"")
            and made.revision >= piece.known_revision
            and made.begun_s >= piece.purged_s
            and made.cut_s >= piece.begun_s
            and (may_be_s is None or made.born_s > piece.begun_s - may_be_s)
            and (node.purity == "pure" or made.run_id == self.run_id)
            and all(
                self._given(node, at, element, given)
                for at, given in zip(taken(spec, node), made.given, strict=True)
            )
            and (element < 0 or self._of_item(position, element, made))
        )

    def _given(self, node: NodeSpec, at: int, element: int, given: Given) -> bool:
        if given is None:
            return True
        region = self.piece.spec.nodes[at].region
        near = region and region == node.region
        if isinstance(given, tuple) != bool(region and not near):
            return False  # outputs of a region, and one value
        if isinstance(given, tuple):
            return all(self.explains(at, i, one) for i, one in enumerate(given))
        return self.explains(at, element if near else -1, given)

    def _of_item(self, position: int, element: int, made: Made) -> bool:
        """Whether an element was made of its item, as far as anybody told what that is."""
        spec = self.piece.spec
        over = spec.region_index[spec.nodes[position].region].items
        items: tuple[bytes, ...] = ()
        if isinstance(over, InputRef):
            items = self.piece.facts[over.name].items
        elif isinstance(over, Lit):
            items = WRITTEN
        elif isinstance(over, NodeRef):
            at = spec.index[over.node]
            if spec.nodes[at].region:
                one = self.known.get((at, element))
                return one is None or made.item == one.digest
            given = self.known.get((at, -1))
            items = given.items if given is not None else ()
            untold = (position, element) not in self.known
            if untold and made.item and self._of_a_list(at, element, made.item):
                return True
            if untold and made.list_of[0] and made.element == element and not made.item:
                return self.explains(at, -1, made.list_of[0])  # of a list without items
        if items:
            return items[element : element + 1] == (made.item,)
        own = made.run_id == self.run_id or (position, element) not in self.known
        if made.element != element or not own:  # nobody could tell that it is equal
            return False
        if isinstance(over, NodeRef):
            return self.explains(spec.index[over.node], -1, made.list_of[0])
        return made.all_inputs == self.piece.inputs.digest

    def _of_a_list(self, at: int, element: int, item: bytes) -> bool:
        """Whether a node may have given a list with this item: in this run, or where it
        was computed before."""
        return any(
            value.items[element : element + 1] == (item,) and self.explains(at, -1, digest)
            for digest, value in self.values.items()
        )


def needed(work: WorkItem | Payload) -> list[Value]:
    """The values that an item cannot do without."""
    found = [work.inputs, *[value for _, value in work.upstream]]
    found += [value for _, values in work.gathered for value in values]
    return found + [value for value in (work.items, work.item) if value is not None]


def tenant_of(inputs: Value) -> str:
    """Equal inputs are of one tenant: tenants share no flights."""
    return f"tenant-{inputs.digest[-1] % 2}"


def taken(spec: WorkflowSpec, node: NodeSpec) -> list[int]:
    """Positions of the nodes that a node's arguments name, in order, once each."""
    return [
        spec.index[name] for name in dict.fromkeys(r.node for r in node_refs(node.args))
    ]


def given_for(
    position: int, upstream: dict[int, Value], gathered: dict[int, tuple[Value, ...]]
) -> Given:
    """What an item has for a parent."""
    if position in gathered:
        return tuple(value.digest for value in gathered[position])
    return upstream[position].digest if position in upstream else None


def digest_of(value: Value | None) -> bytes:
    """Its digest; nothing for nothing."""
    return b"" if value is None else value.digest
