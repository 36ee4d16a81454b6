"""What surrounds a call while a workflow is traced: branches of `when`, a `map_over`."""

from __future__ import annotations

from dataclasses import dataclass, field

from herasys_rt.dsl.symbols import Symbol, ref_of
from herasys_rt.graph.shapes import Shape
from herasys_rt.graph.spec import Arg, InputRef, NodeRef, Region


@dataclass(eq=False, slots=True)
class Decision:
    """A condition of `when`, asked by both of its branches.

    ``ref`` is what guards ask: None until a node needs a guard on a condition that is an
    expression, which then becomes a node. ``per_item`` conditions belong to one item of
    a region and guard nothing.
    """

    symbol: Symbol
    per_item: bool
    ref: InputRef | NodeRef | None = None

    @property
    def arg(self) -> Arg:
        """The condition's value as an argument."""
        return self.ref if self.ref is not None else ref_of(self.symbol)


@dataclass(frozen=True, slots=True)
class Branch:
    """One side of a `when`: nodes made in it run when the decision ``holds``."""

    decision: Decision
    holds: bool


@dataclass(eq=False, slots=True)
class Mapping:
    """A `map_over` whose function is being traced.

    ``items`` is the list, ``item`` the shape of its items, ``around`` the branches that
    it stands in. ``region`` is None until the function makes a node: a function that
    only takes pieces of the item is an expression and needs no region.
    """

    id: str
    items: Arg
    item: Shape
    max_items: int
    around: tuple[Branch, ...] = ()
    region: Region | None = field(default=None)
