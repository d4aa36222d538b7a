"""Replications: a scenario run again and again with seeds of its own, on all cores."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from joblib import Parallel, cpu_count, delayed

from simserve.errors import SimserveError
from simserve.scenario import Scenario
from simserve.simulate import simulate

Summary = dict[str, Any]


def replicate(
    scenarios: Sequence[Scenario], seeds: Sequence[int], told: Callable[[int, int], None] | None = None
) -> list[list[Summary]]:
    """The summaries of each scenario at each seed, `(n_scenarios, n_seeds)`.

    Runs of one seed share their randomness: what is drawn alike stays alike, so differences owe nothing to luck.
    `told` hears of each run done, and how many there are. Raises SimserveError as `simulate` does.
    """
    runs = [(scenario, seed) for seed in seeds for scenario in scenarios]
    found = []
    for summary in _summaries(runs):
        found.append(summary)
        if told:
            told(len(found), len(runs))
    return [found[i :: len(scenarios)] for i in range(len(scenarios))]


def _summaries(runs: Sequence[tuple[Scenario, int]]) -> Iterator[Summary]:
    """In the order of the runs."""
    n_jobs = min(cpu_count(), len(runs))
    if n_jobs == 1:
        yield from (_run(scenario, seed) for scenario, seed in runs)
        return
    parallel = Parallel(n_jobs=n_jobs, return_as="generator")
    for answer in parallel(delayed(_answer)(scenario.to_dict(), seed) for scenario, seed in runs):
        if isinstance(answer, str):
            raise SimserveError(answer)
        yield answer


def _answer(data: dict[str, Any], seed: int) -> Summary | str:
    """In another process: plain data in, plain data out; a user's mistake comes back as its message."""
    try:
        return _run(Scenario.from_dict(data), seed)
    except SimserveError as error:
        return str(error)


def _run(scenario: Scenario, seed: int) -> Summary:
    return simulate(scenario.model_copy(update={"seed": seed})).summary
