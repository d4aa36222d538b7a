"""Fit few parameters to what was measured, by replays: forward selection by the error of what is left out.

A replay tells what each observation should be, and replays with one parameter changed tell what that one adds. Least
squares over the observations then give the parameters. One is added after the other, the one that helps most first,
as long as parts that were left out are predicted better.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simserve.tables.columns import Flags, Floats

LEAST_GAIN_FRAC = 0.03
"""Share by which another parameter must lower the error of what is left out."""

DIGITS = 4

Theta = Mapping[str, float]
Rows = Flags | slice
EVERYTHING = slice(None)
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Parameter:
    """A number that a fit may move."""

    start: float
    """Its value where it is not fitted."""
    least: float
    most: float
    unit: float = 1.0
    """A change of about the size that matters."""
    sd: float = np.inf
    """How far it may be from its start, before anything is measured: it counts as one more observation."""


class Fit(ABC):
    """Parameters, some of them chosen by name, and their effects on the observations at their present values."""

    rounds: int
    """Times that what is chosen is fitted again at the end, as effects change with the values."""
    least_gain = 0.0
    """Least gain of another parameter, in units of the error of an observation: less is noise."""

    def __init__(self, names: Iterable[str], parameters: Mapping[str, Parameter], progress: Progress | None) -> None:
        self.names = list(names)
        """Names that may be chosen and have an effect; `keys` has the parameters of each."""
        self.parameters = parameters
        self.progress = progress or (lambda text: None)
        self.chosen: tuple[str, ...] = ()
        self.most_chosen = len(self.names)
        self.theta: Theta = {key: each.start for key, each in parameters.items()}
        self.base: Floats = np.zeros(0)
        """Observations as replayed at theta."""
        self.effects: dict[str, Floats] = {}
        """What a unit of each parameter adds to the observations, `(n_observed,)` each."""

    measured: Floats
    """Observations, `(n_observed,)`."""
    weight: Floats
    """One over the error of each."""
    share: Floats
    """Share of each in the fit."""
    parts: Sequence[Flags]
    """Parts of the observations, each left out in turn while names are chosen."""

    @abstractmethod
    def replayed(self, theta: Theta) -> Floats:
        """Return what the observations should be."""

    def keys(self, name: str) -> Sequence[str]:
        """Return the parameters of a name."""
        return [name]

    def step(self, key: str) -> float:
        """Return the change of a parameter in the replay that shows its effect."""
        return self.parameters[key].unit

    def is_of(self, key: str) -> Flags:
        """Mark the observations that a parameter may change."""
        return np.ones(len(self.measured), np.bool_)

    def choose(self) -> None:
        """Add one name after the other while that lowers the error of what is left out, and fit what is chosen."""
        while True:
            self._replay(self.names)
            self.names = [name for name in self.names if any(self.effects[key].any() for key in self.keys(name))]
            more = self._one_more()
            if more is None:
                return
            self.chosen = (*self.chosen, more)
            self.theta = self.solved(self.chosen)
            self.progress(", ".join(f"{key} {self.theta[key]:.3g}" for key in self.keys_of(self.chosen)))

    def refine(self) -> None:
        """Fit what is chosen again."""
        for _ in range(self.rounds):
            self.theta = self.solved(self.chosen)
            self._replay(self.chosen)

    def _replay(self, names: Sequence[str]) -> None:
        self.base = self.replayed(self.theta)
        self.effects = {}
        for name in names:
            self.effects |= self.effect(name)

    def effect(self, name: str) -> dict[str, Floats]:
        """Return what a unit of each parameter of a name adds to the observations."""
        steps = {key: self.step(key) for key in self.keys(name)}
        moved = {key: self.theta[key] + step for key, step in steps.items()}
        added = self.replayed({**self.theta, **moved}) - self.base
        return {key: np.where(self.is_of(key), added / step, 0.0) for key, step in steps.items()}

    def keys_of(self, names: Sequence[str]) -> list[str]:
        """Return the parameters of some names."""
        return [key for name in names for key in self.keys(name)]

    def free(self, names: Sequence[str], rows: Rows) -> list[str]:
        """Return the parameters of some names that have an effect on some observations."""
        return [key for key in self.keys_of(names) if self.effects[key][rows].any()]

    def solved(self, names: Sequence[str], rows: Rows = EVERYTHING) -> dict[str, float]:
        """Return the parameters of some names that fit all or some observations best; others where they start."""
        from scipy.optimize import lsq_linear

        result = {key: each.start for key, each in self.parameters.items()}
        keys = self.free(names, rows)
        if not keys:
            return result
        chosen = [self.parameters[key] for key in keys]
        unit = np.array([abs(each.unit) for each in chosen])
        weight = self.weight * np.sqrt(self.share)
        matrix = np.stack([self.effects[key] * weight for key in keys], axis=1)[rows] * unit
        residual = ((self.measured - self._with(result)) * weight)[rows]
        prior = np.diag(unit / np.array([each.sd for each in chosen]))
        matrix, residual = np.vstack([matrix, prior]), np.concatenate([residual, np.zeros(len(keys))])
        low = np.array([each.least - each.start for each in chosen]) / unit
        high = np.array([each.most - each.start for each in chosen]) / unit
        moved = lsq_linear(matrix, residual, (np.minimum(low, -1e-12), np.maximum(high, 1e-12))).x * unit
        return result | {key: self._at_bounds(key, result[key] + float(x)) for key, x in zip(keys, moved, strict=True)}

    def _at_bounds(self, key: str, value: float) -> float:
        """Return a bound where the solver stopped next to it."""
        own = self.parameters[key]
        return next((end for end in (own.least, own.most) if abs(value - end) < 1e-6 * abs(own.unit)), value)

    def _with(self, theta: Theta) -> Floats:
        """Return the observations with other parameters, by their effects."""
        added = (effect * (theta[key] - self.theta[key]) for key, effect in self.effects.items())
        return self.base + sum(added, np.zeros(len(self.base)))

    def score(self, names: Sequence[str]) -> float:
        """Return the mean weighted error of parts that are left out in turn of a fit of these names."""
        sizes = np.zeros(len(self.measured))
        for part in self.parts:
            moved = self._with(self.solved(names, ~part))
            sizes[part] = np.abs((self.measured - moved) * self.weight)[part]
        return float(sizes @ self.share / self.share.sum())

    def gain(self, score: float) -> float:
        """Return the least by which a name must lower a score."""
        return max(LEAST_GAIN_FRAC * score, self.least_gain)

    def _one_more(self) -> str | None:
        """Return the name that most lowers the error of what is left out; None where none lowers it enough."""
        if len(self.chosen) >= self.most_chosen:
            return None
        best = self.score(self.chosen)
        scores = {name: self.score((*self.chosen, name)) for name in self.names if name not in self.chosen}
        name = min(scores, key=lambda each: scores[each], default=None)
        return name if name is not None and scores[name] < best - self.gain(best) else None


def rounded(value: float, digits: int = DIGITS) -> float:
    """Round to few digits."""
    return float(f"{value:.{digits}g}")
