"""Text and JSON from a language model. Verb ``llm.generate``, resource ``llm``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from herasys_rt.dsl import OPTIONS, Call, Node, Symbol, edge, operator, param
from herasys_rt.dsl.tracked import TrackedDict, TrackedList, TrackedText
from herasys_rt.graph.checks import nearest
from herasys_rt.graph.prompts import VAR, message_fault
from herasys_rt.graph.schemas import schema_text
from herasys_rt.graph.spec import Constraint, Port, Sampling
from herasys_rt.graph.template import TemplateError, placeholders
from herasys_rt.graph.types import PortType

Messages = Sequence[Mapping[str, Any] | str | Node] | Node
"""Chat messages: dicts with ``role`` (system, user, assistant) and ``content``, and
between them ``"{name}"`` or nodes for messages that are a value."""

_SMALL = 1e-6  # "above 0" for bounds that include their end
_SEED_MAX = 2.0**63 - 1024  # the largest float that a signed 64-bit integer holds

SAMPLING_PORTS: dict[str, Port] = {
    "temperature": param(PortType.FLOAT, minimum=0.0, maximum=100.0),
    "top_p": param(PortType.FLOAT, minimum=_SMALL, maximum=1.0),
    "top_k": param(PortType.INT, minimum=0, maximum=2**31 - 1),
    "min_p": param(PortType.FLOAT, minimum=0.0, maximum=1.0),
    "max_tokens": param(PortType.INT, minimum=1, maximum=2**31 - 1),
    "seed": param(PortType.INT, optional=True, minimum=-(2.0**63), maximum=_SEED_MAX),
    "presence_penalty": param(PortType.FLOAT, minimum=-2.0, maximum=2.0),
    "frequency_penalty": param(PortType.FLOAT, minimum=-2.0, maximum=2.0),
    "repetition_penalty": param(PortType.FLOAT, minimum=_SMALL, maximum=100.0),
}
"""The sampling parameters that every answer takes, free or structured."""

PROMPT_PORTS: dict[str, Port] = {
    "prompt": param(PortType.TEXT, optional=True, non_empty=True),
    "messages": param(PortType.JSON, optional=True),
    "system": edge(PortType.TEXT, optional=True),
}
"""What the model is asked: a prompt or messages, and before them a system text."""

DRAWS = Sampling(amount="temperature", seed="seed")


def bind_prompt(call: Call) -> None:
    """Turn prompt or messages and the call's further keyword arguments into templates
    and the ports of their placeholders."""
    prompt, messages = call.args.get("prompt"), call.args.get("messages")
    if (prompt is None) == (messages is None):
        given = "both are" if prompt is not None else "neither is"
        call.fault("", f"takes a prompt or messages; {given} given", "give one of them")
        call.extras.clear()
    elif prompt is not None:
        _bind_one(call, prompt)
    elif _is_value(messages):
        _refuse_variables(call, "messages", '["{history}", {"role": ...}], history=...')
        name = _add_value(call, "messages", messages, PortType.JSON)
        call.args["messages"] = [name]
    else:
        _bind_many(call, messages)


def _bind_one(call: Call, prompt: Any) -> None:
    if _is_value(prompt):  # its braces stay text
        _refuse_variables(call, "prompt", "generate('{text}', text=...)")
        call.args["prompt"] = _add_value(call, "prompt", prompt, PortType.TEXT)
    elif isinstance(prompt, str):
        _bind_placeholders(call, list(_names(call, "prompt", prompt)))
    else:
        call.extras.clear()  # its type is told as a fault of the graph


def _bind_many(call: Call, messages: Any) -> None:
    """Messages written down: templates, placeholders and values, one after the other."""
    if not isinstance(messages, list | tuple) or not messages:
        call.fault("messages", "is no list of messages", "a list with at least one")
        call.extras.clear()
        return
    lowered: list[Any] = []
    names: list[str] = []
    values: dict[str, tuple[Any, PortType]] = {}
    for i, item in enumerate(messages):
        free = f"message_{i + 1}"
        if _is_value(item):
            values[free] = (item, PortType.JSON)
            lowered.append(f"{{{free}}}")
            continue
        if isinstance(item, str):
            names += _names(call, "messages", item)
            lowered.append(item)
            continue
        fields = dict(item) if isinstance(item, Mapping) else item
        content = fields.get("content") if isinstance(fields, dict) else None
        if _is_value(content):
            values[free] = (content, PortType.ANY)
            fields = fields | {"content": f"{{{free}}}"}
        elif isinstance(content, str):
            names += _names(call, "messages", content)
        fault = message_fault(fields)
        if fault is not None:
            problem, fits = fault
            call.fault("messages", f"[{i}] {problem}", fits)
        lowered.append(fields)
    for free, (value, _) in values.items():
        call.extras[free] = value
    _bind_placeholders(call, [*dict.fromkeys([*names, *values])])
    for free, (_, kind) in values.items():
        if VAR + free in call.ports:
            call.ports[VAR + free] = Port(VAR + free, kind)
    if "messages" in call.args:
        call.args["messages"] = lowered


def _is_value(given: Any) -> bool:
    """Whether it is known only when the node runs, or came from a node: no template."""
    return isinstance(given, Symbol | TrackedText | TrackedList | TrackedDict)


def _add_value(call: Call, name: str, value: Any, kind: PortType) -> str:
    """A port for a value that is all of a prompt; gives its placeholder."""
    port = VAR + name
    call.ports[port] = Port(port, kind, constraint=Constraint(non_empty=True))
    call.args[port] = value
    return f"{{{name}}}"


def _refuse_variables(call: Call, port: str, instead: str) -> None:
    if call.extras:
        problem = "is no literal, so it cannot have placeholders"
        call.fault(port, problem, f"put the text into the template: {instead}")
        call.extras.clear()


def _names(call: Call, port: str, template: str) -> Iterator[str]:
    try:
        yield from placeholders(template)
    except TemplateError as e:
        call.fault(port, e.message, e.hint)


def _bind_placeholders(call: Call, names: list[str]) -> None:
    given = dict(call.extras)
    call.extras.clear()
    if "prompt" not in call.args or "messages" not in call.args:
        return  # a template that cannot be read asks for nothing that could be told
    for name in names:
        if name in given:
            call.ports[VAR + name] = Port(VAR + name, PortType.ANY)
            call.args[VAR + name] = given.pop(name)
        elif name in call.ports or name in OPTIONS:
            problem = f"placeholder {{{name}}} has the name of a parameter"
            call.fault("", problem, "rename the placeholder")
        else:
            fits = nearest(name, given) or f"pass {name}=..."
            call.fault("", f"the template asks for {{{name}}}, which is not given", fits)
    for name in given:
        ports = [port for port in call.ports if not port.startswith(VAR)]
        known = [*names, *ports, *OPTIONS]
        fits = nearest(name, known) or f"the template asks for {', '.join(names) or 'none'}"
        problem = f"{name!r} is neither a parameter nor a placeholder of the template"
        call.fault("", problem, fits)


def settle_sampling(call: Call) -> None:
    """Different ways to write the same sampling become one, so that equal work is equal."""
    top_k = call.args.get("top_k")
    if isinstance(top_k, int) and top_k == -1:
        call.args["top_k"] = 0
    least, most = call.args.get("min_tokens"), call.args.get("max_tokens")
    if isinstance(least, int) and isinstance(most, int) and least > most >= 1:
        call.fault("min_tokens", f"is {least} and must be at most max_tokens ({most})")
    if "stop" not in call.ports:
        return
    stop = call.args.get("stop")
    if isinstance(stop, str):
        call.args["stop"] = [stop]
    elif stop is None:
        call.args["stop"] = []
    if isinstance(call.args.get("stop"), list | tuple) and "" in _texts(call.args["stop"]):
        call.fault("stop", "holds an empty text, at which every answer would end")


def _texts(items: Sequence[Any]) -> list[str]:
    return [item for item in items if isinstance(item, str)]


def _prepare(call: Call) -> None:
    settle_sampling(call)
    bind_prompt(call)
    _settle_output(call)


def _settle_output(call: Call) -> None:
    """The type of the output follows from n and logprobs, which are literals for that."""
    for name in ("n", "logprobs"):
        if isinstance(call.args.get(name), Symbol):
            problem = "is an input or a node, and the type of the output depends on it"
            call.fault(name, problem, "a literal")
    count, told = call.args.get("n", 1), call.args.get("logprobs")
    if told is not None:
        call.output = PortType.JSON
    elif count != 1:
        call.output = PortType.TEXTS
    call.streams = told is None and count == 1


@operator(
    version="1",
    verb="llm.generate",
    resource="llm",
    output=PortType.TEXT,
    streams=True,
    sampling=DRAWS,
    ports={
        **PROMPT_PORTS,
        **SAMPLING_PORTS,
        "min_tokens": param(PortType.INT, minimum=0, maximum=2**31 - 1),
        "stop": param(PortType.TEXTS),
        "n": param(PortType.INT, minimum=1, maximum=16),
        "logprobs": param(PortType.INT, optional=True, minimum=0, maximum=20),
    },
    prepare=_prepare,
)
def generate(
    prompt: str | Node | None = None,
    *,
    messages: Messages | None = None,
    system: str | Node | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    max_tokens: int = 128,
    min_tokens: int = 0,
    stop: str | Sequence[str] = (),
    seed: int | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    n: int = 1,
    logprobs: int | None = None,
    model: str | None = None,
    label: str = "",
    **variables: Any,
):
    """The model's answer to a prompt, of at most ``max_tokens`` tokens.

    ``prompt`` is a template: ``{name}`` takes the keyword argument ``name``, a literal
    brace is written twice. Values are put in as they are; chunks become numbered passages
    and the answer's sources, an empty list nothing. A prompt that is an input or a node is
    used as it is. The chat template of the model is applied; ``system`` precedes the
    prompt.

    Instead of a prompt, ``messages`` takes a conversation that ends with the user:
    dicts with ``role`` and ``content``, each content a template; ``"{history}"`` between
    them stands for messages (or one) given as ``history=``; the whole list, an item or a
    content may also be an input or a node. Text in values never begins a turn of its own,
    even where it looks like the model's marks.

    Sampling: ``temperature`` 0 takes the likeliest token each time, and the node is pure;
    above 0 without a ``seed`` it is sampled and never shared. ``top_k`` 0 (or -1)
    considers all tokens. ``stop`` texts end the answer and are no part of it; it does not
    end by itself before ``min_tokens``.

    ``n`` above 1 gives a list of texts, drawn one by one (all the same at temperature 0).
    ``logprobs`` tells of every token its log-probability and that many of the likeliest:
    gives ``{"text", "logprobs": [{"token", "logprob", "top": [{"token", "logprob"}]}]}``,
    or a list of them. Both are literals; neither streams.
    """


def lower_schema(call: Call) -> None:
    """Put a schema into its canonical text and report its faults."""
    given = call.args.get("schema")
    if isinstance(given, Symbol):
        call.fault("schema", "is an input or a node", "a literal: a model class or a dict")
        return
    text, faults = schema_text(given)
    for where, problem, fits in faults:
        call.trace.record(f"{call.where}.schema{where.removeprefix('#')}", problem, fits)
    call.args["schema"] = text or "{}"


def _prepare_json(call: Call) -> None:
    settle_sampling(call)
    bind_prompt(call)
    lower_schema(call)


@operator(
    version="1",
    verb="llm.generate",
    resource="llm",
    output=PortType.JSON,
    sampling=DRAWS,
    ports={**PROMPT_PORTS, "schema": param(PortType.TEXT), **SAMPLING_PORTS},
    prepare=_prepare_json,
)
def generate_json(
    prompt: str | Node | None = None,
    *,
    schema: Any,
    messages: Messages | None = None,
    system: str | Node | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    max_tokens: int = 256,
    seed: int | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    model: str | None = None,
    label: str = "",
    **variables: Any,
):
    """The model's answer as JSON that satisfies a schema.

    ``schema`` is a pydantic model class or a dict with a JSON schema; properties are
    written in its order. Decoding is guided, so an answer that ends by itself is valid
    with any model. One that ``max_tokens`` cuts fails with the code ``structured_cut``:
    bound texts with ``maxLength`` and lists with ``maxItems``. Objects get no properties
    beside the named ones. Not supported, and refused: ``uniqueItems``,
    ``patternProperties``, ``minProperties``, ``not``, ``if``, ``allOf`` of several,
    ``oneOf`` of schemas that overlap, look-around in a ``pattern``. A ``format`` holds the
    form only (a date may be the 31st of February).

    The prompt is not told about the schema: say in it what the properties mean. Prompt,
    messages and sampling are as in `generate`.
    """
