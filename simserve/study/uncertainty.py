"""Uncertainty: replays of a run with loads and costs of their own, for prediction intervals and the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from simserve.metrics.answer import queue_over, worst_class
from simserve.metrics.decision import beyond_warning, within_capacity
from simserve.metrics.goal import GOAL_FRAC
from simserve.metrics.results import Results
from simserve.metrics.student import quantile
from simserve.scenario import Scenario
from simserve.scenario.setup import Distortion
from simserve.scenario.workload import MeasureSection
from simserve.simulation import OnProgress, n_shards, simulate
from simserve.study.capacity_probe import UNKNOWN, near_capacity
from simserve.study.cost_draws import CONFIDENCE, NO_RESIDUAL, Draw, draws_for
from simserve.study.processes import Answers, forked, n_jobs
from simserve.study.run_figures import RunFigures
from simserve.study.run_seeds import OnRun
from simserve.study.scaled_replays import FULL, ScaledReplays
from simserve.study.slo_answer import answer_over, met_probability
from simserve.workload.load import Load, offered_load, segment

MOST_WHOLE = 16_000
"""Requests of the longest run that is replayed whole; a longer one is replayed in segments."""

SEGMENT = MOST_WHOLE // 4
"""Requests of a segment, its run-in included. Each is run twice, so replays of a long run take as long as four runs of
MOST_WHOLE requests."""

RUN_IN_FRAC = 0.2
"""Share of a segment before its measured window."""

SESSIONS_RUN_IN_FRAC = 0.5
"""Share where requests wait for answers: as many sessions as usual are under way only after some of them."""


def run_with_replays(
    scenario: Scenario, progress: OnProgress | None = None, on_replay: OnRun | None = None, out: Path | None = None
) -> Results:
    """Run a scenario, and `predict` on the other cores at the same time; or afterward, if the run needs them all.

    out: as of `simulate`; replays are too short to need it.
    """
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    if load.concurrency is not None:  # its number of requests, or its end, shows only at the end
        results = simulate(scenario, load=load, progress=progress, out=out)
        predict(scenario, results, on_replay)
        return results
    replays = _Replays.of(scenario, load)
    if n_shards(scenario, load, n_jobs()) > 1:
        results = simulate(scenario, load=load, progress=progress, jobs=n_jobs(), out=out)
        with forked(replays.run, replays.n_runs) as answers:
            replays.put(results, answers, on_replay)
        return results
    with forked(replays.run, replays.n_runs) as answers:
        results = simulate(scenario, load=load, progress=progress, out=out)
        replays.put(results, answers, on_replay)
    return results


def predict(scenario: Scenario, results: Results, on_replay: OnRun | None = None) -> None:
    """Put `prediction` and the `answer` of the replays into the summary of a run.

    Each replay draws a load of its own, with the seeds after the scenario's, beside costs of its own. Replays of a run
    of more than MOST_WHOLE requests are segments, each run with and without perturbed costs. `prediction` is null where
    nothing is replayed; the answer is then that of the run. Deterministic: loads and factors come from the scenario's
    seed, whichever core computes them.
    """
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    requests = results.columns["requests"]
    replays = _Replays.of(scenario, load, len(requests["arrival_s"]), results.facts.last_arrival_s)
    with forked(replays.run, replays.n_runs) as answers:
        replays.put(results, answers, on_replay)


@dataclass(frozen=True)
class _Replays:
    """The replays of a scenario."""

    scenario: Scenario
    load: Load
    """The run's own."""
    end_s: float
    """Its end, of a closed loop."""
    segment_frac: float | None
    """Length of a segment, as a share of the run; None: replays are whole."""
    draws: Sequence[Draw]

    @classmethod
    def of(cls, scenario: Scenario, load: Load, n_sent: int = 0, end_s: float = 0.0) -> "_Replays":
        """Plan the replays; n_sent and end_s: requests and end of the run, which a closed loop needs."""
        n_requests = len(load.trace) if load.concurrency is None else n_sent
        frac = SEGMENT / n_requests if n_requests > MOST_WHOLE else None
        return cls(scenario, load, end_s, frac, draws_for(scenario))

    @property
    def n_runs(self) -> int:
        """Number of runs; each segment is run twice."""
        return len(self.draws) if self.segment_frac is None else 2 * len(self.draws)

    def run(self, place: int) -> RunFigures:
        """Make one of the runs."""
        if self.segment_frac is None:
            distortion, residual = self.draws[place]
            return RunFigures.of(simulate(self._reseeded(place), distortion=distortion), residual)
        place, is_perturbed = divmod(place, 2)
        distortion, residual = self.draws[place] if is_perturbed else (Distortion(), NO_RESIDUAL)
        load = self._segment(place, self.segment_frac)
        frac = RUN_IN_FRAC if load.trace.dependencies is None else SESSIONS_RUN_IN_FRAC
        n_run_in = max(frac * SEGMENT, min(2 * (load.concurrency or 0), SEGMENT / 2))
        measure = MeasureSection(warmup_requests=int(n_run_in))
        measured = self._reseeded(place).model_copy(update={"measure": measure})
        return RunFigures.of(simulate(measured, load=load, distortion=distortion), residual)

    def _reseeded(self, place: int) -> Scenario:
        return self.scenario.model_copy(update={"seed": self.scenario.seed + place + 1})

    def _segment(self, place: int, frac: float) -> Load:
        """Cut the segments of a trace out of the run's own load, and others out of loads of their own."""
        load, workload = self.load, self.scenario.workload
        if workload.trace is None:
            load = offered_load(workload, self.scenario.seed + place + 1, self.scenario.base_dir)
        return segment(load, place / (len(self.draws) - 1) * (1 - frac), frac, self.end_s)

    def put(self, results: Results, answers: Answers, on_replay: OnRun | None) -> None:
        """Put what the runs came to into the summary of the scenario's own run."""
        results.summary["prediction"] = None
        if not self.draws:
            return
        self._put_replays(results, answers, on_replay)
        near = near_capacity(self.scenario, self.load, results.summary, self.draws)
        results.summary |= UNKNOWN if near is None else near.facts()
        chance, answer = results.summary["probability_beyond_capacity"], results.summary["answer"]
        if answer is not None:
            answer["decision"] = within_capacity(answer["decision"], chance)
        results.summary["warnings"] += beyond_warning(chance)

    def _put_replays(self, results: Results, answers: Answers, on_replay: OnRun | None) -> None:
        runs: dict[int, RunFigures] = {}
        for place, answer in answers:
            runs[place] = answer
            if on_replay:
                on_replay(len(runs), self.n_runs)
        ordered = [runs[place] for place in range(self.n_runs)]
        run = RunFigures.of(results)
        if self.segment_frac is None:
            results.summary["prediction"] = prediction_over(run, ordered)
            results.summary["answer"] = answer_over(
                [run.outcomes, *(each.outcomes for each in ordered)], GOAL_FRAC, "replays"
            )
            return
        is_drawn = self.scenario.workload.trace is None
        replays = ScaledReplays(run, ordered[::2], ordered[1::2], is_drawn)
        results.summary["prediction"] = prediction_over(run, replays.whole())
        results.summary["answer"] = replays.answer() or results.summary["answer"]


