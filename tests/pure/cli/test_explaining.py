"""`herasys explain` against a runtime that is a fake."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herasys_rt.cli import execute, runtime
from herasys_rt.dsl import workflow
from herasys_rt.errors import InputError
from herasys_rt.graph.explain import Explanation, explain
from herasys_rt.graph.signature import Signer
from operators import embed, retrieve


@workflow
def read(question: str):
    return retrieve(embed(question), collection="docs", top_k=3)


Asked = list[tuple[list[tuple[str, str]], str]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the runtime was asked; it knows any run, whose question is the run's id."""
    given: Asked = []

    def explained(nodes: list[tuple[str, str]], tenant: str) -> list[Explanation]:
        given.append((nodes, tenant))
        signer = Signer(read.spec, lambda _: "pool:m[odel]")
        return [
            explain(signer, node, {"question": run}, tenant, run, {"docs": 4})
            for run, node in nodes
        ]

    monkeypatch.setattr(runtime, "explain", explained)
    return given


def said(capfd: Any, *words: str) -> str:
    assert execute(["explain", *words]) == 0
    return capfd.readouterr().out


def test_the_preimage_is_shown_field_by_field(asked, capfd):
    shown = said(capfd, "run-1", "retrieve")
    assert asked == [([("run-1", "retrieve")], "default")]
    for text in (
        "Node retrieve of run-1",
        "retrieve@1",
        "pool:m[odel]",
        "tenant 'default'",
        "argument top_k",
        "node embed (",
        "collection docs",
        "revision 4",
        "signature: ",
        "value seed: ",
    ):
        assert text in shown


def test_two_nodes_are_compared(asked, capfd):
    shown = said(capfd, "run-1", "embed", "run-2", "embed", "--tenant", "ours")
    assert asked == [([("run-1", "embed"), ("run-2", "embed")], "ours")]
    assert "The first difference is argument text:" in shown
    assert "'run-1' (input question)" in shown
    assert "'run-2' (input question)" in shown


def test_nodes_above_that_differ_are_what_to_ask_about_next(asked, capfd):
    shown = said(capfd, "run-1", "retrieve", "run-2", "retrieve")
    assert "To go on: herasys explain run-1 embed run-2 embed" in shown
    assert "To go on" not in said(capfd, "run-1", "embed", "run-2", "embed")


def test_two_nodes_of_one_run_are_compared(asked, capfd):
    shown = said(capfd, "run-1", "embed", "retrieve")
    assert asked == [([("run-1", "embed"), ("run-1", "retrieve")], "default")]
    assert "The first difference is operator:" in shown
    assert "equal by the structural signature" in said(capfd, "run-1", "embed", "embed")


def test_json_holds_explanations_and_the_comparison(asked, capfd):
    told = json.loads(said(capfd, "run-1", "embed", "--json"))
    assert set(told) == {"explanations", "comparison", "error"}
    (one,) = told["explanations"]
    assert (one["run_id"], one["node"], len(one["signature"])) == ("run-1", "embed", 64)
    assert [field["name"] for field in one["fields"]][:2] == ["format", "operator"]
    assert told["comparison"] is told["error"] is None
    both = json.loads(said(capfd, "run-1", "embed", "run-2", "embed", "--json"))
    assert len(both["explanations"]) == 2
    assert both["comparison"]["field"] == "argument text"
    assert both["comparison"]["equal"] is False


def test_too_many_words_are_refused_before_anything_is_asked(asked, capfd):
    assert execute(["explain", "run-1", "a", "run-2", "b", "c"]) == 2
    assert asked == []
    assert "at most two" in capfd.readouterr().err


def test_what_the_runtime_refuses_is_told_with_a_hint(monkeypatch, capfd):
    def refuse(*_: Any) -> Any:
        raise InputError("no run 'run-1'", hint="Look at the report.", code="unknown_run")

    monkeypatch.setattr(runtime, "explain", refuse)
    assert execute(["explain", "run-1", "a", "--json"]) == 2
    told = json.loads(capfd.readouterr().out)
    assert told["error"]["code"] == "unknown_run"
    assert told["explanations"] == []


def test_without_a_runtime_it_says_how_to_start_one(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("HERASYS_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("HERASYS_STATE_DIR", str(tmp_path))
    assert execute(["explain", "run-1", "a"]) == 1
    shown = capfd.readouterr().err
    assert "no runtime is up" in shown
    assert "herasys up" in shown
