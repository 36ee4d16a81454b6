"""Labels of a run: the submitter's own words, carried with it into every record.

They name a team, an experiment, a ticket. Nothing is ever decided by them and no
signature has them, so equal work is shared whatever it is labelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from herasys_rt.errors import InputError
from herasys_rt.graph import codec

MOST_LABELS = 16
LONGEST_LABEL = 256
"""Characters of a key (at least one) and of a value."""

_HINT = 'Give a few short texts, such as {"team": "search"}.'


def checked_labels(labels: object) -> dict[str, str]:
    """The labels of a run as a dict of their own; None is none.

    Errors: `InputError` for more than `MOST_LABELS`, or for one that is no short text.
    """
    if labels is None:
        return {}
    if not isinstance(labels, Mapping):
        raise _refused(f"labels are names with texts, not a {type(labels).__name__}")
    given = dict(cast("Mapping[Any, Any]", labels))
    if len(given) > MOST_LABELS:
        raise _refused(f"a run has at most {MOST_LABELS} labels, not {len(given)}")
    for key, value in given.items():
        if not _is_text(key) or not key:
            raise _refused(
                f"the name of a label is a text of 1 to {LONGEST_LABEL} characters, "
                f"not {key!r:.60}"
            )
        if not _is_text(value):
            raise _refused(
                f"label {key!r:.60} is a text of at most {LONGEST_LABEL} characters, "
                f"not {value!r:.60}"
            )
    return cast("dict[str, str]", given)


def parsed_labels(pairs: Iterable[str]) -> dict[str, str]:
    """Labels out of ``KEY=VALUE`` words. Errors: `InputError`, also for one that is given
    twice."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(
                f"--label {pair!r:.60} is not of the form KEY=VALUE",
                hint="For example --label team=search.",
                code="invalid_labels",
            )
        if key in found:
            raise InputError(
                f"label {key!r:.60} is given twice",
                hint="Give it once.",
                code="invalid_labels",
            )
        found[key] = value
    return checked_labels(found)


def _is_text(value: object) -> bool:
    fits = isinstance(value, str) and len(value) <= LONGEST_LABEL
    return fits and codec.fault_of(value) is None


def _refused(message: str) -> InputError:
    return InputError(message, hint=_HINT, code="invalid_labels")
