"""The `herasys` command.

`main` is the console script. Every command lives in a module of its group; errors become
one message and an exit status here: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main() -> None:
    """The console script: run the command line and exit with its status."""
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit status; raises nothing but with --debug."""
    try:
        # Here, so that an interrupt while modules load is one like any other.
        from herasys_rt.cli import shell

        return shell.execute(list(arguments))
    except KeyboardInterrupt:
        return 130
