"""docs/operators.md says what the declarations say."""

from __future__ import annotations

from pathlib import Path

from herasys_rt.dsl import discover
from operators.__main__ import page

PAGE = Path(__file__).parents[3] / "docs/operators.md"


def test_the_page_is_what_the_library_declares():
    again = "run: python -m operators > docs/operators.md"
    assert PAGE.read_text(encoding="utf-8") == page(), again


def test_every_operator_is_on_the_page_with_what_it_lowers_to_and_its_cost_key():
    lines = page().splitlines()
    for op in discover().values():
        rows = [line for line in lines if line.startswith(f"| `{op.id}` |")]
        if op.__module__.startswith("operators."):
            assert len(rows) == 2
            assert f"`{op.verb}` | {op.resource}" in rows[0] and op.purity in rows[0]
            assert f"`{op.estimate.cost_key}` | {op.estimate.unit}" in rows[1]
        else:
            assert rows == []
