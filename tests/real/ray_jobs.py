"""Jobs on the Ray of a runtime that a test started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NOT_YET = "No available agent"
"""Ray's dashboard answers before the agent that starts jobs has come up beside it."""
_TRIES = 30


def submit_job(
    runtime: Mapping[str, Any],
    working_dir: Path,
    entry: str,
    env_vars: Mapping[str, str] | None = None,
    python_path: Path | None = None,
) -> str:
    """Have ``entry`` run as a job, wait for its end, and give what was said meanwhile.

    ``runtime`` is a daemon's state; ``env_vars`` go into the job's runtime environment.
    """
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "job", "submit"),
        *("--address", runtime["job_address"], "--working-dir", "."),
    ]
    if env_vars is not None:
        command += ["--runtime-env-json", json.dumps({"env_vars": dict(env_vars)})]
    env = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": runtime["token_path"],
    }
    if python_path is not None:
        env["PYTHONPATH"] = str(python_path)
    said = ""
    for _ in range(_TRIES):  # each try loads Ray: seconds
        job = subprocess.run(
            [*command, "--", *entry.split()],
            cwd=working_dir,
            env=env,
            capture_output=True,
            text=True,
            timeout=240,
        )
        said = job.stdout + job.stderr
        if _NOT_YET not in said:
            break
    return said
