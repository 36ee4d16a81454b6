"""Labels of runs: which texts are taken."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.errors import InputError
from herasys_rt.graph.labels import checked_labels, parsed_labels


@pytest.mark.parametrize(
    "labels",
    [
        None,
        {},
        {"team": "search"},
        {"k" * 256: "v" * 256, "e": "", "Grüße": "👩‍🚀"},
        {f"k{i}": "v" for i in range(16)},
    ],
)
def test_a_few_short_texts_are_labels(labels: Any) -> None:
    assert checked_labels(labels) == (labels or {})


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({f"k{i}": "v" for i in range(17)}, "at most 16 labels, not 17"),
        ({"": "v"}, "1 to 256 characters"),
        ({"k" * 257: "v"}, "1 to 256 characters"),
        ({5: "v"}, "1 to 256 characters, not 5"),
        ({"k": "v" * 257}, "label 'k' is a text of at most 256"),
        ({"k": 7}, "label 'k' is a text of at most 256 characters, not 7"),
        ({"k": None}, "label 'k'"),
        ({"k": "\ud800"}, "label 'k'"),
        ([("k", "v")], "not a list"),
        ("team=search", "not a str"),
    ],
)
def test_anything_else_is_refused_with_what_is_wrong(labels: Any, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        checked_labels(labels)
    assert caught.value.code == "invalid_labels"
    assert caught.value.hint


def test_the_labels_are_a_copy() -> None:
    given = {"team": "search"}
    kept = checked_labels(given)
    given["team"] = "ads"
    assert kept == {"team": "search"}


def test_words_become_labels() -> None:
    assert parsed_labels(["team=search", "url=a=b", "note="]) == {
        "team": "search",
        "url": "a=b",
        "note": "",
    }
