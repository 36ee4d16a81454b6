"""Predicted seconds of nodes before they run, from a profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herasys_rt.costs.lengths import OutputLengths
from herasys_rt.costs.profile import Profile
from herasys_rt.costs.service import ServiceModel, profiled_service
from herasys_rt.costs.work import work_of
from herasys_rt.errors import ConfigError
from herasys_rt.graph.estimates import output_size
from herasys_rt.graph.spec import NodeSpec, WorkflowSpec

UNKNOWN_S = -1.0
"""Of a node that the profile does not cover."""


class ProfileForecast:
    """What nodes will take alone on their engines, as far as a run's inputs tell.

    An answer counts with as many tokens as those of its model and operator had that
    were observed, within its max_tokens.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._lengths = OutputLengths()
        self._services: dict[tuple[str, str | None], ServiceModel | None] = {}

    def seconds(self, spec: WorkflowSpec, inputs: Mapping[str, Any]) -> tuple[float, ...]:
        """Per node in spec order, `UNKNOWN_S` where nothing was measured."""
        sizes: dict[str, Any] = {}
        predicted: list[float] = []
        for node in spec.nodes:
            predicted.append(self._node_s(node, inputs, sizes))
            size = output_size(node, inputs, sizes)
            if size is not None and not node.region:
                sizes[node.id] = size
        return tuple(predicted)

    def observe(self, model: str | None, operator: str, tokens: int) -> None:
        """A language model's output had so many tokens; ``model`` as its node named it."""
        self._lengths.observe(model or "", operator, tokens)

    def _node_s(
        self, node: NodeSpec, inputs: Mapping[str, Any], sizes: Mapping[str, Any]
    ) -> float:
        service = self._service(node.resource, node.model)
        if service is None or not service.knows(node.verb):
            return UNKNOWN_S
        expected = self._lengths.expected(node.model or "", node.operator)
        return service.predicted_s(node.verb, work_of(node, inputs, expected, sizes))

    def _service(self, resource: str, model: str | None) -> ServiceModel | None:
        key = (resource, model)
        if key not in self._services:
            try:
                self._services[key] = profiled_service(self._profile, resource, model)
            except ConfigError:
                self._services[key] = None
        return self._services[key]
