"""What the fuser keeps of the runs it signed last, so that it can explain them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from herasys_rt.config import mask_dsn
from herasys_rt.config_source import is_secret
from herasys_rt.errors import InputError
from herasys_rt.graph import codec
from herasys_rt.graph.checks import nearest
from herasys_rt.graph.explain import Explanation, Secrets, explain
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.validation import check_inputs

MAX_RUNS = 2000
MAX_BYTES = 32 * 1024 * 1024
_NAMES_PER_RUN = 16
"""So many names of forgotten runs are remembered for each run that is kept."""

WHOLE = -1
"""The fragment of a run whose graph was known from the start."""


class _Kept(NamedTuple):
    signer: Signer
    inputs: bytes
    tenant: str
    revisions: Mapping[str, int]


class SignedRuns:
    """The latest runs and pieces of agents' runs, at most so many and so many bytes.

    Keeping one costs no look at its inputs: they are signed again when somebody asks.
    """

    def __init__(self, max_runs: int = MAX_RUNS, max_bytes: int = MAX_BYTES) -> None:
        self._max_runs = max_runs
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[str, int], _Kept] = OrderedDict()
        self._bytes = 0
        self._forgotten: OrderedDict[str, str] = OrderedDict()

    def keep(
        self,
        run_id: str,
        fragment: int,
        signer: Signer,
        inputs: bytes,
        tenant: str,
        revisions: Mapping[str, int],
    ) -> None:
        """Remember a run (``fragment`` is `WHOLE`) or a piece of one.

        ``inputs`` are encoded; ``revisions``, those known now, must not change later.
        """
        key = (run_id, fragment)
        former = self._kept.pop(key, None)
        if former is not None:
            self._bytes -= len(former.inputs)
        self._kept[key] = _Kept(signer, inputs, tenant, revisions)
        self._bytes += len(inputs)
        while len(self._kept) > self._max_runs or self._bytes > self._max_bytes:
            (gone, _), kept = self._kept.popitem(last=False)
            self._bytes -= len(kept.inputs)
            self._forgotten[gone] = kept.tenant
            if len(self._forgotten) > _NAMES_PER_RUN * self._max_runs:
                self._forgotten.popitem(last=False)

    def explain(self, run_id: str, node: str, tenant: str) -> Explanation:
        """How a node of a tenant's run was signed.

        A node of an agent's run is called ``fragment/id``, as in its report. Errors:
        `InputError` with the code ``unknown_run``, ``forgotten_run`` or ``unknown_node``.
        """
        fragment, name = _located(node)
        kept = self._kept.get((run_id, fragment))
        if kept is None or kept.tenant != tenant:
            raise self._missing(run_id, fragment, tenant)
        if kept.signer.spec.agent:
            raise self._piece_wanted(run_id, node)
        inputs = check_inputs(kept.signer.spec, codec.decode(kept.inputs))
        origin = run_id if fragment == WHOLE else f"{run_id}/{fragment}"
        found = explain(kept.signer, name, inputs, tenant, origin, kept.revisions, _SECRETS)
        return found.of(run_id, node)

    def _missing(self, run_id: str, fragment: int, tenant: str) -> InputError:
        mine = dict.fromkeys(r for (r, _), k in self._kept.items() if k.tenant == tenant)
        if run_id in mine:
            known = [f"{f}/" for r, f in self._kept if r == run_id and f != WHOLE]
            return InputError(
                f"run {run_id} has no piece {fragment} that is known (any more)",
                hint=f"Known are {', '.join(known[:20])}."
                if known
                else "Name the node by its id alone; the run is no agent's.",
                code="unknown_node",
            )
        if self._forgotten.get(run_id) == tenant:
            return InputError(
                f"run {run_id} is forgotten: the latest {self._max_runs} runs and pieces "
                f"of agents' runs are kept, up to {self._max_bytes >> 20} MiB of inputs",
                hint="Submit it again, and ask soon after.",
                code="forgotten_run",
            )
        near = nearest(run_id, mine)
        return InputError(
            f"no run {run_id!r} of tenant {tenant!r} is known",
            hint=near.capitalize()
            if near
            else "The id is in the run's report. How runs were signed is forgotten when "
            "the fuser ends, and those that came while it was away were not signed: submit "
            "it again, and ask then.",
            code="unknown_run",
        )

    def _piece_wanted(self, run_id: str, node: str) -> InputError:
        names = [
            f"{fragment}/{known.id}"
            for (run, fragment), kept in self._kept.items()
            if run == run_id and fragment != WHOLE
            for known in kept.signer.spec.nodes
        ]
        near = nearest(node, names)
        told = f"Known are {', '.join(names[:20])}." if names else "It has revealed none."
        return InputError(
            f"run {run_id} is an agent's; its nodes are called PIECE/NODE, not {node!r}",
            hint=near.capitalize() if near else told,
            code="unknown_node",
        )


_SECRETS = Secrets(is_secret, mask_dsn)


def _located(node: str) -> tuple[int, str]:
    """``2/ask`` is node ``ask`` of piece 2."""
    piece, slash, name = node.partition("/")
    if slash and piece.isdecimal():
        return int(piece), name
    return WHOLE, node
