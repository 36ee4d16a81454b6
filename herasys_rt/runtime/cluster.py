"""Ray itself: a private local cluster, or joining one that exists. Never somebody else's
by accident: a private cluster has its own temporary directory and its own token, and an
existing one is joined only by an address that was given."""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from herasys_rt.config import Config, PoolConfig
from herasys_rt.errors import ClusterError
from herasys_rt.runtime.actors import NAMESPACE

GPU_CLASS_LABEL = "gpu-class"

_KNOCK_S = 10.0

_QUIET = {
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TOKENIZERS_PARALLELISM": "false",
    # The namespaced temp dir is ours; a worker killed for memory would be somebody's run.
    "RAY_memory_monitor_refresh_ms": "0",
}


def start_private_ray(config: Config, run_dir: Path) -> str:
    """Start a local cluster that belongs to this process. Returns its job address
    (empty without the dashboard). Errors: `ClusterError`."""
    token = run_dir / "ray-token"
    if not token.exists():
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
    os.environ.update(_defaults())
    _authenticate({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)})
    os.environ.pop("RAY_ADDRESS", None)
    # A job's entry point says `python`: it means the one that this runtime runs on.
    here = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([here, os.environ.get("PATH", os.defpath)])
    import ray

    if ray.is_initialized():
        raise ClusterError(
            "this process already runs on a Ray cluster",
            hint="Give its address (ray.address), or start the runtime elsewhere.",
        )
    try:
        context = ray.init(
            address="local",
            namespace=NAMESPACE,
            num_cpus=config.ray.num_cpus,
            object_store_memory=config.ray.object_store_mb * 1024 * 1024,
            include_dashboard=config.ray.dashboard,
            dashboard_host="127.0.0.1",
            _temp_dir=str(run_dir / "r"),
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
        )
    except Exception as e:
        raise ClusterError(
            f"a private Ray did not start: {type(e).__name__}: {e}",
            hint="Run `herasys doctor`; it checks memory, disk and the run directory.",
        ) from e
    url = context.dashboard_url
    return f"http://{url}" if url else ""


def join_ray(address: str) -> None:
    """Connect this process to the cluster at ``address``. Errors: `ClusterError`."""
    import ray

    if ray.is_initialized():
        return
    os.environ.update(_defaults())
    try:
        _knock(address)
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
        )
    except Exception as e:
        raise ClusterError(
            f"the Ray cluster at {address} cannot be joined: {e}",
            hint="Check the address and, with token authentication, RAY_AUTH_MODE and "
            "RAY_AUTH_TOKEN_PATH.",
        ) from e


def visit_ray(address: str, token: Path) -> Callable[[], None]:
    """Connect this process to a runtime's own cluster, with its ``token`` if that file
    exists; gives what leaves it again. Errors: `ClusterError`, also when the process is
    on another cluster."""
    import ray

    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if here != address:
            raise ClusterError(
                f"this process is on the Ray cluster at {here}, its runtime on {address}",
                hint="Leave that cluster first (ray.shutdown()), or connect without "
                "frontends.",
            )
        return lambda: None  # Whoever joined it leaves it.
    before = {key: os.environ.get(key) for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")}
    if token.exists():
        _authenticate({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)})

    def leave() -> None:
        ray.shutdown()
        _authenticate(before)

    try:
        join_ray(address)
    except BaseException:
        leave()
        raise
    return leave


def _authenticate(settings: Mapping[str, str | None]) -> None:
    """Set Ray's variables for authentication (None: unset) in a process that may have
    imported Ray before, which is when Ray reads them."""
    raylet = importlib.import_module("ray._raylet")
    for key, value in settings.items():
        os.environ.pop(key, None)
        if value is not None:
            os.environ[key] = value
    raylet.Config.initialize("")
    if settings["RAY_AUTH_MODE"] == "token":
        # The one of another runtime. Without a file to read it from again, Ray would end
        # this process: so only here.
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def _knock(address: str) -> None:
    """Ray itself tries for minutes where nobody listens. Errors: `OSError`."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()


def _defaults() -> dict[str, str]:
    return {key: value for key, value in _QUIET.items() if key not in os.environ}


def demand(pool: PoolConfig) -> dict[str, Any]:
    """Ray options of one instance of a pool."""
    options: dict[str, Any] = {"num_cpus": pool.cpus}
    if pool.gpus:
        options["num_gpus"] = pool.gpus
    if pool.gpu_class:
        options["label_selector"] = {GPU_CLASS_LABEL: pool.gpu_class}
    return options


def preflight(config: Config, nodes: list[dict[str, Any]]) -> None:
    """Refuse pools that no node can ever hold; Ray itself would wait silently.

    ``nodes`` as `ray.nodes()` gives them. Checks labels, then the GPUs and CPUs of each
    class: of one instance against the largest node, of all pools that ask for the class
    (of every pool, for the cluster as a whole) against the sum. Errors: `ClusterError`
    with the numbers.
    """
    alive = [node for node in nodes if node.get("Alive", True)]
    classes = Counter(_gpu_class(node) for node in alive)
    for pool in config.pools:
        if pool.gpu_class and not classes[pool.gpu_class]:
            known = sorted(name for name in classes if name) or ["none"]
            raise ClusterError(
                f"pool {pool.name!r} wants nodes labelled {GPU_CLASS_LABEL}="
                f"{pool.gpu_class}, and no node has that label "
                f"(labels here: {', '.join(known)})",
                hint=f"Start those nodes with `ray start --labels={GPU_CLASS_LABEL}="
                f"{pool.gpu_class}`, or change the pool's gpu_class.",
            )
    for wanted in dict.fromkeys([*(pool.gpu_class for pool in config.pools), None]):
        _check_amounts(config, alive, wanted)


def _check_amounts(config: Config, nodes: list[dict[str, Any]], wanted: str | None) -> None:
    pools = [p for p in config.pools if wanted is None or p.gpu_class == wanted]
    fitting = [n for n in nodes if wanted is None or _gpu_class(n) == wanted]
    for kind, field in (("GPU", "gpus"), ("CPU", "cpus")):
        needed = sum(getattr(pool, field) * pool.instances for pool in pools)
        amounts = [node.get("Resources", {}).get(kind, 0.0) for node in fitting]
        there, largest = sum(amounts), max(amounts, default=0.0)
        where = f" on nodes of class {wanted}" if wanted else ""
        for pool in pools:
            if getattr(pool, field) > largest + 1e-6:
                raise ClusterError(
                    f"an instance of pool {pool.name!r} needs "
                    f"{getattr(pool, field):g} {kind}s{where}, and the largest node has "
                    f"{largest:g}",
                    hint=f"Lower the pool's {field}, or add a node that has them.",
                )
        if needed > there + 1e-6:
            raise ClusterError(
                f"the pools {', '.join(p.name for p in pools)} need {needed:g} {kind}s"
                f"{where}, and the cluster has {there:g}",
                hint="Lower the pools' instances or their demand, or add nodes.",
            )


def _gpu_class(node: dict[str, Any]) -> str:
    labels = node.get("Labels") or {}
    return str(labels.get(GPU_CLASS_LABEL, ""))
