"""The small protocol over vLLM's two faces: stepped in this process, or `AsyncLLM`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from herasys_rt.engines.prompting import Sampling
from herasys_rt.engines.protocol import Snapshot
from herasys_rt.errors import ErrorInfo

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt ready for the model. ``salt`` separates the prefix cache; ``stream`` asks
    for text as it is produced rather than once at the end."""

    key: str
    token_ids: list[int]
    sampling: Sampling
    salt: str
    stream: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """News of one request: new text, made of ``tokens`` new tokens.

    ``reason`` ends it: ``stop``, ``length``, ``abort`` or ``error``; "" means it goes
    on. ``cached_tokens`` of the prompt came from the prefix cache.
    """

    key: str
    text: str = ""
    tokens: int = 0
    cached_tokens: int = 0
    reason: str = ""
    error: ErrorInfo | None = None


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

    def close(self) -> None:
        """End everything; blocks. No `receive` afterwards. Idempotent."""
        ...


def sampling_params(request: Request) -> SamplingParams:
    """vLLM's own form of the sampling parameters. Errors: vLLM's validation errors."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    s = request.sampling
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        temperature=s.temperature,
        top_p=s.top_p,
        top_k=s.top_k,
        min_p=s.min_p,
        max_tokens=s.max_tokens,
        stop=list(s.stop),
        seed=s.seed,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        repetition_penalty=s.repetition_penalty,
        output_kind=kind,
    )


def progress_of(output: RequestOutput, key: str) -> Progress:
    """The news in one of vLLM's outputs."""
    part = output.outputs[0]
    reason = (part.finish_reason or "stop") if output.finished else ""
    return Progress(
        key,
        part.text,
        len(part.token_ids),
        output.num_cached_tokens or 0,
        reason,
        failed("vLLM ended the request with an error") if reason == "error" else None,
    )


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
