"""Seeds: runs of scenarios with several seeds, on all cores."""

from collections.abc import Callable, Sequence
from contextlib import closing
from operator import attrgetter
from typing import Any, TypeVar

from simserve.errors import NoArrivals, SimserveError
from simserve.metrics.results import Results
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.study.processes import Lost, Task, in_processes

Summary = dict[str, Any]

OnRun = Callable[[int, int], None]
"""Called after each run, with how many are done and how many there are."""


T = TypeVar("T")


def replicate(
    scenarios: Sequence[Scenario], seeds: Sequence[int], progress: OnRun | None = None
) -> list[list[Summary]]:
    """Return the summaries of each scenario at each seed, `(n_scenarios, n_seeds)`; as `each_run` does."""
    return each_run(attrgetter("summary"), scenarios, seeds, progress)


def each_run(
    kept: Callable[[Results], T], scenarios: Sequence[Scenario], seeds: Sequence[int], progress: OnRun | None = None
) -> list[list[T]]:
    """Return what a function keeps of each scenario at each seed, `(n_scenarios, n_seeds)`.

    Runs of one seed share their randomness, so that differences between scenarios have less sampling noise.
    Raises SimserveError as `simulate` does.
    """
    runs = [(kept, scenario.to_dict(), seed) for seed in seeds for scenario in scenarios]
    result: dict[int, T] = {}
    with closing(in_processes(_answer, runs)) as reader:
        for n_done, (place, answer) in enumerate(reader, start=1):
            if isinstance(answer, NoArrivals):
                raise answer
            if isinstance(answer, str | Lost):
                raise SimserveError(answer if isinstance(answer, str) else answer.reason)
            result[place] = answer
            if progress:
                progress(n_done, len(runs))
    ordered = [result[place] for place in range(len(runs))]
    return [ordered[i :: len(scenarios)] for i in range(len(scenarios))]


def _answer(run: Task) -> Any:
    """Run in another process; errors are returned as messages, but NoArrivals, which a search handles, as itself."""
    kept, data, seed = run
    try:
        return kept(simulate(Scenario.from_dict(data).model_copy(update={"seed": seed})))
    except NoArrivals as error:
        return error
    except SimserveError as error:
        return str(error)
