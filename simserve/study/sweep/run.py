"""A run of a sweep: the task of a worker, and the row that it returns."""

import time
import traceback
from typing import Any

from simserve.errors import ScenarioError, SimserveError, TraceError, UnreadableTrace
from simserve.metrics.answer import outcomes
from simserve.metrics.answers.measures import Measures
from simserve.metrics.answers.sweep_runs import ClassOutcome, FailedRun, FinishedRun, SweepRun
from simserve.metrics.reservation import reservation_warnings
from simserve.metrics.results import Results
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.study.fleet import fleet_of
from simserve.study.measures import figure
from simserve.study.processes import Task
from simserve.version import __version__

KEYS = tuple(field.alias or name for name, field in Measures.model_fields.items())
"""Keys of the measures in summary.json."""


def key_of(scenario: Scenario, seed: int) -> str:
    """Return the key of a run: everything that can change its row."""
    return f"{scenario.model_copy(update={'seed': seed}).digest}/{seed}/{__version__}"


def task_of(scenario: Scenario, seed: int) -> Task:
    """Return the task that `run_row` takes."""
    return scenario.to_dict(), seed


def run_row(task: Task) -> SweepRun:
    """Run a task in a worker; errors are reported in the row."""
    data, seed = task
    started_s = time.perf_counter()
    try:
        scenario = Scenario.from_dict(data).model_copy(update={"seed": seed})
    except SimserveError as error:  # resolved by the caller, so files of this machine differ
        return failed_row(seed, str(error), is_final=False)
    try:
        return _finished(scenario, simulate(scenario), time.perf_counter() - started_s)
    except SimserveError as error:
        return failed_row(seed, str(error), is_final=_follows_from_the_scenario(error))
    except MemoryError:
        return failed_row(seed, "out of memory; run fewer requests, or fewer runs at once", is_final=False)
    except Exception as error:  # a bug in one run must not lose the others
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = (
            f"a bug in simserve, please report it: {type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        )
        return failed_row(seed, text, is_final=False)


def _follows_from_the_scenario(error: SimserveError) -> bool:
    """Return whether every repetition fails alike; a missing file may appear."""
    return isinstance(error, ScenarioError | TraceError) and not isinstance(error, UnreadableTrace)


def failed_row(seed: int, reason: str, *, is_final: bool = True) -> FailedRun:
    """Return the row of a failed run; a run that is not final is repeated next time."""
    return FailedRun(seed=seed, reason=" ".join(reason.split()), is_final=is_final)


def _finished(scenario: Scenario, results: Results, wall_s: float) -> FinishedRun:
    summary: Any = results.summary
    figures: dict[str, Any] = vars(fleet_of(scenario)) | {key: figure(summary, key) for key in KEYS}
    return FinishedRun(
        seed=scenario.seed,
        saturated=summary["trust"]["saturated"],
        wall_s=wall_s,
        outcomes=[ClassOutcome(slo_class=name, **vars(outcome)) for name, outcome in outcomes(summary).items()],
        load=summary["load"],
        warnings=[*results.facts.warnings, *reservation_warnings([summary])],
        **figures,
    )
