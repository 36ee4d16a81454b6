"""Lines of user code of the same programs here, in LangGraph and in LlamaIndex.

    python -m benchmarks.rivals.count [--json [FILE]] [--write]

A program is its function or class and everything it uses of the same file: other
functions and classes, tools, prompts and other constants. Counted are lines that are not
blank and hold more than a comment or a docstring; all files are laid out by one formatter.
Imports are not counted, for nobody. ``--write`` puts the tables into ``docs/rivals.md``.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks._common import ROOT, emit

DOCUMENT = ROOT / "docs" / "rivals.md"
BEGIN, END = "<!-- counted -->", "<!-- /counted -->"

_LANGGRAPH = "benchmarks/rivals/langgraph_programs.py"
_FUNCTIONAL = "benchmarks/rivals/langgraph_functional.py"
_LLAMAINDEX = "benchmarks/rivals/llamaindex_programs.py"

Programs = Mapping[str, tuple[str, str]]

PROGRAMS: dict[str, Programs] = {
    "herasys_rt": {
        "rag": ("examples/stdlib_rag.py", "rag"),
        "rag_rerank": ("examples/stdlib_rag.py", "rag_rerank"),
        "web_search": ("examples/web_search_agent.py", "research"),
        "react": ("examples/react_agent.py", "assistant"),
    },
    "LangGraph": {
        "rag": (_LANGGRAPH, "rag"),
        "rag_rerank": (_LANGGRAPH, "rag_rerank"),
        "web_search": (_LANGGRAPH, "research"),
        "react": (_LANGGRAPH, "assistant"),
    },
    "LlamaIndex": {
        "rag": (_LLAMAINDEX, "Rag"),
        "rag_rerank": (_LLAMAINDEX, "RagRerank"),
        "web_search": (_LLAMAINDEX, "Research"),
        "react": (_LLAMAINDEX, "assistant"),
    },
    "LangGraph, functional": {
        "rag": (_FUNCTIONAL, "rag"),
        "rag_rerank": (_FUNCTIONAL, "rag_rerank"),
        "web_search": (_FUNCTIONAL, "research"),
    },
    "LlamaIndex, ready-made": {
        "rag": (_LLAMAINDEX, "rag_engine"),
        "rag_rerank": (_LLAMAINDEX, "rag_rerank_engine"),
    },
}
"""Form -> program -> (file, name). The first three declare their steps; the other two are
what is shorter in the same frameworks and declares none."""

SETUP: dict[str, tuple[str, ...]] = {
    _LANGGRAPH: ("connect", "Parts"),
    _LLAMAINDEX: ("connect", "Parts", "Program"),
}
"""What an application writes once, whatever its programs: counted by itself."""

_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


class Source:
    """One Python file: what it defines, what uses what, which lines hold code."""

    def __init__(self, text: str, borrowed: Source | None = None) -> None:
        self._tree = ast.parse(text)
        self._code = _code_lines(text) - _docstring_lines(self._tree)
        self._defined = dict(_definitions(self._tree))
        self._borrowed = borrowed

    def lines(self, *roots: str, without: Iterable[str] = ()) -> int:
        """Lines of code of ``roots`` and all they use, except what ``without`` names.

        `KeyError` when the file does not define a root.
        """
        used, left = set[str](), list(roots)
        skipped = frozenset(without)
        while left:
            name = left.pop()
            if name in used or name in skipped:
                continue
            used.add(name)
            left += [n for n in _names(self._defined[name]) if n in self._defined]
        own = {n for name in used for n in _extent(self._defined[name])}
        return len(own & self._code) + self._foreign(used, skipped)

    def _foreign(self, used: set[str], skipped: frozenset[str]) -> int:
        """Lines of what is taken from the file that this one builds on."""
        if self._borrowed is None:
            return 0
        known = self._borrowed._defined.keys() - self._defined.keys()
        names = {n for name in used for n in _names(self._defined[name]) if n in known}
        return self._borrowed.lines(*names, without=skipped)


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """(name, statement) of everything that a module defines at its top, but imports."""
    for statement in tree.body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield statement.name, statement
            case ast.Assign(targets=targets):
                for target in targets:
                    for name in _names(target):
                        yield name, statement
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, statement
            case _:
                pass


def _names(node: ast.AST) -> list[str]:
    """Every name in a piece of code, once, in order of appearance."""
    found = (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
    return list(dict.fromkeys(found))


def _extent(node: ast.stmt) -> range:
    """The lines of a statement, its decorators with it."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return range(first, (node.end_lineno or node.lineno) + 1)


def _code_lines(text: str) -> set[int]:
    """Numbers of the lines that hold more than blanks and comments."""
    shown = [not line.isspace() and bool(line) for line in text.splitlines()]
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            rows = range(token.start[0], token.end[0] + 1)
            found.update(row for row in rows if shown[row - 1])
    return found


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Numbers of the lines of docstrings, and of strings under attributes as theirs."""
    found: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                found.update(_extent(node))
            case _:
                pass
    return found


def counts(root: Path = ROOT) -> dict[str, dict[str, int]]:
    """Form -> program -> lines, and under ``setup`` what is written once."""

    def source(path: str) -> Source:
        base = source(_LANGGRAPH) if path == _FUNCTIONAL else None
        return Source((root / path).read_text(), base)

    counted: dict[str, dict[str, int]] = {}
    for form, programs in PROGRAMS.items():
        lines: dict[str, int] = {}
        for program, (path, name) in programs.items():
            base = _LANGGRAPH if path == _FUNCTIONAL else path
            lines[program] = source(path).lines(name, without=SETUP.get(base, ()))
        setups = {_LANGGRAPH if p == _FUNCTIONAL else p for p, _ in programs.values()}
        lines["setup"] = sum(
            source(path).lines(*SETUP[path]) for path in sorted(setups & SETUP.keys())
        )
        counted[form] = lines
    return counted


def table(counted: Mapping[str, Mapping[str, int]]) -> str:
    """The counts as a Markdown table, a row per form."""
    programs = [*PROGRAMS["herasys_rt"], "setup"]
    rows = [["", *programs], ["---", *("---:" for _ in programs)]]
    for form, lines in counted.items():
        rows.append([form, *(str(lines.get(p, "-")) for p in programs)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def written(document: str, counted: Mapping[str, Mapping[str, int]]) -> str:
    """The document with its table replaced. `ValueError` without the two marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} ... {END} to put the table between")
    return f"{before}{begin}\n{table(counted)}{end}{after}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="counts as JSON (default -)"
    )
    parser.add_argument("--write", action="store_true", help=f"into {DOCUMENT.name}")
    args = parser.parse_args()
    counted = counts()
    if args.write:
        DOCUMENT.write_text(written(DOCUMENT.read_text(), counted))
    if args.json is not None:
        emit(counted, args.json)
    elif not args.write:
        print(table(counted), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
