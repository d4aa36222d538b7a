"""Baseline: a scenario's p99 goodput, seed by seed, as the file that `simserve check --update` writes has it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from simserve.metrics.answers.parts import Positive
from simserve.metrics.answers.struct import Struct
from simserve.metrics.summary_schema import Count, Signed

LOOKS = (32, 64, 128)
"""Seeds after which the gate looks whether the answer is clear."""


def looks_until(n_seeds: int) -> tuple[int, ...]:
    """Return the numbers of seeds after which the gate looks, the last at all of so many."""
    return (*(n for n in LOOKS if n < n_seeds), n_seeds)


class BaselineSection(Struct):
    """Base of the sections of the file: no unknown key."""

    model_config = ConfigDict(extra="forbid")


class Rate(BaselineSection):
    """Requests per second with a 95% interval."""

    value: Positive
    low: Positive
    high: Positive


class Crowd(BaselineSection):
    """Covariate of each seed: how hard its load is on any server."""

    above: float
    frac: tuple[float, ...]


class LoadFacts(Struct):
    """Means over the first LOOKS[0] seeds at one load; missing values are None, keys of other versions are kept."""

    model_config = ConfigDict(extra="allow")

    scale: Signed = None
    n_runs: Count | None = None
    offered_per_s: Signed = None
    attained_frac: Signed = None
    by_slo: Annotated[Mapping[str, Signed], Field(min_length=1)]
    saturated_frac: Signed = None
    parts: Mapping[str, Signed]

    @property
    def fails_first(self) -> str | None:
        """Return the SLO that most requests missed; None where all were met."""
        fracs = {key: 1.0 if frac is None else frac for key, frac in self.by_slo.items()}
        key = min(fracs, key=fracs.__getitem__)
        return None if fracs[key] == 1 else key


class BaselineLoad(BaselineSection):
    """One load and its outcome, a number a seed."""

    scale: Positive
    n_met: tuple[Count, ...]
    n_arrived: tuple[Count, ...]
    load_facts: LoadFacts = Field(alias="facts")


class Baseline(BaselineSection):
    """The file."""

    schema_: Literal["simserve-check/1"] = Field(alias="schema")
    simserve: str
    """The version that ran it."""
    goal_frac: Annotated[float, Field(gt=0, lt=1)]
    goodput_per_s: Rate
    """For readers of the file; the gate does not use it."""
    scenario: dict[str, Any]
    """Resolved, without folders of a machine."""
    first_seed: Count
    crowd: Crowd
    loads: tuple[BaselineLoad, BaselineLoad]
    """Loads between which the scenario stops meeting the goal."""

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
