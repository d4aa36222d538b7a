"""Run view: a run, or a class of it, as page, terminal and workbook show it: means over runs where there are
several, and its state."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simserve.metrics.answer import BEYOND_FRAC, AnswerJson, queue_over
from simserve.metrics.answers.parts import OverJson, ReplicationsJson
from simserve.metrics.answers.pools import PoolJson
from simserve.metrics.goal import FEW_FOR_P99, FEW_FOR_P999, GOAL_FRAC
from simserve.metrics.outcomes import run_answer
from simserve.metrics.summary_schema import DecisionJson, Queue
from simserve.report.formats import LATENCIES, plural, rate

if TYPE_CHECKING:  # these import numpy
    from simserve.metrics.classes import GroupJson
    from simserve.metrics.figures import Summary
    from simserve.metrics.kv_json import ReservationJson

FEWEST = {"p99": FEW_FOR_P99, "p99.9": FEW_FOR_P999}
"""Finished requests below which a percentile is a guess."""


@dataclass(frozen=True)
class RunView:
    """A summary for the report; a number that was not measured is None."""

    summary: "Summary"

    @property
    def pools(self) -> Sequence[PoolJson]:
        """The facts of each pool."""
        return self.summary.pools

    @property
    def slo(self) -> dict[str, float]:
        """The goals by latency column, in the order of LATENCIES."""
        return {key: self.summary.slo[key] for key in LATENCIES if key in self.summary.slo}

    @property
    def has_slo(self) -> bool:
        """Whether there are targets, of all requests or of a class."""
        return bool(self.slo or self.summary.slo_classes)

    @property
    def classes(self) -> dict[str, "RunView"]:
        """The figures of each class of requests."""
        return self.groups(self.summary.classes)

    @property
    def answer(self) -> AnswerJson | None:
        """The decision and what it rests on; None without an SLO or without requests."""
        return (self.summary.answer or run_answer(self.summary, GOAL_FRAC)) if self.has_slo else None

    @property
    def decision(self) -> DecisionJson | None:
        """The decision by its margin; of a file of an earlier version, no more than its word. None without an SLO."""
        return self.summary.model_copy(update={"answer": self.answer}).decided if self.answer else None

    @property
    def judged_class(self) -> str | None:
        """The class that fares worst, which decides; None without classes that have targets."""
        return self.decision.slo_class if self.decision else None

    @property
    def judged(self) -> "RunView":
        """The figures of the class that decides, or of the whole run."""
        worst, answer, decision = self.judged_class, self.summary.answer, self.summary.decision
        if worst is None or self.answer is None:
            return self
        own = {
            "answer": answer and answer.model_copy(update={"slo_class": None}),
            "decision": decision and decision.model_copy(update={"slo_class": None}),
        }
        return RunView(self.classes[worst].summary.model_copy(update=own))

    @property
    def tenants(self) -> dict[str, "RunView"]:
        """The figures of each tenant."""
        return self.groups(self.summary.tenants)

    def groups(self, groups: "Mapping[str, GroupJson] | None") -> dict[str, "RunView"]:
        """Return readers of the first run where there are several."""
        alone: dict[str, None] = dict.fromkeys(
            ("classes", "replications", "answer", "decision", "probability_beyond_capacity")
        )
        given = {name: {key: getattr(own, key) for key in own.model_fields_set} for name, own in (groups or {}).items()}
        return {name: RunView(self.summary.model_copy(update=own | alone)) for name, own in given.items()}

    def n(self, fate: str) -> int:
        """Requests of the window: `arrived`, `finished`, `rejected`, `timed_out`, `failed` or `unfinished`."""
        return round(self.number(f"requests.{fate}") or 0)

    def number(self, key: str) -> float | None:
        """The number at a dotted key; its mean over replications, where there are any."""
        of_all = self._over_runs(key)
        if of_all is not None:
            return of_all.mean
        value = self.summary.at(key)
        return None if math.isnan(value) else value

    def _over_runs(self, key: str) -> OverJson | None:
        """Return a number over replications; None without, or where it is not recorded."""
        return None if self.replications is None else self.replications.measures.get(key)

    @property
    def replications(self) -> ReplicationsJson | None:
        """Figures over all replications; None for a single run."""
        return self.summary.replications

    def confidence(self, latency: str, level: str) -> tuple[float, float | None] | None:
        """Return the 95% interval of a percentile; no high end where the run, or each run, is too short for one."""
        of_all = self._over_runs(f"{latency}.{level}")
        ends = getattr(self.summary, latency).intervals.get(level) if of_all is None else (of_all.low, of_all.high)
        return None if ends is None or ends[0] is None else (ends[0], ends[1])

    def is_guess(self, level: str) -> bool:
        """Whether too few requests finished for a p99, or a p99.9."""
        return self.n("finished") < FEWEST.get(level, 0)

    def predicted(self, latency: str, level: str) -> tuple[float, float] | None:
        """Return the prediction interval of a percentile, over other loads and costs; None without replays."""
        prediction = self.summary.prediction
        result = prediction.latencies.get(latency, {}).get(level) if prediction else None
        return None if result is None else (result[0], result[1])

    @property
    def attainment(self) -> float | None:
        """Share of requests that meet every SLO, at the nominal load where the answer is; None without an SLO."""
        answer = self.answer
        if answer is None or answer.slo_class is not None:
            return self.number("slo_attainment.frac") if self.has_slo else None
        return answer.attained_frac

    @property
    def attainment_interval(self) -> tuple[float, float] | None:
        """Its 95% interval; None where a run alone is too short for one."""
        answer, own = self.answer, self.summary.slo_attainment
        ends = answer if answer is not None and answer.slo_class is None and answer.basis != "run" else own
        if ends is None or ends.low_frac is None or ends.high_frac is None:
            return None
        return ends.low_frac, ends.high_frac

    def met_frac(self, key: str) -> float | None:
        """Return the share of requests of the run that met one goal; None where it has none."""
        attained = self.summary.slo_attainment
        return None if attained is None else attained.by_slo.get(key)

    @property
    def n_gpus(self) -> float:
        """GPUs of all pools; of a fleet that changed, the mean over the window."""
        return sum(pool.n_gpus for pool in self.pools)

    @property
    def gpus(self) -> str:
        """`2 GPUs`, or `3.4 GPUs on average` of a fleet that changed."""
        has_changed = any(pool.has_changed for pool in self.pools)
        return f"{rate(self.n_gpus)} GPUs on average" if has_changed else plural(self.n_gpus, "GPU")

    @property
    def queue_state(self) -> Queue | None:
        """Steady, critical, growing or undetermined; of several runs what more than half of them are, or worse."""
        if self.answer is not None:
            return self.answer.queue
        if self.replications:
            return queue_over(Counter(self.replications.states).elements())
        return "growing" if self.summary.trust.saturated else self.summary.trust.steady

    @property
    def has_retries(self) -> bool:
        """Whether clients retried, so that arrivals are attempts."""
        return (self.number("retries.attempts_per_request") or 0) > 1

    @property
    def requested(self) -> str:
        """Arrivals in the window: `8,927 attempts`, or `12,000 requests` without retries."""
        what = "attempt" if self.has_retries else "request"
        if self.replications:
            return f"{plural(self.replications.n_requests, what)} in {self.replications.n} runs"
        return plural(self.n("arrived"), what)

    @property
    def binds(self) -> str | None:
        """Bottleneck among prefill, link and decode; None without roles, or where none is."""
        return self.summary.transfer.binds if self.summary.transfer else None

    @property
    def reservation(self) -> "ReservationJson | None":
        """What requests reserve and use, where reservations keep others waiting for most of their queueing time; else
        None."""
        if self.summary.time_split is not None:
            mean = self.summary.time_split.mean
            if mean.queue_seats_s + mean.queue_blocks_s < mean.queue_budget_s + mean.queue_turn_s:
                return None
        return self.summary.kv.reservation

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings of the run itself, and notes of the load."""
        return [*self.summary.warnings, *self.summary.notes]

    @property
    def state(self) -> str:
        """The decision as a key of `headline.STATES`."""
        if not self.n("arrived"):
            return "unmeasured"
        if not self.n("finished"):
            return "nothing"
        if self.queue_state == "growing":
            return "saturated"
        decision, beyond_frac = self.decision, self.summary.probability_beyond_capacity or 0.0
        if beyond_frac >= BEYOND_FRAC:
            return "beyond"
        if self.queue_state == "critical":
            return "critical"
        if decision is None:
            return "none"
        if decision.edge_by == "cost" and decision.probability == 1 - beyond_frac:
            return "near"
        return {"meets": "met", "misses": "missed"}.get(decision.word, decision.word)
