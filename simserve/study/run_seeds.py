"""Replications: a scenario run again and again with seeds of its own, on all cores."""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from simserve.errors import NobodyArrives, SimserveError
from simserve.scenario import Scenario
from simserve.simulate import simulate
from simserve.study.processes import Lost, Task, in_processes

Summary = dict[str, Any]


def replicate(
    scenarios: Sequence[Scenario], seeds: Sequence[int], told: Callable[[int, int], None] | None = None
) -> list[list[Summary]]:
    """The summaries of each scenario at each seed, `(n_scenarios, n_seeds)`.

    Runs of one seed share their randomness: what is drawn alike stays alike, so differences owe nothing to luck.
    `told` hears of each run done, and how many there are. Raises SimserveError as `simulate` does.
    """
    runs = [(scenario.to_dict(), seed) for seed in seeds for scenario in scenarios]
    found: list[Summary] = [{}] * len(runs)
    with closing(in_processes(_answer, runs)) as answers:
        for n_done, (place, answer) in enumerate(answers, start=1):
            if isinstance(answer, NobodyArrives):
                raise answer
            if isinstance(answer, str | Lost):
                raise SimserveError(answer if isinstance(answer, str) else answer.reason)
            found[place] = answer
            if told:
                told(n_done, len(runs))
    return [found[i :: len(scenarios)] for i in range(len(scenarios))]


def _answer(run: Task) -> Summary | NobodyArrives | str:
    """In another process: a user's mistake comes back as its message, but for the one that a search goes on from."""
    data, seed = run
    try:
        return simulate(Scenario.from_dict(data).model_copy(update={"seed": seed})).summary
    except NobodyArrives as error:
        return error
    except SimserveError as error:
        return str(error)
