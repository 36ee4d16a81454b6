"""A layered layout: where boxes, labels and arrows of a drawing go, in pixels.

The method of Sugiyama: layers by the longest path, crossings reduced by barycentres,
places by repeated averaging under the constraint that nothing overlaps. Labels of links
are vertices of layers of their own between the boxes, and a link that passes a layer has
a vertex there, so that neither boxes, labels nor links ever lie upon a box. A group is
laid out by itself and then is one vertex of the whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

GAP_X, GAP_Y = 24.0, 16.0
_SWEEPS = 8
_PER_ROW = 5


@dataclass(eq=False)
class Vertex:
    """A thing with a size that gets a place: ``x`` and ``y`` are its centre.

    ``first`` and ``last`` pin it to the first or the last layer. ``passing`` ones belong
    to links; ``aside`` is how far from the centre a link goes through. ``ceiling`` and
    ``floor`` bound its layer.
    """

    width: float
    height: float
    first: bool = False
    last: bool = False
    passing: bool = False
    aside: float = 0.0
    x: float = 0.0
    y: float = 0.0
    layer: int = 0
    ceiling: float = 0.0
    floor: float = 0.0
    above: list[Vertex] = field(default_factory=list["Vertex"])
    below: list[Vertex] = field(default_factory=list["Vertex"])

    @property
    def left(self) -> float:
        """Its left edge."""
        return self.x - self.width / 2

    @property
    def top(self) -> float:
        """Its upper edge."""
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height / 2


@dataclass(eq=False)
class Route:
    """A link on its way: from ``source`` to ``target``, with a label of a given size.

    ``at_source`` and ``at_target`` are where it leaves and arrives, relative to the
    centres (None: a place of its own along the edge). ``points`` is the way that was
    found, ``label`` the vertex that the label got.
    """

    source: Vertex
    target: Vertex
    label_size: tuple[float, float] | None = None
    at_source: float | None = None
    at_target: float | None = None
    points: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    label: Vertex | None = None
    chain: list[Vertex] = field(default_factory=list[Vertex])


@dataclass(frozen=True)
class Layout:
    """The size that a layout takes; its vertices lie within (0, 0) and that."""

    width: float
    height: float


def lay_out(vertices: Sequence[Vertex], routes: Sequence[Route]) -> Layout:
    """Give every vertex a place and every route its points.

    Routes lead downwards where they can; one that closes a cycle leads upwards.
    """
    down = _assign_layers(vertices, routes)
    layers = _filled_layers(vertices, routes, down)
    _reduce_crossings(layers)
    _place(layers)
    _straighten(layers, routes)
    left = min((v.left for layer in layers for v in layer), default=0.0)
    right = max((v.left + v.width for layer in layers for v in layer), default=0.0)
    for layer in layers:
        for vertex in layer:
            vertex.x -= left
    height = _stack(layers)
    for route in routes:
        _follow(route)
    _spread(routes)
    return Layout(right - left, height)


def directions(vertices: Sequence[Vertex], routes: Sequence[Route]) -> list[bool]:
    """Which routes `lay_out` will lead downwards; sizes do not matter."""
    order = {id(vertex): i for i, vertex in enumerate(vertices)}
    rank = _ranks(order, routes)
    return [
        rank[order[id(route.source)]] < rank[order[id(route.target)]] for route in routes
    ]


# Layers


def _assign_layers(vertices: Sequence[Vertex], routes: Sequence[Route]) -> list[bool]:
    """Even layers for vertices, by the longest path; tells which routes lead downwards."""
    order = {id(vertex): i for i, vertex in enumerate(vertices)}
    rank = _ranks(order, routes)
    down = directions(vertices, routes)
    by_rank = sorted(range(len(vertices)), key=lambda i: rank[i])
    level = [0] * len(vertices)
    edges = [
        (order[id(r.source)], order[id(r.target)])
        for r, falls in zip(routes, down, strict=True)
        if falls
    ]
    below: dict[int, list[int]] = {}
    for source, target in edges:
        below.setdefault(source, []).append(target)
    for i in by_rank:
        for target in below.get(i, ()):
            level[target] = max(level[target], level[i] + 1)
    fed = {target for _, target in edges}
    for i in by_rank:  # what nothing feeds stands right above who takes it first
        if i not in fed and below.get(i) and not vertices[i].first:
            level[i] = min(level[target] for target in below[i]) - 1
    alone = [i for i in by_rank if i not in fed and not below.get(i)]
    for position, i in enumerate(alone):  # in rows, not in one endless line
        level[i] = position // _PER_ROW
    deepest = max(level, default=0)
    for vertex, depth in zip(vertices, level, strict=True):
        depth = 0 if vertex.first else deepest if vertex.last else depth
        vertex.layer = 2 * depth
    return down


def _ranks(order: Mapping[int, int], routes: Sequence[Route]) -> list[int]:
    """A position per vertex so that edges lead to later ones, those of cycles aside."""
    targets: dict[int, list[int]] = {i: [] for i in range(len(order))}
    for route in routes:
        targets[order[id(route.source)]].append(order[id(route.target)])
    seen: dict[int, bool] = {}
    finished: list[int] = []
    for root in targets:
        stack = [(root, iter(targets[root]))] if root not in seen else []
        seen.setdefault(root, True)
        while stack:
            vertex, rest = stack[-1]
            step = next((t for t in rest if t not in seen), None)
            if step is None:
                finished.append(vertex)
                stack.pop()
            else:
                seen[step] = True
                stack.append((step, iter(targets[step])))
    rank = [0] * len(targets)
    for position, vertex in enumerate(reversed(finished)):
        rank[vertex] = position
    return rank


def _filled_layers(
    vertices: Sequence[Vertex], routes: Sequence[Route], down: Sequence[bool]
) -> list[list[Vertex]]:
    """Vertices by layer, with one for each layer that a route passes."""
    count = max((vertex.layer for vertex in vertices), default=0) + 1
    layers: list[list[Vertex]] = [[] for _ in range(count)]
    for vertex in vertices:
        layers[vertex.layer].append(vertex)
    for route, falls in zip(routes, down, strict=True):
        upper, lower = route.source, route.target
        if not falls:
            upper, lower = lower, upper
        chain = [upper]
        for at in range(upper.layer + 1, lower.layer):
            labelled = at == lower.layer - 1 and route.label_size is not None
            size = route.label_size if labelled and route.label_size else (2.0, 0.0)
            passing = Vertex(*size, passing=True, layer=at)
            if labelled:
                route.label = passing
                passing.aside = 1.0 - passing.width / 2  # the text stands right of it
            layers[at].append(passing)
            chain.append(passing)
        chain.append(lower)
        if upper.layer == lower.layer:  # only a cycle of pinned vertices can do this
            route.chain = chain
            continue
        for one, other in itertools.pairwise(chain):
            one.below.append(other)
            other.above.append(one)
        route.chain = chain if falls else chain[::-1]
    return layers


# Order and places


def _reduce_crossings(layers: list[list[Vertex]]) -> None:
    place = {id(v): float(i) for layer in layers for i, v in enumerate(layer)}

    def sort(layer: list[Vertex], upwards: bool) -> None:
        def key(vertex: Vertex) -> float:
            others = vertex.below if upwards else vertex.above
            if not others:
                return place[id(vertex)]
            return sum(place[id(other)] for other in others) / len(others)

        keys = {id(vertex): key(vertex) for vertex in layer}
        layer.sort(key=lambda vertex: keys[id(vertex)])
        for i, vertex in enumerate(layer):
            place[id(vertex)] = float(i)

    best, crossings = [list(layer) for layer in layers], _crossings(layers)
    for sweep in range(_SWEEPS):
        upwards = sweep % 2 == 1
        for layer in reversed(layers) if upwards else layers:
            sort(layer, upwards)
        now = _crossings(layers)
        if now < crossings:
            best, crossings = [list(layer) for layer in layers], now
    layers[:] = best


def _crossings(layers: list[list[Vertex]]) -> int:
    total = 0
    for upper, lower in itertools.pairwise(layers):
        position = {id(vertex): i for i, vertex in enumerate(lower)}
        ends = [sorted(position[id(b)] for b in v.below) for v in upper]
        passed: list[int] = []
        for here in ends:
            total += sum(1 for end in here for before in passed if before > end)
            passed.extend(here)
    return total


def _place(layers: list[list[Vertex]]) -> None:
    """Horizontal places: near the average of the neighbours, never overlapping."""
    for layer in layers:
        at = 0.0
        for vertex in layer:
            vertex.x = at + vertex.width / 2
            at += vertex.width + GAP_X
    for sweep in range(4 * _SWEEPS):
        upwards = sweep % 2 == 1
        for layer in reversed(layers) if upwards else layers:
            wanted = [_wanted(vertex, sweep, upwards) for vertex in layer]
            for vertex, x in zip(layer, _apart(layer, wanted), strict=True):
                vertex.x = x


def _wanted(vertex: Vertex, sweep: int, upwards: bool) -> float:
    both = vertex.above + vertex.below
    others = both if sweep >= 2 * _SWEEPS else vertex.below if upwards else vertex.above
    pulls = [(other, _pull(vertex, other)) for other in others or both]
    if not pulls:
        return vertex.x
    total = sum(weight for _, weight in pulls)
    return sum((o.x + o.aside) * weight for o, weight in pulls) / total - vertex.aside


def _pull(one: Vertex, other: Vertex) -> float:
    """How much two neighbours want to stand in line: long links want to be straight."""
    return (1.0, 3.0, 9.0)[one.passing + other.passing]


def _apart(layer: Sequence[Vertex], wanted: Sequence[float]) -> list[float]:
    """Places nearest to the wanted ones (least squares) that keep order and distance.

    Pool adjacent violators, over the places less what has to lie to the left.
    """
    offsets, at = list[float](), 0.0
    for i, vertex in enumerate(layer):
        if i:
            at += layer[i - 1].width / 2 + GAP_X + vertex.width / 2
        offsets.append(at)
    blocks: list[tuple[float, int]] = []  # (mean, how many)
    for want, offset in zip(wanted, offsets, strict=True):
        mean, count = want - offset, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean = (before * many + mean * count) / (many + count)
            count += many
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _straighten(layers: list[list[Vertex]], routes: Sequence[Route]) -> None:
    """Bring what passes several layers into one line, where there is room for it."""
    beside = {
        id(vertex): (
            layer[i - 1] if i else None,
            layer[i + 1] if i + 1 < len(layer) else None,
        )
        for layer in layers
        for i, vertex in enumerate(layer)
    }
    longest = sorted(routes, key=lambda route: -len(route.chain))
    for route in longest * 2:
        inside = [vertex for vertex in route.chain if vertex.passing]
        if len(inside) < 2:
            continue
        low, high = -math.inf, math.inf
        for vertex in inside:
            left, right = beside[id(vertex)]
            reach = GAP_X + vertex.width / 2
            if left is not None:
                low = max(low, left.x + left.width / 2 + reach + vertex.aside)
            if right is not None:
                high = min(high, right.x - right.width / 2 - reach + vertex.aside)
        if low <= high:
            mean = sum(vertex.x + vertex.aside for vertex in inside) / len(inside)
            line = min(max(mean, low), high)
            for vertex in inside:
                vertex.x = line - vertex.aside


def _stack(layers: list[list[Vertex]]) -> float:
    """Vertical places; gives the height of all."""
    at = 0.0
    for layer in layers:
        height = max((vertex.height for vertex in layer), default=0.0)
        for vertex in layer:
            vertex.y = at + height / 2
            vertex.ceiling, vertex.floor = at, at + height
            if vertex.passing or vertex.first or vertex.last:
                vertex.height = height  # a link goes straight through its layers
        at += height + GAP_Y
    return max(at - GAP_Y, 0.0)


# Routes


def _follow(route: Route) -> None:
    """The points of a route, straight through the layers that it passes."""
    falls = route.source.layer <= route.target.layer
    points: list[tuple[float, float]] = []
    for i, vertex in enumerate(route.chain):
        x, first, last = vertex.x + vertex.aside, i == 0, i == len(route.chain) - 1
        entry, leave = vertex.ceiling, vertex.floor
        top, bottom = vertex.top, vertex.bottom
        if not falls:
            entry, leave, top, bottom = leave, entry, bottom, top
        # Straight from the box to the border of its layer: others there may be taller.
        points += [] if first else [(x, entry), (x, top)] if last else [(x, entry)]
        points += [] if last else [(x, bottom), (x, leave)] if first else [(x, leave)]
    route.points = points


def _spread(routes: Sequence[Route]) -> None:
    """Let routes leave and arrive side by side, in the order of where they go."""
    for end in (0, -1):
        ends: dict[int, list[Route]] = {}
        for route in routes:
            vertex = route.source if end == 0 else route.target
            ends.setdefault(id(vertex), []).append(route)
        for group in ends.values():
            _spread_one(group, end)


def _spread_one(group: Iterable[Route], end: int) -> None:
    free: list[Route] = []
    for route in group:
        vertex = route.source if end == 0 else route.target
        fixed = route.at_source if end == 0 else route.at_target
        if fixed is not None:
            _move(route, end, vertex.x + fixed)
        else:
            free.append(route)
    towards = 2 if end == 0 else -3
    free.sort(key=lambda route: route.points[towards][0])
    for i, route in enumerate(free):
        vertex = route.source if end == 0 else route.target
        step = min(18.0, 0.7 * vertex.width / len(free))
        _move(route, end, vertex.x + (i - (len(free) - 1) / 2) * step)


def _move(route: Route, end: int, x: float) -> None:
    """Let a route leave (end 0) or arrive (end -1) at ``x``."""
    for at in (0, 1) if end == 0 else (-2, -1):
        route.points[at] = (x, route.points[at][1])
