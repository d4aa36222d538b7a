"""The question of a resilience study: a pool, its failures, and the spares that it may get."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simserve.errors import Problem, ScenarioError
from simserve.scenario import Scenario
from simserve.scenario.template import Override, Template
from simserve.study.capacity.question import check_slo
from simserve.study.deterministic_load import is_deterministic
from simserve.study.resilience.failures import Threat, threats_of
from simserve.study.sweep.points import RANGE

MOST_RUNS, MOST_SEEDS, FEWEST_SEEDS = 40, 8, 2
"""Runs of a study by default, and seeds of each fleet and failure at most and at least."""

MOST_SPARES = 20


@dataclass(frozen=True)
class ResilienceQuestion:
    """A pool with its failures, and the spares that it may get."""

    template: Template
    place: int
    """Number of the pool."""
    spares: range
    threats: Sequence[Threat]
    goal_frac: float
    given_seeds: int | None
    """Seeds of all fleets and failures; None: as many as MOST_RUNS allow."""

    @classmethod
    def of(
        cls,
        template: Template,
        pool: str | None,
        spare: str,
        kinds: Sequence[str],
        given_seeds: int | None,
        goal_frac: float,
    ) -> "ResilienceQuestion":
        """Return the question. Raises SimserveError before anything runs."""
        scenario = Scenario.of(template)
        check_slo(scenario)
        names = [each.name for each in scenario.cluster.pools]
        if pool is not None and pool not in names:
            raise _problem("--pool", "there is no such pool", pool, f"use {' or '.join(names)}")
        place = 0 if pool is None else names.index(pool)
        threats = threats_of(scenario, place, list(dict.fromkeys(kinds)))
        question = cls(template, place, _spares(spare), threats, goal_frac, given_seeds)
        for size in question.sizes:
            question.fleet(size)  # raises for more GPUs than the budget has
        return question

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario as it is."""
        return Scenario.of(self.template)

    @property
    def pool(self) -> str:
        """Return the name of the pool."""
        return self.scenario.cluster.pools[self.place].name

    @property
    def n(self) -> int:
        """Replicas without spares."""
        return self.scenario.cluster.pools[self.place].replicas

    @property
    def warmup_s(self) -> float:
        """[s] Start of the measured window; 0 where it is given by requests, or each run finds its own."""
        start_s = self.scenario.measure.warmup_s
        return 0.0 if start_s is None or start_s == "auto" else start_s

    @property
    def is_scaled(self) -> bool:
        """Whether an autoscaler decides how many replicas there are."""
        return self.scenario.setups[self.place].autoscaler is not None

    @property
    def sizes(self) -> list[int]:
        """Replicas of the fleets to run: one fewer than without spares up to all spares, and what most failures leave.

        A size between those attains at least what the next smaller one does.
        """
        if self.is_scaled:
            return [self.n]
        least = self.n - max(threat.of(self.n)[0] for threat in self.threats)
        sizes = {least, *range(self.n - 1, self.n + self.spares[-1] + 1)}
        return sorted(size for size in sizes if size)

    @property
    def n_pairs(self) -> int:
        """Return the seeds of each fleet and failure. A second set of failures may follow, with two of each."""
        kinds = len(self.threats)
        n_runs = MOST_RUNS - (FEWEST_SEEDS * kinds if self.spares[-1] else 0)
        most = n_runs // (len(self.sizes) + kinds)
        return self.given_seeds or max(FEWEST_SEEDS, min(MOST_SEEDS, most))

    @cached_property
    def n_seeds(self) -> int:
        """Seeds of each fleet of fixed size; one where nothing is drawn."""
        return 1 if is_deterministic(self.scenario) else self.n_pairs

    def fleet(self, replicas: int, *failures: Any, warm: int = 0) -> Scenario:
        """Return the scenario with so many replicas and warm spares, and these failures alone. Raises ScenarioError."""
        pool, spares = ("cluster", "pools", str(self.place)), {"warm": warm} if warm else None
        changes: list[tuple[tuple[str, ...], Any]] = [((*pool, "replicas"), replicas), ((*pool, "spares"), spares)]
        changes.append((("cluster", "failures"), [*failures] or None))
        place = f"command line --spare {replicas - self.n}"
        return Scenario.of(self.template.with_options([Override(place, keys, value) for keys, value in changes]))


def _spares(text: str) -> range:
    """Return the numbers of spares of `0..2`, or a single one. Raises ScenarioError."""
    match = RANGE.fullmatch(text if ".." in text else f"{text}..{text}")
    remedy = f"for example 0..2; at most {MOST_SPARES}"
    if match is None or match[3] or not (match[1] + match[2]).isdecimal():
        raise _problem("--spare", "must be a number of spares, or a range LO..HI", text, remedy)
    if not int(match[1]) <= int(match[2]) <= MOST_SPARES:
        raise _problem("--spare", "a range goes upwards, to a number of spares that is not too large", text, remedy)
    return range(int(match[1]), int(match[2]) + 1)


def _problem(option: str, rule: str, value: str, remedy: str) -> ScenarioError:
    return ScenarioError([Problem(f"command line {option}", rule, value, remedy)])
