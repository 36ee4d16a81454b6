"""Who may import whom (the layers), read from the source and checked in a process."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"ray", "torch", "vllm", "psycopg", "psycopg_pool", "transformers"}
BASE = {"errors", "ids", "clock"}

# Layer -> what of this package it may import besides itself and BASE.
LAYERS: dict[str, set[str]] = {
    "graph": set(),
    "dsl": {"graph"},
    "costs": {"graph"},
    "core": {"graph", "costs"},
    "policies": {"graph", "costs", "core"},
    "sim": {"graph", "costs", "core", "policies", "workloads", "config_source", "figures"},
    "workloads": {"graph", "dsl", "config_source"},
    "config_source": set(),
    "figures": set(),
    "config": {"config_source"},
    "documents": set(),
    "engines": {"graph", "costs", "config", "config_source", "documents"},
}
PURE = {"graph", "dsl", "costs", "core", "policies", "sim", "workloads"}
ENTRANCES = {"client", "gateway", "cli"}


@functools.cache
def imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports, also inside functions."""
    names: set[str] = set()
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            stem = list(package[: len(package) - node.level + 1]) if node.level else []
            stem += [node.module] if node.module else []
            names |= {".".join([*stem, alias.name]) for alias in node.names}
    return names


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT / "herasys_rt").parts[0].removesuffix(".py")


def layers_imported(names: set[str]) -> set[str]:
    dotted = [name.split(".") for name in names if name.startswith("herasys_rt.")]
    return {parts[1] for parts in dotted}


PACKAGE = sorted((ROOT / "herasys_rt").rglob("*.py"))
OPERATORS = sorted((ROOT / "operators").rglob("*.py"))


def of(layer: str) -> list[Path]:
    return [path for path in PACKAGE if layer_of(path) == layer]


def offenders(paths: list[Path], wrong) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in sorted(imports(path))
        if wrong(name)
    ]


def test_there_is_something_to_check():
    assert of("graph")
    assert of("dsl")
    assert of("core")
    assert OPERATORS


def test_only_the_runtime_imports_ray():
    paths = [path for path in PACKAGE if layer_of(path) != "runtime"] + OPERATORS
    assert offenders(paths, lambda name: name.split(".")[0] == "ray") == []


@pytest.mark.parametrize("layer", sorted(PURE))
def test_a_pure_layer_imports_nothing_heavy(layer):
    assert offenders(of(layer), lambda name: name.split(".")[0] in HEAVY) == []


def test_the_package_never_imports_operators():
    wrong = {"operators", "examples", "tests", "benchmarks"}
    assert offenders(PACKAGE, lambda name: name.split(".")[0] in wrong) == []


def test_operators_import_only_graph_dsl_costs_and_errors():
    allowed = {"graph", "dsl", "costs", "errors"}

    def wrong(name: str) -> bool:
        first, *rest = name.split(".")
        if first == "herasys_rt":
            return not rest or rest[0] not in allowed
        return first not in sys.stdlib_module_names | {"operators", "__future__"}

    assert offenders(OPERATORS, wrong) == []


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_a_layer_imports_only_layers_below_it(layer):
    allowed = LAYERS[layer] | BASE | {layer}
    found = {
        f"{path.relative_to(ROOT)} imports {other}"
        for path in of(layer)
        for other in layers_imported(imports(path)) - allowed
    }
    assert found == set()


def test_the_base_modules_import_nothing_of_the_package():
    for module in BASE:
        for path in of(module):
            assert layers_imported(imports(path)) <= {"errors"}, path


def test_the_runtime_imports_no_entrance():
    found = {
        f"{path.relative_to(ROOT)} imports {other}"
        for path in of("runtime")
        for other in layers_imported(imports(path)) & ENTRANCES
    }
    assert found == set()


def pure_modules() -> list[str]:
    paths = [path for path in PACKAGE if layer_of(path) in PURE] + OPERATORS
    dotted = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return ["herasys_rt", *(name.removesuffix(".__init__") for name in dotted)]


def test_importing_the_pure_layers_loads_nothing_heavy():
    code = (
        "import importlib, sys\n"
        f"for name in {pure_modules()!r}: importlib.import_module(name)\n"
        f"print(*sorted(set(sys.modules) & {HEAVY!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
