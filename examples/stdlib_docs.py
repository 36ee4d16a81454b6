"""The demo's corpus: the documentation of Python's own standard library.

Gathered by introspection at run time, so that every machine has it: real technical prose,
about 200 modules and 900,000 characters.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import sys
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from herasys_rt.engines.chunking import Offsets, chunk_document

Document = dict[str, Any]

SKIPPED = frozenset(
    {
        # They do something when imported: open a browser, print, run as a program.
        *("antigravity", "this", "idlelib"),
        # They need a display or a terminal.
        *("tkinter", "turtle", "turtledemo"),
        # They change the process: hooks, input handling, deprecated patches.
        *("rlcompleter", "readline", "site", "ensurepip", "lib2to3", "test"),
        # An installed packaging tool takes its place and adds to the import path.
        "distutils",
        # Other platforms.
        *("msilib", "nt", "winreg"),
    }
)
"""Public modules that are not imported. Those with a leading underscore never are."""


def gather(limit: int | None = None) -> list[Document]:
    """One document ``{id, text, source, metadata}`` per documented module, by name.

    ``text`` holds the docstrings of the module, its functions, classes and their methods,
    each under its qualified name. ``limit`` bounds the number of modules. Modules that
    have side effects when imported are left out, and so are those that cannot be.
    """
    documents: list[Document] = []
    for name in sorted(sys.stdlib_module_names - SKIPPED):
        if name.startswith("_"):
            continue
        if limit is not None and len(documents) >= limit:
            break
        module = _import(name)
        text = _text_of(module) if module else ""
        if text:
            documents.append(
                {"id": name, "text": text, "source": name, "metadata": {"module": name}}
            )
    return documents


def sample(
    documents: Sequence[Document],
    chunks: int = 1000,
    max_tokens: int = 200,
    *,
    offsets: Offsets,
) -> list[Document]:
    """A fixed sample of ``chunks`` documents of at most ``max_tokens``, of all modules.

    Each is one chunk: ``id`` is ``module#index``, ``source`` the module, so that an ingest
    with the same ``max_tokens`` keeps it whole. Modules take turns, so that each is
    represented before any is a second time; a module that has run out is passed over.
    """
    piles: deque[deque[Document]] = deque()
    for document in documents:
        pile = deque(
            chunk_document(document, max_tokens=max_tokens, overlap=0, offsets=offsets)
        )
        if pile:
            piles.append(pile)
    taken: list[Document] = []
    while piles and len(taken) < chunks:
        pile = piles.popleft()
        chunk = pile.popleft()
        taken.append({key: chunk[key] for key in ("id", "text", "source", "metadata")})
        if pile:
            piles.append(pile)
    order = {document["id"]: i for i, document in enumerate(documents)}
    return sorted(taken, key=lambda c: (order[c["source"]], int(c["id"].split("#")[1])))


def _import(name: str) -> ModuleType | None:
    """The module, imported without a word; None when this machine has not got it."""
    silent = io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(silent),
        contextlib.redirect_stderr(silent),
    ):
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except Exception:
            # Some need a library or a platform that is not here (ImportError, OSError,
            # whatever their set-up raises); a corpus of the others is as good.
            return None


def _text_of(module: ModuleType) -> str:
    """The module's documentation, "" when it has none."""
    sections = [f"{name}\n{doc}" for name, doc in _docstrings(module)]
    return "\n\n".join(sections)


def _docstrings(module: ModuleType) -> Iterator[tuple[str, str]]:
    """(qualified name with signature, docstring) of the module and what it defines."""
    seen: set[str] = set()

    def fresh(value: Any) -> str:
        doc = _own_doc(value)
        if not doc or doc in seen:
            return ""
        seen.add(doc)
        return doc

    if doc := fresh(module):
        yield f"module {module.__name__}", doc
    names = _public_names(module)
    for name in names:
        value = _attribute(module, name)
        if not _defined_here(value, module):
            continue
        own = getattr(value, "__name__", name)
        if own != name and own in names:
            continue  # a second name of something that is listed by its own
        full = f"{module.__name__}.{name}"
        if doc := fresh(value):
            yield full + _signature(value), doc
        if inspect.isclass(value):
            for method_name, method in sorted(vars(value).items()):
                shown = not method_name.startswith("_")
                if shown and (doc := fresh(_unwrapped(method))):
                    yield f"{full}.{method_name}" + _signature(_unwrapped(method)), doc


def _public_names(module: ModuleType) -> dict[str, None]:
    """Functions before classes, by name; as keys, so that asking for one is quick."""
    exported = getattr(module, "__all__", None)
    names = exported if isinstance(exported, list | tuple) else vars(module)
    public = {n for n in names if isinstance(n, str) and not n.startswith("_")}

    def place(name: str) -> tuple[bool, str]:
        return inspect.isclass(_attribute(module, name)), name

    return dict.fromkeys(sorted(public, key=place))


def _attribute(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except Exception:  # lazy attributes may need what this machine has not got
        return None


def _defined_here(value: Any, module: ModuleType) -> bool:
    """Whether a function or class is the module's own (or its C accelerator's)."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return False
    home = getattr(value, "__module__", None) or module.__name__
    return home.lstrip("_").split(".")[0] == module.__name__.lstrip("_").split(".")[0]


def _own_doc(value: Any) -> str:
    """The docstring written at the thing itself, not inherited, blanks trimmed."""
    doc = getattr(value, "__doc__", None)
    return inspect.cleandoc(doc).strip() if isinstance(doc, str) else ""


def _unwrapped(method: Any) -> Any:
    """The function inside a static or class method or a property."""
    if isinstance(method, staticmethod | classmethod):
        return method.__func__
    if isinstance(method, property):
        return method
    return method if inspect.isroutine(method) else None


def _signature(value: Any) -> str:
    """``(a, b=1)``, "" where nothing is known or it would show an address."""
    if not (inspect.isroutine(value) or inspect.isclass(value)):
        return ""
    try:
        text = str(inspect.signature(value))
    except Exception:  # defaults of C functions are evaluated, which can fail anyhow
        return ""
    return "" if " at 0x" in text or len(text) > 200 else text


QUESTIONS: tuple[str, ...] = (
    "What does textwrap.dedent do?",
    "What does textwrap.dedent do?",
    "What does bisect.insort_right do?",
    "How does heapq.nsmallest choose the elements it returns?",
    "What does shutil.copytree do?",
    "What does functools.lru_cache do?",
    "What does functools.lru_cache do?",
    "What does secrets.token_hex return?",
    "What is a collections.Counter used for?",
    "What does difflib.get_close_matches return?",
    "How does random.shuffle change a list?",
    "How does random.shuffle change a list?",
    "What does glob.escape do?",
    "What does the fnmatch module match?",
    "What does textwrap.dedent do?",
    "What does math.isqrt return?",
    "What does base64.b64encode do?",
    "What does secrets.token_hex return?",
    "What does the contextlib.suppress context manager do?",
    "What does calendar.isleap return?",
    "What is a collections.Counter used for?",
    "What does the string.capwords function do?",
    "How does heapq.nsmallest choose the elements it returns?",
    "What does shutil.copytree do?",
)
"""24 questions that the corpus answers, 16 of them distinct.

Asked in this order at concurrency 8, three follow their twin at once and are fused; five
come long after it and are reused.
"""
