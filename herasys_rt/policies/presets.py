"""Presets: names for combinations of policies that are compared as wholes."""

from __future__ import annotations

from typing import NamedTuple

from herasys_rt.core.policy import PolicyNames
from herasys_rt.errors import ConfigError
from herasys_rt.policies import DEFAULTS, ORDERINGS, PLACEMENTS


class Preset(NamedTuple):
    """Policies, and what is done to a workflow's graph before it is submitted.

    ``split`` cuts nodes that work on lists in so many parts, always (1: not at all);
    ``partial_prefill`` computes the fixed heads of prompts ahead. With ``eager`` a call
    of a language model is sent to an instance as soon as it is ready, whether or not
    that is free, and waits there in the order of arrival.
    """

    name: str
    policies: PolicyNames
    fusion: bool = True
    split: int = 1
    partial_prefill: bool = False
    eager: bool = False


PRESETS: dict[str, Preset] = {
    "static_split": Preset(
        "static_split",
        PolicyNames("depth", "least_loaded", DEFAULTS.batching),
        fusion=False,
        split=2,
        partial_prefill=True,
    ),
    "per_call": Preset(
        "per_call",
        PolicyNames("fcfs", "round_robin", DEFAULTS.batching),
        eager=True,
    ),
}
"""``static_split`` is what Ayo does: a fixed two-way pipeline split, batches in the order
of depth, partial prefill, no fusion. ``per_call`` is what HexAGenT calls per-call FCFS:
every call on its own, to the instances in turn however fast or busy they are."""


def preset(name: str, placement: str = DEFAULTS.placement) -> Preset:
    """A preset, or an ordering with a placement as one: ``llf``, ``llf+round_robin``.

    ``placement`` is for an ordering that names none. Errors: `ConfigError` that lists the
    known names.
    """
    if name in PRESETS:
        return PRESETS[name]
    ordering, plus, own = name.partition("+")
    if plus:
        placement = own
    if ordering not in ORDERINGS:
        known = sorted({*PRESETS, *ORDERINGS})
        raise ConfigError(
            f"unknown policy {name!r}; known: {', '.join(known)}, and of each ordering "
            f"ORDERING+PLACEMENT with {', '.join(sorted(PLACEMENTS))}",
            hint="Use one of these names.",
            name=name,
            known=tuple(known),
        )
    if placement not in PLACEMENTS:
        known = sorted(PLACEMENTS)
        raise ConfigError(
            f"unknown placement {placement!r}; known: {', '.join(known)}",
            hint="Use one of these names.",
            name=placement,
            known=tuple(known),
        )
    name = ordering if placement == DEFAULTS.placement else f"{ordering}+{placement}"
    return Preset(name, PolicyNames(ordering, placement, DEFAULTS.batching))
