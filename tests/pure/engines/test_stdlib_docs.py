"""The demo's corpus: gathered from this interpreter, the same each time."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings

import pytest

from examples import stdlib_docs
from herasys_rt.engines.chunking import chunk_document


def words(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]


@pytest.fixture(scope="module")
def documents() -> list[stdlib_docs.Document]:
    return stdlib_docs.gather()


def test_every_public_module_with_documentation_is_there_once(
    documents: list[stdlib_docs.Document],
):
    names = [document["id"] for document in documents]
    assert names == sorted(set(names))
    assert len(names) > 150
    assert {"textwrap", "heapq", "json", "random", "shutil"} <= set(names)
    assert not any(name.startswith("_") and name != "__future__" for name in names)
    assert sum(len(document["text"]) for document in documents) > 500_000
    assert all(document["source"] == document["id"] for document in documents)


def test_documents_hold_functions_classes_and_methods_under_their_names(
    documents: list[stdlib_docs.Document],
):
    text = {document["id"]: document["text"] for document in documents}
    assert "textwrap.dedent(text)\nRemove any common leading whitespace" in text["textwrap"]
    assert "collections.Counter.most_common(self, n=None)" in text["collections"]
    assert "random.shuffle(x)\nShuffle list x in place" in text["random"]
    assert text["heapq"].startswith("module heapq\n")


def test_nothing_depends_on_addresses_or_the_time(documents: list[stdlib_docs.Document]):
    assert stdlib_docs.gather() == documents
    for document in documents:
        assert not re.search(r" at 0x[0-9a-f]{6,}", document["text"]), document["id"]


def test_gathering_leaves_the_process_as_it_was(capfd: pytest.CaptureFixture[str]):
    def state() -> tuple[object, ...]:
        return (
            dict(os.environ),
            list(sys.path),
            list(sys.meta_path),
            sys.excepthook,
            sys.displayhook,
            list(warnings.filters),
            threading.active_count(),
        )

    before = state()
    stdlib_docs.gather()
    assert state() == before
    assert capfd.readouterr() == ("", "")
    assert not {"antigravity", "this", "tkinter", "idlelib", "test.support"} & set(
        sys.modules
    )


def test_a_limit_bounds_the_modules(documents: list[stdlib_docs.Document]):
    assert stdlib_docs.gather(limit=3) == documents[:3]


def test_the_sample_represents_every_module_and_is_bounded(
    documents: list[stdlib_docs.Document],
):
    sampled = stdlib_docs.sample(documents, 600, 120, offsets=words)
    assert len(sampled) == 600
    assert len({document["id"] for document in sampled}) == 600
    assert {d["source"] for d in sampled} == {d["id"] for d in documents}
    assert max(len(words(document["text"])) for document in sampled) <= 120
    assert stdlib_docs.sample(documents, 600, 120, offsets=words) == sampled


def test_no_module_gives_two_more_than_another_that_has_more_to_give():
    documents = [
        {"id": name, "text": "word " * count, "source": name}
        for name, count in (("a", 10), ("b", 1), ("c", 6))
    ]
    sampled = stdlib_docs.sample(documents, 6, 2, offsets=words)
    assert [d["id"] for d in sampled] == ["a#0", "a#1", "a#2", "b#0", "c#0", "c#1"]
    everything = stdlib_docs.sample(documents, 100, 2, offsets=words)
    assert len(everything) == 5 + 1 + 3


def test_an_ingest_keeps_each_sampled_document_whole(
    documents: list[stdlib_docs.Document],
):
    for document in stdlib_docs.sample(documents[::10], 60, 50, offsets=words):
        chunks = chunk_document(document, max_tokens=50, overlap=5, offsets=words)
        assert [chunk["text"] for chunk in chunks] == [document["text"]]
        assert chunks[0]["source"] == document["source"]


def test_questions_repeat_at_once_and_later():
    questions = stdlib_docs.QUESTIONS
    assert len(questions) == 24 and len(set(questions)) == 16
    gaps = [
        i - questions.index(question)
        for i, question in enumerate(questions)
        if i != questions.index(question)
    ]
    assert len(gaps) == 8
    assert gaps.count(1) >= 3, "twins at the same moment"
    assert sum(gap > 8 for gap in gaps) >= 4, "repeats beyond the concurrency"


def test_the_corpus_names_what_is_asked(documents: list[stdlib_docs.Document]):
    text = {document["id"]: document["text"] for document in documents}
    for question in set(stdlib_docs.QUESTIONS):
        module, item = re.search(r"(\w+)\.(\w+)|the (?P<m>fnmatch)", question).group(1, 2)  # type: ignore[union-attr]
        if module is None:
            assert "module fnmatch" in text["fnmatch"]
        else:
            assert f"{module}.{item}" in text[module]
