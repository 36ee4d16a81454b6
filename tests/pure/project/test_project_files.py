"""The files around the code agree with each other and with what is promised."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pydantic
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from herasys_rt import __version__
from herasys_rt.config import ENGINES, load_config

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTRAINTS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
]


def requirements(*extras: str) -> list[Requirement]:
    optional = PROJECT["project"]["optional-dependencies"]
    lines = list(PROJECT["project"]["dependencies"])
    for extra in extras:
        lines += optional[extra]
    return [Requirement(line) for line in lines]


def text_files() -> list[Path]:
    skipped = {".git", ".venv", ".venv-rivals", "__pycache__", "out", "build", "dist"}
    found: list[Path] = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            f
            for f in folders
            if f not in skipped and not f.endswith((".egg-info", "_cache"))
        ]
        found += [Path(folder, file) for file in files]
    return [path for path in found if ".hypothesis" not in path.parts]


def test_constraints_are_exact_and_name_no_host() -> None:
    assert len(CONSTRAINTS) > 100
    for pin in CONSTRAINTS:
        (specifier,) = pin.specifier
        assert specifier.operator == "==", pin
        assert pin.url is None, pin


def test_constraints_leave_out_what_breaks_text_models() -> None:
    names = {canonicalize_name(pin.name) for pin in CONSTRAINTS}
    assert not names & {"torchvision", "torchaudio", "torchcodec"}


@pytest.mark.parametrize("requirement", requirements("cpu", "dev"), ids=str)
def test_every_requirement_is_pinned_within_its_range(requirement: Requirement) -> None:
    pins = {canonicalize_name(pin.name): pin for pin in CONSTRAINTS}
    pin = pins.get(canonicalize_name(requirement.name))
    assert pin is not None, f"{requirement.name} is not in constraints.txt"
    (specifier,) = pin.specifier
    assert requirement.specifier.contains(specifier.version, prereleases=True)


def test_extras_are_the_promised_ones() -> None:
    assert set(PROJECT["project"]["optional-dependencies"]) == {
        "cpu",
        "gpu",
        "dev",
        "rivals",
    }


def test_the_version_has_one_home() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", __version__)


def test_make_without_a_target_says_what_there_is() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True
    )
    told = done.stdout
    assert done.returncode == 0, done.stderr
    for target in ("setup", "demo", "test", "check", "clean"):
        assert re.search(rf"make {target}\s+\S", told), target


def test_make_starts_the_demo_with_its_arguments() -> None:
    done = subprocess.run(
        ["make", "-n", "demo", "DEMO_ARGS=--all"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == ".venv/bin/python -m examples.demo --all"


def test_ci_is_executable_and_runs_check_then_test() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    text = script.read_text()
    assert text.index("make check") < text.index("\nmake test")


@pytest.mark.parametrize("name", [".venv/", "out/", "__pycache__/", ".hypothesis/"])
def test_what_running_makes_is_neither_kept_nor_sent(name: str) -> None:
    assert name in (ROOT / ".gitignore").read_text().splitlines()
    assert name.strip("/") in (ROOT / ".rayignore").read_text()


def test_a_job_is_sent_what_it_needs() -> None:
    ignored = (ROOT / ".rayignore").read_text().splitlines()
    for needed in ("herasys_rt", "operators", "examples", "configs"):
        assert not any(line.strip("/") == needed for line in ignored)


# --- configurations and the cluster -------------------------------------------------
def cluster_labels() -> set[str]:
    cluster = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    commands = cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
    labels = [re.findall(r"--labels[= ](\S+)", command) for command in commands]
    return {label for found in labels for part in found for label in part.split(",")}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_label_that_a_configuration_names_is_set_on_the_cluster(path: Path) -> None:
    wanted = {
        f"gpu-class={pool.gpu_class}"
        for pool in load_config(path, {}).pools
        if pool.gpu_class
    }
    assert wanted <= cluster_labels()


def test_the_gpu_configuration_is_the_testbed_and_fits_four_gpus() -> None:
    pools = {p.name: p for p in load_config(ROOT / "configs/gpu-4x4090.yaml", {}).pools}
    assert {name: pool.instances for name, pool in pools.items()} == {
        "llm": 2,
        "embedding": 3,
        "rerank": 3,
        "retrieval": 1,
        "search": 1,
        "python": 1,
    }
    assert {pool.resource for pool in pools.values()} == set(ENGINES)
    for name in ("retrieval", "search", "python"):
        assert not pools[name].gpus and pools[name].gpu_class is None
    assert sum(pool.instances * pool.gpus for pool in pools.values()) <= 4
    shared = pools["embedding"]
    assert 3 * shared.gpus <= 1, "three instances share one GPU"
    assert pools["embedding"].gpus == pools["rerank"].gpus


def options_of(engine: str) -> type[pydantic.BaseModel]:
    from herasys_rt.engines.embedding.sentence_transformers_engine import (
        SentenceTransformersOptions,
    )
    from herasys_rt.engines.postgres.engine import PgvectorOptions
    from herasys_rt.engines.python.options import PythonOptions
    from herasys_rt.engines.rerank.cross_encoder import CrossEncoderOptions
    from herasys_rt.engines.rerank.late_interaction import LateInteractionOptions
    from herasys_rt.engines.search.options import SearchOptions
    from herasys_rt.engines.vllm.options import VllmOptions

    return {
        "vllm": VllmOptions,
        "sentence_transformers": SentenceTransformersOptions,
        "cross_encoder": CrossEncoderOptions,
        "late_interaction": LateInteractionOptions,
        "pgvector": PgvectorOptions,
        "web_search": SearchOptions,
        "python": PythonOptions,
    }[engine]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem
)
def test_engines_take_the_options_of_every_shipped_configuration(path: Path) -> None:
    config = load_config(path, {})
    for pool in config.pools:
        options_of(pool.engine).model_validate(pool.options)
        if pool.resource == "retrieval":
            assert pool.slots <= config.database.pool_size


# --- the tree speaks of itself alone ------------------------------------------------
HOSTS_OF_NOBODY = re.compile(
    r"[^.]*|127\.0\.0\.1|0\.0\.0\.0|192\.0\.2\.\d+"
    r"|([\w-]+\.)*(example|invalid|test|localhost)|([\w-]+\.)?example\.(com|org|net)"
    r"|\W.*"
)
"""Loopback, names without a dot, and what is set aside for examples."""
ALLOWED = {
    "Makefile": 1,
    "LICENSE": 3,
    "herasys_rt/engines/search/options.py": 1,
    # The name of SVG's namespace, which nobody asks.
    "herasys_rt/dsl/svg.py": 1,
    "tests/pure/dsl/test_drawing.py": 3,
}
"""The index of the CPU build of torch; the text of the licence; a search provider's API."""


def test_no_host_is_named_but_the_index_of_torch() -> None:
    found: dict[str, list[str]] = {}
    for path in text_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        hosts = [
            host
            for host in re.findall(r"https?://([^\s/:\"'`)>,;\\]*)", text)
            if not HOSTS_OF_NOBODY.fullmatch(host)
        ]
        name = str(path.relative_to(ROOT))
        if len(hosts) > ALLOWED.get(name, 0):
            found[name] = hosts
    assert found == {}


def test_no_path_of_one_machine_is_named() -> None:
    pattern = re.compile(r"(?<![\w.])/(?:work|root|home)/\w")
    found = {
        str(path.relative_to(ROOT)): pattern.findall(path.read_text(errors="replace"))
        for path in text_files()
        if path.suffix in {".py", ".md", ".toml", ".yaml", ".txt", ""}
    }
    assert {name: hits for name, hits in found.items() if hits} == {}
