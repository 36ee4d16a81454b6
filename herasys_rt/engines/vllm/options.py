"""What a vLLM pool may say under ``options``, and what vLLM is told because of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pydantic

from herasys_rt.config import PoolConfig
from herasys_rt.engines.models import ResolvedModel
from herasys_rt.engines.options import EngineOptions

log = logging.getLogger(__name__)

_DEFAULT_CONTEXT = 2048
OWNER_VARIABLE = "_HERASYS_OWNER_PID"
"""Environment variable by which engine processes know whose death ends them."""


class VllmOptions(EngineOptions):
    """Options of a pool with ``engine: vllm``; None takes the device's own default.

    ``backend`` ``auto`` steps vLLM in this process on a CPU and uses `AsyncLLM` with its
    engine process on a GPU. ``kv_cache_memory_mb`` fixes the KV cache (CPU default 256);
    on a GPU ``gpu_memory_utilization`` sizes it otherwise. ``threads`` are the OMP
    threads of a CPU engine: two that spin on busy cores are slower than one.
    """

    backend: Literal["auto", "inprocess", "async"] = "auto"
    max_model_len: int = pydantic.Field(default=_DEFAULT_CONTEXT, ge=8)
    kv_cache_memory_mb: int | None = pydantic.Field(default=None, ge=1)
    dtype: Literal["bfloat16", "float16", "float32", "auto"] = "bfloat16"
    block_size: int | None = pydantic.Field(default=None, ge=1)
    enforce_eager: bool | None = None
    gpu_memory_utilization: float = pydantic.Field(default=0.9, gt=0, le=1)
    tensor_parallel_size: int = pydantic.Field(default=1, ge=1)
    max_num_batched_tokens: int | None = pydantic.Field(default=None, ge=1)
    enable_prefix_caching: bool = True
    threads: int = pydantic.Field(default=1, ge=1)


def context_tokens(options: VllmOptions, model: ResolvedModel) -> int:
    """Tokens of prompt and completion together: as asked for, and where nothing was
    asked for no more than the model can."""
    asked = "max_model_len" in options.model_fields_set
    if asked or model.context_tokens is None:
        return options.max_model_len
    return min(options.max_model_len, model.context_tokens)


def set_environment(options: VllmOptions) -> None:
    """Tell vLLM and torch what they only read from the environment, before import.

    Without multiprocessing both back ends use one process fewer: the in-process engine
    none at all, `AsyncLLM` a single one that is engine core and worker.
    """
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ[OWNER_VARIABLE] = str(os.getpid())
    for name, value in (
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_LOGGING_LEVEL", "ERROR"),
        ("VLLM_LOGGING_STREAM", "ext://sys.stderr"),
        ("VLLM_WORKER_MULTIPROC_METHOD", "spawn"),
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        os.environ.setdefault(name, value)


def forbid_compiling() -> None:
    """Run eagerly altogether. vLLM compiles parts of its sampler even when told to be
    eager: the first log-probability asked for would hold up every request for a minute
    on a CPU."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"


def engine_args(
    pool: PoolConfig, model: ResolvedModel, options: VllmOptions, *, cpu: bool
) -> dict[str, Any]:
    """Keyword arguments of vLLM's `EngineArgs` and `AsyncEngineArgs`."""
    args: dict[str, Any] = {
        "model": model.path,
        "max_model_len": context_tokens(options, model),
        "max_num_seqs": pool.slots,
        "dtype": options.dtype,
        "enable_prefix_caching": options.enable_prefix_caching,
        "tensor_parallel_size": options.tensor_parallel_size,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "generation_config": "vllm",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "seed": 0,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        # llguidance holds a model to every rule of a schema; compact JSON cannot be spun
        # out with blanks.
        "structured_outputs_config": {
            "backend": "guidance",
            "disable_any_whitespace": True,
        },
        "enforce_eager": cpu if options.enforce_eager is None else options.enforce_eager,
    }
    cache_mb = options.kv_cache_memory_mb or (256 if cpu else None)
    block_size = options.block_size or (32 if cpu else None)
    if cache_mb is not None:
        args["kv_cache_memory_bytes"] = cache_mb * 1024 * 1024
    if block_size is not None:
        args["block_size"] = block_size
    return args


def inspect_once(model: ResolvedModel) -> None:
    """Let vLLM inspect a model's class, which takes some 10 s and is cached by vLLM.

    Only makes a later start faster, so what goes wrong is logged and no more.
    """
    options = VllmOptions()
    set_environment(options)
    pool = PoolConfig(name="inspect", resource="llm", engine="vllm", model=model.name)
    try:
        with quick_start():
            from vllm.engine.arg_utils import EngineArgs
            from vllm.platforms import current_platform

            args = engine_args(pool, model, options, cpu=current_platform.is_cpu())
            EngineArgs(**args).create_engine_config()
    except Exception as e:
        log.warning("vLLM could not inspect %s ahead of time: %s", model.name, e)


@contextmanager
def quick_start() -> Iterator[None]:
    """Pause the garbage collector while thousands of modules load: a tenth of the time.

    Also keeps tqdm, which loaders use even when told to show nothing, from starting a
    thread that outlives them.
    """
    import gc

    import tqdm

    tqdm.tqdm.monitor_interval = 0
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
