"""Batches over rows, against the loops without Ray."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from herasys_rt.client import batch
from herasys_rt.errors import RuntimeStateError

FLOW = """
from herasys_rt import workflow
from operators import generate

@workflow
def answer(question: str):
    return generate("{question}", question=question)
"""


class EchoEngine:
    """Answers with the question in capitals; fails on those that say so."""

    verbs = frozenset({"llm.generate"})

    def __init__(self, hand: Any) -> None:
        self._hand = hand

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hand, name)

    def submit(self, items: Any) -> None:
        from herasys_rt.errors import ErrorInfo

        for item in items:
            self._hand.items[item.key] = item
            question = item.args["var:question"]
            if "fail" in question:
                self._hand.fail(item, ErrorInfo("broken", "it broke", "Mend it."))
            else:
                self._hand.finish(item, question.upper())


@pytest.fixture
def run_batch(start_runtime, hand_engine, monkeypatch, tmp_path: Path):
    """``run_batch(text, *flags) -> (exit status, output rows)``."""
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW)
    runtime = start_runtime(llm=EchoEngine(hand_engine()))
    monkeypatch.setattr(batch, "connect", lambda *_, **__: runtime.connect())

    def run(text: str | bytes, *flags: str, name: str = "answer") -> tuple[int, list[Any]]:
        given, got = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_bytes(text if isinstance(text, bytes) else text.encode())
        status = batch.execute(
            [f"{flow}:{name}", "-i", str(given), "-o", str(got), "--quiet", *flags]
        )
        rows = got.read_text(encoding="utf-8").splitlines() if got.exists() else []
        return status, [json.loads(row) for row in rows]

    return run


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_every_row_is_answered_in_order(run_batch):
    rows = [{"question": f"q{i} Grüße 👩‍🚀"} for i in range(30)]
    status, out = run_batch(lines(*rows), "--concurrency", "7")
    assert status == batch.SUCCEEDED
    assert [row["row"] for row in out] == list(range(1, 31))
    assert [row["output"] for row in out] == [r["question"].upper() for r in rows]


def test_a_bad_row_is_that_rows_error_and_the_exit_status_is_3(run_batch):
    text = (
        lines({"question": "a"})
        + "this is no JSON\n"
        + lines([1, 2], {"question": 7}, {"nope": "x"}, {"question": "please fail"})
        + "\n   \n"
        + lines({"question": "z"})
    )
    status, out = run_batch(text)
    assert status == batch.SOME_ROWS_FAILED
    codes = [row["error"] and row["error"]["code"] for row in out]
    assert codes == [
        *(None, "invalid_row", "invalid_row"),
        *("invalid_input", "invalid_input", "broken", None),
    ]
    assert [out[0]["output"], out[-1]["output"]] == ["A", "Z"]
    assert "row 2 is not JSON" in out[1]["error"]["message"]


def test_no_rows_give_no_output_and_succeed(run_batch):
    assert run_batch("\n\n") == (batch.SUCCEEDED, [])


def test_wrong_use_is_told_with_exit_status_2(run_batch, capsys):
    assert run_batch("", name="nothing")[0] == batch.USAGE
    assert "error[workflow_not_found]" in capsys.readouterr().err
    assert run_batch("", "--concurrency", "0")[0] == batch.USAGE
    assert batch.execute(["missing.py:x", "-i", "nowhere", "-o", "-"]) == batch.USAGE


def test_input_is_read_only_as_far_as_it_is_worked_on(
    start_runtime, hand_engine, tmp_path: Path
):
    from herasys_rt.dsl.loading import load_workflow

    flow = tmp_path / "flow.py"
    flow.write_text(FLOW)
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    spec = load_workflow(f"{flow}:answer").spec
    read: list[int] = []

    def rows() -> Any:
        for number in range(50):
            read.append(number)
            yield json.dumps({"question": f"q{number}"})

    got: list[Any] = []
    thread = threading.Thread(
        target=lambda: got.extend(batch.run_rows(client, spec, rows(), 4))
    )
    thread.start()
    for count in range(4, 51):
        seen = engine.wait_for(count)
        assert len(read) <= count + 2, "the window is bounded"
        engine.finish(seen[count - 4], "ok")
    for item in list(engine.items.values()):
        engine.finish(item, "ok")
    thread.join(20)
    assert [row["status"] for row in got] == ["succeeded"] * 50


def test_bytes_that_are_no_text_are_their_rows_error(run_batch):
    rows = (b"\xff\xfe", b"\0\0", b"[" * 100_000, b'{"\\ud800": 1}')
    good = b'\xef\xbb\xbf{"question": "a"}\r'
    status, out = run_batch(b"\n".join([*rows, good]))
    assert status == batch.SOME_ROWS_FAILED
    codes = [row["error"] and row["error"]["code"] for row in out]
    assert codes == ["invalid_row"] * 3 + ["invalid_input", None]
    assert out[-1]["output"] == "A"


def test_a_row_longer_than_one_read_is_one_row(run_batch):
    long = {"question": "x" * 300_000}
    status, out = run_batch(lines(long, {"question": "b"}))
    assert (status, len(out)) == (batch.SUCCEEDED, 2)
    assert out[0]["output"] == "X" * 300_000


def test_the_input_is_never_overwritten(run_batch, tmp_path: Path, capsys):
    run_batch(lines({"question": "a"}))
    flow, rows = tmp_path / "flow.py", tmp_path / "in.jsonl"
    before = rows.read_bytes()
    link = tmp_path / "same.jsonl"
    link.symlink_to(rows)
    for out in (rows, link):
        assert batch.execute([f"{flow}", "-i", str(rows), "-o", str(out)]) == batch.USAGE
        assert "would be overwritten" in capsys.readouterr().err
    assert rows.read_bytes() == before


def test_an_output_that_is_lost_ends_the_batch_with_one_message(
    run_batch, tmp_path: Path, capsys
):
    run_batch(lines({"question": "a"}))
    flow, rows = tmp_path / "flow.py", tmp_path / "in.jsonl"
    arguments = [f"{flow}", "-i", str(rows), "-o", "/dev/full", "--quiet"]
    assert batch.execute(arguments) == batch.FAILED
    told = capsys.readouterr().err
    assert "error[output_lost]: /dev/full cannot be written" in told
    assert "Traceback" not in told


AGENT = """
from herasys_rt import agent
from operators import generate

