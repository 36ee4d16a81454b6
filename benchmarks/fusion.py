"""What fusion costs and gains: signatures, the table, the control path, a real load.

Prints one JSON object:

    signatures_per_s        nodes signed in a second on one core, in runs of three nodes
    hash_mb_per_s           vectors (16 MiB) that are named in a second, by hash
    mixed                   HeraSys's mixed load on the real engines, 10 % of it repeated:
                            ratio of throughputs with fusion and without, its 95 %
                            interval, bound 1 / (1 - w), share_of_bound = ratio / bound
    hot                     the same with so much repeated that w is above 0.25
    executed_share          executed of submitted nodes of ``mixed`` with fusion
    control_cpu_ms_added    CPU that fusion adds to a run of three nodes of which nothing is
                            there twice, over all processes: the difference of the two
                            runtimes, and signing, which goes on without fusion too;
                            control has the difference's interval and what fusion adds to
                            the latency of a run alone
    million                 1,000,000 signatures through the table within its bounds:
                            bytes_per_entry beside the value, microseconds of a lookup

``_fusion_engines.py`` says how the real load is measured; its lengths are those of the
paper times ``length_scale``, the question's apart. The control path is that of
``overhead.py``, in two runtimes that take turns.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import statistics
import sys
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import _fusion_engines as engines
from benchmarks._common import emit, facts, standard_arguments
from benchmarks._fusion_engines import Effort, Load, say
from benchmarks.overhead import chain, many_at_once, modelled_config, one_at_a_time
from herasys_rt.core.fusion import FusionTable, Key, Owner, Result
from herasys_rt.core.ledger import Ledger
from herasys_rt.core.state import KernelConfig
from herasys_rt.core.values import Value
from herasys_rt.figures import percentile
from herasys_rt.graph.hashing import HASHES, Hash
from herasys_rt.graph.signature import Signer

MIXED, HOT = Load("mixed", 0.10, 90), Load("hot", 0.70, 72)
"""With these seeds the first runs, those of ``--quick``, repeat as much as the rest."""
FULL = {MIXED: Effort(3, 50), HOT: Effort(2, 60)}
QUICK = {MIXED: Effort(1, 30), HOT: Effort(1, 40)}
SIGNATURES = 1_000_000
PORTION = 10_000
BOUNDS = KernelConfig()
_LARGE = (10_900, 384)
"""Vectors of MiniLM: 16 MiB."""
_REPEATS = 5
_OWNER = Owner("embed@1", "default")


# --- hashing ------------------------------------------------------------------------
def signatures_per_s(runs: int = 4000) -> float:
    """Nodes signed in a second, by structure and with value seeds, each run with inputs of
    its own: the median of repeats."""
    signer = Signer(chain.spec, lambda node: f"{node.resource}@1")
    nodes = len(chain.spec.nodes)
    rates: list[float] = []
    for repeat in range(_REPEATS):
        inputs = [{"question": f"question {i} of repeat {repeat}"} for i in range(runs)]
        began_s = time.process_time()
        for number, given in enumerate(inputs):
            signer.signed(given, "default", f"run-{number}")
        rates.append(nodes * runs / (time.process_time() - began_s))
    return statistics.median(rates)


def mb_per_s(hashing: Hash) -> float:
    """Megabytes (10^6) of vectors that are named in a second, the check that all numbers
    are finite included: the median of repeats."""
    vectors = np.random.default_rng(0).standard_normal(_LARGE, dtype=np.float32)
    rates: list[float] = []
    for _ in range(_REPEATS):
        began_s = time.process_time()
        hashing.of(vectors)
        rates.append(vectors.nbytes / 1e6 / (time.process_time() - began_s))
    return statistics.median(rates)


# --- the table ----------------------------------------------------------------------
def million(
    signatures: int = SIGNATURES, bounds: KernelConfig = BOUNDS
) -> dict[str, float]:
    """Distinct signatures through a `FusionTable` with the bounds of a kernel."""
    table = FusionTable(Ledger(), bounds.reuse_max_bytes, bounds.reuse_max_entries)
    spent_us: list[float] = []
    for first in range(0, signatures, PORTION):
        keys = _keys(first, PORTION)
        spent_s = _look_up(table, keys)
        _complete(table, keys)
        spent_us.append(1e6 * (spent_s + _look_up(table, keys)) / (2 * PORTION))
    entries = table.entries
    del table
    return {
        "bytes_per_entry": round(_bytes_per_entry(bounds), 1),
        "lookup_us_first": round(spent_us[0], 3),
        "lookup_us_last": round(spent_us[-1], 3),
        "entries": entries,
    }


def _keys(first: int, count: int) -> list[Key]:
    numbers = range(first, first + count)
    return [(hashlib.sha256(b"%d" % number).digest(), ()) for number in numbers]


def _look_up(table: FusionTable, keys: Sequence[Key]) -> float:
    began_s = time.process_time()
    for key in keys:
        if table.result(key, 0.0) is None:
            table.live.get(key)
    return time.process_time() - began_s


def _complete(table: FusionTable, keys: Sequence[Key]) -> None:
    for key in keys:
        value = Value(key[0][::-1], 0, b"")
        result = Result(value, b"", True, float("inf"), "engine-0", 0.0, 0.0, 1)
        table.store({key: result}, value, value.size, 0.0, _OWNER)
        table.trim()


def _bytes_per_entry(bounds: KernelConfig) -> float:
    """Of a full table out of which as much went as is in it."""
    gc.collect()
    tracemalloc.start()
    table = FusionTable(Ledger(), bounds.reuse_max_bytes, bounds.reuse_max_entries)
    for first in range(0, 2 * bounds.reuse_max_entries, PORTION):
        _complete(table, _keys(first, PORTION))
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / table.entries


# --- the control path ---------------------------------------------------------------
def control(pairs: int, runs: int, orders: Sequence[bool]) -> dict[str, Any]:
    """What fusion adds where nothing is there twice: paired blocks in two runtimes, anew
    for each of ``orders``, which says whether the one with fusion is started first. Two
    equal runtimes differ by more than fusion costs, the first one being the slower."""
    cpu: list[tuple[float, float]] = []
    latency: list[tuple[float, float]] = []
    for first in orders:
        with (
            engines.runtime(engines.with_fusion(modelled_config(), first)) as one,
            engines.runtime(engines.with_fusion(modelled_config(), not first)) as other,
            one.connected() as here,
            other.connected() as there,
        ):
            clients = {first: here, not first: there}
            for client in clients.values():
                one_at_a_time(client, 200, "warm")
                many_at_once(client, 1000, 100, "warm too")
            for number in range(pairs):
                told: dict[bool, tuple[float, float]] = {}
                for fused in (True, False) if number % 2 else (False, True):
                    client = clients[fused]
                    alone = one_at_a_time(client, runs // 10, f"one {number}")
                    _, _, cpu_s = many_at_once(client, runs, 100, f"many {number}")
                    told[fused] = 1e3 * cpu_s / runs, 1e3 * percentile(alone, 50)
                cpu.append((told[True][0], told[False][0]))
                latency.append((told[True][1], told[False][1]))
                say(f"control path, pair {number + 1} of {pairs}")
    return {
        "cpu_ms_added": _added(cpu),
        "p50_ms_added": _added(latency),
        "cpu_ms_per_run": _arms(cpu),
        "p50_ms": _arms(latency),
        "runs_per_arm": len(cpu) * runs,
    }


def _added(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    return {
        "mean": round(_difference(pairs), 4),
        "interval": [round(x, 4) for x in engines.interval(pairs, _difference)],
    }


def _difference(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.fmean([on - off for on, off in pairs])


def _arms(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    return {
        "on": round(statistics.median([on for on, _ in pairs]), 3),
        "off": round(statistics.median([off for _, off in pairs]), 3),
    }


def measure(quick: bool) -> dict[str, Any]:
    """The benchmark's result."""
    say("signatures and the table")
    hashes = {name: round(mb_per_s(one), 1) for name, one in HASHES.items()}
    rate, table = signatures_per_s(), million()
    signing_ms = 1e3 * len(chain.spec.nodes) / rate
    path = control(5, 1500, [True]) if quick else control(10, 4000, [True, False])
    loads = engines.measure(QUICK if quick else FULL)
    mixed, hot = engines.figures(loads[MIXED.name]), engines.figures(loads[HOT.name])
    between = [round(x, 4) for x in engines.ratio_interval(loads[MIXED.name])]
    return {
        "signatures_per_s": round(rate),
        "hash_mb_per_s": hashes,
        "mixed": {**mixed, "interval": between},
        "hot": hot,
        "executed_share": mixed["executed_share"],
        "control_cpu_ms_added": round(path["cpu_ms_added"]["mean"] + signing_ms, 4),
        "control": {**path, "signing_ms": round(signing_ms, 4)},
        "million": table,
        "length_scale": engines.LENGTH_SCALE,
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    standard_arguments(parser)
    args = parser.parse_args()
    emit({**measure(args.quick), **facts([MIXED.seed, HOT.seed])}, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
