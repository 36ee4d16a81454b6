"""Which engine hosts there are, under which names, and how they are."""

from __future__ import annotations

from typing import Any

from herasys_rt.config import PoolConfig
from herasys_rt.core.events import PoolDeclared
from herasys_rt.errors import ErrorInfo
from herasys_rt.links import Endpoint
from herasys_rt.messages import Heartbeat, HostReady, PoolFacts

Seat = tuple[str, int]
"""(pool, index): the place of an instance in the configuration, kept over restarts."""


class Roster:
    """The scheduler's table of hosts.

    A seat's first incarnation is called ``pool-index``, later ones ``pool-index.N``, so
    that a stale message can never be taken for the living instance's.
    """

    def __init__(self, pools: list[PoolDeclared]) -> None:
        self._pools = {pool.pool: pool for pool in pools}
        self.slots: dict[str, int] = {}
        self._engines: dict[str, str] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self._seat_of: dict[str, Seat] = {}
        self._instance_at: dict[Seat, str] = {}
        self._incarnations: dict[Seat, int] = {}
        self._seats: dict[str, set[int]] = {pool.pool: set() for pool in pools}
        self._errors: dict[Seat, ErrorInfo] = {}
        self._heard_s: dict[str, float] = {}
        self._beats: dict[str, Heartbeat] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._pids: dict[str, int] = {}
        self._dismissed: dict[Seat, tuple[str, Endpoint]] = {}

    def expect(self, pool: PoolConfig) -> None:
        """Declare how many seats a pool has and how many slots each instance."""
        self._seats[pool.name] = set(range(pool.instances))
        self.slots[pool.name] = pool.slots
        self._engines[pool.name] = pool.engine

    def admit(self, message: HostReady, now: float) -> str:
        """Name a host that has come up."""
        seat = (message.pool, message.index)
        count = self._incarnations.get(seat, 0) + 1
        self._incarnations[seat] = count
        name = f"{message.pool}-{message.index}"
        instance = name if count == 1 else f"{name}.{count}"
        self._seat_of[instance] = seat
        self._instance_at[seat] = instance
        self._errors.pop(seat, None)
        self._dismissed.pop(seat, None)
        self._seats[message.pool].add(message.index)
        self.endpoints[instance] = message.endpoint
        self._heard_s[instance] = now
        facts = dict(message.facts)
        self._pids[instance] = int(facts.pop("pid", 0))
        self._facts[message.pool] = facts
        return instance

    def dismiss(self, instance: str) -> Endpoint | None:
        """Forget an instance; its endpoint, or None when it was not known."""
        seat = self._seat_of.pop(instance, None)
        endpoint = self.endpoints.pop(instance, None)
        if seat is not None and endpoint is not None:
            self._instance_at.pop(seat, None)
            self._dismissed[seat] = (instance, endpoint)
        self._heard_s.pop(instance, None)
        self._beats.pop(instance, None)
        self._pids.pop(instance, None)
        return endpoint

    def returned(self, instance: str) -> Endpoint | None:
        """Where an instance listens that was dismissed, lives after all, and whose seat
        nobody has taken; None for any other."""
        for seat, (name, endpoint) in self._dismissed.items():
            if name == instance and seat not in self._instance_at:
                return endpoint
        return None

    def instance_at(self, pool: str, index: int) -> str | None:
        """The living instance of a seat."""
        return self._instance_at.get((pool, index))

    def is_of(self, instance: str, pid: int) -> bool:
        """Whether an instance is the process ``pid``; 0 stands for any."""
        return pid in (0, self._pids.get(instance))

    def fail(self, pool: str, index: int, error: ErrorInfo) -> None:
        """The seat's host cannot come up."""
        self._errors[(pool, index)] = error

    def lose(self, pool: str, index: int, reason: str) -> ErrorInfo:
        """The seat's process is gone for good; the error that says so."""
        error = self._errors.get((pool, index)) or ErrorInfo(
            "instance_lost",
            f"instance {pool}-{index} is gone for good: {reason}",
            "See the runtime's log; `herasys down` and `herasys up` start afresh.",
        )
        self._errors[(pool, index)] = error
        return error

    def hopeless(self, pool: str) -> bool:
        """Whether every seat of the pool has failed for good."""
        return all((pool, index) in self._errors for index in self._seats[pool])

    def heard(self, beat: Heartbeat, now: float) -> bool:
        """A host said that it lives; False when it is none of the living instances."""
        if beat.instance not in self._heard_s:
            return False
        self._heard_s[beat.instance] = now
        self._beats[beat.instance] = beat
        return True

    def silent(self, now: float, limit_s: float) -> list[str]:
        """Instances that have said nothing for longer than ``limit_s``."""
        return [name for name, t in self._heard_s.items() if now - t > limit_s]

    def facts(self) -> tuple[PoolFacts, ...]:
        """What the fuser must know of each pool."""
        return tuple(
            PoolFacts(
                pool.pool,
                pool.resource,
                pool.names,
                pool.default,
                str(self._facts.get(pool.pool, {}).get("fingerprint", "")),
            )
            for pool in self._pools.values()
        )

    def status(self) -> list[dict[str, Any]]:
        """Pools and instances as plain data, for `herasys status`."""
        return [self._pool_status(pool) for pool in self._pools.values()]

    def _pool_status(self, pool: PoolDeclared) -> dict[str, Any]:
        return {
            "name": pool.pool,
            "resource": pool.resource,
            "engine": self._engines.get(pool.pool, ""),
            "model": pool.names[0] if pool.names else None,
            "slots": self.slots.get(pool.pool, 0),
            "facts": self._facts.get(pool.pool, {}),
            "instances": [
                self._seat_status((pool.pool, index))
                for index in sorted(self._seats[pool.pool])
            ],
        }

    def _seat_status(self, seat: Seat) -> dict[str, Any]:
        instance = self._instance_at.get(seat)
        beat = self._beats.get(instance or "")
        error = self._errors.get(seat)
        state = "up" if instance else "failed" if error else "starting"
        return {
            "id": instance or f"{seat[0]}-{seat[1]}",
            "state": state,
            "pid": self._pids.get(instance or ""),
            "running": beat.running if beat else 0,
            "waiting": beat.waiting if beat else 0,
            "kv_usage": round(beat.kv_usage, 4) if beat else 0.0,
            "error": error.to_json() if error and not instance else None,
        }
