"""A profile: what was measured on running engines, and the times fitted to it.

`herasys profile` writes it, the live scheduler and the simulator read it. YAML or JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from herasys_rt.costs.batch import LinearBatch
from herasys_rt.costs.measured import MeasuredForm
from herasys_rt.errors import ConfigError

VERSION = 1


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One measurement: ``concurrency`` equal calls at once, ``seconds`` the engine time of
    the slowest, the median over repetitions (``samples`` calls in all). ``latency_s`` is
    what a client saw of a call, on average."""

    seconds: float
    concurrency: int = 1
    samples: int = 1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    items: int = 0
    tokens: int = 0
    latency_s: float = 0.0


class VerbProfile(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A verb of a pool: its points and what was fitted to them.

    ``times`` are of a batch, ``steps`` of a language model's iterations; a verb has one of
    them. ``fit_error`` is the mean absolute error of the fit over the points, as a
    fraction.
    """

    verb: str
    points: tuple[Point, ...] = ()
    times: LinearBatch | None = None
    steps: MeasuredForm | None = None
    fit_error: float = 0.0


class PoolProfile(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A pool: its declaration as far as costs depend on it, and its verbs.

    ``instance_class`` is the GPU class of its ``instances``, or ``cpu``. Of a language
    model ``kv_capacity_tokens`` and ``kv_bytes_per_token`` describe one instance,
    ``token_budget`` the most tokens of one of its iterations (0: not known),
    ``context_tokens`` of one of its calls (0: not known) and ``token_edge`` the number of
    tokens after which an iteration suddenly costs more: a better budget (0: no edge was
    found).
    """

    pool: str
    resource: str
    engine: str
    instance_class: str
    slots: int
    verbs: tuple[VerbProfile, ...]
    model: str = ""
    instances: int = 1
    batch_limit: int = 1
    kv_capacity_tokens: int = 0
    kv_bytes_per_token: int = 0
    token_budget: int = 0
    token_edge: int = 0
    context_tokens: int = 0

    def verb(self, name: str) -> VerbProfile | None:
        """The profile of a verb; None when it was not measured."""
        return next((verb for verb in self.verbs if verb.verb == name), None)


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `herasys profile` found. ``control_s`` is what a node takes beside its engine
    and its queue; ``machine`` names nothing that identifies it."""

    pools: tuple[PoolProfile, ...]
    control_s: float = 0.0
    machine: dict[str, Any] = {}
    version: int = VERSION

    def pool(self, resource: str, model: str | None = None) -> PoolProfile | None:
        """The pool of a resource, with that model where one is given; else None."""
        fitting = (p for p in self.pools if p.resource == resource)
        return next((p for p in fitting if model in (None, p.model)), None)


def read_profile(path: Path) -> Profile:
    """The profile in a file. Errors: `ConfigError` that says what does not fit."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else f"it is no UTF-8 text ({e})"
        raise ConfigError(
            f"the profile {path} cannot be read: {reason}",
            hint="Write one with `herasys profile --out FILE`.",
            path=str(path),
        ) from e
    try:
        # YAML is a superset of JSON.
        profile = msgspec.convert(yaml.safe_load(text), Profile)
    except (yaml.YAMLError, msgspec.ValidationError) as e:
        raise ConfigError(
            f"{path} is no profile: {e}",
            hint="Write one with `herasys profile --out FILE`, or mend what it names.",
            path=str(path),
        ) from e
    if profile.version != VERSION:
        raise ConfigError(
            f"{path} is a profile of version {profile.version}; this reads {VERSION}",
            hint="Measure again with `herasys profile`.",
            path=str(path),
        )
    return profile


def profile_text(profile: Profile, suffix: str = ".yaml") -> str:
    """The profile as YAML, or as JSON for the suffix ``.json``."""
    if suffix.lower() == ".json":
        return msgspec.json.format(msgspec.json.encode(profile), indent=1).decode() + "\n"
    data = msgspec.to_builtins(profile)
    written: str = yaml.dump(  # pyright: ignore[reportUnknownMemberType]
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True
    )
    return written


class _Dumper(yaml.SafeDumper):
    """Writes lists of numbers in one line each."""


def _flat_list(dumper: yaml.SafeDumper, rows: Any) -> yaml.Node:
    flat = all(not isinstance(row, dict | list | tuple) for row in rows)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", rows, flow_style=flat)


_Dumper.add_representer(list, _flat_list)
_Dumper.add_representer(tuple, _flat_list)
