"""What a spec with regions and conditions means, worked out without the kernel.

Specs are read here as a person would read them: which nodes are alive, which elements
there are, what an item must be given. It shares no code with `herasys_rt.core`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from herasys_rt.core.commands import WorkItem
from herasys_rt.core.values import Fact, Value
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
)


def facts_of(spec: WorkflowSpec, digest: bytes) -> dict[str, Fact]:
    """The facts of a run's inputs, which depend on nothing but the inputs' digest."""
    drawn = sum(digest)
    length = (drawn % 6) - 1
    items = items_of(length, drawn) if drawn // 6 % 2 else ()
    texts = texts_of(digest)
    facts = {
        "f": Fact(drawn % 2 == 0),
        "xs": Fact(True, length, items),
        "ts": Fact(bool(texts), len(texts), texts, texts[::-1]),
    }
    return {item.name: facts[item.name] for item in spec.inputs}


def items_of(length: int, drawn: int) -> tuple[bytes, ...]:
    """The digests of a list's items, some of which are equal within it and to others'."""
    words = [f"item {(drawn + i) % 3}" for i in range(length)]
    return tuple(hashlib.sha256(word.encode()).digest() for word in words)


def texts_of(digest: bytes) -> tuple[bytes, ...]:
    """The digests of the items of a run's list of texts: lists overlap, and some have an
    item twice."""
    drawn = sum(digest) // 2  # Equal halves are of different tenants.
    words = "abcdef"[drawn % 3 :][: drawn % 5]
    words += words[:1] if drawn % 4 == 0 else ""
    return tuple(hashlib.sha256(word.encode()).digest() for word in words)


@dataclass(frozen=True)
class Meaning:
    """A spec, the facts of its inputs, and of what nodes gave as far as that is known.

    ``value(position)`` is a node's value, ``element(position, i)`` an element's; None
    when not known. Answers are True, False or None for "that cannot be told".
    """

    spec: WorkflowSpec
    facts: dict[str, Fact]
    value: Callable[[int], Value | None]
    element: Callable[[int, int], Value | None]

    def length(self, region: str) -> int | None:
        """How many items a region has."""
        over = self.spec.region_index[region].items
        match over:
            case Lit(value):
                return len(value)
            case InputRef(name):
                return self.facts[name].length
            case NodeRef(node):
                giver = self.spec.nodes[self.spec.index[node]]
                if giver.region:
                    return self.length(giver.region)
                given = self.value(self.spec.index[node])
                return None if given is None else given.length

    def alive(self, position: int) -> bool | None:
        """Whether a node outside of regions runs, or all of a region's node has values."""
        node = self.spec.nodes[position]
        if not node.region:
            return self._all(self._reasons(node, -1))
        begun = self.begun(position)
        length = self.length(node.region)
        if begun is not True or length is None:
            return begun if begun is False else None
        return self._all(self.alive_element(position, i) for i in range(length))

    def begun(self, position: int) -> bool | None:
        """Whether a region's node has elements at all: by what is outside of it."""
        return self._all(self._reasons(self.spec.nodes[position], None))

    def alive_element(self, position: int, element: int) -> bool | None:
        """Whether one element of a region's node runs."""
        node = self.spec.nodes[position]
        return self._all([self.begun(position), *self._reasons(node, element)])

    def _reasons(self, node: NodeSpec, at: int | None) -> Iterator[bool | None]:
        """Why a node runs: ``at`` is -1 outside of regions, an element, or None for what
        counts for all elements."""
        over = self.spec.region_index[node.region].items if node.region else None
        if isinstance(over, NodeRef) and at is None:
            yield self.alive(self.spec.index[over.node])
        for guard in node.guards:
            yield self._there(node, guard.condition, at)
            truth = self._truth(node, guard.condition, at)
            if truth is not None or not self._near(node, guard.condition) or at is not None:
                yield None if truth is None else truth == guard.holds
        for arg in node.args.values():
            yield from self._of_arg(node, arg, at)

    def _of_arg(self, node: NodeSpec, arg: Arg, at: int | None) -> Iterator[bool | None]:
        match arg:
            case NodeRef():
                yield self._there(node, arg, at)
            case ListRef(items):
                for part in items:
                    yield from self._of_arg(node, part, at)
            case Expr():
                for part in arg.args.values():
                    yield from self._of_arg(node, part, at)
            case ChoiceRef(condition, then, otherwise):
                yield self._there(node, condition, at)
                truth = self._truth(node, condition, at)
                if truth is not None:
                    yield from self._of_arg(node, then if truth else otherwise, at)
                elif at is not None or not self._near(node, condition):
                    yield None
            case _:
                pass

    def _near(self, node: NodeSpec, ref: InputRef | NodeRef | ItemRef) -> bool:
        if not isinstance(ref, NodeRef) or not node.region:
            return False
        return self.spec.nodes[self.spec.index[ref.node]].region == node.region

    def _there(
        self, node: NodeSpec, ref: InputRef | NodeRef | ItemRef, at: int | None
    ) -> bool | None:
        if not isinstance(ref, NodeRef):
            return True
        position = self.spec.index[ref.node]
        if not self._near(node, ref):
            return self.alive(position)
        return self.begun(position) if at is None else self.alive_element(position, at)

    def _truth(
        self, node: NodeSpec, ref: InputRef | NodeRef | ItemRef, at: int | None
    ) -> bool | None:
        if isinstance(ref, InputRef):
            return self.facts[ref.name].truth
        assert isinstance(ref, NodeRef)
        position = self.spec.index[ref.node]
        if self._near(node, ref):
            given = None if at is None else self.element(position, at)
        elif self.spec.nodes[position].region:
            length = self.length(self.spec.nodes[position].region)
            return None if length is None else length > 0
        else:
            given = self.value(position)
        return None if given is None else given.truth

    @staticmethod
    def _all(reasons: Iterator[bool | None] | list[bool | None]) -> bool | None:
        """Kleene's and: False settles it, else an unknown reason leaves it open."""
        found = list(reasons)
        if False in found:
            return False
        return None if None in found else True


