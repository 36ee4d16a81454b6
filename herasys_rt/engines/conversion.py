"""One-time conversion of a GGUF file into the directory form that vLLM loads.

A conversion is written beside its target and renamed into place under a lock, so that a
target is whole or absent and two conversions at once are one. A marker file records the
size of every file; a directory that does not match its marker is converted anew.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from herasys_rt.errors import ModelUnavailableError

log = logging.getLogger(__name__)

MARKER = "herasys-model.json"
_FORM = 1  # raise it when `_write_model` writes something else


def is_whole(target: Path) -> bool:
    """Whether ``target`` was converted by this form of converter and is complete."""
    try:
        marker = json.loads((target / MARKER).read_text())
        sizes = marker["sizes"].items()
        return marker["form"] == _FORM and all(
            (target / name).stat().st_size == size for name, size in sizes
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def convert(gguf: Path, target: Path) -> None:
    """Convert ``gguf`` into the directory ``target``; at once when it is there.

    Waits for another conversion of the same target. Takes about 30 s and 1 GB of memory
    for a model of 135 million weights. Errors: `ModelUnavailableError`.
    """
    import filelock

    target.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.with_name(f".{target.name}.lock")):
        if is_whole(target):
            return
        prefix = f".{target.name}.part-"
        for stale in (target, *target.parent.glob(f"{prefix}*")):
            shutil.rmtree(stale, ignore_errors=True)
        part = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        try:
            _write_model(gguf, part)
            _write_marker(gguf, part)
            part.rename(target)
        except (ImportError, OSError, ValueError, RuntimeError) as e:
            raise ModelUnavailableError(
                f"converting {gguf.name} failed: {type(e).__name__}: {e}",
                hint="Check free disk space (300 MB) and that the packages torch, "
                "transformers, gguf and accelerate are installed.",
            ) from e
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _write_model(gguf: Path, part: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging as progress

    if not sys.stderr.isatty():
        progress.disable_progress_bar()

    def load(auto: Any, **options: Any) -> Any:
        return auto.from_pretrained(str(gguf.parent), gguf_file=gguf.name, **options)

    log.info("reading %s", gguf.name)
    load(AutoTokenizer).save_pretrained(part)
    dequantized = GgufConfig(dequantize=True)
    model = load(
        AutoModelForCausalLM,
        dtype=torch.bfloat16,
        quantization_config=dequantized,
    )
    log.info("writing %s", part.parent)
    model.save_pretrained(part)


def _write_marker(gguf: Path, part: Path) -> None:
    """Make every file durable, then say how large each is."""
    sizes: dict[str, int] = {}
    for file in sorted(path for path in part.rglob("*") if path.is_file()):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
        file.chmod(0o644)
        sizes[file.relative_to(part).as_posix()] = file.stat().st_size
    marker = {"form": _FORM, "from": gguf.name, "sizes": sizes}
    (part / MARKER).write_text(json.dumps(marker, indent=1))
    part.chmod(0o755)
