"""Jobs in the kernel's terms: the spec, inputs and signatures that a client and the fuser
would have made of them.

Whoever drives the kernel makes the events (`core.events`):

- Of a job whose graph is known: `Specs.run`, as one `RunSubmitted`.
- Of a revealed job: `Specs.agent`, as a `RunSubmitted` with ``agent=True``; then per step,
  as soon as its parents are complete and ``after_s`` has passed, `Specs.step`, as one
  `NodesRevealed` whose fragment is the step's position in the job, and whose parents are
  `Piece.parents`; at last `RunClosed`.

`SpecRegistered` goes ahead of a spec's first use; jobs of equal structure share one spec.
A job's content travels as inputs, so that a step is signed over its `Truth.prompt_key`
and, in a known graph, its parents' signatures, as a live node is. A step without a key,
or below one, has a signature that nothing else has: it counts as one that might have
fused and did not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from herasys_rt.errors import ConfigError
from herasys_rt.graph import codec
from herasys_rt.graph.signature import Fingerprint, Signer
from herasys_rt.graph.spec import (
    Arg,
    InputRef,
    InputSpec,
    ListRef,
    NodeRef,
    NodeSpec,
    Port,
    WorkflowSpec,
)
from herasys_rt.graph.types import PortType
from herasys_rt.workloads.arrivals import Job, Step

ORIGIN = "origin"
"""The input that names job and, of a revealed one, step; no part of any signature."""


class Piece(msgspec.Struct, frozen=True):
    """What the kernel is told of a run, or of one revealed step of it.

    ``inputs`` are the encoded inputs, different for every piece. ``signatures``,
    ``collections``, ``seeds`` and ``own_collections`` are per node in spec order, as in
    `RunSubmitted`, and ``steps`` are the steps that those nodes stand for: so (run id,
    node), or of an agent the inputs of a work item, lead to the truth. ``parents`` are as
    in `NodesRevealed`.
    """

    spec: WorkflowSpec
    inputs: bytes
    signatures: tuple[bytes, ...]
    collections: tuple[tuple[str, ...], ...]
    steps: tuple[Step, ...]
    parents: tuple[tuple[int, str], ...] = ()
    seeds: tuple[bytes, ...] = ()
    own_collections: tuple[tuple[str, ...], ...] = ()


def content_of(job: Job, step: Step) -> str:
    """The content of a step; one without a key has one that no other has: keys are
    printable."""
    return step.truth.prompt_key or f"\0{job.id}\0{step.id}"


class Specs:
    """Turns jobs into pieces; remembers specs and their signers.

    ``fingerprint`` is as in `graph.signature.Signer`; by default a node's model.
    """

    def __init__(self, fingerprint: Fingerprint = lambda node: node.model or "") -> None:
        self._fingerprint = fingerprint
        self._known: dict[Any, tuple[WorkflowSpec, Signer]] = {}

    def run(self, job: Job) -> Piece:
        """A job whose whole graph is known. Errors: `ConfigError` for one that is
        revealed, or has a step that waits for a time (``after_s``)."""
        if job.revealed or any(step.after_s for step in job.steps):
            raise ConfigError(
                f"job {job.id!r} has steps that are not known on its arrival",
                hint="Only a revealed job may have steps with after_s above 0.",
            )
        spec, signer = self._spec(job.kind, job.steps)
        contents = {_content(i): content_of(job, step) for i, step in enumerate(job.steps)}
        return _piece(job, job.id, spec, signer, contents, job.steps)

    def agent(self, job: Job) -> Piece:
        """A revealed job as long as nothing of it is revealed: no nodes."""

        def make() -> WorkflowSpec:
            inputs = (InputSpec(ORIGIN, PortType.TEXT),)
            return WorkflowSpec(job.kind, inputs, (), {}, agent=True)

        spec, signer = self._remembered((job.kind,), make)
        return _piece(job, job.id, spec, signer, {}, ())

    def step(self, job: Job, position: int) -> Piece:
        """The step at ``position`` of a revealed job, as a graph of one node.

        It is signed by what it works on alone: its parents' results travel as values.
        """
        step = job.steps[position]
        shape = (job.kind, step.label, step.operator, step.verb, step.resource, step.model)

        def make() -> WorkflowSpec:
            name = step.label or step.operator
            alone = msgspec.structs.replace(step, id=name, parents=())
            return _spec_of(job.kind, (alone,))

        spec, signer = self._remembered(shape, make)
        origin = f"{job.id}/{step.id}"
        contents = {_content(0): content_of(job, step)}
        parents = _revealed_parents(job, position) if step.parents else ()
        return _piece(job, origin, spec, signer, contents, (step,), parents)

    def _spec(self, kind: str, steps: tuple[Step, ...]) -> tuple[WorkflowSpec, Signer]:
        shape = tuple(
            (s.id, s.verb, s.resource, s.operator, s.model, s.label, s.parents)
            for s in steps
        )
        return self._remembered((kind, shape), lambda: _spec_of(kind, steps))

    def _remembered(
        self, key: tuple[Any, ...], make: Callable[[], WorkflowSpec]
    ) -> tuple[WorkflowSpec, Signer]:
        found = self._known.get(key)
        if found is None:
            spec = make()
            found = self._known[key] = (spec, Signer(spec, self._fingerprint))
        return found


def _spec_of(kind: str, steps: tuple[Step, ...]) -> WorkflowSpec:
    contents = tuple(InputSpec(_content(i), PortType.ANY) for i in range(len(steps)))
    needed = {parent for step in steps for parent in step.parents}
    return WorkflowSpec(
        name=kind,
        inputs=(InputSpec(ORIGIN, PortType.TEXT), *contents),
        nodes=tuple(_node_of(step, i) for i, step in enumerate(steps)),
        # Every step that no other needs: the kernel skips what no output needs.
        outputs={step.id: NodeRef(step.id) for step in steps if step.id not in needed},
    )


def _node_of(step: Step, position: int) -> NodeSpec:
    args: dict[str, Arg] = {"content": InputRef(_content(position))}
    ports = [Port("content", PortType.ANY)]
    if step.parents:
        args["after"] = ListRef(tuple(NodeRef(parent) for parent in step.parents))
        ports.append(Port("after", PortType.ANY))
    return NodeSpec(
        id=step.id,
        operator=step.operator,
        verb=step.verb,
        resource=step.resource,
        args=args,
        ports=tuple(ports),
        output=PortType.ANY,
        model=step.model,
        label=step.label,
    )


def _piece(
    job: Job,
    origin: str,
    spec: WorkflowSpec,
    signer: Signer,
    contents: dict[str, Any],
    steps: tuple[Step, ...],
    parents: tuple[tuple[int, str], ...] = (),
) -> Piece:
    inputs = {ORIGIN: origin, **contents}
    signed = signer.signed(inputs, job.tenant, origin)
    return Piece(
        spec,
        codec.encode(inputs),
        signed.signatures,
        signer.collections(inputs),
        steps,
        parents,
        signed.seeds,
        signer.own_collections(inputs),
    )


def _content(position: int) -> str:
    return f"content-{position}"


def _revealed_parents(job: Job, position: int) -> tuple[tuple[int, str], ...]:
    """(fragment, node id) of each parent: fragments count as steps do."""
    steps = job.steps
    found: list[tuple[int, str]] = []
    for parent in steps[position].parents:
        # Backwards: parents stand before a step, and most often just before it.
        number = position - 1
        while steps[number].id != parent:
            number -= 1
        found.append((number, steps[number].label or steps[number].operator))
    return tuple(found)