def check_item(spec: WorkflowSpec, item: WorkItem, facts: dict[str, Fact]) -> None:
    """An item has exactly what it needs, and its conditions hold. AssertionError else."""
    node = spec.nodes[item.node]
    given = dict(item.upstream)
    lists = dict(item.gathered)
    assert (item.element >= 0) == bool(node.region)

    def truth(ref: InputRef | NodeRef | ItemRef) -> bool:
        if isinstance(ref, InputRef):
            return facts[ref.name].truth
        assert isinstance(ref, NodeRef)
        position = spec.index[ref.node]
        return bool(lists[position]) if position in lists else given[position].truth

    def used(arg: Arg) -> Iterator[int]:
        match arg:
            case NodeRef(name):
                yield spec.index[name]
            case ListRef(items):
                for part in items:
                    yield from used(part)
            case Expr():
                for part in arg.args.values():
                    yield from used(part)
            case ChoiceRef(condition, then, otherwise):
                if isinstance(condition, NodeRef):
                    yield spec.index[condition.node]
                yield from used(then if truth(condition) else otherwise)
            case _:
                pass

    for guard in node.guards:
        assert truth(guard.condition) == guard.holds, "a branch not taken was started"
    needs = {position for arg in node.args.values() for position in used(arg)}
    needs |= {
        spec.index[g.condition.node]
        for g in node.guards
        if isinstance(g.condition, NodeRef)
    }
    parents = [spec.index[parent] for parent in node.parents]
    inside = [
        p
        for p in parents
        if not spec.nodes[p].region or spec.nodes[p].region == node.region
    ]
    assert [p for p, _ in item.upstream] == [p for p in inside if p in needs]
    assert [p for p, _ in item.gathered] == [
        p for p in parents if p in needs and p not in inside
    ]
    assert list(item.skipped) == [p for p in parents if p not in needs]
    if node.region:
        check_place(spec, item, facts)


def check_place(spec: WorkflowSpec, item: WorkItem, facts: dict[str, Fact]) -> None:
    """An element lies within its list, which comes from where the spec says."""
    over = spec.region_index[spec.nodes[item.node].region].items
    match over:
        case Lit(value):
            assert item.items is None and item.item is None
            assert item.element < len(value)
        case InputRef(name):
            assert item.items is None and item.item is None
            assert item.element < facts[name].length
        case NodeRef(node):
            if spec.nodes[spec.index[node]].region:
                assert item.items is None and item.item is not None
            else:
                assert item.items is not None and item.item is None
                assert item.element < item.items.length
