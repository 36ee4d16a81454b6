"""Run a workflow over the rows of a file: ``python -m herasys_rt.batch``.

    python -m herasys_rt.batch FILE.py:NAME -i in.jsonl -o out.jsonl [--concurrency N]

Every input row is a JSON object with the workflow's inputs. Every output row is the
run's report plus its row number, in the order of the input; a row that cannot run or
fails carries its ``error`` and never stops the others. NAME may be an agent. Works alone,
beside a running runtime, and as a Ray job (``ray job submit --working-dir . -- python -m
...``), where agents run in a frontend.

The output is emptied once the runtime answers, and can be followed while it grows.

Exit status: 0 all rows succeeded, 3 some failed, 1 the batch itself failed, 2 usage,
130 interrupted.
"""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status, 130 when it was interrupted."""
    try:
        # Here, so that an interrupt while modules load is one like any other.
        from herasys_rt.client import batch

        return batch.execute(argv)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
