"""Replications: a scenario run again and again with seeds of its own, on all cores."""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from simserve.errors import NoArrivals, SimserveError
from simserve.scenario import Scenario
from simserve.simulate import simulate
from simserve.study.processes import Lost, Task, in_processes

Summary = dict[str, Any]


def replicate(
    scenarios: Sequence[Scenario], seeds: Sequence[int], progress: Callable[[int, int], None] | None = None
) -> list[list[Summary]]:
    """The summaries of each scenario at each seed, `(n_scenarios, n_seeds)`.

    Runs of one seed share their randomness: what is drawn alike stays alike, so differences owe nothing to luck.
    `told` hears of each run done, and how many there are. Raises SimserveError as `simulate` does.
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
    """In another process: a user's mistake comes back as its message, but for the one that a search goes on from."""
    data, seed = run
    try:
        return simulate(Scenario.from_dict(data).model_copy(update={"seed": seed})).summary
    except NoArrivals as error:
        return error
    except SimserveError as error:
        return str(error)
