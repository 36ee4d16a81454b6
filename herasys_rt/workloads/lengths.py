"""Real lengths and texts, for the sources of `workloads.agents`. Read once per process.

Four files (docs/workloads.md says where to get them): pairs of conversations' lengths
(``sharegpt``), tasks of function calls (``bfcl``), chains of an agent's calls
(``taubench``), questions (``hotpotqa``, ``mtbench``).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from herasys_rt.workloads.records import (
    Faults,
    json_document,
    json_lines,
    length_fault,
)


class Exchange(msgspec.Struct, frozen=True):
    """One call of a chain: ``new`` prompt tokens behind the history, ``output`` tokens."""

    new: int
    output: int
    after_s: float = 0.0


class Task(msgspec.Struct, frozen=True):
    """A real function-calling task: tokens of the tools' documents, of each user turn and
    of the calls that answer it."""

    tool_docs: int
    turns: tuple[tuple[int, tuple[int, ...]], ...]


CHARS_PER_TOKEN = 4
"""Of English prose, where a file holds texts and no counts."""


class _BfclTurn(msgspec.Struct):
    user: int
    calls: list[int]


class _BfclTask(msgspec.Struct):
    id: str
    tool_doc_tokens: int
    turns: list[_BfclTurn]


class _Conversation(msgspec.Struct):
    turns: list[str]


class _Question(msgspec.Struct):
    question: str


@lru_cache(maxsize=4)
def read_pairs(path: Path) -> tuple[tuple[int, int], ...]:
    """(user, output) tokens of real turns: a JSON list of pairs. Errors: `ConfigError`."""
    pairs = json_document(path, list[tuple[int, int]])
    faults = Faults(path)
    for number, (user, output) in enumerate(pairs):
        _check(faults, f"pair {number}", user, output)
    faults.settle(len(pairs), "pairs")
    return tuple(pairs)


@lru_cache(maxsize=4)
def read_tasks(path: Path) -> tuple[Task, ...]:
    """Function-calling tasks: a JSON list of ``{id, tool_doc_tokens, turns: [{user,
    calls}]}`` with token counts. Errors: `ConfigError`."""
    tasks = json_document(path, list[_BfclTask])
    faults = Faults(path)
    for task in tasks:
        if not any(turn.calls for turn in task.turns):
            faults.add(f"task {task.id}", "no calls")
        for turn in task.turns:
            if turn.user < 0:
                faults.add(f"task {task.id}", f"{turn.user} tokens of a user")
            for tokens in turn.calls or (0,):
                # A turn without words offers the tools that were missing before.
                _check(faults, f"task {task.id}", max(turn.user, 1), tokens)
        if task.tool_doc_tokens < 0:
            faults.add(f"task {task.id}", f"{task.tool_doc_tokens} tokens of documents")
    faults.settle(len(tasks), "tasks")
    return tuple(
        Task(task.tool_doc_tokens, tuple((t.user, tuple(t.calls)) for t in task.turns))
        for task in tasks
    )


@lru_cache(maxsize=4)
def read_chains(path: Path) -> tuple[tuple[Exchange, ...], ...]:
    """Chains of calls: a JSON list of lists of [prompt, output] tokens, where a prompt
    holds all that was before it. Errors: `ConfigError`."""
    chains = json_document(path, list[list[tuple[int, int]]])
    faults = Faults(path)
    read: list[tuple[Exchange, ...]] = []
    for number, calls in enumerate(chains):
        before = 0
        exchanges: list[Exchange] = []
        for position, (prompt, output) in enumerate(calls):
            where = f"chain {number}, call {position}"
            _check(faults, where, prompt, output)
            # Counts of messages alone: a prompt may be a token short of what was before.
            exchanges.append(Exchange(max(prompt - before, 1), max(output, 1)))
            before = prompt + output
        if calls:
            read.append(tuple(exchanges))
        else:
            faults.add(f"chain {number}", "no calls")
    faults.settle(len(read), "chains")
    return tuple(read)


@lru_cache(maxsize=4)
def read_questions(path: Path) -> tuple[int, ...]:
    """Tokens of the questions of a HotpotQA file: a JSON list of ``{question}``, packed
    (``.gz``) or not. Errors: `ConfigError`."""
    questions = json_document(path, list[_Question])
    faults = Faults(path)
    for number, one in enumerate(questions):
        if not one.question.strip():
            faults.add(f"question {number}", "blank")
    faults.settle(len(questions), "questions")
    return tuple(_tokens_of(one.question) for one in questions)


@lru_cache(maxsize=4)
def read_conversations(path: Path) -> tuple[tuple[int, ...], ...]:
    """Tokens of what the user says, turn by turn: JSON lines of ``{turns: [...]}`` with
    texts, as MT-Bench has them. Errors: `ConfigError`."""
    faults = Faults(path)
    read: list[tuple[int, ...]] = []
    for where, one in json_lines(path, _Conversation, faults):
        if not one.turns:
            faults.add(where, "no turns")
        else:
            read.append(tuple(_tokens_of(text) for text in one.turns))
    faults.settle(len(read), "conversations")
    return tuple(read)


def _tokens_of(text: str) -> int:
    """About how many tokens an English text has; at least 1."""
    return max(round(len(text) / CHARS_PER_TOKEN), 1)


def _check(faults: Faults, where: str, prompt: int, output: int) -> None:
    problem = length_fault(prompt, output)
    if problem:
        faults.add(where, problem)