@agent
async def twice(run, question: str):
    first = await run.call(generate("{question}", question=question))
    return await run.call(generate("{question}", question=first + "!"))
"""


def test_rows_may_go_through_an_agent_and_all_have_the_labels(run_batch, tmp_path: Path):
    (tmp_path / "flow.py").write_text(AGENT)
    status, out = run_batch(
        lines({"question": "a"}, {"question": "please fail"}, {"nope": 1}),
        *("--label", "team=search", "--label", "run=7"),
        name="twice",
    )
    assert status == batch.SOME_ROWS_FAILED
    assert [row["output"] for row in out] == ["A!", None, None]
    assert [len(row["nodes"]) for row in out] == [2, 1, 0]
    assert [row["labels"] for row in out] == [{"team": "search", "run": "7"}] * 3


def test_labels_and_frontends_that_are_none_are_wrong_use(run_batch, capsys, monkeypatch):
    assert run_batch("", "--label", "team")[0] == batch.USAGE
    assert "not of the form KEY=VALUE" in capsys.readouterr().err
    from herasys_rt.client.connecting import connect

    monkeypatch.setattr(batch, "connect", connect)
    assert run_batch("", "--frontends", "-1")[0] == batch.USAGE
    assert "frontends is a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("before", [None, b"an earlier night's rows\n"])
def test_a_failure_to_connect_leaves_the_output_as_it_was(
    run_batch, monkeypatch, tmp_path: Path, capsys, before
):
    got = tmp_path / "out.jsonl"
    if before is not None:
        got.write_bytes(before)

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeStateError("nobody answers", hint="Start a runtime.")

    monkeypatch.setattr(batch, "connect", refuse)
    flow, rows = tmp_path / "flow.py", tmp_path / "in.jsonl"
    rows.write_text(lines({"question": "a"}))
    assert batch.execute([f"{flow}", "-i", str(rows), "-o", str(got)]) == batch.FAILED
    assert "error[runtime_state]: nobody answers" in capsys.readouterr().err
    assert (got.read_bytes() if got.exists() else None) == before


def test_an_output_that_cannot_be_is_refused_before_connecting(
    run_batch, monkeypatch, tmp_path: Path, capsys
):
    monkeypatch.setattr(batch, "connect", lambda *_, **__: pytest.fail("it connected"))
    flow, rows = tmp_path / "flow.py", tmp_path / "in.jsonl"
    rows.write_text("")
    for out, why in ((tmp_path, "Is a directory"), (tmp_path / "no/such", "No such file")):
        assert batch.execute([f"{flow}", "-i", str(rows), "-o", str(out)]) == batch.USAGE
        assert f"{out} cannot be opened: {why}" in capsys.readouterr().err


def test_rows_replace_those_of_an_earlier_batch(run_batch):
    run_batch(lines({"question": "a"}, {"question": "b"}))
    _, out = run_batch(lines({"question": "c"}))
    assert [row["output"] for row in out] == ["C"]


@pytest.mark.parametrize("module", ["herasys_rt.client.batch", "msgspec", "numpy"])
def test_an_interrupt_while_modules_load_ends_quietly(interrupted_at, module):
    assert interrupted_at(
        module, "runpy.run_module('herasys_rt.batch', run_name='__main__')"
    ) == (130, "")
