"""A runtime that purges while its fuser is away, and waits to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from herasys_rt.config import PoolConfig, ReuseConfig, SchedulerConfig
from tests.pure.runtime.conftest import LocalRuntime
from tests.pure.runtime.test_cache import Answering, answer, await_stats, kept, ready


def main() -> None:
    """``STORE RUN_DIR``: keep two results, purge the one of ``a``, say so, wait."""
    store, run_dir = (Path(word) for word in sys.argv[1:])
    pools = [PoolConfig(name="llm", resource="llm", engine="modelled", slots=4)]
    scheduler = SchedulerConfig(reuse=ReuseConfig(store="disk"))
    runtime = LocalRuntime(run_dir, pools, {"llm": Answering()}, scheduler, store)
    runtime.start_fuser()
    client = ready(runtime)
    for question in "ab":
        client.submit(answer, question=question).result(10)
    kept(runtime, 2)
    (first, _) = runtime.state.table.completed
    runtime.lose_fuser()
    await_stats(client, lambda s: s["store"] is None)
    done = client.purge_cache(signature=first[0].hex())
    assert done["stored"] is None
    print("2 results, purged", flush=True)
    sys.stdin.read()
    runtime.threads[0].join()
