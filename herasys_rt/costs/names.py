"""Looking names up in a catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from herasys_rt.errors import ConfigError


class Named(Protocol):
    """An entry of a catalogue."""

    @property
    def name(self) -> str:
        """What it is called: lower case, with dashes."""
        ...


_Entry = TypeVar("_Entry", bound=Named)


def named(
    what: str, name: str, entries: Iterable[_Entry], aliases: Mapping[str, str]
) -> _Entry:
    """The entry that ``name`` or its alias names.

    Errors: `ConfigError` that lists the known names.
    """
    wanted = name.strip().lower().replace("_", "-")
    wanted = aliases.get(wanted, wanted)
    known = {entry.name: entry for entry in entries}
    if wanted in known:
        return known[wanted]
    raise ConfigError(
        f"no {what} is called {name!r}; known are {', '.join(sorted(known))}",
        hint=f"Use one of these names, or describe the {what} as docs/costs.md says.",
        name=name,
    )
