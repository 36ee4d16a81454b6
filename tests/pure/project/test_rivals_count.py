"""Lines of user code are counted by one rule, and the document shows the count."""

from __future__ import annotations

import pytest

from benchmarks.rivals.count import (
    BEGIN,
    DOCUMENT,
    END,
    PROGRAMS,
    Source,
    counts,
    table,
    written,
)

PROGRAM = '''\
"""A module."""

import json

LIMIT = 3  # a comment behind code

PROMPT = """\\
One {x}

two
"""

UNUSED = 1


# a comment
def helper(x: int) -> str:
    """Says something.

    In several lines.
    """
    # why
    return PROMPT.format(x=x)


@json.loads
class Program:
    """A class."""

    limit: int = LIMIT
    """An attribute."""

    def run(self) -> str:
        return helper(
            self.limit,
        )
'''


@pytest.mark.parametrize(
    ("root", "lines"),
    [
        pytest.param("LIMIT", 1, id="a comment behind code changes nothing"),
        pytest.param("PROMPT", 4, id="blank lines of a text do not count"),
        pytest.param("helper", 2 + 4, id="docstrings and comments do not count"),
        pytest.param("Program", 7 + 1 + 2 + 4, id="what is used counts, decorators too"),
    ],
)
def test_a_program_is_what_it_uses(root: str, lines: int) -> None:
    assert Source(PROGRAM).lines(root) == lines


def test_what_is_set_up_once_is_left_out() -> None:
    assert Source(PROGRAM).lines("Program", without=["helper"]) == 7 + 1


def test_what_comes_from_the_file_it_builds_on_counts() -> None:
    borrowing = "from base import helper\n\ndef program():\n    return helper(1)\n"
    assert Source(borrowing, Source(PROGRAM)).lines("program") == 2 + 2 + 4


def test_a_program_that_is_not_there_is_no_zero() -> None:
    with pytest.raises(KeyError):
        Source(PROGRAM).lines("gone")


def test_every_program_is_counted_in_every_form_that_has_it() -> None:
    counted = counts()
    for form, programs in PROGRAMS.items():
        assert set(counted[form]) == {*programs, "setup"}
        assert all(counted[form][program] > 0 for program in programs)


def test_no_declared_program_is_shorter_elsewhere() -> None:
    ours, *others = (counts()[form] for form in ("herasys_rt", "LangGraph", "LlamaIndex"))
    for program in PROGRAMS["herasys_rt"]:
        assert all(ours[program] <= other[program] for other in others), program


def test_a_table_is_put_between_its_marks_and_nothing_else_changes() -> None:
    counted = counts()
    document = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert written(document, counted) == f"before\n{BEGIN}\n{table(counted)}{END}\nafter\n"
    with pytest.raises(ValueError, match="to put the table between"):
        written("no marks", counted)


def test_the_document_shows_the_count() -> None:
    text = DOCUMENT.read_text()
    hint = "run: python -m benchmarks.rivals.count --write"
    assert written(text, counts()) == text, hint
