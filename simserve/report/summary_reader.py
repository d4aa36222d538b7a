"""Summary reader: reads the keys of a run's summary for page, terminal and workbook."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simserve.metrics.answer import run_answer
from simserve.metrics.decision import SURE_FRAC
from simserve.metrics.goal import GOAL_FRAC
from simserve.report.confidence import FEWEST, QUEUES, lies_between, over_runs, queue_state
from simserve.report.formats import LATENCIES, NONE, count, number, plural, rate, share

UNEVEN = 3
"""Standard deviation over replicas, in roots of the mean (1 for random routing), above which a run is uneven."""


def has_changed(pool: Mapping[str, Any]) -> bool:
    """Return whether replicas of a pool joined or left during the window."""
    return pool.get("mean_gpus") not in (None, pool["n_replicas"] * pool["gpus_per_replica"])


def gpus_of(pool: Mapping[str, Any]) -> float:
    """Return the GPUs of a pool; if it changed, the mean over the window."""
    return float(pool["mean_gpus"]) if has_changed(pool) else int(pool["n_replicas"]) * int(pool["gpus_per_replica"])


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
    def slots_argument(self) -> str:
        """What the scheduler calls the most running requests."""
        return next((name for pool in self.pools if (name := pool.get("slots_argument"))), "max_num_seqs")

    @property
    def budget_argument(self) -> str:
        """What the scheduler calls the most tokens of a step, or of requests where it has no such limit."""
        return next((name for pool in self.pools if (name := pool.get("budget_argument"))), self.slots_argument)

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
    def judged_class(self) -> str | None:
        """The class that fares worst, which decides; None without classes that have targets."""
        return (self.answer or {}).get("slo_class")

    @property
    def judged(self) -> "SummaryReader":
        """The figures of the class that decides, or of the whole run."""
        worst = self.judged_class
        if worst is None or self.answer is None:
            return self
        return SummaryReader({**self.classes[worst].summary, "answer": {**self.answer, "slo_class": None}})

    @property
    def tenants(self) -> dict[str, "SummaryReader"]:
        """The figures of each tenant."""
        return self._groups("tenants")

    def _groups(self, key: str) -> dict[str, "SummaryReader"]:
        """Return readers of the first run where there are several."""
        alone: dict[str, None] = dict.fromkeys(("classes", "replications", "answer", "probability_beyond_capacity"))
        return {
            name: SummaryReader({**self.summary, **own, **alone}) for name, own in (self.summary.get(key) or {}).items()
        }

    def n(self, fate: str) -> int:
        """Requests of the window: `arrived`, `finished`, `rejected`, `timed_out`, `failed` or `unfinished`."""
        return round(self.number("requests", fate) or 0)

    def number(self, *path: str) -> float | None:
        """The number at a path of keys; its mean over replications, where there are any."""
        of_all = over_runs(self.summary, ".".join(path))
        if of_all is not None:
            return number(of_all["mean"])
        result: Any = self.summary
        for key in path:
            result = result.get(key) if isinstance(result, Mapping) else None
        return number(result)

    @property
    def replications(self) -> Mapping[str, Any] | None:
        """Figures over all replications; None for a single run."""
        return self.summary.get("replications")

    def confidence(self, latency: str, level: str) -> tuple[float, float | None] | None:
        """Return the 95% confidence interval of a percentile; no high end where the run is too short for one."""
        return lies_between(self.summary, latency, level)

    def is_guess(self, level: str) -> bool:
        """Whether too few requests finished for a p99, or a p99.9."""
        return self.n("finished") < FEWEST.get(level, 0)

    def percentile(self, latency: str, level: str) -> float | None:
        """A percentile of a latency: `percentile("ttft_s", "p99")`."""
        return self.number(latency, level)

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
    def is_far_below(self) -> bool:
        """Whether no request missed, and none came within half of a limit."""
        return bool(self.answer and self.answer["is_far_below"])

    @property
    def worst_slo(self) -> str | None:
        """The goal that the most requests missed; None if none stands out as missed by its p99."""
        by_slo = {key: met for key in self.slo if (met := self.met_frac(key)) is not None}
        if by_slo:
            return min(by_slo, key=lambda key: by_slo[key])
        used = {key: (self.percentile(key, "p99") or 0) / goal for key, goal in self.slo.items() if key != "itl_s"}
        worst = max(used, key=lambda key: used[key], default=None)
        return worst if worst is not None and used[worst] > 1 else None

    def met_frac(self, key: str) -> float | None:
        """Share of requests that met one goal, over all runs behind the answer."""
        answer = self.answer
        if answer is None or answer["slo_class"] is not None or key not in answer["by_slo"]:
            return self.number("slo_attainment", "by_slo", key)
        return number(answer["by_slo"][key])

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
        answer = self.answer
        return queue_state(self.summary) if answer is None else answer["queue"]

    @property
    def beyond_frac(self) -> float | None:
        """Probability that the load is beyond capacity; None where it is unknown."""
        return number(self.summary.get("probability_beyond_capacity"))

    @property
    def preempted_frac(self) -> float | None:
        """Share of requests that lost their KV at least once."""
        return self.number("preemptions", "requests_frac")

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
    def mean_outstanding(self) -> float | None:
        """Mean requests at a replica, by Little's law; None where they are handed off, or not all answered, and where
        replicas joined or left."""
        if any(map(has_changed, self.pools)):
            return None
        entered_per_s, stay_s = self.number("requests_per_s"), self.number("e2e_s", "mean")
        if self.summary.get("transfer") or self.n("finished") < self.n("arrived") or not entered_per_s or not stay_s:
            return None
        return (
            entered_per_s
            * stay_s
            / sum(int(pool["n_replicas"]) * int(pool["ranks_per_replica"]) for pool in self.pools)
        )

    @property
    def is_uneven(self) -> bool:
        """Whether the numbers of requests at the replicas differ far more than under random routing."""
        mean, spread = self.mean_outstanding, self.number("routing", "outstanding_std")
        return mean is not None and spread is not None and spread > UNEVEN * max(mean, 1) ** 0.5

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
        """The decision as a key of `headline.HEADLINES`."""
        if not self.n("arrived"):
            return "unmeasured"
        if not self.n("finished"):
            return "nothing"
        if self.is_saturated:
            return "saturated"
        answer, beyond_frac = self.answer, self.beyond_frac or 0.0
        if beyond_frac >= SURE_FRAC:
            return "beyond"
        if self.queue_state == "critical":
            return "critical"
        if answer is None:
            return "none"
        is_met = answer["is_far_below"] or answer["low_frac"] >= answer["goal_frac"]
        if answer["decision"] == "edge" and beyond_frac > 1 - SURE_FRAC and is_met:
            return "near"
        is_short = answer["basis"] == "run" and self.judged.attainment_interval is None
        return "few" if is_short and answer["decision"] == "edge" else str(answer["decision"])

    def facts(self) -> list[tuple[str, str]]:
        """Throughput and use, as pairs of words."""
        at = self.number
        return [
            ("Requests served", f"{rate(at('served_per_s'))}/s"),
            ("Prompt tokens", f"{rate(at('input_tokens_per_s'))}/s"),
            ("Output tokens", f"{rate(at('output_tokens_per_s'))}/s"),
            ("SLO-met requests per dollar", rate(at("goodput", "per_usd"))),
            ("Finished", plural(self.n("finished"), "request")),
            (
                "Rejected, timed out, unfinished",
                " / ".join(count(self.n(fate)) for fate in ("rejected", "timed_out", "unfinished")),
            ),
            *([("Failed with their replicas", count(self.n("failed")))] if self.n("failed") else []),
            ("Preemptions", count(at("preemptions", "n"))),
            ("Tokens recomputed", count(at("preemptions", "recomputed_tokens"))),
            ("KV capacity", f"{rate(at('kv', 'tokens'))} tokens"),
            ("KV peak, fullest replica", share(at("kv", "peak_frac"))),
            ("Queue", QUEUES.get(self.queue_state or "", NONE)),
            ("Busy", share(at("busy_frac"))),
            ("FLOP utilization (MFU)", share(at("mfu"))),
            ("Bandwidth utilization (MBU)", share(at("mbu"))),
            ("GPU-hours", rate((at("gpu_seconds") or 0) / 3600)),
        ]

    def trusts(self, key: str) -> bool:
        """Return one of the claims of `trust`."""
        return bool((self.summary.get("trust") or {}).get(key))
