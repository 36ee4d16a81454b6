"""Digests of values: those of their canonical bytes, whatever hash and however large."""

from __future__ import annotations

import hashlib
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from herasys_rt.graph import codec
from herasys_rt.graph.codec import CodecError
from herasys_rt.graph.hashing import HASHES, SHA256, XXH3, Hash

BOTH = pytest.mark.parametrize("hashing", list(HASHES.values()), ids=list(HASHES))
BIG = 70_000
MIB = 1 << 20

texts = st.text(st.characters(exclude_categories=["Cs"]))
dtypes = st.sampled_from(["<f2", "<f4", ">f8", "<i4", ">u2", "|b1", "|u1"])
arrays = st.builds(
    lambda dtype, shape, fill: np.full(shape, fill, dtype),
    dtypes,
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([0, 1]),
)
floats = st.floats() | st.sampled_from([0.0, -0.0, math.nan, -math.nan])
large = st.one_of(
    texts.filter(bool).map(lambda t: t * BIG),
    st.binary(min_size=1, max_size=3).map(lambda b: b * BIG),
    st.builds(lambda d, n: (np.arange(BIG + n) % 100).astype(d), dtypes, st.integers(0, 2)),
    st.sampled_from([-0.0, 0.0, math.nan]).map(lambda f: np.full((BIG, 2), f, "<f4").T),
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-1, 1)
    | floats
    | texts
    | st.binary()
    | arrays
)


def nested(leaves: Any, most: int) -> Any:
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(texts, inner, max_size=20)
        ),
        max_leaves=most,
    )


values = nested(scalars, 12)
close = nested(  # so few that many pairs are equal
    st.sampled_from([None, 0, 1, False, True, 0.0, -0.0, 1.0, math.nan, "", "1", b""]), 3
)
large_values = nested(scalars | large, 5)


def same(left: Any, right: Any) -> bool:
    """Whether two values are one, by rules written down apart from the codec's."""
    if isinstance(left, list | tuple):
        return (
            isinstance(right, list | tuple)
            and len(left) == len(right)
            and all(map(same, left, right))
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, np.ndarray):
        little = left.dtype.newbyteorder("<") == right.dtype.newbyteorder("<")
        equal_nan = left.dtype.kind == "f"
        return little and np.array_equal(left, right, equal_nan=equal_nan)
    if isinstance(left, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return left == right


@given(values, values)
def test_digests_of_any_two_values_tell_whether_they_are_one(left, right):
    for hashing in (SHA256, XXH3):
        assert (hashing.of(left) == hashing.of(right)) == same(left, right)


@settings(max_examples=500)
@given(close, close)
def test_digests_are_equal_when_and_only_when_values_are(left, right):
    for hashing in (SHA256, XXH3):
        assert (hashing.of(left) == hashing.of(right)) == same(left, right)


@given(values)
def test_a_value_that_travelled_has_the_digest_it_had(value):
    for hashing in (SHA256, XXH3):
        assert hashing.of(codec.decode(codec.encode(value))) == hashing.of(value)


@given(large_values)
def test_hashing_in_place_is_hashing_the_canonical_bytes(value):
    data = codec.canonical(value)
    assert SHA256.of(value) == hashlib.sha256(data).digest()
    assert XXH3.of(value) == xxhash.xxh3_128_digest(data)


CONFUSABLE = [
    1,
    True,
    1.0,
    "1",
    b"1",
    [1],
    [[1]],
    [1, []],
    {"1": 1},
    None,
    "",
    [],
    {},
    [None],
    0,
    False,
    0.0,
    ["ab", "c"],
    ["a", "bc"],
    [["a"], "bc"],
    ["abc"],
    {"a": {"b": 1}},
    {"a": {}, "b": 1},
    "caf\u00e9",
    "cafe\u0301",
    math.nan,
    math.inf,
    np.array(1.0),
    np.array([1.0]),
    np.array([[1.0]]),
    np.array([1], np.int64),
    np.array([True]),
]


@BOTH
def test_what_is_easily_confused_is_told_apart(hashing: Hash):
    assert len({hashing.of(value) for value in CONFUSABLE}) == len(CONFUSABLE)


@BOTH
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (-0.0, 0.0),
        (math.nan, -math.nan),
        ((1, (2,)), [1, [2]]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.float32(1.5), 1.5),
        (np.array([1, 2], ">i4"), np.array([1, 2], "<i4")),
        (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T.copy()),
        (np.full(BIG, -0.0), np.zeros(BIG)),
        (np.full(BIG, np.nan, np.float32), np.full(BIG, -np.nan, np.float32)),
    ],
)
def test_what_is_equal_has_one_digest(hashing: Hash, left: Any, right: Any):
    assert hashing.of(left) == hashing.of(right)


@BOTH
@pytest.mark.parametrize("filler", ["", "x" * BIG], ids=["small", "large"])
@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("\ud800", "lone surrogate"),
        ({"\udfff": 1}, "lone surrogate"),
        ({1}, "set"),
        ({1: 2}, "keys must be strings"),
        (2**64, "beyond 64 bits"),
        (np.array(["a"]), "dtype"),
        (np.zeros(2, np.longdouble), "dtype"),
        (np.zeros(BIG, np.complex64), "dtype"),
        (object(), "object"),
    ],
    ids=lambda part: part if isinstance(part, str) and part.isascii() else "value",
)
def test_what_is_no_value_is_refused_by_name(
    hashing: Hash, filler: str, value: Any, fault: str
):
    with pytest.raises(CodecError, match=fault) as caught:
        hashing.of({"text": filler, "field": [value]})
    assert "field[0]" in str(caught.value)


@BOTH
def test_a_value_that_holds_itself_is_refused(hashing: Hash):
    circle: list[Any] = ["x" * BIG]
    circle.append(circle)
    with pytest.raises(CodecError, match="holds itself"):
        hashing.of(circle)


@BOTH
@pytest.mark.parametrize(
    "value",
    [
        b"x" * (8 * MIB),
        "x" * (8 * MIB),
        "\u00e9" * (4 * MIB),
        np.ones(2 * MIB, np.float32),
        {"chunks": ["a"], "vectors": np.ones((MIB, 2), np.float32)},
    ],
    ids=["bytes", "ascii", "text", "array", "embedded"],
)
def test_a_large_value_is_hashed_without_a_copy(hashing: Hash, value: Any):
    tracemalloc.start()
    try:
        hashing.of(value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * MIB


def test_hashing_leaves_an_array_as_it_was():
    array = np.full(BIG, -0.0)
    SHA256.of(array)
    assert np.signbit(array).all()
