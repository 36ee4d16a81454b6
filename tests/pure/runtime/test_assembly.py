"""An output put together from borrowed and computed items is the one of the whole list."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from herasys_rt.core.commands import SharedItems
from herasys_rt.core.values import Value
from herasys_rt.errors import InternalError, NodeError, ValueLostError
from herasys_rt.graph import codec
from herasys_rt.runtime.assembly import Assembly
from herasys_rt.runtime.objects import InlineValues

VALUES = InlineValues()
LOST = Value(b"lost", 1 << 20, place="value-1")


def lent(content: Any) -> Value:
    return VALUES.pack(codec.encode(content))


def rows(*numbers: float, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.array([[n, n + 0.5] for n in numbers], dtype=dtype)


def assembly(
    count: int, *borrowed: tuple[int, int, int], lenders: tuple[Value, ...] = ()
) -> Assembly:
    return Assembly(SharedItems(count, lenders, borrowed), VALUES)


def same(left: Any, right: Any) -> bool:
    return codec.encode(left) == codec.encode(right)


def test_rows_come_from_lenders_from_the_same_list_and_from_the_engine():
    lenders = (lent(rows(1, 2, 3)), lent(rows(8, 9)))
    made = assembly(5, (0, 0, 2), (2, 1, 0), (4, -1, 1), lenders=lenders)
    args = made.lacking({"text": ["3", "x", "8", "y", "x"], "kind": "query"}, "text")
    assert args == {"text": ["x", "y"], "kind": "query"}
    assert same(made.whole(rows(20, 30)), rows(3, 20, 8, 30, 20))
    assert made.shared == 3


def test_an_output_that_is_all_there_needs_no_engine():
    made = assembly(3, (0, 0, 1), (1, 0, 0), (2, -1, 0), lenders=(lent(rows(1, 2)),))
    assert made.missing == []
    assert same(made.whole(None), rows(2, 1, 2))


def test_an_output_of_which_nothing_is_there_is_the_engines():
    computed = rows(1, 2)
    assert assembly(2).whole(computed) is computed


def test_lists_are_put_together_with_whatever_they_hold():
    odd = ["é", None, {"n": math.nan}, [1.0, -0.0]]
    made = assembly(5, (1, 0, 0), (2, 0, 2), (4, 0, 3), lenders=(lent(odd),))
    whole = made.whole(["new", b"bytes"])
    assert same(whole, ["new", "é", {"n": math.nan}, b"bytes", [1.0, -0.0]])


def test_flat_arrays_keep_their_type():
    flat = np.array([1, 2], dtype=np.int16)
    made = assembly(3, (0, 0, 1), (2, 0, 0), lenders=(lent(flat),))
    whole = made.whole(np.array([7], dtype=np.int16))
    assert same(whole, np.array([2, 7, 1], dtype=np.int16))


def test_items_of_a_value_that_was_lost_are_computed():
    made = assembly(3, (0, 0, 0), (1, 1, 0), (2, -1, 0), lenders=(LOST, lent(rows(5))))
    assert made.missing == [0] and made.shared == 2
    assert same(made.whole(rows(4)), rows(4, 5, 4))


def test_of_a_value_that_is_gone_for_good_it_is_told():
    class Gone(InlineValues):
        def unpack(self, value: Value) -> bytes:
            if value.place == "gone":
                raise ValueLostError("it is gone", place=value.place)
            return super().unpack(value)

    gone = Value(b"gone", 1 << 20, place="gone")
    shared = SharedItems(2, (gone, LOST), ((0, 0, 0), (1, 1, 0)))
    made = Assembly(shared, Gone())
    assert (made.missing, made.lost) == ([0, 1], ["gone"])


@pytest.mark.parametrize(
    "computed",
    [rows(1), rows(1, 2, 3), "ab", {"a": 1, "b": 2}, None, [[1.0, 1.5], [2.0, 2.5]]],
)
def test_an_engine_that_gives_no_item_for_an_item_is_told_so(computed):
    made = assembly(3, (0, 0, 0), lenders=(lent(rows(9)),))
    with pytest.raises(NodeError, match="one item per item") as caught:
        made.whole(computed)
    assert caught.value.code == "not_aligned"


def test_rows_of_another_shape_or_type_are_not_mixed():
    for other in (rows(1, dtype="float64"), np.ones((1, 3), dtype=np.float32)):
        with pytest.raises(NodeError, match="shapes or types"):
            assembly(2, (0, 0, 0), lenders=(lent(rows(9)),)).whole(other)


def test_another_list_than_was_told_is_refused():
    with pytest.raises(InternalError, match="2 items"):
        assembly(2).lacking({"text": ["a"]}, "text")
