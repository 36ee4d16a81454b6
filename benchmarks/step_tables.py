"""Derives the step tables that ship under herasys_rt/costs/data from public profiles.

    python -m benchmarks.step_tables

Needs the data set folder ``profiles`` (`_common.data_dir`); writes one file a setting.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import ROOT, find_data, no_data
from herasys_rt.costs.fitting import non_negative
from herasys_rt.costs.hardware import gpu
from herasys_rt.costs.memory import kv_capacity_tokens
from herasys_rt.costs.models import model

OUT = ROOT / "herasys_rt" / "costs" / "data"
GPUS = {"a100_sxm": "a100-80g", "h100_sxm": "h100", "h200_sxm": "h200"}
AICONFIGURATOR = (
    "sums of kernels measured with SGLang 0.5.9, bf16, without host overhead; from the "
    "tables of ai-dynamo/aiconfigurator, commit 095f58a51c4ca8e61b66ec108d86f223f8d559ce"
)
LLMSERVINGSIM = (
    "kernels profiled with vLLM 0.19.0, bf16; from the profile RTX4090, "
    "meta-llama/Llama-3.1-8B, tp1 of casys-kaist/LLMServingSim, commit "
    "5daddb21a545658d5150b535712d0494584b5278"
)
LLAMA_8B_LAYERS = 32
LLAMA_8B_KV_TOKENS = kv_capacity_tokens(model("llama-3-8b"), gpu("rtx-4090"), 1)
REACH = 2048
"""Tokens behind a sequence up to which attention is fitted: what serving it is full of."""
ONCE = ("embedding", "final_layernorm")
TWICE = ("layernorm",)
"""Layers of the profile that an iteration or a block runs other than once a block."""


def main() -> None:
    folder = find_data("profiles")
    if folder is None:
        raise SystemExit(no_data("profiles"))
    for document in [*grids(folder), layered(folder / "llmservingsim")]:
        name = f"{document['model']}.{document['gpu']}.tp{document['tp']}.json"
        text = json.dumps(document, indent=1)
        (OUT / name).write_text(_compact(text) + "\n", encoding="utf-8")
        print(name)


def grids(folder: Path) -> list[dict[str, Any]]:
    """The grids of derived_step_latency.csv, a setting each."""
    cells: dict[tuple[str, str, int], dict[str, dict[tuple[int, int], float]]]
    cells = defaultdict(lambda: {"prefill": {}, "decode": {}})
    with (folder / "derived_step_latency.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            key = row["model"], GPUS[row["gpu"]], int(row["tp"])
            at = int(row["batch"]), int(row["tokens_or_ctx"])
            cells[key][row["phase"]][at] = float(row["latency_ms"])
    documents: list[dict[str, Any]] = []
    for (name, card, tp), phases in cells.items():
        decode = phases["decode"]
        batches = sorted({batch for batch, _ in decode})
        contexts = sorted({context for _, context in decode})
        steps = {
            "form": "grid",
            "prefill": [[n, ms] for (_, n), ms in sorted(phases["prefill"].items())],
            "batches": batches,
            "contexts": contexts,
            "decode": [[decode.get((b, c)) for c in contexts] for b in batches],
        }
        documents.append(
            {
                "model": name,
                "gpu": card,
                "tp": tp,
                "source": AICONFIGURATOR,
                "licence": "Apache-2.0",
                "steps": steps,
            }
        )
    return documents


def layered(folder: Path) -> dict[str, Any]:
    """Llama-3-8B on an RTX 4090: kernels added up, attention as coefficients."""
    prefix = folder / "RTX4090_Llama-3.1-8B_tp1"
    costs = attention(Path(f"{prefix}_attention.csv"))
    dense: dict[int, float] = defaultdict(lambda: costs["fixed_ms"])
    for layer, tokens, ms in _rows(Path(f"{prefix}_dense.csv")):
        times = 1 if layer in ONCE else LLAMA_8B_LAYERS * (2 if layer in TWICE else 1)
        dense[tokens] += times * ms
    head: dict[int, float] = defaultdict(float)
    for _, sequences, ms in _rows(Path(f"{prefix}_per_sequence.csv")):
        head[sequences] += ms
    steps = {
        "form": "parts",
        "dense": [[n, round(ms, 4)] for n, ms in sorted(dense.items())],
        "head": [[n, round(ms, 4)] for n, ms in sorted(head.items())],
        **{name: float(f"{ms:.4g}") for name, ms in costs.items() if name != "fixed_ms"},
    }
    return {
        "model": "llama-3-8b",
        "gpu": "rtx-4090",
        "tp": 1,
        "source": LLMSERVINGSIM,
        "licence": "MIT",
        "steps": steps,
    }


def attention(path: Path) -> dict[str, float]:
    """What attention takes in all layers, fitted to relative errors.

    Not over chunks below 256 tokens with a cache behind them (they wait for memory, not
    for pairs), nor beyond `REACH` or what the card's memory holds beside the weights.
    """
    with path.open(newline="") as file:
        rows = [[float(cell) for cell in row.values()] for row in csv.DictReader(file)]
    chunk, cached, decodes, context, us = np.array(rows).T
    fits = chunk + cached + decodes * context <= LLAMA_8B_KV_TOKENS
    kept = fits & ((cached == 0) | (chunk >= 256)) & (np.maximum(cached, context) <= REACH)
    mixed = (chunk > 0).astype(float)
    columns = {
        "pair_ms": chunk * (cached + chunk / 2),
        "sequence_ms": (1 - mixed) * decodes,
        "context_ms": (1 - mixed) * decodes * context,
        "mixed_sequence_ms": mixed * decodes,
        "mixed_context_ms": mixed * decodes * context,
        "fixed_ms": np.ones_like(us),
    }
    terms = np.column_stack(list(columns.values()))[kept]
    weight = 1.0 / us[kept]
    found = non_negative(terms * weight[:, None], np.ones(len(weight)))
    error = np.abs(terms @ found * weight - 1.0)
    tail = np.quantile(error, 0.95)
    print(f"attention: mean error {error.mean():.1%}, 95 % below {tail:.1%}")
    in_ms = (found * LLAMA_8B_LAYERS / 1e3).tolist()
    return dict(zip(columns, in_ms, strict=True))


def _rows(path: Path) -> list[tuple[str, int, float]]:
    """(layer, count, milliseconds) of a profile."""
    with path.open(newline="") as file:
        reader = csv.reader(file)
        next(reader)
        return [(layer, int(count), float(us) / 1e3) for layer, count, us in reader]


def _compact(text: str) -> str:
    """JSON with its innermost lists on one line each."""
    return re.sub(
        r"\[[^\[\]{}]+\]",
        lambda found: "[" + re.sub(r"\s+", " ", found.group()[1:-1]).strip() + "]",
        text,
    )


if __name__ == "__main__":
    main()
