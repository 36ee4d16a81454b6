"""What several folders of pure tests share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_INTERRUPTING = """
import runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
{start}
"""


@pytest.fixture
def interrupted_at() -> Callable[[str, str], tuple[int, str]]:
    """``interrupted_at(module, start)``: the exit status and the standard error of
    a process that runs ``start`` and is interrupted when it comes to load ``module``."""

    def run(module: str, start: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", _INTERRUPTING.format(module=module, start=start)],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stderr

    return run
