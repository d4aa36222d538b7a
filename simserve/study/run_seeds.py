"""Seeds: runs of scenarios with several seeds, on all cores."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from simserve.errors import NoArrivals, SimserveError
from simserve.metrics.figures import Summary
from simserve.metrics.results import Results
from simserve.metrics.tails import Sample
from simserve.scenario import Scenario
from simserve.scenario.setup import Distortion
from simserve.simulation import simulate
from simserve.study.processes import Lost, Task, in_processes
from simserve.study.progress import counted

T = TypeVar("T")


class Run(NamedTuple):
    """A run as a search sees it."""

    summary: Summary
    sample: Sample

    @classmethod
    def of(cls, results: Results) -> "Run":
        """Return what a search keeps of a run."""
        return cls(results.figures, results.sample)


class Wanted(NamedTuple):
    """A run to make."""

    scenario: Scenario
    seed: int
    costs: Distortion | None = None
    """Factors on the costs of the scenario; None: as they are."""


def replicate(scenarios: Sequence[Scenario], seeds: Sequence[int]) -> list[list[Summary]]:
    """Return the summaries of each scenario at each seed, `(n_scenarios, n_seeds)`; as `each_run` does."""
    return each_run(attrgetter("figures"), scenarios, seeds)


def each_run(kept: Callable[[Results], T], scenarios: Sequence[Scenario], seeds: Sequence[int]) -> list[list[T]]:
    """Return what a function keeps of each scenario at each seed, `(n_scenarios, n_seeds)`.

    Runs of one seed share their randomness, so that differences between scenarios have less sampling noise.
    Raises SimserveError as `simulate` does.
    """
    ordered = run_all(kept, [Wanted(scenario, seed) for seed in seeds for scenario in scenarios])
    return [ordered[i :: len(scenarios)] for i in range(len(scenarios))]


def run_all(kept: Callable[[Results], T], wanted: Iterable[Wanted]) -> list[T]:
    """Return what a function keeps of each run, in their order. Raises SimserveError as `simulate` does."""
    runs = [(kept, scenario.to_dict(), seed, costs) for scenario, seed, costs in wanted]
    result: dict[int, T] = {}
    with closing(in_processes(_answer, runs)) as reader:
        for place, answer in counted(reader, len(runs)):
            if isinstance(answer, NoArrivals):
                raise answer
            if isinstance(answer, str | Lost):
                raise SimserveError(answer if isinstance(answer, str) else answer.reason)
            result[place] = answer
    return [result[place] for place in range(len(runs))]


def _answer(run: Task) -> Any:
    """Run in another process; errors are returned as messages, but NoArrivals, which a search handles, as itself."""
    kept, data, seed, costs = run
    try:
        return kept(simulate(Scenario.from_dict(data).model_copy(update={"seed": seed}), distortion=costs))
    except NoArrivals as error:
        return error
    except SimserveError as error:
        return str(error)
