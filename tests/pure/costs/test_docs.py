"""docs/costs.md says what the code says."""

from __future__ import annotations

from pathlib import Path

from herasys_rt.costs.backends import step_times
from herasys_rt.costs.hardware import GPUS
from herasys_rt.costs.measured import measured_settings
from herasys_rt.costs.models import MODELS

DOCS = Path(__file__).resolve().parents[3] / "docs" / "costs.md"


def comparison() -> list[str]:
    """Rows of roofline against measured: prefill by tokens, decode behind 2,048 tokens."""
    rows: list[str] = []
    for name, card, tp in measured_settings():
        measured = step_times(name, card, tp, "measured")
        modelled = step_times(name, card, tp, "roofline")
        cells = [
            cell(measured.prefill_s(n), modelled.prefill_s(n))
            for n in (256, 1024, 2048, 4096, 8192)
        ]
        cells += [
            cell(measured.decode_s(b, 2048 * b), modelled.decode_s(b, 2048 * b))
            for b in (1, 16, 64, 256)
        ]
        rows.append(f"| {name}, {tp} x {card} | {' | '.join(cells)} |")
    return rows


def cell(measured_s: float, modelled_s: float) -> str:
    error = modelled_s / measured_s - 1.0
    return f"{measured_s * 1e3:.1f} / {modelled_s * 1e3:.1f} ({error:+.0%})"


def gpu_rows() -> list[str]:
    return [
        f"| `{g.name}` | {g.bf16_flops / 1e12:g} | {g.memory_bytes_s / 1e12:g} | "
        f"{g.memory_bytes / 1e9:g} | {g.link_bytes_s / 1e9:g} | "
        f"{g.network_bytes_s / 1e9:g} |"
        for g in GPUS
    ]


def model_rows() -> list[str]:
    return [
        f"| `{m.name}` | {m.layers} | {m.hidden} | {m.q_heads} / {m.kv_heads} | "
        f"{m.parameters / 1e9:.3g} B | {m.active_parameters / 1e9:.3g} B | "
        f"{m.kv_bytes_per_token:,} |"
        for m in MODELS
    ]


def test_the_tables_in_the_docs_are_those_of_the_code():
    text = DOCS.read_text(encoding="utf-8")
    missing = [row for row in gpu_rows() + model_rows() + comparison() if row not in text]
    assert missing == [], "\n" + "\n".join(missing)
