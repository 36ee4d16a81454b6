"""The rivals' environment: what it is made of, and that the programs need nothing else."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
EXTRA = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]["rivals"]
PINS = {
    canonicalize_name(pin.name): pin
    for line in (ROOT / "constraints-rivals.txt").read_text().splitlines()
    if line.strip() and (pin := Requirement(line))
}
INSIDE = sorted(
    path
    for path in (ROOT / "benchmarks" / "rivals").glob("*.py")
    if path.stem not in {"serve", "count"}
)


def test_every_pin_is_exact_and_names_no_host() -> None:
    assert len(PINS) > 50
    for pin in PINS.values():
        (specifier,) = pin.specifier
        assert specifier.operator == "==", pin
        assert pin.url is None, pin


@pytest.mark.parametrize("line", EXTRA)
def test_every_requirement_is_pinned_within_its_range(line: str) -> None:
    wanted = Requirement(line)
    (specifier,) = PINS[canonicalize_name(wanted.name)].specifier
    assert wanted.specifier.contains(specifier.version, prereleases=True)


@pytest.mark.parametrize("path", INSIDE, ids=lambda p: p.stem)
def test_what_runs_in_their_environment_needs_nothing_of_ours(path: Path) -> None:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    ours = {
        m for m in modules if m.split(".")[0] in {"herasys_rt", "operators", "examples"}
    }
    assert not ours
    assert all(
        m.startswith("benchmarks.rivals.") for m in modules if m.startswith("benchmarks")
    )


def test_make_rivals_installs_into_an_environment_of_its_own() -> None:
    done = subprocess.run(
        ["make", "-n", "-B", "rivals"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert installs
    for line in installs:
        assert ".venv-rivals/bin/python -m pip install" in line
        assert "constraints.txt" not in line
