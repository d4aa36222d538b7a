"""Uncertainty: runs with other loads, and replays with other costs, for the decision and prediction intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simserve.metrics.cost_error import Pair
from simserve.metrics.decision import DEFAULT_EFFORT, Decision, Effort, beyond_warning
from simserve.metrics.goal import GOAL_FRAC, LOOKS
from simserve.metrics.margin import FEWEST_BATCHES, n_sections
from simserve.metrics.results import Results
from simserve.metrics.tails import Sample
from simserve.scenario import Scenario
from simserve.scenario.setup import Distortion
from simserve.scenario.workload import MeasureSection
from simserve.simulation import n_shards, simulate
from simserve.study.capacity_probe import near_capacity
from simserve.study.cost_draws import NO_RESIDUAL, Draw, draws_for, residual_of
from simserve.study.prediction import ScaledReplays, prediction_over
from simserve.study.processes import Answers, forked, in_order, n_jobs
from simserve.study.progress import counted, of_run
from simserve.study.run_figures import RunFigures
from simserve.study.slo_answer import slo_answer
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


def run_with_replays(scenario: Scenario, out: Path | None = None, effort: Effort = DEFAULT_EFFORT) -> Results:
    """Run a scenario, and `predict` on the other cores at the same time; or afterward, if the run needs them all.

    out: as of `simulate`; replays are too short to need it.
    """
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    if load.concurrency is not None:  # its number of requests, or its end, shows only at the end
        results = simulate(scenario, load=load, progress=of_run(), out=out)
        predict(scenario, results, effort)
        return results
    replays = _Replays.of(scenario, load, effort)
    if n_shards(scenario, load, n_jobs()) > 1:
        results = simulate(scenario, load=load, progress=of_run(), jobs=n_jobs(), out=out)
        with forked(replays.run, replays.n_runs) as answers:
            replays.put(results, answers)
        return results
    with forked(replays.run, replays.n_runs) as answers:
        results = simulate(scenario, load=load, progress=of_run(), out=out)
        replays.put(results, answers)
    return results


def predict(scenario: Scenario, results: Results, effort: Effort = DEFAULT_EFFORT) -> None:
    """Put `prediction` and the `decision` into the summary of a run.

    A run of up to MOST_WHOLE requests is run again with the seeds after the scenario's, and each of the first seeds
    once more with costs of its own. The seeds of a trace would be alike, so it is run again with other costs only.
    Replays of a longer run are segments, each run with and without perturbed costs. `prediction` is null where nothing
    is replayed; the decision is then that of the run. Deterministic: loads and factors come from the scenario's seed,
    whichever core computes them.
    """
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    requests = results.columns["requests"]
    replays = _Replays.of(scenario, load, effort, len(requests["arrival_s"]), results.facts.last_arrival_s)
    with forked(replays.run, replays.n_runs) as answers:
        replays.put(results, answers)


@dataclass(frozen=True)
class Replay:
    """A run as studies see it."""

    figures: RunFigures
    sample: Sample

    @classmethod
    def of(cls, results: Results, residual: Mapping[str, float] = NO_RESIDUAL) -> "Replay":
        """Return what is kept of a run; its figures are those with latencies off by the residual factors."""
        return cls(RunFigures.of(results, residual), results.sample)


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
    effort: Effort

    @classmethod
    def of(cls, scenario: Scenario, load: Load, effort: Effort, n_sent: int = 0, end_s: float = 0.0) -> "_Replays":
        """Plan the replays; n_sent and end_s: requests and end of the run, which a closed loop needs."""
        n_requests = len(load.trace) if load.concurrency is None else n_sent
        frac = SEGMENT / n_requests if n_requests > MOST_WHOLE else None
        return cls(scenario, load, end_s, frac, draws_for(scenario), effort)

    @property
    def is_drawn(self) -> bool:
        """Whether another seed draws another load; a trace is always the same."""
        return not self.scenario.workload.is_replayed

    @property
    def n_runs(self) -> int:
        """Number of runs beside the scenario's own; each segment is run twice."""
        if self.segment_frac is not None or not self.draws:
            return 2 * len(self.draws)
        n_nominal = max(LOOKS[0], len(self.draws)) if self.is_drawn else 1
        return len(self.draws) + n_nominal - 1

    def run(self, place: int) -> Replay:
        """Make one of the runs: those with drawn costs come first, at the scenario's seed and those after it."""
        if self.segment_frac is not None:
            return self._run_segment(*divmod(place, 2))
        if place >= len(self.draws):
            return self.nominal(place - len(self.draws) + 1)
        distortion, residual = self.draws[place]
        seeded = self._reseeded(place) if self.is_drawn else self.scenario
        return Replay.of(simulate(seeded, distortion=distortion), residual)

    def nominal(self, n_after: int) -> Replay:
        """Make a run with predicted costs, at the n-th seed after the scenario's; no latencies of it are kept."""
        return Replay.of(simulate(self._reseeded(n_after)), {})

    def _run_segment(self, place: int, is_perturbed: int) -> Replay:
        distortion, residual = self.draws[place] if is_perturbed else (Distortion(), NO_RESIDUAL)
        load = self._segment(place, self.segment_frac or 1.0)
        frac = RUN_IN_FRAC if load.trace.dependencies is None else SESSIONS_RUN_IN_FRAC
        n_run_in = max(frac * SEGMENT, min(2 * (load.concurrency or 0), SEGMENT / 2))
        measure = MeasureSection(warmup_requests=int(n_run_in))
        measured = self._reseeded(place + 1).model_copy(update={"measure": measure})
        return Replay.of(simulate(measured, load=load, distortion=distortion), residual)

    def _reseeded(self, n_after: int) -> Scenario:
        return self.scenario.model_copy(update={"seed": self.scenario.seed + n_after})

    def _segment(self, place: int, frac: float) -> Load:
        """Cut the segments of a trace out of the run's own load, and others out of loads of their own."""
        load, workload = self.load, self.scenario.workload
        if self.is_drawn:
            load = offered_load(workload, self.scenario.seed + place + 1, self.scenario.base_dir)
        return segment(load, place / (len(self.draws) - 1) * (1 - frac), frac, self.end_s)

    def put(self, results: Results, answers: Answers) -> None:
        """Put what the runs came to into the summary of the scenario's own run."""
        results.put(prediction=None)
        if not self.draws:
            if results.basis is not None:
                results.decide(replace(results.basis, confidence=self.effort.confidence))
            return
        own, replays = Replay.of(results), in_order(counted(answers, self.n_runs))
        n, is_whole = len(self.draws), self.segment_frac is None
        perturbed, plain = (replays[:n], [own, *replays[n:]]) if is_whole else (replays[1::2], replays[::2])
        self._predict(results, own, perturbed, plain)
        own_run = results.figures
        near = near_capacity(self.scenario, self.load, own_run.load.nominal_per_s, own_run.service_s, self.draws)
        chance = None if near is None else near.probability
        warnings = [*own_run.warnings, *beyond_warning(chance)]
        around = None if near is None else near.facts()
        results.put(probability_beyond_capacity=chance, near_capacity=around, warnings=warnings)
        if results.basis is not None:
            self._decide(results, own, perturbed, plain)

    def _predict(self, results: Results, own: Replay, perturbed: Sequence[Replay], plain: Sequence[Replay]) -> None:
        """Put the latencies of other loads and costs, and the attainment of the runs with predicted costs."""
        run, ordered = own.figures, [replay.figures for replay in perturbed]
        if self.segment_frac is None:
            nominal = [replay.figures.outcomes for replay in plain]
            results.put(answer=slo_answer(nominal, GOAL_FRAC))
        else:
            ordered = ScaledReplays(run, [replay.figures for replay in plain], ordered, self.is_drawn).whole()
        results.put(prediction=prediction_over(run, ordered))

    def _decide(self, results: Results, own: Replay, perturbed: Sequence[Replay], plain: Sequence[Replay]) -> None:
        """Decide about the SLO, with runs of more seeds as long as they may change the decision."""
        is_whole = self.segment_frac is None
        partners = plain if self.is_drawn or not is_whole else [own] * len(perturbed)
        pairs = [Pair(one.sample, drawn.sample) for one, drawn in zip(partners, perturbed, strict=False)]
        runs = [own.sample, *(replay.sample for replay in plain if replay is not own)]
        if not self.is_drawn or (not is_whole and n_sections(own.sample, GOAL_FRAC) >= FEWEST_BATCHES):
            runs = runs[:1]
        decision = Decision(
            [sample for sample in runs if sample.n],
            GOAL_FRAC,
            pairs,
            residual_of(self.scenario.setups),
            results.figures.probability_beyond_capacity,
            self.effort.confidence,
        )
        n_runs = len(runs)
        for look in self.effort.looks() if is_whole and self.is_drawn else []:
            if look > n_runs and decision.edge_by in ("noise", "load"):
                more = self._more(n_runs, look - n_runs)
                decision = replace(decision, runs=[*decision.runs, *(sample for sample in more if sample.n)])
                n_runs = look
        results.decide(decision)

    def _more(self, n_before: int, n_more: int) -> list[Sample]:
        """Make runs with predicted costs at further seeds."""
        with forked(lambda place: self.nominal(n_before + place).sample, n_more) as answers:
            return in_order(counted(answers, n_more))
