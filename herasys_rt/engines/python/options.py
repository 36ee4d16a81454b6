"""What a pool with ``engine: python`` may be told."""

from __future__ import annotations

from typing import Literal

import pydantic

from herasys_rt.engines.options import EngineOptions


class PythonOptions(EngineOptions):
    """``options`` of a python pool.

    ``workers`` functions run at once (asynchronous ones do not count: they share a
    loop). ``isolate: process`` calls functions in processes of their own, which are
    killed when a call is aborted or takes too long; in a ``thread`` nothing can stop it,
    and it is left to end by itself. ``timeout_s`` bounds a call in seconds; a node's own
    timeout may be shorter. Results above ``max_result_mb`` are refused. ``tokenizer`` is
    the model whose tokens text is chunked by.
    """

    workers: int = pydantic.Field(default=4, ge=1, le=1024)
    isolate: Literal["thread", "process"] = "thread"
    timeout_s: float = pydantic.Field(default=300.0, gt=0)
    max_result_mb: float = pydantic.Field(default=64.0, gt=0)
    tokenizer: str = "all-minilm-l6-v2"
