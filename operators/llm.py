"""Text from a language model. Verb ``llm.generate``, resource ``llm``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from herasys_rt.dsl import OPTIONS, Call, Node, edge, operator, param
from herasys_rt.graph.checks import nearest
from herasys_rt.graph.spec import Constraint, Port, Sampling
from herasys_rt.graph.template import TemplateError, placeholders
from herasys_rt.graph.types import PortType

VAR = "var:"
"""Prefix of the ports that hold the values of a template's placeholders."""

_SMALL = 1e-6  # "above 0" for bounds that include their end
_SEED_MAX = 2.0**63 - 1024  # the largest float that a signed 64-bit integer holds


def _prepare(call: Call) -> None:
    """Turn the template's placeholders into ports, and sampling fields into one form."""
    _settle_sampling(call)
    template = call.args.get("prompt")
    if isinstance(template, str):
        _bind_placeholders(call, template)
    elif call.extras:
        fits = "put the text into the template: generate('{text}', text=...)"
        call.fault("prompt", "is no literal, so it cannot have placeholders", fits)
        call.extras.clear()
    elif "prompt" in call.args:
        _wrap_value(call)


def _wrap_value(call: Call) -> None:
    """A prompt known only later enters as a value, so that its braces stay text."""
    port = VAR + "prompt"
    call.ports[port] = Port(port, PortType.TEXT, constraint=Constraint(non_empty=True))
    call.args[port] = call.args["prompt"]
    call.args["prompt"] = "{prompt}"


def _bind_placeholders(call: Call, template: str) -> None:
    try:
        names = placeholders(template)
    except TemplateError as e:
        call.fault("prompt", e.message, e.hint)
        call.extras.clear()
        return
    given = dict(call.extras)
    call.extras.clear()
    for name in names:
        if name in given:
            call.ports[VAR + name] = Port(VAR + name, PortType.ANY)
            call.args[VAR + name] = given.pop(name)
        elif name in call.ports or name in OPTIONS:
            problem = f"placeholder {{{name}}} has the name of a parameter of generate"
            call.fault("", problem, "rename the placeholder")
        else:
            fits = nearest(name, given) or f"pass {name}=..."
            call.fault("", f"the template asks for {{{name}}}, which is not given", fits)
    for name in given:
        known = [*names, *(port for port in call.ports if not port.startswith(VAR))]
        fits = nearest(name, known) or f"the template asks for {', '.join(names) or 'none'}"
        problem = f"{name!r} is neither a parameter nor a placeholder of the template"
        call.fault("", problem, fits)


def _settle_sampling(call: Call) -> None:
    """Different ways to write the same sampling become one, so that equal work is equal."""
    stop = call.args.get("stop")
    if isinstance(stop, str):
        call.args["stop"] = [stop]
    elif stop is None:
        call.args["stop"] = []
    if isinstance(call.args.get("stop"), list | tuple) and "" in _texts(call.args["stop"]):
        call.fault("stop", "holds an empty text, at which every answer would end")
    top_k = call.args.get("top_k")
    if isinstance(top_k, int) and top_k == -1:
        call.args["top_k"] = 0


def _texts(items: Sequence[Any]) -> list[str]:
    return [item for item in items if isinstance(item, str)]


@operator(
    version="1",
    verb="llm.generate",
    resource="llm",
    output=PortType.TEXT,
    streams=True,
    sampling=Sampling(amount="temperature", seed="seed"),
    ports={
        "prompt": param(PortType.TEXT, non_empty=True),
        "system": edge(PortType.TEXT, optional=True),
        "temperature": param(PortType.FLOAT, minimum=0.0, maximum=100.0),
        "top_p": param(PortType.FLOAT, minimum=_SMALL, maximum=1.0),
        "top_k": param(PortType.INT, minimum=0, maximum=2**31 - 1),
        "min_p": param(PortType.FLOAT, minimum=0.0, maximum=1.0),
        "max_tokens": param(PortType.INT, minimum=1, maximum=2**31 - 1),
        "stop": param(PortType.TEXTS),
        "seed": param(PortType.INT, optional=True, minimum=-(2.0**63), maximum=_SEED_MAX),
        "presence_penalty": param(PortType.FLOAT, minimum=-2.0, maximum=2.0),
        "frequency_penalty": param(PortType.FLOAT, minimum=-2.0, maximum=2.0),
        "repetition_penalty": param(PortType.FLOAT, minimum=_SMALL, maximum=100.0),
    },
    prepare=_prepare,
)
def generate(
    prompt: str | Node,
    *,
    system: str | Node | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    max_tokens: int = 128,
    stop: str | Sequence[str] = (),
    seed: int | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    model: str | None = None,
    label: str = "",
    **variables: Any,
):
    """The model's answer to a prompt, of at most ``max_tokens`` tokens.

    ``prompt`` is a template: ``{name}`` takes the keyword argument ``name``, a literal
    brace is written twice. Values are put in as they are; chunks become numbered passages
    and the answer's sources. A prompt that is an input or a node is used as it is. The
    chat template of the model is applied; ``system`` precedes the prompt.

    Sampling: ``temperature`` 0 takes the likeliest token each time, and the node is pure;
    above 0 without a ``seed`` it is sampled and never shared. ``top_k`` 0 (or -1)
    considers all tokens. ``stop`` texts end the answer and are no part of it.
    """
