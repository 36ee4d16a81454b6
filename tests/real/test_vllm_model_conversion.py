"""The small LLM, converted from its package into the form that vLLM loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from herasys_rt.engines import conversion
from herasys_rt.engines.models import resolve_model

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_fresh_conversion_is_whole_and_equals_the_prepared_one(tmp_path: Path) -> None:
    prepared = resolve_model("smollm2-135m")
    made = resolve_model("smollm2-135m", cache=tmp_path)
    assert conversion.is_whole(Path(made.path))
    assert made.fingerprint == prepared.fingerprint
    assert made.context_tokens == 8192
    config = json.loads((Path(made.path) / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert "<|im_start|>" in (Path(made.path) / "chat_template.jinja").read_text()
