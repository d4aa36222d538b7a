"""Amounts: a number, or a distribution to draw it from, of tokens, turns or seconds."""

from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field, NonNegativeFloat
from pydantic.dataclasses import dataclass

from simserve.tables.columns import Floats, Ints
from simserve.units import LONGEST_S
from simserve.workload.lengths.base import STRICT, Tokens


def in_order(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return two bounds. Raises ValueError for a first one above the second."""
    if bounds[0] > bounds[1]:
        raise ValueError(f"the first bound must not be above the second, got {list(bounds)}")
    return bounds


Bounds = Annotated[tuple[Tokens, Tokens], AfterValidator(in_order)]


@dataclass(config=STRICT)
class LognormalSide:
    """Lengths, or turns: exp of a normal variable, rounded down, clipped to [1, max]."""

    median: Tokens
    """Median before clipping."""
    sigma: NonNegativeFloat
    """Standard deviation of the logarithm."""
    max: Tokens
    """Largest value; larger ones are clipped to it."""

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Ints, float]:
        """Draw n lengths; also return the share clipped."""
        with np.errstate(over="ignore"):  # infinite lengths are clipped with the other long ones
            tokens = np.floor(self.median * np.exp(self.sigma * rng.standard_normal(n)))
        clipped = (tokens < 1) | (tokens > self.max)
        return np.clip(tokens, 1, self.max).astype(np.int64), float(clipped.mean()) if n else 0.0


Whole = Tokens | Bounds | LognormalSide
"""A number; [least, most], uniform; or lognormal: {median, sigma, max}."""

Seconds = Annotated[float, Field(ge=0, le=LONGEST_S)]
SomeSeconds = Annotated[float, Field(gt=0, le=LONGEST_S)]


@dataclass(config=STRICT)
class DrawnSeconds:
    """Seconds: exponential {mean}, or lognormal and clipped {median, sigma, max}."""

    mean: SomeSeconds | None = None
    """[s] Mean of the exponential distribution; null: it is lognormal."""
    median: SomeSeconds | None = None
    """[s] Median of the lognormal distribution, before clipping; null: it is exponential."""
    sigma: Annotated[float, Field(ge=0, le=10)] | None = None
    """Standard deviation of the logarithm; null: it is exponential."""
    max: SomeSeconds | None = None
    """[s] Largest value of the lognormal distribution; larger ones are clipped to it. null: it is exponential."""

    def __post_init__(self) -> None:
        lognormal = [value is not None for value in (self.median, self.sigma, self.max)]
        if any(lognormal) != all(lognormal) or any(lognormal) == (self.mean is not None):
            raise ValueError("must have mean (exponential), or median, sigma and max (lognormal)")

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """Draw n times, `(n,)`."""
        if self.median is None or self.sigma is None or self.max is None:
            return (self.mean or 0.0) * rng.standard_exponential(n)
        drawn_s = self.median * np.exp(self.sigma * rng.standard_normal(n))
        return np.minimum(drawn_s, self.max)


Time = Seconds | DrawnSeconds
"""A fixed time, or a distribution."""


def whole_numbers(amount: Whole, n: int, rng: np.random.Generator) -> Ints:
    """Draw n amounts, `(n,)`; fewer are a prefix of more."""
    if isinstance(amount, int):
        return np.full(n, amount)
    if isinstance(amount, LognormalSide):
        return amount.draw(n, rng)[0]
    return between(amount, rng.random(n))


def between(bounds: tuple[int, int], share: Floats) -> Ints:
    """Return the integer at a share of the way from the first bound to the second, both included, `(n,)`."""
    low, high = bounds
    return (low + np.floor(share * (high - low + 1))).astype(np.int64)


def most_of(amount: Whole) -> int:
    """Return the largest possible amount."""
    if isinstance(amount, int):
        return amount
    return amount.max if isinstance(amount, LognormalSide) else amount[1]


def seconds(time: Time, n: int, rng: np.random.Generator) -> Floats:
    """Draw n times, `(n,)`; fewer are a prefix of more."""
    if isinstance(time, DrawnSeconds):
        return time.draw(n, rng)
    return np.full(n, float(time))


def zipf_weights(n: int, exponent: float) -> Floats:
    """Return 1 / rank**exponent for the ranks 1 to n: Zipf's law at 1, uniform at 0."""
    weights: Floats = np.power(np.arange(1, n + 1, dtype=np.float64), -exponent)
    return weights


def picked(weights: Floats, n: int, rng: np.random.Generator) -> Ints:
    """Draw n indexes, each with the probability of its weight, `(n,)`; fewer are a prefix of more."""
    until = np.cumsum(weights)
    which: Ints = np.searchsorted(until, rng.random(n) * until[-1], side="right")
    return np.minimum(which, len(weights) - 1)
