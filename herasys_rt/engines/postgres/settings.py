"""What a collection is made with, and stays until it is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from herasys_rt.errors import InputError

DISTANCES = ("cosine", "inner_product", "l2")
STORAGES = ("vector", "halfvec")
_NUMBERS = {"m": (2, 100), "ef_construction": (4, 1000)}  # pgvector's bounds
_INDEX_DIMENSIONS = {"vector": 2_000, "halfvec": 4_000}


class Settings(msgspec.Struct, frozen=True):
    """How vectors compare and are kept, how they and the texts are indexed.

    ``distance`` is cosine, inner_product or l2. ``storage`` is vector (float32) or
    halfvec (float16: half the space, values up to 65,504, three digits). ``language`` is
    a text search configuration of the server: english, german, simple ... ``m`` and
    ``ef_construction`` are HNSW's links per element and candidates while building.
    """

    distance: str = "cosine"
    storage: str = "vector"
    language: str = "english"
    m: int = 16
    ef_construction: int = 64

    @property
    def index_dimensions(self) -> int:
        """What pgvector's HNSW takes at most; wider vectors are searched exactly."""
        return _INDEX_DIMENSIONS[self.storage]


NAMES = Settings.__struct_fields__


def given_settings(args: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``args`` that are settings and not None, checked. Errors: `InputError`."""
    given = {name: args[name] for name in NAMES if args.get(name) is not None}
    for name, known in (("distance", DISTANCES), ("storage", STORAGES)):
        if name in given:
            check_choice(name, given[name], known)
    language = given.get("language", "english")
    if not isinstance(language, str) or not language.strip():
        raise InputError(
            f"language must be a name, not {language!r}",
            hint="Name a text search configuration of the server, such as english.",
        )
    for name, (low, high) in _NUMBERS.items():
        value = given.get(name, low)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not low <= value <= high
        ):
            raise InputError(
                f"{name} must be a whole number from {low} to {high}, not {value!r}",
                hint="Leave it out for pgvector's default.",
            )
    made = msgspec.structs.replace(Settings(), **given)
    if made.ef_construction < 2 * made.m:
        raise InputError(
            f"ef_construction ({made.ef_construction}) must be at least twice m ({made.m})",
            hint="Raise ef_construction or lower m.",
        )
    return given


def check_choice(what: str, value: Any, known: tuple[str, ...]) -> None:
    """Refuse a name that is none of the known ones. Errors: `InputError`."""
    if value not in known:
        raise InputError(
            f"unknown {what} {value!r}; known: {', '.join(known)}",
            hint="Choose one of them.",
        )


def check_same(collection: str, made: Settings, given: Mapping[str, Any]) -> None:
    """Refuse to use a collection as what it is not. Errors: `InputError`."""
    for name, wanted in given.items():
        found = getattr(made, name)
        if found != wanted:
            raise InputError(
                f"collection {collection!r} was made with {name} {found}, not {wanted}",
                hint="Use another name, or drop the collection first.",
                code=f"{name}_mismatch",
            )
