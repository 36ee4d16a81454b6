"""Where what functions print goes."""

from __future__ import annotations

import logging

from operators import tool


@tool
def talk(text: str) -> None:
    print(text)
    print("no end", end="")


@tool
async def talk_later(text: str) -> None:
    print(text)


def test_what_functions_print_goes_to_the_log_under_their_name(start, caplog, capsys):
    caplog.set_level(logging.INFO, "herasys_rt.tools")
    bench = start()
    bench.value(talk, "one\ntwo")
    bench.value(talk_later, "three")
    print("of the host")
    assert caplog.messages == [
        *("talk: one", "talk: two", "talk: no end", "talk_later: three")
    ]
    assert capsys.readouterr().out == "of the host\n"


def test_what_functions_print_in_processes_goes_to_the_log_too(start, capfd):
    start(isolate="process").value(talk, "one")
    captured = capfd.readouterr()
    assert captured.err.splitlines() == ["talk: one", "talk: no end"]
    assert captured.out == ""
