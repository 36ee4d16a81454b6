"""What is checked and mended before a chunk is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.engines.postgres import rows
from herasys_rt.errors import InputError

any_text = st.text(alphabet=st.characters(exclude_categories=()))


def chunk(**more: Any) -> dict[str, Any]:
    return {"id": "a", "source": "s", "text": "t", **more}


@given(any_text)
def test_cleaned_text_can_be_stored(text: str) -> None:
    cleaned = rows.clean_text(text)
    cleaned.encode()
    assert "\x00" not in cleaned
    assert rows.clean_text(cleaned) == cleaned


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_clean_text_is_left_alone(text: str) -> None:
    assert rows.clean_text(text) == text


def test_halves_of_a_pair_become_whole_or_replaced() -> None:
    assert rows.clean_text("\ud83d\ude00") == "\U0001f600"
    assert rows.clean_text("a\ude00b\ud83d") == "a\ufffdb\ufffd"


def test_json_keeps_what_json_can_say() -> None:
    value = {"a": [1, 2.5, None, True, "x"], "b": {"c": np.float32(0.5)}}
    assert rows.clean_json(value, "here") == {
        "a": [1, 2.5, None, True, "x"],
        "b": {"c": 0.5},
    }
    assert rows.clean_json([float("inf"), float("nan")], "here") == [None, None]
    with pytest.raises(InputError, match=r"here\.a\[1\] is a bytes"):
        rows.clean_json({"a": [1, b"x"]}, "here")
    with pytest.raises(InputError, match="key 1"):
        rows.clean_json({1: 2}, "here")


def test_of_chunks_with_one_id_the_last_counts() -> None:
    made = rows.rows_of(
        [chunk(text="old"), chunk(id="b"), chunk(text="new")], np.eye(3), "c", 3, "cosine"
    )
    assert [(row.id, row.text) for row in made] == [("a", "new"), ("b", "t")]
    assert made[0].vector.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "bad",
    [
        "text",
        {"source": "s", "text": "t"},
        chunk(id=""),
        chunk(id="\x00"),
        chunk(id="x" * 1025),
        chunk(text=None),
        chunk(metadata=[1]),
        chunk(extra=b"bytes"),
    ],
)
def test_a_chunk_that_does_not_fit_is_named_by_position(bad: Any) -> None:
    with pytest.raises(InputError, match="chunk 1") as error:
        rows.rows_of([chunk(id="first"), bad], np.eye(2), "c", 2, "cosine")
    assert error.value.code == "invalid_chunk"


def test_vectors_beyond_float32_are_infinite_and_refused() -> None:
    with pytest.raises(InputError, match="inf at position 1"):
        rows.rows_of([chunk()], np.array([[1.0, 1e300]]), "c", 2, "cosine")


def test_a_zero_vector_is_refused_only_where_direction_counts() -> None:
    with pytest.raises(InputError, match="zeros"):
        rows.rows_of([chunk()], np.zeros((1, 2)), "c", 2, "cosine")
    assert len(rows.rows_of([chunk()], np.zeros((1, 2)), "c", 2, "l2")) == 1


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 1, 3)])
def test_vectors_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="shape") as error:
        rows.rows_of([chunk()], np.ones(shape), "c", 3, "cosine")
    assert error.value.code == "invalid_vector"


def test_another_dimension_carries_both_numbers() -> None:
    with pytest.raises(InputError) as error:
        rows.rows_of([chunk()], np.ones((1, 4)), "c", 3, "cosine")
    assert error.value.code == "dimension_mismatch"
    assert (error.value.fields["expected"], error.value.fields["given"]) == (3, 4)


@pytest.mark.parametrize("value", [None, [], {"chunks": []}, {"chunks": "x", "vectors": 1}])
def test_what_is_no_embedding_output_is_refused(value: Any) -> None:
    with pytest.raises(InputError):
        rows.embedded_parts(value)
