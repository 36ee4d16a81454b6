"""Workloads: the runs that arrive, their graphs and lengths, from one seed.

`workload` gives one by name; `workloads.files` reads and writes the YAML form of any, and
`workloads.traces` replays recorded ones.
"""

from __future__ import annotations

from herasys_rt.workloads.arrivals import Job, Step, Truth, Workload
from herasys_rt.workloads.catalogue import NAMES, workload

__all__ = ["NAMES", "Job", "Step", "Truth", "Workload", "workload"]
