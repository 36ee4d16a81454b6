"""GPUs by name: what a data sheet says of them."""

from __future__ import annotations

import msgspec

from herasys_rt.costs.names import named


class Gpu(msgspec.Struct, frozen=True):
    """One accelerator.

    ``bf16_flops`` are dense bf16 operations a second, ``memory_bytes_s`` what its memory
    moves, ``memory_bytes`` what it holds (decimal, as sold). ``link_bytes_s`` is what one
    GPU sends to another of its host in one direction, ``network_bytes_s`` to one of
    another host.
    """

    name: str
    bf16_flops: float
    memory_bytes_s: float
    memory_bytes: int
    link_bytes_s: float
    network_bytes_s: float


GPUS: tuple[Gpu, ...] = (
    Gpu("a100-80g", 312e12, 2.039e12, 80_000_000_000, 300e9, 25e9),
    Gpu("h100", 989e12, 3.35e12, 80_000_000_000, 450e9, 50e9),
    Gpu("h200", 989e12, 4.80e12, 141_000_000_000, 450e9, 50e9),
    Gpu("h20", 148e12, 4.0e12, 96_000_000_000, 450e9, 50e9),
    # No NVLink: peers speak over PCIe 4.0, as does the network card.
    Gpu("rtx-4090", 165e12, 1.008e12, 24_000_000_000, 32e9, 32e9),
)
"""SXM boards, and the consumer card of HeraSys's testbed. Another one is one more line."""

_ALIASES = {
    "a100": "a100-80g",
    "a100-sxm": "a100-80g",
    "a100-80gb": "a100-80g",
    "h100-sxm": "h100",
    "h200-sxm": "h200",
    "h20-sxm": "h20",
    "4090": "rtx-4090",
    "rtx4090": "rtx-4090",
}


def gpu(name: str) -> Gpu:
    """The GPU of a name; case and ``_`` for ``-`` do not matter.

    Errors: `ConfigError` that lists the known ones.
    """
    return named("GPU", name, GPUS, _ALIASES)
