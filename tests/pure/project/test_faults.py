"""`tests/FAULTS.md` names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]


def test_every_test_that_is_named_exists_in_the_file_it_is_named_with():
    text = (TESTS / "FAULTS.md").read_text()
    words = re.findall(r"`((?:pure|real)/[\w/]+\.py|test_\w+)`", text)
    sources = {word: (TESTS / word).read_text() for word in words if word.endswith(".py")}
    wrong: list[str] = []
    source = ""
    for word in words:
        if word.endswith(".py"):
            source = word
        elif f"def {word}(" not in sources[source]:
            wrong.append(f"{source}: {word}")
    assert wrong == []
