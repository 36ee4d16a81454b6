"""The canonical codec: one value, one byte string; a closed set of value types."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import math
import struct
import uuid

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.graph import codec
from herasys_rt.graph.codec import CodecError


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


class Point(msgspec.Struct):
    x: int


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)
texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20
)


@given(values)
def test_a_value_comes_back_equal(value):
    assert codec.decode(codec.encode(value)) == value
    assert codec.frozen(value) == value


@given(values)
def test_canonical_bytes_do_not_depend_on_the_order_of_keys(value):
    def turned(part):
        if isinstance(part, dict):
            return {k: turned(part[k]) for k in reversed(list(part))}
        return [turned(p) for p in part] if isinstance(part, list) else part

    assert codec.canonical(turned(value)) == codec.canonical(value)


def test_types_and_boundaries_are_told_apart():
    different = [1, True, 1.0, "1", b"1", [1], {"1": 1}, None, ["ab", "c"], ["a", "bc"]]
    different += [["abc"], [["ab"], "c"], "", [], {}, 0, False, 0.0]
    assert len({codec.canonical(v) for v in different}) == len(different)


def test_text_enters_as_its_exact_bytes_without_normalisation():
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert codec.canonical(composed) != codec.canonical(decomposed)


def test_negative_zero_is_zero_and_every_nan_is_one_nan():
    other_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
    assert codec.canonical(-0.0) == codec.canonical(0.0)
    assert codec.canonical([other_nan]) == codec.canonical([math.nan])
    for dtype in (np.float16, np.float32, np.float64):
        left = np.array([0.0, np.nan], dtype)
        right = np.array([-0.0, -np.nan], dtype)
        assert codec.canonical(left) == codec.canonical(right)


def test_canonical_leaves_the_array_it_was_given_alone():
    array = np.array([-0.0, 1.0])
    codec.canonical(array)
    assert math.copysign(1, array[0]) == -1


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3), np.float32),
        np.array(1.5),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array([True, False]),
        np.zeros((300, 2, 1), np.float16),
        np.arange(3, dtype=">f8"),
        np.zeros((70_000, 1), np.uint8),
    ],
)
def test_an_array_comes_back_with_its_shape_and_numbers_read_only(array):
    back = codec.decode(codec.encode(array))
    assert back.shape == array.shape
    assert np.array_equal(back, array)
    assert not back.flags.writeable


def test_arrays_of_other_shape_or_dtype_differ():
    flat = np.zeros(4, np.float32)
    others = [flat.reshape(2, 2), flat.astype(np.float64), flat.astype(np.int32), flat[:3]]
    encoded = {codec.canonical(a) for a in [flat, *others]}
    assert len(encoded) == 5


def test_numpy_scalars_and_tuples_are_plain_values():
    given_values = (np.float32(0.5), np.int64(3), np.bool_(True), np.str_("a"))
    assert codec.canonical(given_values) == codec.canonical([0.5, 3, True, "a"])


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        frozenset("a"),
        datetime.datetime(2020, 1, 1),
        datetime.timedelta(1),
        uuid.UUID(int=1),
        decimal.Decimal("1.5"),
        Colour.RED,
        Level.LOW,
        Text("a"),
        Point(1),
        collections.OrderedDict(a=1),
        collections.defaultdict(int),
        bytearray(b"a"),
        object(),
        1j,
        {1: "a"},
        2**64,
        -(2**63) - 1,
        "\ud800",
        {"\ud800": 1},
        np.array(["a"]),
        np.array([object()]),
        np.datetime64("2020-01-01"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_canonical_names_what_is_outside_the_closed_set(value):
    for closed in (codec.canonical, codec.frozen):
        with pytest.raises(CodecError, match=r"value\.deep\[1\]") as caught:
            closed({"deep": ["fine", value]})
        assert caught.value.hint


def test_a_value_that_holds_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(CodecError, match="nested too deeply"):
        codec.canonical(loop)


def test_a_frozen_copy_does_not_see_later_changes():
    original = {"a": [1, np.zeros(2)]}
    copy = codec.frozen(original)
    original["a"][1][0] = 9
    original["a"].append(2)
    assert len(copy["a"]) == 2
    assert copy["a"][1][0] == 0


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x92\x01", b"\xc7\x02\x05ab", b"\xd4\x01\x92"]
)
def test_bytes_that_are_no_value_are_refused(data):
    with pytest.raises(CodecError) as caught:
        codec.decode(data)
    assert caught.value.hint


def test_an_array_of_texts_is_refused_with_a_next_step():
    with pytest.raises(CodecError, match="dtype <U1 cannot be encoded") as caught:
        codec.encode(np.array(["a"]))
    assert caught.value.hint


def test_encode_names_a_lone_surrogate():
    with pytest.raises(CodecError, match=r"value\.q holds a lone surrogate"):
        codec.encode({"q": "\udfff"})
