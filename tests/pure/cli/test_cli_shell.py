"""The command line's frame: exit statuses, messages, JSON on standard output alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from herasys_rt.cli import app as command_tree
from herasys_rt.cli import execute, shell
from herasys_rt.cli.output import Output, report_error
from herasys_rt.errors import ClusterError, GraphError, HerasysError, InputError, NodeError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    """Run a function as the command tree; gives the exit status."""

    def run(body: Callable[[], object], *arguments: str) -> int:
        app = typer.Typer(pretty_exceptions_enable=False)
        app.command()(body)
        monkeypatch.setattr(command_tree, "app", app)
        return execute(arguments)

    return run


def failing(error: BaseException) -> Callable[[], object]:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("no question", hint="give one"), 2),
        (GraphError("two faults"), 2),
        (NodeError("generate failed"), 1),
        (ClusterError("no Ray"), 1),
        (ZeroDivisionError("oops"), 1),
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 130),
        (SystemExit(7), 7),
        (typer.Exit(4), 4),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_end_has_its_exit_status(command, error, status) -> None:
    assert command(failing(error)) == status


def test_a_command_that_returns_a_number_exits_with_it(command) -> None:
    assert command(lambda: 3) == 3
    assert command(lambda: None) == 0


def test_an_error_is_one_message_what_then_hint(command, capsys) -> None:
    error = InputError("question is empty: ''", hint="Give [some] text.")
    assert command(failing(error)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "error[invalid_input]: question is empty: ''\nhint: Give [some] text.\n"
    )


def test_an_interrupt_says_nothing(command, capsys) -> None:
    command(failing(KeyboardInterrupt()))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("how", ["option", "variable"])
def test_debug_shows_the_traceback(command, capsys, monkeypatch, how) -> None:
    command(failing(InputError("bad")))
    assert "Traceback" not in capsys.readouterr().err
    if how == "variable":
        monkeypatch.setenv("HERASYS_DEBUG", "1")
    command(failing(InputError("bad")), *(["--debug"] if how == "option" else []))
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "error[invalid_input]: bad" in err


def test_a_fault_of_ours_is_told_as_one(command, capsys) -> None:
    command(failing(ZeroDivisionError("division by zero")))
    err = capsys.readouterr().err
    assert "error[internal]: ZeroDivisionError: division by zero" in err
    assert "--debug" in err


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (["run", "a.py:b", "--json"], ["run", "a.py:b", "--json=-"]),
        (["run", "--json", "a.py:b"], ["run", "--json=-", "a.py:b"]),
        (["run", "--json", "x.json", "a"], ["run", "--json=x.json", "a"]),
        (["run", "--json", "-", "a"], ["run", "--json=-", "a"]),
        (["run", "--json=out/x", "a"], ["run", "--json=out/x", "a"]),
        (["run", "--json", "--json", "x.json"], ["run", "--json=-", "--json=x.json"]),
        (["run", "--", "--json"], ["run", "--", "--json"]),
        ([], []),
    ],
)
def test_json_takes_a_path_only_when_it_is_one(given, plain) -> None:
    assert shell.plain_json(given) == plain


def test_debug_may_stand_anywhere_before_the_end_of_options(monkeypatch) -> None:
    monkeypatch.delenv("HERASYS_DEBUG", raising=False)
    assert shell.take_debug(["run", "a", "--debug"]) == (["run", "a"], True)
    assert shell.take_debug(["run", "--", "--debug"]) == (["run", "--", "--debug"], False)
    monkeypatch.setenv("HERASYS_DEBUG", "0")
    assert shell.take_debug(["run"]) == (["run"], False)


# --- output -------------------------------------------------------------------------
def test_an_object_on_a_screen_is_not_told_in_words_too(monkeypatch, capfd) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    with Output("-") as output:
        assert not output.in_words
        output.console.print("an answer")
        output.say("progress")
        output.emit({"a": 1})
    shown = capfd.readouterr()
    assert json.loads(shown.out) == {"a": 1}
    assert "an answer" not in shown.err
    assert "progress" in shown.err


def test_with_json_standard_output_holds_only_the_object(capfd) -> None:
    with Output("-") as output:
        output.console.print("an answer")
        output.say("progress")
        output.write("a piece\n")
        print("a library prints")
        os.system("echo a child prints")
        output.emit({"a": "ü"})
    shown = capfd.readouterr()
    assert json.loads(shown.out) == {"a": "ü"}
    for text in ("an answer", "progress", "a piece", "a library", "a child"):
        assert text in shown.err


def test_without_json_answers_go_to_standard_output(capfd) -> None:
    with Output(None) as output:
        output.console.print("an answer")
        output.say("progress")
        output.emit({"a": 1})
    assert capfd.readouterr() == ("an answer\n", "progress\n")


def test_json_goes_into_a_file_whole_or_not_at_all(tmp_path: Path, capfd) -> None:
    path = tmp_path / "new/out.json"
    with Output(str(path)) as output:
        output.emit({"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in path.parent.iterdir()] == ["out.json"]
    assert capfd.readouterr().out == ""


def test_a_json_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(HerasysError, match="cannot be written"),
        Output(str(tmp_path / "file/out.json")) as output,
    ):
        output.emit({"a": 1})


def test_a_failure_is_told_in_the_json_too(capfd) -> None:
    failure = {"run_id": None, "error": None}
    with pytest.raises(InputError), Output("-", failure):
        raise InputError("bad", hint="mend it")
    assert json.loads(capfd.readouterr().out) == {
        "run_id": None,
        "error": {"code": "invalid_input", "message": "bad", "hint": "mend it"},
    }


def test_a_fault_of_ours_is_told_in_the_json_too(capfd) -> None:
    with pytest.raises(ZeroDivisionError), Output("-", {"run_id": None}):
        raise ZeroDivisionError("oops")
    told = json.loads(capfd.readouterr().out)
    assert told["run_id"] is None
    assert told["error"]["code"] == "internal"
    assert told["error"]["message"] == "ZeroDivisionError: oops"


@pytest.mark.parametrize("stop", [typer.Exit(4), typer.Abort(), KeyboardInterrupt()])
def test_what_is_no_failure_tells_none(stop: BaseException, capfd) -> None:
    with pytest.raises(type(stop)), Output("-"):
        raise stop
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    "words", [["nosuch"], ["run"], ["status", "--bogus"], ["run", "a.py:b", "--timeout=x"]]
)
def test_wrong_use_is_told_in_the_json_too(words: list[str], capfd) -> None:
    assert execute([*words, "--json"]) == 2
    shown = capfd.readouterr()
    told = json.loads(shown.out)
    assert told["error"]["code"] == "usage" and told["error"]["hint"]
    assert f"error[usage]: {told['error']['message']}" in shown.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_the_command(command, number, capfd) -> None:
    cleared: list[int] = []

    def body() -> None:
        try:
            signal.raise_signal(number)
        finally:
            cleared.append(1)

    before = signal.getsignal(number)
    assert command(body) == 128 + number
    assert cleared and signal.getsignal(number) == before


def test_text_that_is_no_unicode_does_not_break_the_json(capfd) -> None:
    with Output("-") as output:
        output.emit({"a": "\ud800"})
    assert json.loads(capfd.readouterr().out) == {"a": "?"}


def test_an_error_without_a_hint_is_one_line(capsys) -> None:
    report_error(HerasysError("x" * 300))
    assert capsys.readouterr().err == f"error[error]: {'x' * 300}\n"


# --- the real command ---------------------------------------------------------------
def herasys(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from herasys_rt.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from herasys_rt.cli import execute; execute(['--help']);"
        "heavy = {'ray', 'torch', 'vllm', 'transformers', 'psycopg', 'numpy', 'zmq'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "doctor" in done.stdout


@pytest.mark.parametrize(
    "name",
    ["up", "status", "down", "run", "graph", "ingest", "models", "doctor", "version"],
)
def test_every_command_has_help(name: str, capsys) -> None:
    assert execute([name, "--help"]) == 0
    assert "Usage: herasys " + name in capsys.readouterr().out


@pytest.mark.parametrize("name", ["list", "show", "drop"])
def test_every_collections_command_has_help(name: str, capsys) -> None:
    assert execute(["collections", name, "--help"]) == 0
    assert f"Usage: herasys collections {name}" in capsys.readouterr().out


def test_wrong_use_is_one_error_with_where_to_look() -> None:
    done = herasys("frobnicate")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "error[usage]: No such command 'frobnicate'" in done.stderr
    assert "herasys --help" in done.stderr


def test_versions_are_told_as_json() -> None:
    done = herasys("version", "--json")
    told = json.loads(done.stdout)
    assert told["error"] is None
    assert told["herasys_rt"]


def test_a_pipe_that_closes_is_no_error() -> None:
    line = f'"{sys.executable}" -c "from herasys_rt.cli import main; main()" version'
    script = f"set -o pipefail; {line} | true"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["herasys_rt.cli.shell", "typer", "herasys_rt.cli.app"])
def test_an_interrupt_while_modules_load_ends_quietly(interrupted_at, module) -> None:
    assert interrupted_at(module, "from herasys_rt.cli import main; main()") == (130, "")
