"""Prediction: where latencies lie with other loads and costs, over replays of the whole run or of segments.

A pair of segments, run with and without perturbed costs, tells what costs do without sampling noise, for both serve the
same requests. Segments are loads of their own, so they also tell how loads differ; a run that is n / w times as long
differs from its like by sqrt(w / n) of that. With w = n a scaled replay is the perturbed run itself, as of a run that
is replayed whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, sqrt

import numpy as np

from simserve.metrics.answer import Outcome, queue_over, worst_class
from simserve.metrics.answers.parts import PredictionJson
from simserve.metrics.goal import GOAL_FRAC
from simserve.metrics.student import quantile
from simserve.study.cost_draws import CONFIDENCE
from simserve.study.run_figures import RunFigures
from simserve.study.slo_answer import FULL, met_probability
from simserve.tables.columns import Floats


@dataclass(frozen=True)
class ScaledReplays:
    """The replays of a long run."""

    run: RunFigures
    plain: Sequence[RunFigures]
    """Segments with the predicted costs, each another load."""
    perturbed: Sequence[RunFigures]
    """These segments with perturbed costs."""
    is_drawn: bool
    """Whether other loads would differ; a trace is always the same."""

    def whole(self) -> list[RunFigures]:
        """Return the replays as runs of the full length, each with a load and costs of its own."""
        n, w, n_replays = self.run.n_arrived, self._n_measured, len(self.plain)
        known = [key for key in self.run.latencies if all(key in one.latencies for pair in self._pairs for one in pair)]
        levels = {key: {level: self._latency(key, level) for level in self.run.latencies[key]} for key in known}
        outcomes = self._outcomes(sqrt(w / n * (2 * n + (n_replays - 1) * w) / (n + n_replays * w)))
        return [
            RunFigures(
                {key: {level: values[i] for level, values in own.items()} for key, own in levels.items()}, each, n
            )
            for i, each in enumerate(outcomes)
        ]

    @cached_property
    def _n_measured(self) -> float:
        """Requests of a segment."""
        return min(float(np.mean([each.n_arrived for each in self.plain])), self.run.n_arrived)

    @cached_property
    def _center(self) -> float:
        """Weight of the segments' mean against the run, so that all requests served weigh the same."""
        n_replays = len(self.plain)
        return (n_replays + 1) * self._n_measured / (self.run.n_arrived + n_replays * self._n_measured)

    @cached_property
    def _pairs(self) -> list[tuple[RunFigures, RunFigures]]:
        return list(zip(self.plain, self.perturbed, strict=True))

    def _latency(self, key: str, level: str) -> list[float]:
        """Return a percentile of each scaled replay, `(n_replays,)`, by its logarithm; zeros where one of them is 0.

        Short segments hardly differ in a percentile far out, so loads differ at least as much as the run's own interval
        says.
        """
        plain, perturbed = (
            np.array([each.latencies[key][level] for each in runs]) for runs in (self.plain, self.perturbed)
        )
        whole = self.run.latencies[key][level]
        if not whole > 0 or not (plain > 0).all() or not (perturbed > 0).all():
            return [0.0] * len(plain)
        effect, loads = np.log(perturbed / plain), np.log(plain)
        scale = sqrt(2 * self._n_measured / self.run.n_arrived)  # of another run, and of this one
        error, spread = self.run.log_errors.get(key, {}).get(level, 0.0), float(loads.std(ddof=1))
        if spread > 0:
            scale = max(scale, sqrt(2) * error / spread)
        result: list[float] = (whole * np.exp(effect + self.is_drawn * scale * (loads - loads.mean()))).tolist()
        return result

    def _outcomes(self, scale: float) -> list[dict[str | None, Outcome]]:
        """Return the outcomes of the run with the load of each segment, its deviation scaled, and its costs."""
        result = [dict[str | None, Outcome]() for _ in self.plain]
        for name, whole in self.run.outcomes.items():
            places = [i for i, pair in enumerate(self._pairs) if all(name in each.outcomes for each in pair)]
            pairs = [(self.plain[i].outcomes[name], self.perturbed[i].outcomes[name]) for i in places]
            for i, outcome in zip(places, self._of_class(whole, pairs, scale), strict=True):
                result[i][name] = outcome
        return result

    def _of_class(self, whole: Outcome, pairs: Sequence[tuple[Outcome, Outcome]], scale: float) -> list[Outcome]:
        def share(figure: Callable[[Outcome], float]) -> list[float]:
            plain, perturbed = (np.array([figure(pair[i]) for pair in pairs]) for i in (0, 1))
            moved = self._moved(figure(whole), plain, scale) + (perturbed - plain)
            result: list[float] = np.clip(moved, 0.0, 1.0).tolist()
            return result

        if not pairs:
            return []
        attained = share(lambda each: each.attained_frac)
        goals = [goal for goal in whole.by_slo if all(goal in each.by_slo for pair in pairs for each in pair)]
        by_slo = {goal: share(lambda each, goal=goal: each.by_slo[goal]) for goal in goals}  # type: ignore[misc]
        off = self._off_fracs(whole, [plain for plain, _ in pairs], scale)
        return [
            whole.model_copy(
                update={
                    "attained_frac": attained[i],
                    "by_slo": {goal: fracs[i] for goal, fracs in by_slo.items()},
                    "n_arrived": round(whole.n_arrived * (1 + (off[i] or 0.0)) / (1 + (whole.off_frac or 0.0))),
                    "n_effective": plain.n_effective,
                    "off_frac": off[i],
                    "is_far_below": whole.is_far_below and perturbed.is_far_below,
                    "queue": perturbed.queue if perturbed.queue in FULL and plain.queue not in FULL else whole.queue,
                    "interval": None,
                }
            )
            for i, (plain, perturbed) in enumerate(pairs)
        ]

    def _off_fracs(self, whole: Outcome, plain: Sequence[Outcome], scale: float) -> Sequence[float | None]:
        known = [each.off_frac for each in plain if each.off_frac is not None]
        if whole.off_frac is None or len(known) < len(plain):
            return [whole.off_frac] * len(plain)
        result: list[float] = self._moved(whole.off_frac, np.array(known), scale).tolist()
        return result

    def _moved(self, whole: float, plain: Floats, scale: float) -> Floats:
        """Return a figure of the run, moved to the load of each segment, `(n_segments,)`."""
        center = float(plain.mean())
        result: Floats = whole + self.is_drawn * (self._center * (center - whole) + scale * (plain - center))
        return result


