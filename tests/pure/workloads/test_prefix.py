from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.workloads.arrivals import BLOCK_TOKENS
from herasys_rt.workloads.prefix import Context, named_blocks
from tests.pure.workloads.jobs_check import shared

TEXTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 70)), max_size=6)


def put_together(texts: list[tuple[str, int]]) -> Context:
    context = Context()
    for name, tokens in texts:
        context.add(name, tokens)
    return context


def test_only_whole_blocks_count():
    context = Context()
    assert context.add("a", 15) == ()
    assert len(context.add("b", 1)) == 1
    assert len(context.add("c", 40)) == 2
    assert (context.tokens, len(context.blocks)) == (56, 3)


def test_a_common_head_is_shared_up_to_the_last_whole_block():
    one = put_together([("head", 60), ("mine", 100)])
    other = put_together([("head", 60), ("yours", 100)])
    assert shared(one.blocks, other.blocks) == 60 // BLOCK_TOKENS


def test_a_longer_prompt_goes_on_from_a_shorter_one():
    one = put_together([("head", 60)])
    two = one.copy()
    two.add("more", 60)
    assert one.tokens == 60
    assert shared(one.blocks, two.blocks) == len(one.blocks)


def test_equal_text_after_different_text_is_another_block():
    one = put_together([("a", 16), ("same", 160)])
    other = put_together([("b", 16), ("same", 160)])
    assert not set(one.blocks) & set(other.blocks)


@given(TEXTS, TEXTS)
def test_contexts_share_as_far_as_they_are_put_together_alike(one, other):
    mine, theirs = put_together(one), put_together(other)
    alike = 0
    for (name, tokens), (its_name, its_tokens) in zip(one, other, strict=False):
        if name != its_name:
            break
        alike += min(tokens, its_tokens)
        if tokens != its_tokens:
            break
    least = alike // BLOCK_TOKENS
    count = shared(mine.blocks, theirs.blocks)
    assert count >= least if one == other else count == least
    assert not set(mine.blocks[count:]) & set(theirs.blocks[count:])


@given(TEXTS)
def test_a_context_has_a_block_for_every_sixteen_tokens(texts):
    context = put_together(texts)
    assert len(context.blocks) == context.tokens // BLOCK_TOKENS
    assert len(set(context.blocks)) == len(context.blocks)


def test_named_blocks_of_two_names_are_different():
    assert not set(named_blocks("a", 0, 100)) & set(named_blocks("b", 0, 100))
    assert list(named_blocks("a", 3, 2)) == list(named_blocks("a", 0, 5))[3:]


def test_names_may_be_any_text():
    assert len(named_blocks("é\ud800" * 1000, 0, sys.maxsize.bit_length())) == 63
