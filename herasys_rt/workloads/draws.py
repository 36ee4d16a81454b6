"""Where chance comes from: one independent stream per purpose, and what is drawn from it.

Streams are PCG64 generators seeded by (seed, purpose), so that drawing more of one thing,
or the same thing at another rate, moves nothing else.
"""

from __future__ import annotations

import hashlib
import math
import sys
from bisect import bisect_left
from typing import Literal

import msgspec
import numpy as np

from herasys_rt.errors import ConfigError

MAX_TOKENS = 2_000_000
"""No prompt, output or other length is drawn or read beyond this: twice the longest
context there is."""
MAX_COUNT = 1_000
"""No run has more turns, calls or pieces of one sort than this."""

Law = Literal["lognormal", "normal", "exponential"]


class Streams:
    """The random streams of one seed. Errors: `ConfigError` for a negative seed."""

    def __init__(self, seed: int, path: str = "") -> None:
        if seed < 0:
            raise ConfigError(
                f"seed is {seed}, and seeds count from 0", hint="Give a seed of 0 or more."
            )
        self._seed = seed
        self._path = path
        self._open: dict[str, np.random.Generator] = {}

    def of(self, purpose: str) -> np.random.Generator:
        """The stream of a purpose; asked again, the same one where it was left."""
        found = self._open.get(purpose)
        if found is None:
            name = f"{self._path}{purpose}".encode(errors="surrogatepass")
            digest = hashlib.sha256(name).digest()
            words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)]
            sequence = np.random.SeedSequence([self._seed, *words])
            found = self._open[purpose] = np.random.Generator(np.random.PCG64(sequence))
        return found

    def below(self, name: str) -> Streams:
        """Streams of their own for a part of what is drawn."""
        return Streams(self._seed, f"{self._path}{name}/")


class Spread(msgspec.Struct, frozen=True):
    """A distribution: ``offset`` and a draw by ``law``, held between ``low`` and ``high``.

    ``mean`` is the law's own, before offset and bounds. ``sigma`` is the standard
    deviation of a normal, and of the logarithm of a lognormal; an exponential has none.
    With sigma 0 every draw is the mean. The unit is the user's.
    """

    mean: float
    sigma: float = 0.0
    law: Law = "lognormal"
    low: float = 0.0
    high: float = math.inf
    offset: float = 0.0

    @classmethod
    def of_median(cls, median: float, sigma: float, high: float = math.inf) -> Spread:
        """A lognormal with this median."""
        return cls(median * math.exp(sigma * sigma / 2), sigma, high=high)

    def draw(self, stream: np.random.Generator) -> float:
        """One value; takes one number from the stream, whatever the distribution."""
        noise = float(stream.standard_normal())
        if self.law == "exponential":
            # Of the same one number: the normal's upper tail is uniform.
            tail = 0.5 * math.erfc(noise / math.sqrt(2))
            value = -self.mean * math.log(max(tail, sys.float_info.min))
        elif self.law == "normal":
            value = self.mean + self.sigma * noise
        elif self.mean <= 0 or not self.sigma:
            value = self.mean
        else:
            mu = math.log(self.mean) - self.sigma * self.sigma / 2
            value = math.exp(mu + self.sigma * noise)
        return min(max(value + self.offset, self.low), self.high)

    def whole(
        self,
        stream: np.random.Generator,
        scale: float = 1.0,
        least: int = 1,
        most: int = MAX_TOKENS,
    ) -> int:
        """One value times ``scale`` as a whole number from ``least`` to ``most``."""
        return min(max(round(self.draw(stream) * scale), least), most)

    def count(self, stream: np.random.Generator) -> int:
        """One value as a number of things, from 1 to `MAX_COUNT`."""
        return self.whole(stream, most=MAX_COUNT)

    def scaled(self, scale: float, least: float) -> Spread:
        """The distribution of ``scale`` times its values, at least ``least`` each."""
        return msgspec.structs.replace(
            self,
            mean=self.mean * scale,
            sigma=self.sigma * (scale if self.law == "normal" else 1.0),
            low=max(self.low * scale, least),
            high=max(self.high * scale, least),
            offset=self.offset * scale,
        )


def fixed(value: float) -> Spread:
    """The distribution whose every draw is ``value``."""
    return Spread(value)


class Zipf:
    """Ranks by Zipf's law: rank k (from 0) is drawn with weight 1 / (k + 1)**exponent."""

    def __init__(self, exponent: float = 1.0) -> None:
        self._exponent = exponent
        self._sums: list[float] = []

    def rank(self, count: int, stream: np.random.Generator) -> int:
        """One of the first ``count`` ranks; takes one number. ``count`` is at least 1."""
        sums = self._sums
        while len(sums) < count:
            weight = (len(sums) + 1.0) ** -self._exponent
            sums.append((sums[-1] if sums else 0.0) + weight)
        spot = float(stream.random()) * sums[count - 1]
        return min(bisect_left(sums, spot, 0, count), count - 1)


def poisson_times(runs: int, rate: float, stream: np.random.Generator) -> list[float]:
    """Times in seconds of ``runs`` arrivals of a Poisson process of ``rate`` a second.

    At another rate the same arrivals come, closer or further apart.
    """
    return (np.cumsum(stream.standard_exponential(runs)) / rate).tolist()
