"""The queue of a pool: priorities within a tenant, keys between tenants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.core.queue import Queue

PUSHES = st.tuples(st.sampled_from("abc"), st.integers(-2, 2), st.integers(0, 9))
STEPS = st.lists(PUSHES | st.just("serve") | st.integers(0, 30), max_size=60)
"""Flights as (tenant, priority, key); a number removes the flight that it names."""


def push(queue: Queue, flight: int, tenant: str, priority: int, key: int) -> None:
    queue.push(flight, (-priority, float(key), flight), tenant)


def serve(queue: Queue) -> tuple[int, str] | None:
    place, first = queue.place(), queue.first()
    if place is None or first is None:
        return None
    flight = first[3]
    tenant = queue.tenant(flight)
    queue.serve(flight, place[3], queue)
    return flight, tenant


@given(st.lists(PUSHES | st.just("serve"), max_size=60))
def test_tenants_are_served_in_the_same_order_with_priorities_and_without(steps):
    with_priorities, without = Queue("abc"), Queue()
    for flight, step in enumerate(steps):
        if isinstance(step, tuple):
            tenant, priority, key = step
            push(with_priorities, flight, tenant, priority, key)
            push(without, flight, tenant, 0, key)
        else:
            one, other = serve(with_priorities), serve(without)
            assert (one and one[1]) == (other and other[1])
        assert with_priorities.fault() is None


@given(STEPS)
def test_what_goes_is_the_most_urgent_of_its_tenant(steps):
    queue = Queue("abc")
    model: dict[int, tuple[str, tuple[int, float, int]]] = {}
    for flight, step in enumerate(steps):
        if isinstance(step, tuple):
            tenant, priority, key = step
            model[flight] = tenant, (-priority, float(key), flight)
            queue.push(flight, model[flight][1], tenant)
        elif isinstance(step, int):
            if model.pop(step, None) is not None:
                queue.remove(step)
        else:
            served = serve(queue)
            assert (served is None) == (not model)
            if served is not None:
                tenant, rank = model.pop(served[0])
                assert tenant == served[1]
                assert all(
                    rank <= other for whose, other in model.values() if whose == tenant
                )
        assert queue.fault() is None
        assert sorted(queue.flights()) == sorted(model)
        assert all(queue.rank(i) == rank for i, (_, rank) in model.items())


def test_a_tenant_favoured_later_keeps_what_it_has_queued():
    queue = Queue()
    push(queue, 1, "a", 0, 1)
    push(queue, 2, "b", 0, 2)
    queue.favour("a")
    push(queue, 3, "a", 5, 9)
    assert [serve(queue), serve(queue), serve(queue)] == [(3, "a"), (2, "b"), (1, "a")]
    assert serve(queue) is None and len(queue) == 0


def test_a_new_key_does_not_take_a_place_back_that_was_left():
    queue = Queue("a")
    push(queue, 1, "a", 0, 1)
    push(queue, 2, "b", 0, 2)
    push(queue, 3, "a", 5, 9)
    assert serve(queue) == (3, "a")
    queue.update(1, (0, 0.5, 1))
    assert queue.rank(1) == (0, 0.5, 1)
    assert [serve(queue), serve(queue)] == [(2, "b"), (1, "a")]
