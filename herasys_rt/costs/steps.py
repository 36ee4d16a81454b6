"""How long the iterations of one LLM instance take: the protocol every back end keeps."""

from __future__ import annotations

from typing import Protocol


class StepTimes(Protocol):
    """Step times of one LLM instance, in seconds.

    Pure and deterministic, at least 0, and non-decreasing in each argument. Arguments are
    counts, at least 0; a step over nothing takes no time.
    """

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens whose keys and values fit beside the weights at 0.9 of the memory."""
        ...

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that a token's keys and values take on the wire: each head once."""
        ...

    def prefill_s(self, new: int, cached: int = 0) -> float:
        """One prompt alone: ``new`` tokens computed behind ``cached`` ones held already."""
        ...

    def decode_s(self, batch: int, context: int) -> float:
        """One iteration over ``batch`` sequences whose contexts sum to ``context``."""
        ...

    def mixed_s(self, prefill: int, attended: int, batch: int, context: int) -> float:
        """One iteration of continuous batching with chunked prefill.

        ``prefill`` prompt tokens are computed beside ``batch`` decoding sequences whose
        contexts sum to ``context``. ``attended`` is the work of the chunks' attention in
        pairs of tokens: ``n * (cached + n // 2)`` summed over the chunks of ``n`` tokens
        behind ``cached`` earlier ones (`attended_pairs`). Without prefill it is
        `decode_s`; with one chunk and no batch it is `prefill_s`.
        """
        ...


def attended_pairs(new: int, cached: int = 0) -> int:
    """Pairs of tokens that a causal chunk of ``new`` tokens attends over."""
    return new * cached + new * new // 2
