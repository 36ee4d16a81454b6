"""How long something that was written down may still be used, over restarts.

Within one boot of a machine the clock that began with it counts, which nobody sets and
which goes on while no runtime is up. Beyond a reboot, or on another machine, only the
time of day is left: it may be wrong by `SKEW_S` and then ends a use early, never late.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import msgspec

from herasys_rt.ids import new_id

SKEW_S = 3600.0
"""How wrong a machine's time of day may be."""


class Moment(msgspec.Struct, frozen=True):
    """A point in time: ``boot_s`` seconds into the boot named ``boot``, at ``wall_s`` by
    the time of day."""

    boot: str
    boot_s: float
    wall_s: float


def moment_now() -> Moment:
    """This moment of this machine."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return Moment(_BOOT, time.clock_gettime(clock), time.time())


def passed_s(since: Moment, now: Moment) -> float:
    """Seconds that have passed since a moment, at most; infinity when nobody knows."""
    if since.boot == now.boot:
        age_s = now.boot_s - since.boot_s
    else:
        age_s = now.wall_s - since.wall_s
        if age_s >= 0:
            age_s += SKEW_S
    return age_s if age_s >= 0 else math.inf


def left_s(ttl_s: float, since: Moment, now: Moment) -> float:
    """Seconds that are left of ``ttl_s`` that began at ``since``; 0 when it is over."""
    return ttl_s if math.isinf(ttl_s) else max(0.0, ttl_s - passed_s(since, now))


def _this_boot() -> str:
    """The name of this boot; where nobody tells it, this process is its own."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return new_id("boot")


_BOOT = _this_boot()
