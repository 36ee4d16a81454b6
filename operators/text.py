"""Work on text. `chunk` and `chunk_documents` are steps, verb ``text.chunk``, resources
``python`` and ``embedding``; `prompt` and `parse_json` are computed where they are consumed
and are no steps of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from herasys_rt.dsl import Call, Node, Options, Symbol, edge, operator, param
from herasys_rt.dsl.trace import current_trace
from herasys_rt.graph.checks import nearest
from herasys_rt.graph.template import TemplateError, placeholders
from herasys_rt.graph.types import PortType


def prompt(template: str, /, **values: Any) -> Node:
    """A text made from a template: ``{name}`` takes the value ``name``, a literal brace is
    written twice.

    Chunks become numbered passages, lists of text one item a line, an empty list nothing,
    everything else that is no text JSON. A placeholder without a value, and a value
    without a placeholder, are faults of the workflow.
    """
    trace = current_trace("prompt() was called")
    if isinstance(template, Symbol) or not isinstance(template, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        problem = "the template is no literal text"
        trace.record("prompt", problem, "pass a text that is known later as a value")
        return trace.express("render", template="")
    try:
        names = placeholders(template)
    except TemplateError as e:
        trace.record("prompt", e.message, e.hint)
        return trace.express("render", template="")
    for name in names:
        if name not in values:
            fits = nearest(name, values) or f"pass {name}=..."
            problem = f"the template asks for {{{name}}}, which is not given"
            trace.record("prompt", problem, fits)
    for name in values:
        if name not in names:
            fits = nearest(name, names) or f"it asks for {', '.join(names) or 'none'}"
            trace.record("prompt", f"the template does not ask for {name!r}", fits)
    given = {name: values[name] for name in names if name in values}
    return trace.express("render", template=template, **given)


def parse_json(text: Any) -> Node:
    """The value of a text that is JSON; a code fence around it is taken off.

    A text that is no JSON fails the node that uses the value (``expression_failed``).
    """
    return current_trace("parse_json() was called").express("parse_json", text=text)


def _check_overlap(call: Call) -> None:
    size, overlap = call.args.get("max_tokens"), call.args.get("overlap")
    if isinstance(size, int) and isinstance(overlap, int) and overlap >= size >= 1:
        call.fault("overlap", f"is {overlap} and must be below max_tokens ({size})")


@operator(
    version="1",
    verb="text.chunk",
    resource="python",
    output=PortType.TEXTS,
    ports={
        "text": edge(PortType.TEXT),
        "max_tokens": param(PortType.INT, minimum=1),
        "overlap": param(PortType.INT, minimum=0),
    },
    prepare=_check_overlap,
)
def chunk(
    text: str | Node,
    *,
    max_tokens: int = 200,
    overlap: int = 20,
    **options: Unpack[Options],
):
    """A text cut into pieces of at most ``max_tokens`` tokens, in order.

    Neighbours share about ``overlap`` tokens. Cuts prefer headings (Markdown), then the
    ends of paragraphs, of sentences and of words, and never fall inside a character. A
    blank text gives no pieces.
    """


@operator(
    version="1",
    verb="text.chunk",
    resource="embedding",
    output=PortType.CHUNKS,
    ports={
        "documents": edge(PortType.DOCUMENTS),
        "max_tokens": param(PortType.INT, minimum=1),
        "overlap": param(PortType.INT, minimum=0),
    },
    prepare=_check_overlap,
)
def chunk_documents(
    documents: Sequence[dict[str, Any] | Node] | Node,
    *,
    max_tokens: int = 200,
    overlap: int = 20,
    **options: Unpack[Options],
):
    """Documents cut into chunks, as an embedding model counts tokens.

    A document is a dict with ``id``, ``text`` and optionally ``source`` and ``metadata``.
    It is cut as `chunk` cuts a text; ``model`` is the one that will embed the chunks,
    which take no more tokens than it does. Gives a list of dicts with ``id`` (the
    document's with a number), ``text``, ``source``, ``index`` and ``metadata``.
    """
