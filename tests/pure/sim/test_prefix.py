"""KV memory: never above capacity, prompts' heads found again, the oldest let go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.sim.prefix import Hold, KvMemory
from herasys_rt.workloads.arrivals import BLOCK_TOKENS

B = BLOCK_TOKENS


def admitted(memory: KvMemory, prompt: int, output: int, blocks: tuple[int, ...]) -> Hold:
    hold = memory.admit(prompt, output, blocks)
    assert hold is not None
    return hold


def test_a_prompt_finds_what_another_has_computed() -> None:
    memory = KvMemory(100 * B)
    first = admitted(memory, 3 * B + 1, 5, (1, 2, 3))
    assert first.cached == 0
    assert memory.cached_tokens(3 * B + 1, (1, 2, 9)) == 0  # not computed yet
    memory.fill(first, 3 * B + 1, (1, 2, 3))
    assert memory.cached_tokens(3 * B + 1, (1, 2, 9)) == 2 * B
    second = admitted(memory, 3 * B, 5, (1, 2, 3))
    assert second.cached == 2 * B  # the last token is always computed
    memory.release(first)
    memory.release(second)
    assert memory.held == 0
    assert memory.used == 3 * B


def test_sequences_hold_shared_blocks_once() -> None:
    memory = KvMemory(10 * B)
    first = admitted(memory, 4 * B, B, (1, 2, 3, 4))
    memory.fill(first, 4 * B, (1, 2, 3, 4))
    second = admitted(memory, 4 * B, B, (1, 2, 3, 4))
    assert memory.held == 4 * B + B + (4 * B + B - 3 * B)
    assert (first.private, second.private) == (B, 2 * B)


def test_a_twin_that_computed_the_same_keeps_its_copy_to_itself() -> None:
    memory = KvMemory(10 * B)
    holds = [admitted(memory, 2 * B, 0, (1, 2)) for _ in range(2)]
    for hold in holds:
        memory.fill(hold, 2 * B, (1, 2))
    assert memory.held == 4 * B
    for hold in holds:
        memory.release(hold)
    assert (memory.held, memory.used) == (0, 2 * B)


def test_the_least_recently_used_block_makes_room_and_of_one_prompt_its_last() -> None:
    memory = KvMemory(4 * B)
    for blocks in ((1, 2), (3, 4)):
        hold = admitted(memory, 2 * B, 0, blocks)
        memory.fill(hold, 2 * B, blocks)
        memory.release(hold)
    assert memory.used == 4 * B
    memory.release(admitted(memory, B, 0, ()))
    assert memory.cached_tokens(3 * B, (1, 2)) == B
    assert memory.cached_tokens(3 * B, (3, 4)) == 2 * B


def test_what_an_output_filled_is_found_by_the_next_turn() -> None:
    memory = KvMemory(10 * B)
    hold = admitted(memory, B, 2 * B, (1,))
    memory.fill(hold, B, (1,))
    memory.release(hold, produced=(2, 3))
    assert memory.cached_tokens(4 * B, (1, 2, 3, 4)) == 3 * B


def test_nothing_is_found_again_without_sharing() -> None:
    memory = KvMemory(10 * B, sharing=False)
    hold = admitted(memory, 2 * B, 0, (1, 2))
    memory.fill(hold, 2 * B, (1, 2))
    memory.release(hold, produced=(3,))
    assert memory.cached_tokens(5 * B, (1, 2)) == 0
    assert memory.used == 0


def test_who_does_not_fit_beside_the_others_is_not_admitted() -> None:
    memory = KvMemory(10 * B)
    hold = admitted(memory, 6 * B, 0, ())
    assert memory.admit(4 * B, 1, ()) is None
    assert memory.held == 6 * B
    memory.release(hold)
    assert memory.admit(4 * B, 1, ()) is not None


prompts = st.tuples(st.integers(1, 80), st.integers(0, 40), st.integers(0, 3))


@given(st.integers(1, 8), st.lists(st.tuples(st.booleans(), prompts), max_size=60))
def test_use_is_exact_and_never_above_capacity(
    blocks: int, moves: list[tuple[bool, tuple[int, int, int]]]
) -> None:
    memory = KvMemory(blocks * B)
    held: list[tuple[Hold, int, tuple[int, ...]]] = []
    for leaves, (prompt, output, family) in moves:
        if leaves and held:
            hold, _, _ = held.pop(0)
            filled = (family * 1000 + 900,)
            memory.release(hold, produced=filled)
        else:
            ids = tuple(family * 1000 + i for i in range(prompt // B))
            hold = memory.admit(prompt, output, ids)
            if hold is None:
                continue
            memory.fill(hold, prompt, ids)
            held.append((hold, prompt + output, ids))
        assert memory.used <= memory.capacity
        assert memory.private == sum(hold.private for hold, _, _ in held)
        pinned = {block for hold, _, _ in held for block in hold.blocks}
        assert memory.pinned == len(pinned)
    for hold, _, _ in held:
        memory.release(hold)
    assert (memory.private, memory.pinned) == (0, 0)
