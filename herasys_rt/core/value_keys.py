"""Keys by value: what a node computes, from what its inputs turned out to be.

    key = SHA-256("value", seed, per parent in order: its digest, its list's or none,
                  of an element: its item's digest),
          revisions of the collections that the node reads itself

A seed (`graph.signature`) is all that decides the value and is no output of a node. So two
questions that were rewritten to the same words share their search, whatever stands above
it: also a sampled node, below which nothing is equal by structure.
"""

from __future__ import annotations

from hashlib import sha256

from herasys_rt.core.fusion import Key
from herasys_rt.core.state import Flight, Node, Payload, State

_DOMAIN = b"value"


def value_key_of(state: State, feeder: Node, flight: Flight) -> Key | None:
    """The key by value of a flight whose payload came from ``feeder``.

    None where nothing may fuse, nobody knows the element's item, or the structural key is
    made of content already: outside of regions, without parents.
    """
    fragment, position, payload = feeder.fragment, feeder.position, flight.payload
    seeds, plan = fragment.seeds, fragment.plan
    if not seeds or payload is None or not plan.pure[position]:
        return None
    seed = seeds[position]
    if not seed:
        return None
    parts = [_DOMAIN, seed]
    if plan.flat:
        for _, value in payload.upstream:
            parts += (b"n", value.digest)
    else:
        _add_given(parts, plan.takes[position], payload)
    if feeder.element >= 0:
        item = _item(feeder, payload)
        if item is None:
            return None
        parts += (b"i", item)
    elif len(parts) == 2 and flight.key is not None:
        return None
    own = fragment.own_collections
    revisions = state.revisions_of(own[position]) if own else ()
    return sha256(b"".join(parts)).digest(), revisions


def item_seed_of(feeder: Node, payload: Payload) -> bytes:
    """All that decides an item of what a node gives but the item of the list: its item
    seed, with what the nodes that decide too have given, and the element's item where it
    does. Empty where items are not shared, or nobody knows the element's item."""
    fragment, position = feeder.fragment, feeder.position
    seed = fragment.item_seeds[position] if fragment.item_seeds else b""
    takes, takes_item = fragment.plan.item_takes[position]
    if not seed or not (takes or takes_item):
        return seed
    parts = [seed]
    _add_given(parts, takes, payload)
    if takes_item:
        item = _item(feeder, payload)
        if item is None:
            return b""
        parts += (b"i", item)
    return sha256(b"".join(parts)).digest()


def _add_given(parts: list[bytes], takes: tuple[int, ...], payload: Payload) -> None:
    """Add what nodes that a node takes have given."""
    upstream, gathered = dict(payload.upstream), dict(payload.gathered)
    for parent in takes:
        if parent in upstream:
            parts += (b"n", upstream[parent].digest)
        elif parent in gathered:
            values = gathered[parent]
            parts += (b"g", len(values).to_bytes(8, "big"), *[v.digest for v in values])
        else:
            parts.append(b"s")


def _item(node: Node, payload: Payload) -> bytes | None:
    """The digest of an element's item; None when nobody told it."""
    if payload.item is not None:
        return payload.item.digest
    fragment = node.fragment
    area = fragment.plan.areas[fragment.plan.region[node.position]]
    digests = area.items
    if area.giver >= 0:
        result = fragment.nodes[area.giver].result
        if result is not None and result.value is not None:
            digests = result.value.items
    elif area.source:
        digests = fragment.facts[area.source].items
    return digests[node.element] if node.element < len(digests) else None
