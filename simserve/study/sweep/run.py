"""A run of a sweep: the task of a worker and the row that it returns, both plain data."""

import time
import traceback
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from simserve.errors import ScenarioError, SimserveError, TraceError, UnreadableTrace
from simserve.metrics.answers.sweep import FailedRunJson, FinishedRunJson
from simserve.metrics.reservation import reservation_warnings
from simserve.metrics.results import Results
from simserve.metrics.summary_schema import Signed
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.study.fleet import fleet_of
from simserve.study.measures import MEASURES, Measure
from simserve.study.processes import Task
from simserve.study.slo_answer import outcome_facts
from simserve.tables.files import plain
from simserve.version import __version__

PER_USD = Measure("goodput.per_usd", "goodput per dollar", "count", is_cost=False)

MORE = (
    Measure("goodput.per_gpu_s", "goodput per GPU", "per_s", is_cost=False),
    PER_USD,
    Measure("offered_per_s", "requests offered", "per_s", is_cost=False),
    Measure("busy_frac", "busy", "frac", is_cost=False),
    Measure("mfu", "MFU", "frac", is_cost=False),
    Measure("mbu", "MBU", "frac", is_cost=False),
)
ALL_MEASURES = (*MEASURES, *MORE)

FLEET = ("n_gpus", "usd_per_hour", "kw")

Row = dict[str, Any]

RUN: TypeAdapter[FinishedRunJson | FailedRunJson] = TypeAdapter(FinishedRunJson | FailedRunJson)
MEASURED: TypeAdapter[dict[str, Signed]] = TypeAdapter(dict[str, Signed])


def key_of(scenario: Scenario, seed: int) -> str:
    """Return the key of a run: everything that can change its row."""
    return f"{scenario.model_copy(update={'seed': seed}).digest}/{seed}/{__version__}"


def task_of(scenario: Scenario, seed: int) -> Task:
    """Return the task that `run_row` takes."""
    return scenario.to_dict(), seed


def run_row(task: Task) -> Row:
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


def failed_row(seed: int, reason: str, *, is_final: bool = True) -> Row:
    """Return the row of a failed run; a run that is not final is repeated next time."""
    return {"seed": seed, "status": "failed", "reason": " ".join(reason.split()), "is_final": is_final}


def is_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row that was read back has the names and types of one that `run_row` returns as final."""
    measures = {measure.key: row.get(measure.key, "") for measure in ALL_MEASURES}
    try:
        if RUN.validate_python(row, strict=True)["status"] == "finished":
            MEASURED.validate_python(measures, strict=True)
    except ValidationError:
        return False
    return True


def _finished(scenario: Scenario, results: Results, wall_s: float) -> Row:
    summary: Mapping[str, Any] = results.summary
    row = {"seed": scenario.seed, "status": "finished", "reason": None, "is_final": True}
    row |= {measure.key: measure.of(summary) for measure in ALL_MEASURES}
    row |= {"saturated": summary["trust"]["saturated"], **fleet_of(scenario), "wall_s": wall_s}
    row |= {"outcomes": outcome_facts(summary), "load": summary["load"]}
    row |= {"warnings": [*results.facts.warnings, *reservation_warnings([summary])]}
    result: Row = plain(row)
    return result
