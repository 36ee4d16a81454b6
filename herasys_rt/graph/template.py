"""The template grammar of prompts: ``{name}`` is a placeholder, ``{{`` and ``}}`` braces.

Nothing else may stand between braces: no attribute, index, conversion or format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from herasys_rt.errors import UsageError

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class TemplateError(UsageError):
    """A template with braces that are neither a placeholder nor doubled."""

    code = "invalid_template"


def template_parts(template: str) -> Iterator[tuple[str, str]]:
    """The template as (name, "") for placeholders and ("", text) for literal text.

    Errors: `TemplateError` naming the token and its place.
    """
    at = 0
    for found in _TOKEN.finditer(template):
        if found.start() > at:
            yield "", template[at : found.start()]
        at = found.end()
        token, name = found.group(), found.group(1)
        if token in ("{{", "}}"):
            yield "", token[0]
        elif name is not None and name.isidentifier():
            yield name, ""
        else:
            raise TemplateError(
                f"{token!r} at character {found.start()} is no placeholder",
                hint="Placeholders look like {name}; a literal brace is written twice: {{.",
            )
    if at < len(template):
        yield "", template[at:]


def placeholders(template: str) -> list[str]:
    """Names that a template asks for, in order, once each. Errors: `TemplateError`."""
    return list(dict.fromkeys(name for name, _ in template_parts(template) if name))
