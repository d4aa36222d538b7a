"""Summary reader: reads the keys of a run's summary for page, terminal and workbook."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simserve.metrics.answer import BEYOND_FRAC, queue_over, run_answer
from simserve.metrics.decision_json import DecisionJson
from simserve.metrics.goal import FEW_FOR_P99, FEW_FOR_P999, GOAL_FRAC
from simserve.report.formats import LATENCIES, number, plural, rate
from simserve.report.pools import gpus_of, has_changed

FEWEST = {"p99": FEW_FOR_P99, "p99.9": FEW_FOR_P999}
"""Finished requests below which a percentile is a guess."""


@dataclass(frozen=True)
class SummaryReader:
    """A summary for the report; a number that was not measured is None."""

    summary: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the scenario."""
        return str(self.summary.get("name", "run"))

    @property
    def pools(self) -> list[Mapping[str, Any]]:
        """The facts of each pool."""
        return list(self.summary.get("pools") or [])

    @property
    def slo(self) -> dict[str, float]:
        """The goals by latency column, in the order of LATENCIES."""
        given = self.summary.get("slo") or {}
        return {key: goal for key in LATENCIES if (goal := number(given.get(key))) is not None}

    @property
    def has_slo(self) -> bool:
        """Whether there are targets, of all requests or of a class."""
        return bool(self.slo or self.summary.get("slo_classes"))

    @property
    def classes(self) -> dict[str, "SummaryReader"]:
        """The figures of each class of requests."""
        return self._groups("classes")

    @property
    def answer(self) -> Mapping[str, Any] | None:
        """The decision and what it rests on; None without an SLO or without requests."""
        given: Mapping[str, Any] | None = self.summary.get("answer")
        return (given or run_answer(self.summary, GOAL_FRAC)) if self.has_slo else None

    @property
    def decision(self) -> DecisionJson | None:
        """The decision by its margin; of a file of an earlier version, no more than its word. None without an SLO."""
        return DecisionJson.of({**self.summary, "answer": self.answer}) if self.answer else None

    @property
    def judged_class(self) -> str | None:
        """The class that fares worst, which decides; None without classes that have targets."""
        return self.decision.slo_class if self.decision else None

    @property
    def judged(self) -> "SummaryReader":
        """The figures of the class that decides, or of the whole run."""
        worst = self.judged_class
        if worst is None or self.answer is None:
            return self
        own = {
            key: self.summary.get(key) and {**self.summary[key], "slo_class": None} for key in ("answer", "decision")
        }
        return SummaryReader({**self.classes[worst].summary, **own})

    @property
    def tenants(self) -> dict[str, "SummaryReader"]:
        """The figures of each tenant."""
        return self._groups("tenants")

    def _groups(self, key: str) -> dict[str, "SummaryReader"]:
        """Return readers of the first run where there are several."""
        alone: dict[str, None] = dict.fromkeys(
            ("classes", "replications", "answer", "decision", "probability_beyond_capacity")
        )
        return {
            name: SummaryReader({**self.summary, **own, **alone}) for name, own in (self.summary.get(key) or {}).items()
        }

    def n(self, fate: str) -> int:
        """Requests of the window: `arrived`, `finished`, `rejected`, `timed_out`, `failed` or `unfinished`."""
        return round(self.number("requests", fate) or 0)

    def number(self, *path: str) -> float | None:
        """The number at a path of keys; its mean over replications, where there are any."""
        of_all = self._over_runs(".".join(path))
        if of_all is not None:
            return number(of_all["mean"])
        result: Any = self.summary
        for key in path:
            result = result.get(key) if isinstance(result, Mapping) else None
        return number(result)

    def _over_runs(self, key: str) -> Mapping[str, Any] | None:
        """Return `mean`, `low` and `high` of a number over replications; None without, or where it is not recorded."""
        result: Mapping[str, Any] | None = (self.replications or {}).get("measures", {}).get(key)
        return result

    @property
    def replications(self) -> Mapping[str, Any] | None:
        """Figures over all replications; None for a single run."""
        return self.summary.get("replications")

    def confidence(self, latency: str, level: str) -> tuple[float, float | None] | None:
        """Return the 95% interval of a percentile; no high end where the run, or each run, is too short for one."""
        of_all = self._over_runs(f"{latency}.{level}")
        if of_all is not None:
            low, high = number(of_all["low"]), number(of_all["high"])
            return None if low is None else (low, high)
        ends = ((self.summary.get(latency) or {}).get("intervals") or {}).get(level)
        return None if ends is None else (float(ends[0]), number(ends[1]))

    def is_guess(self, level: str) -> bool:
        """Whether too few requests finished for a p99, or a p99.9."""
        return self.n("finished") < FEWEST.get(level, 0)

    def predicted(self, latency: str, level: str) -> tuple[float, float] | None:
        """Return the prediction interval of a percentile, over other loads and costs; None without replays."""
        result = (self.summary.get("prediction") or {}).get("latencies", {}).get(latency, {}).get(level)
        return None if result is None else (float(result[0]), float(result[1]))

    @property
    def attainment(self) -> float | None:
        """Share of requests that meet every SLO, at the nominal load where the answer is; None without an SLO."""
        answer = self.answer
        if answer is None or answer["slo_class"] is not None:
            return self.number("slo_attainment", "frac") if self.has_slo else None
        return number(answer["attained_frac"])

    @property
    def attainment_interval(self) -> tuple[float, float] | None:
        """Its 95% interval; None where a run alone is too short for one."""
        answer, own = self.answer, self.summary.get("slo_attainment") or {}
        if answer is None or answer["slo_class"] is not None or answer["basis"] == "run":
            low, high = number(own.get("low_frac")), number(own.get("high_frac"))
        else:
            low, high = number(answer["low_frac"]), number(answer["high_frac"])
        return None if low is None or high is None else (low, high)

    @property
    def n_gpus(self) -> float:
        """GPUs of all pools; of a fleet that changed, the mean over the window."""
        return sum(map(gpus_of, self.pools))

    @property
    def gpus(self) -> str:
        """`2 GPUs`, or `3.4 GPUs on average` of a fleet that changed."""
        return (
            f"{rate(self.n_gpus)} GPUs on average" if any(map(has_changed, self.pools)) else plural(self.n_gpus, "GPU")
        )

    @property
    def is_saturated(self) -> bool:
        """Whether the queue grew as long as requests arrived, in most runs where there are several."""
        return self.queue_state == "growing"

    @property
    def queue_state(self) -> str | None:
        """Steady, critical, growing or undetermined; of several runs what more than half of them are, or worse."""
        answer, trust = self.answer, self.summary.get("trust") or {}
        state: str | None = trust.get("steady")
        if answer is not None:
            state = answer["queue"]
        elif self.replications:
            state = queue_over(Counter(self.replications["states"]).elements())
        elif trust.get("saturated"):
            state = "growing"
        return state

    @property
    def beyond_frac(self) -> float | None:
        """Probability that the load is beyond capacity; None where it is unknown."""
        return number(self.summary.get("probability_beyond_capacity"))

    @property
    def has_retries(self) -> bool:
        """Whether clients retried, so that arrivals are attempts."""
        return (self.number("retries", "attempts_per_request") or 0) > 1

    @property
    def requested(self) -> str:
        """Arrivals in the window: `8,927 attempts`, or `12,000 requests` without retries."""
        what = "attempt" if self.has_retries else "request"
        if self.replications:
            return f"{plural(self.replications['n_requests'], what)} in {self.replications['n']} runs"
        return plural(self.n("arrived"), what)

    @property
    def reasons(self) -> dict[str, int]:
        """Why requests of the window got no full answer, the most frequent reasons first."""
        return dict((self.summary.get("requests") or {}).get("reasons") or {})

    @property
    def binds(self) -> str | None:
        """Bottleneck among prefill, link and decode; None without roles, or where none is."""
        return (self.summary.get("transfer") or {}).get("binds")

    @property
    def reservation(self) -> Mapping[str, Any] | None:
        """What requests reserve and use, where reservations keep others waiting for most of their queueing time; else
        None."""
        mean = (self.summary.get("time_split") or {}).get("mean") or {}
        queue_s = sum(mean.get(name, 0.0) for name in ("queue_seats_s", "queue_blocks_s"))
        others_s = sum(mean.get(name, 0.0) for name in ("queue_budget_s", "queue_turn_s"))
        return None if queue_s < others_s else (self.summary.get("kv") or {}).get("reservation")

    @property
    def warnings(self) -> list[str]:
        """Warnings of the run itself, and notes of the load."""
        return [str(text) for key in ("warnings", "notes") for text in self.summary.get(key) or []]

    @property
    def state(self) -> str:
        """The decision as a key of `headline.STATES`."""
        if not self.n("arrived"):
            return "unmeasured"
        if not self.n("finished"):
            return "nothing"
        if self.is_saturated:
            return "saturated"
        decision, beyond_frac = self.decision, self.beyond_frac or 0.0
        if beyond_frac >= BEYOND_FRAC:
            return "beyond"
        if self.queue_state == "critical":
            return "critical"
        if decision is None:
            return "none"
        if decision.edge_by == "cost" and decision.probability == 1 - beyond_frac:
            return "near"
        return {"meets": "met", "misses": "missed"}.get(decision.word, decision.word)
