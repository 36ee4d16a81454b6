"""`herasys run`: one run of a workflow, from its inputs to its answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from herasys_rt.cli.options import (
    ConfigOption,
    JsonOption,
    LabelOption,
    WorkflowArgument,
    read_config,
)
from herasys_rt.cli.output import Output, counted, report_error
from herasys_rt.errors import (
    ErrorInfo,
    HerasysError,
    InputError,
    ResultTimeoutError,
    error_from_info,
)

if TYPE_CHECKING:
    from herasys_rt.client.run import Run
    from herasys_rt.dsl.loading import AnyWorkflow

_NO_REPORT: dict[str, Any] = {
    "run_id": None,
    "status": "failed",
    "output": None,
    "sources": [],
    "usage": {},
    "billed": {},
    "error": None,
    "latency_s": None,
    "nodes": [],
}
"""What ``--json`` prints for a run that never became one."""

_SOURCE_COLUMNS = 100
"""Longest line about a source, also where the screen is wider."""


def run(
    target: WorkflowArgument,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=VALUE",
            help="An input of the workflow; lists and mappings as JSON, [bold]@FILE[/bold] "
            "for a file's text. Give it once per input.",
            show_default=False,
        ),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print the answer as it is produced.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.001,
            help="Cancel the run after this long.",
            show_default=False,
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(help="Whose run it is; tenants share nothing.", show_default=False),
    ] = None,
    label: LabelOption = None,
    config: ConfigOption = None,
    json: JsonOption = None,
) -> int:
    """Run a workflow once and print its answer, its sources and what it took.

    Uses the runtime that `herasys up` left; without one starts a private runtime and
    stops it again. Inputs are checked before anything starts.

    [bold]Examples[/bold]

    herasys run examples/hello.py:hello --input name=Ada

    herasys run examples/stdlib_rag.py:rag -i question='What is zlib?' --stream

    herasys run examples/stdlib_rag.py:rag -i question=@question.txt --json

    herasys run examples/hello.py:hello -i name=Ada --label team=search --json
    """
    with Output(json, _NO_REPORT) as output:
        from herasys_rt.graph.labels import parsed_labels

        workflow, values = _prepare(target, inputs or [])
        labels = parsed_labels(label or [])
        loaded = read_config(config)
        from herasys_rt.cli import runtime

        with runtime.connect(loaded, tenant, output.say) as client:
            run_ = client.submit(workflow, _stream=stream, _labels=labels, **values)
            report, said = _await(run_, output, stream, timeout)
        return _finish(report, output, said)


def _prepare(target: str, pairs: Sequence[str]) -> tuple[AnyWorkflow, dict[str, Any]]:
    """The workflow and its checked inputs."""
    from herasys_rt.dsl.loading import load_workflow
    from herasys_rt.graph.validation import check_inputs, parse_input_text

    workflow = load_workflow(target)
    values = parse_input_text(workflow.spec, split_pairs(pairs))
    return workflow, check_inputs(workflow.spec, values)


def split_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` words as a mapping. Errors: `InputError` for a word without ``=`` and
    for a name given twice.
    """
    texts: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InputError(
                f"--input {pair!r} is not of the form NAME=VALUE",
                hint="For example --input question='What does zip do?'.",
            )
        if name in texts:
            raise InputError(
                f"input {name!r} is given twice",
                hint="Give it once; a list is written as JSON: --input words='[\"a\"]'.",
            )
        texts[name] = value
    return texts


def _await(
    run_: Run, output: Output, stream: bool, timeout_s: float | None
) -> tuple[dict[str, Any], str]:
    """The run's report, and the text that was streamed. Whatever ends the waiting early
    cancels the run."""
    try:
        if stream:
            said = _print_stream(run_, output, timeout_s)
            return run_.report(), said
        if output.json or not output.progress.is_terminal:
            return run_.report(timeout_s), ""
        with output.progress.status("running"):
            return run_.report(timeout_s), ""
    except BaseException as e:
        _cancel(run_)
        if isinstance(e, ResultTimeoutError) and timeout_s is not None:
            raise _too_late(run_, timeout_s) from e
        raise


