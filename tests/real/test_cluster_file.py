"""Ray itself accepts cluster.yaml; no machine is contacted."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.real


def test_the_cluster_file_is_valid_for_ray_up() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    text = Path(__file__).parents[2].joinpath("cluster.yaml").read_text()
    prepared = prepare_config(yaml.safe_load(text))
    validate_config(prepared)
    assert prepared["provider"]["type"] == "local"
    assert prepared["head_start_ray_commands"]
