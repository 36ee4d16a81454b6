"""Reading documents from files and folders."""

from __future__ import annotations

import codecs
import os
import pickle
from pathlib import Path

import pypdf
import pytest
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from herasys_rt.documents import Document, DocumentPathError, clean_text, read_path


def read(path: Path) -> tuple[list[Document], dict[str, str]]:
    skipped: dict[str, str] = {}

    def on_skip(file: Path, reason: str) -> None:
        skipped[file.name] = reason

    return list(read_path(path, on_skip=on_skip)), skipped


def text_of(path: Path) -> str:
    documents, skipped = read(path)
    assert not skipped
    (document,) = documents
    return document["text"]


def write_pdf(path: Path, pages: list[str], *, password: str = "", title: str = "") -> None:
    writer = pypdf.PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    for text in pages:
        page = writer.add_blank_page(300, 300)
        stream = DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())
        page[NameObject("/Contents")] = writer._add_object(stream)
        fonts = DictionaryObject({NameObject("/F1"): font})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    if title:
        writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(path)


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.md").write_text("# B\n\ntext")
    (tmp_path / "a.txt").write_text("alpha")
    (tmp_path / "sub" / "c.rst").write_text("C\n=")
    (tmp_path / "tool.py").write_text('"""Does things."""')
    documents, skipped = read(tmp_path)
    assert [d["id"] for d in documents] == ["a.txt", "b.md", "sub/c.rst", "tool.py"]
    assert documents[2]["metadata"] == {"path": "sub/c.rst", "format": "rst"}
    assert not skipped


def test_a_single_file_is_named_by_its_file_name(tmp_path: Path):
    (tmp_path / "note.TXT").write_text("hello")
    documents, _ = read(tmp_path / "note.TXT")
    assert [(d["id"], d["text"]) for d in documents] == [("note.TXT", "hello")]


@pytest.mark.parametrize(
    "data",
    [
        "grüße 日本".encode(),
        "grüße 日本".encode("utf-8-sig"),
        codecs.BOM_UTF16_LE + "grüße 日本".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "grüße 日本".encode("utf-16-be"),
        codecs.BOM_UTF32_LE + "grüße 日本".encode("utf-32-le"),
        "gr\0üße 日本\0".encode(),
    ],
)
def test_text_is_decoded_by_its_mark_and_freed_of_nul(tmp_path: Path, data: bytes):
    (tmp_path / "a.txt").write_bytes(data)
    assert text_of(tmp_path) == "grüße 日本"


def test_bytes_that_are_not_utf8_are_replaced_not_fatal(tmp_path: Path):
    (tmp_path / "latin.txt").write_bytes("café au lait".encode("latin-1"))
    assert text_of(tmp_path) == "caf\ufffd au lait"


def test_line_ends_become_newlines(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"one\r\n\r\ntwo\rthree")
    assert text_of(tmp_path) == "one\n\ntwo\nthree"


def test_files_that_give_no_text_are_told_and_left_out(tmp_path: Path):
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    (tmp_path / "LICENSE").write_text("no suffix")
    (tmp_path / "program.txt").write_bytes(bytes(range(32)) * 20)
    (tmp_path / "blank.md").write_text(" \n ")
    (tmp_path / ".hidden.txt").write_text("hidden")
    os.mkfifo(tmp_path / "pipe.txt")
    documents, skipped = read(tmp_path)
    assert [d["id"] for d in documents] == ["good.txt"]
    left_out = ["LICENSE", "blank.md", "image.png", "pipe.txt", "program.txt"]
    assert sorted(skipped) == left_out
    assert "binary" in skipped["program.txt"]
    assert "no text" in skipped["blank.md"]
    assert ".png" in skipped["image.png"]


