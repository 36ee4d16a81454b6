"""Every error a user can meet, as one tree.

HerasysError
├── UsageError            the request itself is wrong; nothing ran (CLI exit status 2)
│   ├── GraphError            faults of a workflow, all of them at once
│   ├── InputError            inputs of a run do not fit the workflow
│   ├── ConfigError           the configuration file or an override is wrong
│   ├── UnknownModelError     a model name no alias, pool or path answers to
│   └── WorkflowNotFoundError FILE.py:NAME names nothing that can run
├── RunError              a run started and did not succeed (CLI exit status 1)
│   ├── NodeError             one operator failed
│   │   └── PromptTooLongError    prompt + max_tokens exceed the context
│   ├── FrontendLostError     the process that executed its agent is gone
│   ├── RunCancelledError     somebody cancelled it
│   └── ResultTimeoutError    the caller's patience ended; the run goes on
├── OverloadedError       the bounded queue is full; says when to retry
├── EnvironmentFaultError something around us is missing or broken
│   ├── DatabaseUnreachableError
│   ├── ModelUnavailableError
│   ├── ValueLostError        Ray's object store has lost a large value
│   ├── ClusterError          Ray: cannot start, cannot join, selector unsatisfiable
│   └── RuntimeStateError     runtime already up, not up, or gone
└── InternalError         a broken invariant: our fault, carries the story

Each error has a stable ``code``, a ``message`` (what failed and why) and a ``hint``
(what to do next). All of them survive pickling with their cause, and travel between
processes as `ErrorInfo`.
"""

from __future__ import annotations

from typing import Any

import msgspec


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error as a value: what crosses process borders and enters any JSON."""

    code: str
    message: str
    hint: str = ""
    retryable: bool = False

    def to_json(self) -> dict[str, str]:
        """The three public fields, as `--json` prints them."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class HerasysError(Exception):
    """Root of the tree. ``fields`` hold the facts; prose is made from them."""

    code: str = "error"
    retryable: bool = False

    def __init__(
        self, message: str, *, hint: str = "", code: str = "", **fields: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields = fields
        if code:
            self.code = code
        if hint:
            # A traceback shows it under the message: who calls from Python needs it too.
            self.add_note(f"hint: {hint}")

    def info(self) -> ErrorInfo:
        """The error as a value."""
        return ErrorInfo(self.code, self.message, self.hint, self.retryable)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            _rebuild,
            (
                type(self),
                self.message,
                self.hint,
                self.code,
                self.fields,
                self.retryable,
                self.__cause__,
            ),
        )


def _rebuild(
    cls: type[HerasysError],
    message: str,
    hint: str,
    code: str,
    fields: dict[str, Any],
    retryable: bool,
    cause: BaseException | None,
) -> HerasysError:
    error = cls.__new__(cls)
    HerasysError.__init__(error, message, hint=hint, code=code, **fields)
    error.retryable = retryable
    error.__cause__ = cause
    return error


class UsageError(HerasysError):
    """The request is wrong and nothing ran."""

    code = "usage"


class Fault(msgspec.Struct, frozen=True):
    """One fault of a graph: where it is, what is wrong, what would have fitted."""

    where: str
    problem: str
    fits: str = ""

    def __str__(self) -> str:
        tail = f" ({self.fits})" if self.fits else ""
        return f"{self.where}: {self.problem}{tail}"


class GraphError(UsageError):
    """All faults of one workflow, reported together (``fields['faults']``)."""

    code = "invalid_graph"

    @classmethod
    def of(cls, workflow: str, faults: list[Fault]) -> GraphError:
        """Build the error from its faults; ``faults`` must not be empty."""
        lines = "".join(f"\n  - {fault}" for fault in faults)
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        return cls(
            f"workflow {workflow!r} has {count}:{lines}",
            hint="Mend each line above; nothing was submitted.",
            faults=tuple(faults),
        )


class InputError(UsageError):
    """Inputs of a run do not fit its workflow (missing, extra, wrong type or range)."""

    code = "invalid_input"


class ConfigError(UsageError):
    """The configuration is wrong."""

    code = "invalid_config"


class UnknownModelError(UsageError):
    """A model name nothing answers to."""

    code = "unknown_model"


class WorkflowNotFoundError(UsageError):
    """``FILE.py:NAME`` names no workflow."""

    code = "workflow_not_found"


class RunError(HerasysError):
    """A run started and did not succeed."""

    code = "run_failed"


class NodeError(RunError):
    """One operator of a run failed."""

    code = "node_failed"


class PromptTooLongError(NodeError):
    """Prompt tokens plus max_tokens exceed the model's context length."""

    code = "prompt_too_long"


class FrontendLostError(RunError):
    """The process that executed the run's agent is gone; the run can be submitted again."""

    code = "frontend_lost"
    retryable = True


class RunCancelledError(RunError):
    """The run was cancelled."""

    code = "cancelled"


class ResultTimeoutError(RunError):
    """``result(timeout_s=...)`` ran out; the run itself goes on."""

    code = "result_timeout"


class OverloadedError(HerasysError):
    """The runtime's bounded queue is full (``fields['retry_after_s']``)."""

    code = "overloaded"
    retryable = True


class EnvironmentFaultError(HerasysError):
    """Something around the runtime is missing or broken."""

    code = "environment"


class DatabaseUnreachableError(EnvironmentFaultError):
    """PostgreSQL does not answer."""

    code = "database_unreachable"


class ModelUnavailableError(EnvironmentFaultError):
    """The model's files are not here and cannot be fetched."""

    code = "model_unavailable"


class ValueLostError(EnvironmentFaultError):
    """A large value is not in the object store any more (``fields['place']``): what needed
    it can be submitted again, and what is lost is computed again."""

    code = "value_lost"
    retryable = True


class ClusterError(EnvironmentFaultError):
    """Ray cannot start or be joined, or a placement cannot be satisfied."""

    code = "cluster"


class RuntimeStateError(EnvironmentFaultError):
    """The runtime is already up, not up, or went away."""

    code = "runtime_state"


class InternalError(HerasysError):
    """A broken invariant; the message carries the story that led to it."""

    code = "internal"


def _codes(root: type[HerasysError]) -> dict[str, type[HerasysError]]:
    table = {root.code: root}
    for child in root.__subclasses__():
        table.update(_codes(child))
    return table


def error_from_info(info: ErrorInfo, **fields: Any) -> HerasysError:
    """The exception for an `ErrorInfo`; codes of operators become `NodeError`.

    The original code is kept on the instance, so that a user always sees the code the
    failing part chose; so is whether trying again may help.
    """
    cls = _codes(HerasysError).get(info.code, NodeError)
    error = cls(info.message, hint=info.hint, code=info.code, **fields)
    error.retryable = info.retryable or cls.retryable
    return error
