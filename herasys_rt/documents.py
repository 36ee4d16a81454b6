"""Reading documents: a file or a folder tree becomes ``{id, text, metadata}`` records."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from herasys_rt.errors import UsageError

Document = dict[str, Any]
"""``id`` (str), ``text`` (str), ``metadata`` (dict of str), optionally ``source`` (str)."""

OnSkip = Callable[[Path, str], None]
"""Told of each file that is not read, and why."""

_PLAIN = {".txt", ".text", ".md", ".markdown", ".rst", ".py"}
_HTML = {".html", ".htm", ".xhtml"}
_SURROGATES = re.compile("[\ud800-\udfff]")
_SNIFF_BYTES = 8192


class DocumentPathError(UsageError):
    """A path to read documents from does not exist or cannot be opened."""

    code = "document_path"


class _Unreadable(Exception):
    """Why one file gives no document."""


def clean_text(text: str) -> str:
    """The text with NUL removed and each lone surrogate replaced by U+FFFD.

    Neither can be stored in PostgreSQL, and a lone surrogate is no Unicode text at all.
    """
    if "\0" in text:
        text = text.replace("\0", "")
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def read_path(path: str | Path, *, on_skip: OnSkip | None = None) -> Iterator[Document]:
    """The documents of a file, or of all files under a folder, in the order of their ids.

    Reads text, Markdown, reStructuredText, Python, HTML (what a reader sees) and PDF
    (pages joined by blank lines). ``id`` is the path relative to the folder (a single
    file's name), with ``/`` between parts; ``metadata`` has ``path``, ``format`` and
    where known ``title`` and ``pages``. Files that are of another kind, broken, encrypted
    or without text are told to ``on_skip`` and left out; hidden files are passed over.
    Errors: `DocumentPathError`, before anything is read.
    """
    root = Path(path)
    if not root.exists():
        raise DocumentPathError(
            f"{root} does not exist",
            hint="Give a text, Markdown, HTML or PDF file, or a folder of them.",
            path=str(root),
        )
    if not os.access(root, os.R_OK):
        raise DocumentPathError(
            f"{root} may not be read", hint="Check its permissions.", path=str(root)
        )
    return _documents(root, on_skip or (lambda _path, _reason: None))


def _documents(root: Path, on_skip: OnSkip) -> Iterator[Document]:
    base = root if root.is_dir() else root.parent
    files = _walk(root, on_skip) if root.is_dir() else iter([root])
    for file in files:
        try:
            text, metadata = _read_file(file)
        except _Unreadable as e:
            on_skip(file, str(e))
        except OSError as e:
            on_skip(file, e.strerror or str(e))
        else:
            name = clean_text(file.relative_to(base).as_posix())
            yield {"id": name, "text": text, "metadata": {"path": name, **metadata}}


def _walk(root: Path, on_skip: OnSkip) -> Iterator[Path]:
    """Regular files under ``root``, depth first by name; each folder once (links loop)."""
    seen: set[tuple[int, int]] = set()

    def visit(folder: Path) -> Iterator[Path]:
        try:
            status = folder.stat()
            names = sorted(os.listdir(folder))
        except OSError as e:
            on_skip(folder, e.strerror or str(e))
            return
        if (status.st_dev, status.st_ino) in seen:
            on_skip(folder, "a link to a folder that is read already")
            return
        seen.add((status.st_dev, status.st_ino))
        for name in names:
            entry = folder / name
            if name.startswith("."):
                continue
            if entry.is_dir():
                yield from visit(entry)
            elif entry.is_file():
                yield entry
            else:
                on_skip(entry, "not a regular file")

    return visit(root)


def _read_file(file: Path) -> tuple[str, dict[str, str]]:
    """Text and metadata of one file. Errors: `_Unreadable`, `OSError`."""
    kind = file.suffix.lower()
    if kind == ".pdf":
        text, metadata = _read_pdf(file)
    elif kind in _HTML:
        text, metadata = _read_html(file.read_bytes())
    elif kind in _PLAIN:
        text, metadata = _decode(file.read_bytes()), {"format": kind.lstrip(".")}
    else:
        raise _Unreadable(f"files of kind {kind or 'without suffix'} are not read")
    text = clean_text(text.replace("\r\n", "\n").replace("\r", "\n"))
    if not text.strip():
        raise _Unreadable("it holds no text")
    return text, metadata


def _decode(data: bytes) -> str:
    """Text of bytes: by byte order mark, else UTF-8, else UTF-8 with replacements.

    Errors: `_Unreadable` for what is no text.
    """
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        # UTF-32's little-endian mark begins with UTF-16's, so it is asked for first.
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark):
            return data.decode(name, errors="replace")
    if _looks_binary(data):
        raise _Unreadable("it is binary, not text")
    return data.decode("utf-8", errors="replace")


def _looks_binary(data: bytes) -> bool:
    """Whether the beginning holds more control bytes than a text with stray ones does."""
    head = data[:_SNIFF_BYTES]
    nul = head.count(0)
    odd = sum(byte < 32 and byte not in b"\0\t\n\r\f\x1b" for byte in head)
    return odd > len(head) // 20 or nul > len(head) * 3 // 10


_DROPPED = (
    *("script", "style", "template", "noscript", "head", "svg", "iframe", "object"),
    "nav",  # links to elsewhere, and the same ones on every page
)
_BLOCKS = (
    *("address", "article", "aside", "blockquote", "dd", "details", "div", "dl", "dt"),
    *("figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6"),
    *("header", "hr", "li", "main", "ol", "p", "section", "summary"),
    *("pre", "table", "tr", "ul"),
)
_SURROUNDINGS = {
    **dict.fromkeys(_BLOCKS, ("\n\n", "\n\n")),
    **dict.fromkeys(("td", "th"), ("", " ")),
    "br": ("\n", ""),
}
"""Tag -> what is put before and after its text."""


def _read_html(data: bytes) -> tuple[str, dict[str, str]]:
    """What a reader of the page sees, one paragraph per block, and its title."""
    from bs4 import BeautifulSoup

    marked = data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    soup = BeautifulSoup(_decode(data) if marked else data, "html.parser")
    metadata = {"format": "html"}
    title = " ".join(soup.title.get_text(" ").split()) if soup.title else ""
    if title:
        metadata["title"] = clean_text(title)
    text = re.sub(r"[ \t]+\n", "\n", "".join(_visible(soup)).replace("\xad", ""))
    return re.sub(r"\n{3,}", "\n\n", text).strip(), metadata


def _visible(root: Any) -> Iterator[str]:
    """The visible strings below a parsed node, blanks as a browser shows them.

    A stack, not recursion: pages nest deeper than Python does.
    """
    from bs4.element import NavigableString, Tag

    stack: list[tuple[Any, bool]] = [(root, False)]  # (node or text to give, verbatim)
    fresh_line = True
    while stack:
        node, verbatim = stack.pop()
        if isinstance(node, Tag):
            if node.name in _DROPPED or node.has_attr("hidden"):
                continue
            inside = verbatim or node.name in ("pre", "textarea")
            before, after = _SURROUNDINGS.get(node.name, ("", ""))
            stack.append((after, True))
            stack.extend((child, inside) for child in reversed(node.contents))
            stack.append((before, True))
            continue
        if isinstance(node, NavigableString) and type(node) is not NavigableString:
            continue  # comments, declarations and the like
        text = str(node) if verbatim else re.sub(r"[ \t\r\n\f]+", " ", node)
        if fresh_line and not verbatim:
            text = text.lstrip(" ")
        if text:
            fresh_line = text.endswith("\n")
            yield text


def _read_pdf(file: Path) -> tuple[str, dict[str, str]]:
    """The text of all pages and their number. Errors: `_Unreadable`."""
    import logging

    import pypdf
    from pypdf.errors import DependencyError, PyPdfError

    logging.getLogger("pypdf").setLevel(logging.ERROR)
    try:
        reader = pypdf.PdfReader(file)
        if reader.is_encrypted and not reader.decrypt(""):
            raise _Unreadable("the PDF is encrypted")
        pages = [page.extract_text() for page in reader.pages]
    except DependencyError as e:
        raise _Unreadable(f"the PDF is encrypted: {e}") from e
    except (PyPdfError, ValueError, LookupError, TypeError, AttributeError) as e:
        # A damaged file surfaces as any of these from deep inside the parser.
        raise _Unreadable(f"the PDF is broken: {e}") from e
    except (RecursionError, ArithmeticError) as e:
        raise _Unreadable(f"the PDF is broken: {e}") from e
    metadata = {"format": "pdf", "pages": str(len(pages))}
    title = (reader.metadata or {}).get("/Title")
    if isinstance(title, str) and title.strip():
        metadata["title"] = clean_text(title.strip())
    return "\n\n".join(page.strip() for page in pages if page.strip()), metadata
