import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.core.heap import IndexedHeap

OPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "remove", "pop"]),
        st.integers(0, 8),
        st.integers(-1, 1),
        st.sampled_from([0.0, 0.5, 1.0]),
    ),
    max_size=80,
)


@given(OPS)
def test_heap_pops_in_total_order_whatever_was_updated_or_removed(
    ops: list[tuple[str, int, int, float]],
) -> None:
    heap, model = IndexedHeap(), dict[int, tuple[int, float, int]]()
    for arrival, (op, item, priority, key) in enumerate(ops):
        if op == "push":
            model[item] = (priority, key, arrival)
            heap.push(item, model[item])
        elif op == "remove" and item in model:
            del model[item]
            heap.remove(item)
        elif op == "pop" and model:
            best = min(model, key=lambda i: (model[i], i))
            del model[best]
            assert heap.pop() == best
        assert heap.fault() is None
        assert len(heap) == len(model) and all(i in heap for i in model)
        first = heap.first()
        best = min(model, key=lambda i: (model[i], i)) if model else None
        assert first == (None if best is None else (*model[best], best))


def test_equal_ranks_go_by_item() -> None:
    heap = IndexedHeap()
    for item in (3, 1, 2):
        heap.push(item, (0, 1.0, 0))
    assert [heap.pop() for _ in range(3)] == [1, 2, 3]


def test_removing_what_is_not_here_is_an_error() -> None:
    with pytest.raises(KeyError):
        IndexedHeap().remove(1)
    with pytest.raises(IndexError):
        IndexedHeap().pop()


def test_updating_one_item_ten_thousand_times_keeps_the_heap_small() -> None:
    heap, random_ = IndexedHeap(), random.Random(1)
    for item in range(10):
        heap.push(item, (0, 0.0, item))
    for _ in range(10_000):
        heap.update(random_.randrange(10), (0, random_.random(), 0))
    assert len(heap._entries) < 100  # pyright: ignore[reportPrivateUsage]


def test_a_broken_heap_says_so() -> None:
    heap = IndexedHeap()
    for item in range(3):
        heap.push(item, (0, float(item), 0))
    heap._entries.reverse()  # pyright: ignore[reportPrivateUsage]
    assert heap.fault() is not None
