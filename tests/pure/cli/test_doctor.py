"""The doctor: each fault is found, named, and comes with what to do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from herasys_rt import doctor
from herasys_rt.cli import execute
from herasys_rt.config import Config, default_config, load_config
from herasys_rt.doctor import FAULT, OK, WARN, Finding
from herasys_rt.errors import DatabaseUnreachableError

CONFIG = default_config()


def only(check: doctor.Check, config: Config = CONFIG) -> Finding:
    (finding,) = doctor.examine(config, [check])
    return finding


def with_model(name: str) -> Config:
    return load_config(None, {"HERASYS_POOLS__LLM__MODEL": name})


def test_a_check_that_breaks_is_a_finding() -> None:
    def check_of_all(_: Config) -> Iterator[Finding]:
        raise ZeroDivisionError("oops")

    finding = only(check_of_all)
    assert (finding.name, finding.state) == ("of all", FAULT)
    assert "ZeroDivisionError" in finding.message


def test_an_error_with_a_hint_becomes_a_fault_with_that_hint() -> None:
    def check_database(_: Config) -> Iterator[Finding]:
        raise DatabaseUnreachableError("no answer", hint="Start it.")

    assert only(check_database) == Finding("database", FAULT, "no answer", "Start it.")


def test_a_model_that_nothing_answers_to_is_a_fault() -> None:
    found = list(doctor.examine(with_model("smollm"), [doctor.check_models]))
    faults = [finding for finding in found if finding.state == FAULT]
    assert len(faults) == 1
    assert "smollm" in faults[0].message
    assert faults[0].hint


def test_models_served_elsewhere_are_not_looked_for() -> None:
    environ = {
        "HERASYS_POOLS__LLM__ENGINE": "openai",
        "HERASYS_POOLS__LLM__MODEL": "anything",
        "HERASYS_POOLS__EMBEDDING__ENGINE": "modelled",
        "HERASYS_POOLS__RERANK__ENGINE": "modelled",
    }
    assert list(doctor.check_models(load_config(None, environ))) == []


def test_little_memory_is_a_warning_with_both_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = psutil.virtual_memory()._replace(available=1024**3)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    finding = only(doctor.check_memory)
    assert finding.state == WARN
    assert finding.message.startswith("1.0 GiB free, the pools take about ")
    assert finding.hint


def test_pools_of_a_cluster_need_no_memory_here() -> None:
    config = load_config(None, {"HERASYS_RAY__ADDRESS": "auto"})
    assert list(doctor.check_memory(config)) == []


def test_a_run_folder_with_a_long_path_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert only(doctor.check_run_directory).state == OK
    monkeypatch.setenv("HERASYS_RUN_DIR", "/tmp/" + "deep/" * 20)
    finding = only(doctor.check_run_directory)
    assert finding.state == FAULT
    assert "HERASYS_RUN_DIR" in finding.message
    assert finding.hint


def test_what_a_killed_runtime_left_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HERASYS_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("HERASYS_STATE_DIR", str(tmp_path / "state"))
    assert only(doctor.check_leftovers).state == OK

    left, young = tmp_path / "hs-old", tmp_path / "hs-young"
    left.mkdir()
    young.mkdir()
    os.utime(left, (0, 0))
    state = tmp_path / "state/runtime.json"
    state.write_text(json.dumps({"pid": os.getpid(), "started": 1.0}))
    found = list(doctor.examine(CONFIG, [doctor.check_leftovers]))
    assert [finding.state for finding in found] == [WARN, WARN]
    assert str(state) in found[0].message
    assert f"rm -r {left}" in found[1].hint
    assert left.exists()
    assert state.exists()


def test_packages_of_engines_not_configured_are_not_asked_for() -> None:
    modelled = {
        f"HERASYS_POOLS__{name}__ENGINE": "modelled"
        for name in ("LLM", "EMBEDDING", "RERANK")
    }
    assert "torch" not in only(doctor.check_packages, load_config(None, modelled)).message
    assert "torch" in only(doctor.check_packages).message


def test_a_package_that_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    found = list(doctor.examine(CONFIG, [doctor.check_packages]))
    told = {finding.message: finding.hint for finding in found}
    assert "herasys_rt[cpu]" in told["the module vllm is not installed"]
    assert all(finding.state == FAULT for finding in found)


@pytest.mark.parametrize(("state", "status"), [(OK, 0), (WARN, 0), (FAULT, 1)])
def test_the_command_exits_1_on_faults_only(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, state: doctor.State, status: int
) -> None:
    def check_it(_: Config) -> Iterator[Finding]:
        yield Finding("it", state, "is [so]", "do that")

    monkeypatch.setattr(doctor, "CHECKS", (check_it,))
    assert execute(["doctor"]) == status
    shown = capfd.readouterr().out
    assert "is [so]" in shown
    assert "-> do that" in shown
    assert execute(["doctor", "--json"]) == status
    told = json.loads(capfd.readouterr().out)
    assert told["faults"] == status
    assert told["checks"][0] == {
        "name": "it",
        "state": state,
        "message": "is [so]",
        "hint": "do that",
    }