def test_html_gives_what_a_reader_sees(tmp_path: Path):
    (tmp_path / "page.html").write_text(
        """<!DOCTYPE html><html><head><title>The  page</title><style>p {}</style></head>
        <body><!-- a comment --><nav>Home</nav><h1>Head&shy;ing &amp; more</h1>
        <p>First <b>bold</b> sentence
        goes on.<br>New line.</p><p hidden>secret</p>
        <ul><li>one<li>two</ul><pre>x = 1
    y = 2</pre><table><tr><td>a</td><td>b</td></tr></table>
        <script>alert("no")</script></body></html>"""
    )
    (document,), _ = read(tmp_path)
    text = document["text"]
    assert document["metadata"]["title"] == "The page"
    for hidden in ("alert", "comment", "secret", "p {}", "The page", "Home"):
        assert hidden not in text
    assert "First bold sentence goes on.\nNew line." in text
    assert "x = 1\n    y = 2" in text
    paragraphs = [part.strip() for part in text.split("\n\n")]
    assert {"Heading & more", "one", "two", "a b"} <= set(paragraphs)
    assert "\n\n\n" not in text


def test_html_without_structure_is_still_read(tmp_path: Path):
    (tmp_path / "a.htm").write_text("just <i>some</i> words <p>unclosed")
    assert text_of(tmp_path) == "just some words\n\nunclosed"


def test_html_nested_deeper_than_python_recurses_is_read(tmp_path: Path):
    (tmp_path / "a.html").write_text("<b>" * 5000 + "deep")
    assert text_of(tmp_path) == "deep"


def test_html_follows_its_declared_encoding(tmp_path: Path):
    page = '<meta charset="iso-8859-1"><p>café</p>'
    (tmp_path / "a.html").write_bytes(page.encode("latin-1"))
    assert text_of(tmp_path) == "café"


def test_pdf_pages_are_joined(tmp_path: Path):
    write_pdf(tmp_path / "a.pdf", ["Page one text", "Page two text"], title="Two pages")
    (document,), skipped = read(tmp_path)
    assert document["text"] == "Page one text\n\nPage two text"
    assert document["metadata"]["pages"] == "2"
    assert document["metadata"]["title"] == "Two pages"
    assert not skipped


def test_pdf_that_cannot_be_read_is_told(tmp_path: Path):
    write_pdf(tmp_path / "locked.pdf", ["secret"], password="key")
    write_pdf(tmp_path / "scan.pdf", [""])
    write_pdf(tmp_path / "whole.pdf", ["words"])
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 nothing follows")
    (tmp_path / "empty.pdf").write_bytes(b"")
    cut = (tmp_path / "whole.pdf").read_bytes()
    (tmp_path / "torn.pdf").write_bytes(cut[: len(cut) // 3])
    documents, skipped = read(tmp_path)
    assert [d["id"] for d in documents] == ["whole.pdf"]
    assert sorted(skipped) == [
        "broken.pdf",
        "empty.pdf",
        "locked.pdf",
        "scan.pdf",
        "torn.pdf",
    ]
    assert "encrypted" in skipped["locked.pdf"]
    assert "broken" in skipped["torn.pdf"]


def test_links_that_loop_are_followed_once(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("alpha")
    (tmp_path / "sub" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self.txt").symlink_to(tmp_path / "self.txt")
    documents, skipped = read(tmp_path)
    assert [d["id"] for d in documents] == ["sub/a.txt"]
    assert sorted(skipped) == ["self.txt", "up"]


def test_file_names_that_are_no_unicode_still_give_an_id(tmp_path: Path):
    (tmp_path / os.fsdecode(b"bad-\xff.txt")).write_text("text")
    documents, _ = read(tmp_path)
    assert documents[0]["id"] == "bad-\ufffd.txt"


def test_a_missing_path_is_refused_before_anything_is_read(tmp_path: Path):
    with pytest.raises(DocumentPathError) as caught:
        read_path(tmp_path / "nowhere")
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.code == "document_path"
    assert "does not exist" in error.message and error.hint


def test_skipping_needs_no_listener(tmp_path: Path):
    (tmp_path / "image.png").write_bytes(b"x")
    assert list(read_path(tmp_path)) == []


def test_clean_text_leaves_whole_characters_alone():
    assert clean_text("a\0\ud800b👍") == "a\ufffdb👍"
    assert clean_text("plain") == "plain"