def prediction_over(run: RunFigures, replays: Sequence[RunFigures]) -> dict[str, Any]:
    """Return the prediction of a run from its replays, all of one length."""
    runs = [run.outcomes, *(replay.outcomes for replay in replays)]
    name = worst_class(runs)
    judged = [each[name] for each in runs if name in each]
    is_full = queue_over(each.queue for each in judged) in FULL  # attainment then depends on length
    attained = [replay.outcomes[name].attained_frac for replay in replays if name in replay.outcomes]
    return {
        "replays": len(replays),
        "confidence": CONFIDENCE,
        "latencies": {
            key: {
                level: prediction_interval(value, [r.latencies[key][level] for r in replays])
                for level, value in levels.items()
            }
            for key, levels in run.latencies.items()
            if all(key in replay.latencies for replay in replays)
        },
        "attainment": [min(attained), max(attained)] if attained else None,
        "n_met": sum(frac >= GOAL_FRAC for frac in attained) if attained and not is_full else None,
        "slo_probability": None if is_full else met_probability(judged, GOAL_FRAC),
    }


def prediction_interval(predicted: float | None, values: Sequence[float]) -> list[float] | None:
    """Return the prediction interval of a percentile: Student's, for the logarithm of one more value."""
    if predicted is None or not predicted > 0 or not all(value > 0 for value in values):
        return None
    logs = np.log(values) - log(predicted)
    half = quantile((1 + CONFIDENCE) / 2, len(logs) - 1) * float(logs.std(ddof=1))
    center = float(logs.mean())
    return [predicted * exp(min(center - half, 0.0)), predicted * exp(max(center + half, 0.0))]
