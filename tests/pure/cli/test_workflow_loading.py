"""``FILE.py:NAME``: what loads, and what each thing that does not is called."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from herasys_rt.dsl.loading import load_workflow
from herasys_rt.errors import GraphError, WorkflowNotFoundError

ROOT = Path(__file__).parents[3]
FLOW = (
    "from herasys_rt.dsl import workflow\n"
    "from operators import generate\n"
    "@workflow\n"
    "def ask(question: str):\n"
    "    return generate('{q}', q=question)\n"
)


@pytest.fixture(autouse=True)
def _no_trace_of_loaded_files() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith("/tmp"):
            del sys.modules[name]
    sys.path[:] = path


def written(folder: Path, text: str, name: str = "loading_flow.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(target: str) -> WorkflowNotFoundError:
    with pytest.raises(WorkflowNotFoundError) as caught:
        load_workflow(target)
    assert caught.value.hint
    return caught.value


def test_a_workflow_is_loaded_by_name(tmp_path: Path) -> None:
    assert load_workflow(f"{written(tmp_path, FLOW)}:ask").spec.name == "ask"


def test_a_file_with_one_workflow_needs_no_name(tmp_path: Path) -> None:
    assert load_workflow(str(written(tmp_path, FLOW))).spec.name == "ask"


def test_a_file_with_several_workflows_needs_a_name(tmp_path: Path) -> None:
    path = written(tmp_path, FLOW + "tell = ask\n")
    assert "ask, tell" in refused(str(path)).hint


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    written(tmp_path, "TEXT = 'Say {q}'\n", "loading_neighbour.py")
    text = "from loading_neighbour import TEXT\n" + FLOW.replace("'{q}'", "TEXT")
    assert load_workflow(f"{written(tmp_path, text)}:ask").spec.name == "ask"


def test_loading_twice_gives_the_same_workflow(tmp_path: Path) -> None:
    target = f"{written(tmp_path, FLOW)}:ask"
    assert load_workflow(target) is load_workflow(target)


def test_a_loaded_workflow_pickles_by_reference(tmp_path: Path) -> None:
    loaded = load_workflow(f"{written(tmp_path, FLOW)}:ask")
    assert pickle.loads(pickle.dumps(loaded)) is loaded


def test_a_file_named_like_a_known_module_does_not_replace_it(tmp_path: Path) -> None:
    path = written(tmp_path, FLOW, "json.py")
    assert load_workflow(f"{path}:ask").spec.name == "ask"
    assert "site-packages" not in str(sys.modules["json"].__file__)
    assert sys.modules["json"].__file__ != str(path)


@pytest.mark.parametrize("target", ["ask", "flow.py:", "flow.py:a b", "flow.txt:ask", ""])
def test_what_is_not_of_the_form_is_refused(target: str) -> None:
    assert "FILE.py:NAME" in refused(target).message


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "there is no file" in refused(f"{tmp_path}/absent.py:ask").message


def test_a_misspelt_name_gets_the_nearest_and_the_list(tmp_path: Path) -> None:
    error = refused(f"{written(tmp_path, FLOW)}:aks")
    assert "no workflow 'aks'" in error.message
    assert "'ask'" in error.message
    assert "Workflows there: ask." in error.hint


def test_a_name_like_no_other_gets_the_list_alone(tmp_path: Path) -> None:
    error = refused(f"{written(tmp_path, FLOW)}:summary")
    assert error.message.endswith("has no workflow 'summary'")
    assert "Workflows there: ask." in error.hint


def test_a_name_that_is_no_workflow_is_told_apart(tmp_path: Path) -> None:
    error = refused(f"{written(tmp_path, FLOW + 'N = 3')}:N")
    assert "is a int, not a workflow" in error.message


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import loading_absent", "line 2: importing it fails: ModuleNotFoundError"),
        ("1 / 0", "line 2: importing it fails: ZeroDivisionError"),
        ("raise SystemExit('no')", "line 2: importing it fails: SystemExit"),
        ("def broken(:", "line 2: importing it fails: SyntaxError"),
    ],
)
def test_a_file_that_does_not_import_is_told_with_its_line(
    tmp_path: Path, line: str, told: str
) -> None:
    error = refused(f"{written(tmp_path, f'x = 1{chr(10)}{line}{chr(10)}')}:ask")
    assert error.code == "workflow_not_importable"
    assert told in error.message
    assert "loading_flow" not in sys.modules


def test_faults_of_a_workflow_are_its_own_error(tmp_path: Path) -> None:
    text = FLOW.replace("q=question", "q=question, max_tokens=0")
    with pytest.raises(GraphError, match="max_tokens"):
        load_workflow(f"{written(tmp_path, text)}:ask")


def test_loading_imports_nothing_heavy() -> None:
    code = (
        "import sys; from herasys_rt.dsl.loading import load_workflow;"
        "load_workflow('examples/hello.py:hello');"
        "heavy = {'ray', 'torch', 'vllm', 'transformers', 'psycopg'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
