"""A run of a sweep: the task of a worker, and the row that it returns."""

import time
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

from simserve.errors import ScenarioError, SimserveError, TraceError, UnreadableTrace
from simserve.metrics.answers.measures import Measures
from simserve.metrics.answers.parts import NominalLoad
from simserve.metrics.answers.sweep_runs import (
    ClassOutcome,
    DrawnRun,
    FailedRun,
    FinishedRun,
    KeptSample,
    ProbedPoint,
    SweepRun,
)
from simserve.metrics.kv_json import reservation_warnings
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.outcomes import outcomes
from simserve.metrics.results import Results
from simserve.scenario import Scenario
from simserve.scenario.setup import Distortion
from simserve.simulation import simulate
from simserve.study.capacity_probe import near_capacity
from simserve.study.cost_draws import Draw
from simserve.study.fleet import fleet_of, mean_fleet
from simserve.study.processes import Task, limited_to
from simserve.study.run_seeds import MEASURED, as_text, scenario_of
from simserve.version import __version__
from simserve.workload.load import offered_load

KEYS = tuple(field.alias or name for name, field in Measures.model_fields.items())
"""Keys of the measures in summary.json."""

IN_SAMPLE: dict[str, Any] = {"counts": [], "r": []}
"""Keys of an outcome that the sample of a row makes needless."""

COSTS = "/costs "
"""What follows the key of a run in those of draws of its costs."""


class AsPredicted(NamedTuple):
    """A run with the predicted costs."""

    def row(self, scenario: Scenario) -> FinishedRun:
        """Run a scenario. Raises SimserveError."""
        started_s = time.perf_counter()
        results = simulate(scenario)
        return _finished(scenario, results, time.perf_counter() - started_s)


class WithDraw(NamedTuple):
    """A run with a draw of costs."""

    costs: Distortion

    def row(self, scenario: Scenario) -> DrawnRun:
        """Run a scenario."""
        return DrawnRun(seed=scenario.seed, sample=KeptSample.of(simulate(scenario, distortion=self.costs).sample))


class AtCapacity(NamedTuple):
    """Short runs that show the capacity of a cluster with each draw of costs."""

    draws: Sequence[Draw]
    nominal: NominalLoad
    """Load of the run with the predicted costs and this seed."""
    service_s: float
    """Mean time of an answer of that run without waiting."""

    def row(self, scenario: Scenario) -> ProbedPoint:
        """Compare the load of a scenario with its capacity."""
        load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
        with limited_to(1):
            near = near_capacity(scenario, load, self.nominal.nominal_per_s, self.service_s, self.draws)
        return ProbedPoint(seed=scenario.seed, beyond_frac=None if near is None else near.probability)


RunKind = AsPredicted | WithDraw | AtCapacity
"""What a run is made for."""


def key_of(scenario: Scenario, seed: int) -> str:
    """Return the key of a run: everything that can change its row."""
    return f"{scenario.model_copy(update={'seed': seed}).digest}/{seed}/{__version__}"


def task_of(scenario: Scenario, seed: int, kind: RunKind | None = None) -> Task:
    """Return the task that `run_row` takes; without a kind, of a run with the predicted costs."""
    return as_text(scenario), seed, kind or AsPredicted()


def run_row(task: Task) -> SweepRun:
    """Run a task in a worker; errors are reported in the row."""
    text, seed, kind = task
    try:
        scenario = scenario_of(text).model_copy(update={"seed": seed})
    except SimserveError as error:  # resolved by the caller, so files of this machine differ
        return failed_row(seed, str(error), is_final=False)
    try:
        row: SweepRun = kind.row(scenario)
        return row
    except SimserveError as error:
        # Every repetition fails alike where the scenario is the cause; a missing file may appear.
        is_final = isinstance(error, ScenarioError | TraceError) and not isinstance(error, UnreadableTrace)
        return failed_row(seed, str(error), is_final=is_final)
    except MemoryError:
        return failed_row(seed, "out of memory; run fewer requests, or fewer runs at once", is_final=False)
    except Exception as error:  # a bug in one run must not lose the others
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = (
            f"a bug in simserve, please report it: {type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        )
        return failed_row(seed, text, is_final=False)


def failed_row(seed: int, reason: str, *, is_final: bool = True) -> FailedRun:
    """Return the row of a failed run; a run that is not final is repeated next time."""
    return FailedRun(seed=seed, reason=" ".join(reason.split()), is_final=is_final)


def _finished(scenario: Scenario, results: Results, wall_s: float) -> FinishedRun:
    summary, lives = results.part(MEASURED), Lifetimes(results.facts)
    fleet = fleet_of(scenario) if summary.scaling is None else mean_fleet(lives)
    figures: dict[str, Any] = vars(fleet) | {key: summary.at(key) for key in KEYS}
    gpu_s, end_s = lives.gpu_seconds(), results.facts.end_s
    return FinishedRun(
        seed=scenario.seed,
        saturated=summary.trust.saturated,
        wall_s=wall_s,
        outcomes=[ClassOutcome(slo_class=name, **vars(each) | IN_SAMPLE) for name, each in outcomes(summary).items()],
        load=summary.load,
        warnings=[*results.facts.warnings, *reservation_warnings([summary.kv])],
        sample=KeptSample.of(results.sample),
        service_s=summary.service_s,
        mean_gpus=gpu_s / end_s if end_s else fleet.n_gpus,
        gpu_hours=gpu_s / 3600,
        n_failed=summary.requests.failed,
        scaling=summary.scaling,
        **figures,
    )