def _cancel(run_: Run) -> None:
    with contextlib.suppress(HerasysError):
        run_.cancel()


def _too_late(run_: Run, timeout_s: float) -> ResultTimeoutError:
    return ResultTimeoutError(
        f"run {run_.id} did not end within {timeout_s:g} s and was cancelled",
        hint="Give it longer with --timeout, or look at `herasys status`.",
    )


def _print_stream(run_: Run, output: Output, timeout_s: float | None) -> str:
    """Pieces as they come; gives all of them. How the run ended is its report's to say,
    not the stream's.

    Errors: `ResultTimeoutError`, once the run is cancelled for taking too long.
    """
    late = threading.Event()

    def give_up() -> None:
        late.set()
        _cancel(run_)

    patience = (
        None
        if timeout_s is None
        else threading.Timer(min(timeout_s, threading.TIMEOUT_MAX), give_up)
    )
    said: list[str] = []
    try:
        if patience is not None:
            patience.start()
        for piece in run_.stream():
            output.write(piece)
            said.append(piece)
    except HerasysError as e:
        if late.is_set():
            raise _too_late(run_, timeout_s or 0.0) from e
    finally:
        if patience is not None:
            patience.cancel()
            patience.join()
        if any(said):
            output.write("\n")
    return "".join(said)


def _finish(report: dict[str, Any], output: Output, said: str) -> int:
    """Print a report, and the answer unless it was ``said`` already; the exit status."""
    succeeded = report["status"] == "succeeded"
    console = output.console
    if succeeded and (not said or said != report["output"]) and output.in_words:
        _print_output(report["output"], output)
    sources = report.get("sources") or []
    if sources:
        # A model may write lines that look like sources: these are set apart from its text.
        console.print("\n[bold]sources[/bold]")
    for position, source in enumerate(sources, start=1):
        console.print(
            source_line(position, source, console.width),
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
    output.progress.print(summary(report), style="dim", markup=False, highlight=False)
    output.emit(report)
    if not succeeded:
        told = report.get("error") or {"code": "run_failed", "message": "the run failed"}
        report_error(error_from_info(ErrorInfo(**_known(told))))
    return 0 if succeeded else 1


def _known(told: dict[str, Any]) -> dict[str, Any]:
    return {key: told[key] for key in ("code", "message", "hint") if key in told}


def _print_output(value: Any, output: Output) -> None:
    import json

    if isinstance(value, str):
        output.write(value.rstrip("\n") + "\n")
    else:
        output.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def source_line(position: int, source: dict[str, Any], width: int) -> str:
    """``[1] textwrap (0.83): the first words of the chunk``, on one line of ``width``."""
    text = " ".join(str(source.get("text", "")).split())
    name = source.get("source") or source.get("id") or "?"
    score = source.get("score")
    scored = f" ({score:.2f})" if isinstance(score, int | float) else ""
    line = f"[{position}] {name}{scored}: {text}"
    limit = min(width, _SOURCE_COLUMNS)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def summary(report: dict[str, Any]) -> str:
    """``0.84 s, 3 nodes: 2 executed, 1 fused, run-5f0c...``."""
    nodes = report.get("nodes") or []
    reused = sum(1 for node in nodes if node.get("reused"))
    fused = sum(1 for node in nodes if node.get("fused_into") and not node.get("reused"))
    idle = sum(1 for node in nodes if node.get("state") in ("skipped", "cancelled"))
    counts = {
        "executed": len(nodes) - reused - fused - idle,
        "fused": fused,
        "reused": reused,
        "not needed": idle,
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    latency = report.get("latency_s")
    parts = [f"{latency:.2f} s"] if isinstance(latency, int | float) else []
    parts.append(counted(len(nodes), "node") + (f": {told}" if told else ""))
    parts.append(str(report.get("run_id") or ""))
    return ", ".join(part for part in parts if part)
