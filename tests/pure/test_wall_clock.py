"""The time of day is read only where the world outside tells it."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WALL = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}
LAST = {name.split(".")[-1] for name in WALL}
OUTSIDE = {
    "herasys_rt/doctor.py",  # ages of files
    "herasys_rt/engines/http_answers.py",  # a server's Retry-After may be a date
    "herasys_rt/runtime/lifetimes.py",  # what was written down before a reboot
}


def test_no_age_and_no_time_out_depends_on_the_time_of_day():
    readers = {
        path.relative_to(ROOT).as_posix()
        for package in ("herasys_rt", "operators")
        for path in (ROOT / package).rglob("*.py")
        if any(
            isinstance(node, ast.Attribute)
            and node.attr in LAST
            and ast.unparse(node) in WALL
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    }
    assert readers <= OUTSIDE