def prediction_over(run: RunFigures, replays: Sequence[RunFigures]) -> PredictionJson:
    """Return the prediction of a run from its replays, all of one length."""
    runs = [run.outcomes, *(replay.outcomes for replay in replays)]
    name = worst_class(runs)
    judged = [each[name] for each in runs if name in each]
    is_full = queue_over(each.queue for each in judged) in FULL  # attainment then depends on length
    attained = [replay.outcomes[name].attained_frac for replay in replays if name in replay.outcomes]
    return PredictionJson(
        replays=len(replays),
        confidence=CONFIDENCE,
        latencies={
            key: {
                level: prediction_interval(value, [r.latencies[key][level] for r in replays])
                for level, value in levels.items()
            }
            for key, levels in run.latencies.items()
            if all(key in replay.latencies for replay in replays)
        },
        attainment=[min(attained), max(attained)] if attained else None,
        n_met=sum(frac >= GOAL_FRAC for frac in attained) if attained and not is_full else None,
        slo_probability=None if is_full else met_probability(judged, GOAL_FRAC),
    )


def prediction_interval(predicted: float | None, values: Sequence[float]) -> list[float] | None:
    """Return the prediction interval of a percentile: Student's, for the logarithm of one more value."""
    if predicted is None or not predicted > 0 or not all(value > 0 for value in values):
        return None
    logs = np.log(values) - log(predicted)
    half = quantile((1 + CONFIDENCE) / 2, len(logs) - 1) * float(logs.std(ddof=1))
    center = float(logs.mean())
    return [predicted * exp(min(center - half, 0.0)), predicted * exp(max(center + half, 0.0))]
