"""Seeds: runs of scenarios with several seeds, on all cores."""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from simserve.errors import NoArrivals, SimserveError
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.study.processes import Lost, Task, in_processes

Summary = dict[str, Any]

OnRun = Callable[[int, int], None]
"""Called after each run, with how many are done and how many there are."""


def replicate(
    scenarios: Sequence[Scenario], seeds: Sequence[int], progress: OnRun | None = None
) -> list[list[Summary]]:
    """Return the summaries of each scenario at each seed, `(n_scenarios, n_seeds)`.

    Runs of one seed share their randomness, so that differences between scenarios have less sampling noise.
    Raises SimserveError as `simulate` does.
    """
    runs = [(scenario.to_dict(), seed) for seed in seeds for scenario in scenarios]
    result: list[Summary] = [{}] * len(runs)
    with closing(in_processes(_answer, runs)) as reader:
        for n_done, (place, answer) in enumerate(reader, start=1):
            if isinstance(answer, NoArrivals):
                raise answer
            if isinstance(answer, str | Lost):
                raise SimserveError(answer if isinstance(answer, str) else answer.reason)
            result[place] = answer
            if progress:
                progress(n_done, len(runs))
    return [result[i :: len(scenarios)] for i in range(len(scenarios))]


def _answer(run: Task) -> Summary | NoArrivals | str:
    """Run in another process; errors are returned as messages, but NoArrivals, which a search handles, as itself."""
    data, seed = run
    try:
        return simulate(Scenario.from_dict(data).model_copy(update={"seed": seed})).summary
    except NoArrivals as error:
        return error
    except SimserveError as error:
        return str(error)
