"""Baseline: a scenario's p99 goodput, seed by seed, as the file that `simserve check --update` writes has it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simserve.metrics.answers.parts import Positive
from simserve.metrics.answers.struct import Struct
from simserve.metrics.summary_schema import Count, Signed

LOOKS = (32, 64, 128)
"""Seeds after which the gate looks whether the answer is clear."""


def looks_until(n_seeds: int) -> tuple[int, ...]:
    """Return the numbers of seeds after which the gate looks, the last at all of so many."""
    return (*(n for n in LOOKS if n < n_seeds), n_seeds)


class BaselineSection(Struct, extra="forbid"):
    """Base of the sections of the file: no unknown key."""


class Rate(BaselineSection):
    """A rate with its 95% interval; informative only, as the gate reads the lists."""

    value: Positive
    """[/s] The estimate."""
    low: Positive
    """[/s] Low end of the 95% interval."""
    high: Positive
    """[/s] High end of the 95% interval."""


class Crowd(BaselineSection):
    """Covariate of each seed: how hard its load is on any server."""

    above: float
    """Others in progress that a request meets more of."""
    frac: tuple[float, ...]
    """[share] Requests of each seed that do, on a server as slow as the SLO allows."""


class LoadFacts(Struct, extra="allow"):
    """Means over the first 32 seeds at one load; null where unknown."""

    scale: Signed = None
    """Multiple of the scenario's rates."""
    n_runs: Count | None = None
    """Runs."""
    offered_per_s: Signed = None
    """[/s] Arrivals."""
    attained_frac: Signed = None
    """[share] Requests that met every limit."""
    by_slo: Annotated[Mapping[str, Signed], Field(min_length=1)]
    """[share] Requests that met each limit."""
    saturated_frac: Signed = None
    """[share] Runs in which the queue only grew."""
    parts: Mapping[str, Signed]
    """Parts of a request's time in seconds, and shares of requests and memory."""

    @property
    def fails_first(self) -> str | None:
        """Return the SLO that most requests missed; None where all were met."""
        fracs = {key: 1.0 if frac is None else frac for key, frac in self.by_slo.items()}
        key = min(fracs, key=fracs.__getitem__)
        return None if fracs[key] == 1 else key


class BaselineLoad(BaselineSection):
    """One load and its outcome; lists have a number for each seed."""

    scale: Positive
    """Multiple of the scenario's rates."""
    n_met: tuple[Count, ...]
    """Requests that met every limit."""
    n_arrived: tuple[Count, ...]
    """Requests that arrived in the window."""
    load_facts: LoadFacts = Field(alias="facts")
    """Means at this load."""


class Baseline(BaselineSection):
    """A baseline that `simserve check --update` wrote; a file with other keys is refused."""

    schema_: Literal["simserve-check/1"] = Field(alias="schema")
    """Version of the file."""
    simserve: str
    """Version that ran it."""
    goal_frac: Annotated[float, Field(gt=0, lt=1)]
    """[share] Requests that must meet every limit."""
    goodput_per_s: Rate
    """[/s] The p99 goodput."""
    scenario: dict[str, Any]
    """The resolved scenario, without folders: a trace or a calibration is identified by its name and SHA-256."""
    first_seed: Count
    """The seed of the first number of all lists."""
    crowd: Crowd
    """Load of each seed, by which baselines of other seeds are compared."""
    loads: tuple[BaselineLoad, BaselineLoad]
    """Two loads between which the goal stops being met."""

    @model_validator(mode="after")
    def _fits(self) -> "Baseline":
        lengths = {len(load.n_met) for load in self.loads} | {len(load.n_arrived) for load in self.loads}
        if len(lengths | {len(self.crowd.frac)}) != 1 or self.n_seeds < 2:
            raise ValueError("n_met, n_arrived and crowd.frac must have a number for each of at least two seeds")
        if any(met > arrived for load in self.loads for met, arrived in zip(load.n_met, load.n_arrived, strict=True)):
            raise ValueError("n_met must not be more than n_arrived")
        if not self.loads[0].scale < self.loads[1].scale:
            raise ValueError("the first load must be the lower one")
        return self

    @property
    def n_seeds(self) -> int:
        """Return the seeds of each load."""
        return len(self.loads[0].n_met)

    @property
    def looks(self) -> tuple[int, ...]:
        """Return the numbers of seeds after which the gate may answer: never more than there are."""
        return looks_until(self.n_seeds)

    @property
    def lower_facts(self) -> LoadFacts:
        """Return the facts of the lower load, where the scenario still meets the goal."""
        return self.loads[0].load_facts
