"""Seeds: runs of scenarios with several seeds, on all cores."""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from simserve.errors import NoArrivals, SimserveError
from simserve.metrics.figures import Summary
from simserve.metrics.outcomes import OUTCOME_KEYS
from simserve.metrics.results import Results
from simserve.metrics.tails import Sample
from simserve.scenario import Scenario
from simserve.scenario.setup import Distortion
from simserve.simulation import simulate
from simserve.study.processes import Lost, Task, in_processes
from simserve.study.progress import counted

T = TypeVar("T")

STUDIED = (
    *("seed", "window", *OUTCOME_KEYS, "ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s", "preemptions", "kv", "goodput"),
    *("offered_per_s", "requests_per_s", "served_per_s"),
    *("input_tokens_per_s", "output_tokens_per_s", "total_tokens_per_s"),
)
"""Figures that most studies read of each run. Others take as long as all these, so a study says which it reads."""

MEASURED = (*STUDIED, "busy_frac", "mfu", "mbu", "scaling")
"""Figures of studies that report the use of the GPUs, too."""


class Run(NamedTuple):
    """A run as a search sees it."""

    summary: Summary
    """Some of its figures."""
    sample: Sample

    @classmethod
    def of(cls, results: Results, keys: Sequence[str] = STUDIED) -> "Run":
        """Return what a search keeps of a run: its figures with these keys, and how close its requests come."""
        return cls(results.part(keys), results.sample)


class Wanted(NamedTuple):
    """A run to make."""

    scenario: Scenario
    seed: int
    costs: Distortion | None = None
    """Factors on the costs of the scenario; None: as they are."""


def each_run(kept: Callable[[Results], T], scenarios: Sequence[Scenario], seeds: Sequence[int]) -> list[list[T]]:
    """Return what a function keeps of each scenario at each seed, `(n_scenarios, n_seeds)`.

    Runs of one seed share their randomness, so that differences between scenarios have less sampling noise.
    Raises SimserveError as `simulate` does.
    """
    ordered = run_all(kept, [Wanted(scenario, seed) for seed in seeds for scenario in scenarios])
    return [ordered[i :: len(scenarios)] for i in range(len(scenarios))]


def run_all(kept: Callable[[Results], T], wanted: Iterable[Wanted]) -> list[T]:
    """Return what a function keeps of each run, in their order. Raises SimserveError as `simulate` does."""
    runs = [(kept, as_text(scenario), seed, costs) for scenario, seed, costs in wanted]
    result: dict[int, T] = {}
    with closing(in_processes(_answer, runs)) as reader:
        for place, answer in counted(reader, len(runs)):
            if isinstance(answer, NoArrivals):
                raise answer
            if isinstance(answer, str | Lost):
                raise SimserveError(answer if isinstance(answer, str) else answer.reason)
            result[place] = answer
    return [result[place] for place in range(len(runs))]


def as_text(scenario: Scenario) -> str:
    """Return a scenario as a task holds it, with whether it replays a trace, and the digest of what other files say."""
    return json.dumps([scenario.to_dict(), scenario.workload.trace is not None, scenario.digest])


def scenario_of(text: str) -> Scenario:
    """Return the scenario of a task. Raises ScenarioError, also for a trace that has changed since."""
    data, replays, _ = json.loads(text)
    return Scenario.from_dict(data) if replays else _known(text)


@lru_cache(maxsize=16)
def _known(text: str) -> Scenario:
    """fast: a scenario is resolved, and its costs are tabulated, once for all its seeds."""
    scenario = Scenario.from_dict(json.loads(text)[0])
    scenario.setups  # noqa: B018  # copies with other seeds share them
    return scenario


def _answer(run: Task) -> Any:
    """Run in another process; errors are returned as messages, but NoArrivals, which a search handles, as itself."""
    kept, text, seed, costs = run
    try:
        return kept(simulate(scenario_of(text).model_copy(update={"seed": seed}), distortion=costs))
    except NoArrivals as error:
        return error
    except SimserveError as error:
        return str(error)
