"""docs/workloads.md says what is so: its examples run, its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from herasys_rt.workloads import NAMES
from herasys_rt.workloads.files import parse_workload, read_workload
from herasys_rt.workloads.parts import TAGS, VERBS
from herasys_rt.workloads.schema import part_keys
from herasys_rt.workloads.traces import TIMED

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "workloads.md").read_text("utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
FILES = ("lengths/sharegpt_pairs.json", "lengths/taubench_chains.json")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "lengths").mkdir()
    for name in (*FILES, "conversation_trace.jsonl"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_file_shown_is_a_workload(folder, text):
    parse_workload(text, folder=folder)


def test_the_first_example_gives_jobs():
    kinds = {job.kind for job in parse_workload(EXAMPLES[0]).jobs(1, 40, None)}
    assert kinds == {"rag", "triage"}


def test_the_python_shown_runs(folder, monkeypatch):
    (folder / "support.yaml").write_text(EXAMPLES[0])
    monkeypatch.chdir(folder)
    for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        namespace: dict[str, object] = {}
        exec(compile(code, "docs/workloads.md", "exec"), namespace)
        assert namespace["jobs"]
    assert read_workload("support.yaml").name == "support"


def test_every_name_source_verb_and_format_is_described():
    for name in (*NAMES, *TAGS, *VERBS, *TIMED, "lmcache", "claude_code"):
        assert f"`{name}`" in TEXT, name


@pytest.mark.parametrize("tag", TAGS)
def test_every_key_of_a_source_is_described(tag):
    for key in part_keys(tag):
        assert f"`{key}`" in TEXT, key
