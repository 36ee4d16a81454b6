"""The template grammar."""

from __future__ import annotations

import pytest

from herasys_rt.graph.template import TemplateError, placeholders, template_parts


def test_placeholders_come_in_order_once_each():
    assert placeholders("{b} {a} {b} {\u00fcber}") == ["b", "a", "\u00fcber"]


def test_doubled_braces_are_text():
    assert placeholders("{{a}} }}{{") == []
    assert "".join(text for _, text in template_parts("{{a}} }}{{")) == "{a} }{"


@pytest.mark.parametrize(
    "text", ["{", "}", "{}", "{0}", "{a.b}", "{a!r}", "{a:3}", "{ a }"]
)
def test_other_braces_are_refused_with_their_place(text):
    with pytest.raises(TemplateError, match="at character 2"):
        placeholders("x " + text)
