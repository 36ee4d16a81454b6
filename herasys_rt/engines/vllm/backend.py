"""The small protocol over vLLM's two faces: stepped in this process, or `AsyncLLM`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from herasys_rt.engines.prompting import Sampling
from herasys_rt.engines.protocol import Snapshot
from herasys_rt.engines.structured import AnswerForm, Part
from herasys_rt.errors import ErrorInfo

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt ready for the model. ``form`` says how many answers and what holds them to
    a form. ``salt`` separates the prefix cache; ``stream`` asks for text as it is
    produced rather than once at the end."""

    key: str
    token_ids: list[int]
    sampling: Sampling
    form: AnswerForm
    salt: str
    stream: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """News of one request: new text of a streaming one, made of ``tokens`` new tokens.

    ``reason`` ends it: ``stop``, ``length``, ``abort`` or ``error``; "" means it goes
    on. ``parts`` are the whole answers of a request that does not stream, in order.
    ``cached_tokens`` of the prompt came from the prefix cache.
    """

    key: str
    text: str = ""
    tokens: int = 0
    cached_tokens: int = 0
    reason: str = ""
    error: ErrorInfo | None = None
    parts: tuple[Part, ...] = ()


def limits_of(config: Any) -> dict[str, int]:
    """`Backend.limits` of a `VllmConfig` whose engine has started."""
    cache = config.cache_config
    return {
        "kv_capacity_tokens": int((cache.num_gpu_blocks or 0) * cache.block_size),
        "max_num_batched_tokens": int(config.scheduler_config.max_num_batched_tokens),
    }


IMPOSSIBLE = -9999.0
"""The log-probability told of a token that could not have been."""

Receive = Callable[[Sequence[Progress]], None]
"""Takes news from the back end's own thread; must return soon."""


class Backend(Protocol):
    """A running vLLM. `add` and `abort` keep their order and may be called from any
    thread; every added request ends with exactly one `Progress` that has a reason."""

    def start(self, receive: Receive) -> Any:
        """Load; blocks. Returns the model's tokenizer. Errors: whatever vLLM raises."""
        ...

    def add(self, request: Request) -> None:
        """Take a request; returns at once."""
        ...

    def abort(self, key: str) -> None:
        """End a request early; unknown keys are ignored. Returns at once."""
        ...

    def snapshot(self) -> Snapshot:
        """Requests running and waiting inside vLLM, and what killed it if it is dead."""
        ...

    def limits(self) -> dict[str, int]:
        """``kv_capacity_tokens`` of its KV cache and ``max_num_batched_tokens`` of one
        iteration, once started."""
        ...

    def close(self) -> None:
        """End everything; blocks. No `receive` afterwards. Idempotent."""
        ...


def sampling_params(request: Request) -> SamplingParams:
    """vLLM's own form of the sampling parameters. Errors: vLLM's validation errors."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    s, form = request.sampling, request.form
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        n=form.drawn(s.temperature),
        logprobs=form.logprobs,
        structured_outputs=_guidance(form),
        temperature=s.temperature,
        top_p=s.top_p,
        top_k=s.top_k,
        min_p=s.min_p,
        max_tokens=s.max_tokens,
        min_tokens=s.min_tokens,
        stop=list(s.stop),
        seed=s.seed,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        repetition_penalty=s.repetition_penalty,
        output_kind=kind,
    )


def _guidance(form: AnswerForm) -> StructuredOutputsParams | None:
    """What holds the model to the form while it decodes."""
    from vllm.sampling_params import StructuredOutputsParams

    if form.choices is not None:
        return StructuredOutputsParams(choice=[*form.choices])
    if form.schema is not None:
        return StructuredOutputsParams(json=form.guiding_schema)
    return None


def progress_of(output: RequestOutput, request: Request) -> Progress:
    """The news in one of vLLM's outputs."""
    last = output.outputs[-1]
    ends = [part.finish_reason or "stop" for part in output.outputs]
    reason = "" if not output.finished else "error" if "error" in ends else ends[-1]
    return Progress(
        request.key,
        text=last.text if request.stream else "",
        tokens=len(last.token_ids) if request.stream else 0,
        cached_tokens=output.num_cached_tokens or 0,
        reason=reason,
        error=failed("vLLM ended the request with an error") if reason == "error" else None,
        parts=() if request.stream else _parts(output.outputs, request.form.logprobs),
    )


def _parts(answers: Sequence[CompletionOutput], top: int | None) -> tuple[Part, ...]:
    return tuple(
        Part(
            answer.text,
            len(answer.token_ids),
            cut=answer.finish_reason == "length",
            logprobs=[] if top is None else _logprobs(answer, top),
        )
        for answer in answers
    )


def _logprobs(answer: CompletionOutput, most: int) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    tokens: Any = zip(answer.token_ids, answer.logprobs or (), strict=False)
    for token_id, found in tokens:
        ranked = sorted(found.items(), key=lambda pair: (-pair[1].logprob, pair[0]))
        top = [_token(entry) for _, entry in ranked[:most]]
        told.append(_token(found[token_id]) | {"top": top})
    return told


def _token(entry: Any) -> dict[str, Any]:
    """A token with its log-probability; one that was impossible gets the least finite."""
    logprob = entry.logprob if math.isfinite(entry.logprob) else IMPOSSIBLE
    return {"token": entry.decoded_token or "", "logprob": float(logprob)}


def failed(problem: str) -> ErrorInfo:
    """The error of work that a sound engine would have done: worth another attempt."""
    return ErrorInfo(
        "engine_failed",
        problem,
        "The work is repeated on another instance; see the engine's log for the cause.",
        retryable=True,
    )


def refused(error: Exception) -> ErrorInfo:
    """The error of a request that vLLM would not take."""
    return ErrorInfo(
        "request_refused",
        f"vLLM refused the request: {error}",
        "Correct the sampling parameters or the prompt.",
    )
