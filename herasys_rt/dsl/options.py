"""What every operator call takes beside its arguments: per-node options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypedDict

from herasys_rt.dsl.symbols import Symbol
from herasys_rt.graph.spec import NodeOptions, Retry
from herasys_rt.graph.types import describe

OPTIONS = (
    "model",
    "label",
    "timeout_s",
    "retry",
    "priority",
    "cache",
    "purity",
)
"""Keyword arguments of every call that are no ports; see `Options`."""


class Options(TypedDict, total=False):
    """Keyword arguments of every operator call; literal values only.

    Operators declare them as ``**options: Unpack[Options]``. None of them changes the
    node's value, except ``model``.
    """

    model: str | None
    """The model that serves the node (None: the resource's default pool)."""
    label: str
    """The node's id in reports."""
    timeout_s: float | None
    """How long one attempt may take from its start (code ``node_timeout``)."""
    retry: Retry | None
    """When a failed node is tried again; see `retry`."""
    priority: int
    """Added to the run's priority."""
    cache: bool | float
    """False keeps the result out of the reuse cache. A number of seconds bounds how long
    it stays there, and how old a result may be that is taken from there."""
    purity: str | None
    """``"pure"`` lets a sampled node be shared: the n-th of the equal calls of a workflow
    is the same sample in every run."""


def retry(
    *,
    max_attempts: int = 3,
    initial_interval_s: float = 0.5,
    backoff_factor: float = 2.0,
    max_interval_s: float = 30.0,
    jitter: float = 1.0,
    retry_on: str | Iterable[str] = (),
) -> Retry:
    """When and how a failed node is tried again: ``generate(..., retry=retry(...))``.

    At most ``max_attempts`` in all. The n-th delay is drawn from [(1 - jitter) * d, d],
    where d = min(initial_interval_s * backoff_factor**(n-1), max_interval_s).
    ``retry_on`` lists error codes; without, every error that says of itself that it can
    be retried. Values out of range are faults of the workflow that uses them.
    """
    codes = (retry_on,) if isinstance(retry_on, str) else tuple(retry_on)
    return Retry(
        max_attempts=max_attempts,
        initial_interval_s=initial_interval_s,
        backoff_factor=backoff_factor,
        max_interval_s=max_interval_s,
        jitter=jitter,
        retry_on=codes,
    )


class Settled(NamedTuple):
    """The options of one call."""

    model: str | None
    label: str
    options: NodeOptions
    shared_sample: bool


Report = Callable[[str, str, str], None]
"""Takes (option, problem, what fits)."""


def settle(given: dict[str, Any], sampling: bool, report: Report) -> Settled:
    """Take the options out of a call's keyword arguments.

    ``sampling`` says whether the operator may draw random numbers. What is no literal or
    of a wrong kind is reported and left at its default; ranges are `validate_spec`'s.
    """
    taken = {name: given.pop(name) for name in OPTIONS if name in given}
    for name, value in list(taken.items()):
        wanted, fitting = _KINDS[name]
        if isinstance(value, Symbol) or not fitting(value):
            got = "a symbol" if isinstance(value, Symbol) else describe(value)
            report(name, f"must be a literal {wanted}, got {got}", "")
            del taken[name]
    if taken.get("purity") == "pure" and not sampling:
        problem = "'pure' is for nodes that draw random numbers, and this one does not"
        report("purity", problem, "leave it out")
        del taken["purity"]
    cache = taken.get("cache", True)
    timed = not isinstance(cache, bool)
    return Settled(
        model=taken.get("model"),
        label=taken.get("label", ""),
        options=NodeOptions(
            timeout_s=_as_float(taken.get("timeout_s")),
            retry=taken.get("retry"),
            priority=taken.get("priority", 0),
            cache=cache is not False,
            cache_ttl_s=_as_float(cache) if timed else None,
        ),
        shared_sample=taken.get("purity") == "pure",
    )


def _as_float(value: Any) -> Any:
    return float(value) if type(value) is int else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "model": ("name", lambda v: v is None or isinstance(v, str)),
    "label": ("text", lambda v: isinstance(v, str)),
    "timeout_s": ("number of seconds", lambda v: v is None or _is_number(v)),
    "retry": ("retry(...)", lambda v: v is None or isinstance(v, Retry)),
    "priority": ("whole number", lambda v: isinstance(v, int) and _is_number(v)),
    "cache": (
        "False or number of seconds",
        lambda v: isinstance(v, bool) or _is_number(v),
    ),
    "purity": ("'pure'", lambda v: v is None or v == "pure"),
}
"""Option -> what it must be, in words and as a check."""
