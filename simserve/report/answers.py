"""Answers: what the page and the terminal read out of a run's summary; the one place that knows its keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simserve.metrics.goal import GOAL_FRAC
from simserve.report.formats import LATENCIES, count, number, plural, rate, seconds, share

SURELY_MISSED_FRAC = 0.9
"""Below this share even a run too short for an interval has missed: Wilson's upper end stays under GOAL_FRAC."""


@dataclass(frozen=True)
class Answers:
    """A summary as the report reads it; a number that was not measured is None."""

    summary: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What the scenario is called."""
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

    def n(self, fate: str) -> int:
        """Requests of the window that `arrived`, `finished`, or were `rejected`, `timed_out` or `unfinished`."""
        return round(self.number("requests", fate) or 0)

    def number(self, *path: str) -> float | None:
        """The number at a path of keys."""
        found: Any = self.summary
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return number(found)

    def percentile(self, latency: str, level: str) -> float | None:
        """A percentile of a latency: `percentile("ttft_s", "p99")`."""
        return self.number(latency, level)

    def predicted(self, latency: str, level: str) -> tuple[float, float] | None:
        """Between which values a percentile lies, as far as the costs of steps are known; None without replays."""
        found = (self.summary.get("prediction") or {}).get("latencies", {}).get(latency, {}).get(level)
        return None if found is None else (float(found[0]), float(found[1]))

    @property
    def attainment(self) -> float | None:
        """Share of the window's arrivals that met every SLO; None without an SLO."""
        return self.number("slo_attainment", "frac") if self.slo else None

    @property
    def attainment_interval(self) -> tuple[float, float] | None:
        """Its 95 % interval, where the run is long enough for one."""
        low, high = self.number("slo_attainment", "low_frac"), self.number("slo_attainment", "high_frac")
        return None if low is None or high is None else (low, high)

    @property
    def worst_slo(self) -> str | None:
        """The goal that the most requests missed; None if none stands out as missed by its p99."""
        by_slo = {key: met for key in self.slo if (met := self.number("slo_attainment", "by_slo", key)) is not None}
        if by_slo:
            return min(by_slo, key=lambda key: by_slo[key])
        used = {key: (self.percentile(key, "p99") or 0) / goal for key, goal in self.slo.items() if key != "itl_s"}
        worst = max(used, key=lambda key: used[key], default=None)
        return worst if worst is not None and used[worst] > 1 else None

    @property
    def n_gpus(self) -> int:
        """GPUs of all pools."""
        return sum(int(pool["n_replicas"]) * int(pool["gpus_per_replica"]) for pool in self.pools)

    @property
    def is_saturated(self) -> bool:
        """More arrived than was served, as long as requests came."""
        return self.trusts("saturated")

    @property
    def preempted_frac(self) -> float | None:
        """Share of requests that lost their KV at least once."""
        return self.number("preemptions", "requests_frac")

    @property
    def binds(self) -> str | None:
        """What holds requests up most, of prefill, link and decode; None where they are one, or nothing does."""
        return (self.summary.get("transfer") or {}).get("binds")

    @property
    def warnings(self) -> list[str]:
        """What the run itself warned of, the load's notes included."""
        return [str(said) for key in ("warnings", "notes") for said in self.summary.get(key) or []]

    @property
    def state(self) -> str:
        """The verdict as a key of `verdict.HEADLINES`."""
        if not self.n("arrived"):
            return "unmeasured"
        if not self.n("finished"):
            return "nothing"
        if self.is_saturated:
            return "saturated"
        if self.attainment is None:
            return "none"
        if self.attainment_interval is None:
            return "few" if self.attainment >= SURELY_MISSED_FRAC else "missed"
        low, high = self.attainment_interval
        if low < GOAL_FRAC <= high:
            return "edge"
        return "met" if self.attainment >= GOAL_FRAC else "missed"

    def facts(self) -> list[tuple[str, str]]:
        """Throughput and use, as pairs of words."""
        at = self.number
        return [
            ("Requests served", f"{rate(at('requests_per_s'))}/s"),
            ("Prompt tokens", f"{rate(at('input_tokens_per_s'))}/s"),
            ("Output tokens", f"{rate(at('output_tokens_per_s'))}/s"),
            ("SLO-met requests per dollar", rate(at("goodput", "per_usd"))),
            ("Finished", plural(self.n("finished"), "request")),
            (
                "Rejected, timed out, unfinished",
                " / ".join(count(self.n(fate)) for fate in ("rejected", "timed_out", "unfinished")),
            ),
            ("Preemptions", count(at("preemptions", "n"))),
            ("Tokens recomputed", count(at("preemptions", "recomputed_tokens"))),
            ("KV capacity", f"{rate(at('kv', 'tokens'))} tokens"),
            ("KV peak, fullest replica", share(at("kv", "peak_frac"))),
            ("Busy", share(at("busy_frac"))),
            ("FLOP utilisation (MFU)", share(at("mfu"))),
            ("Bandwidth utilisation (MBU)", share(at("mbu"))),
            ("GPU-hours", rate((at("gpu_seconds") or 0) / 3600)),
            *self._found(),
            *self._handing_over(),
        ]

    def _found(self) -> list[tuple[str, str]]:
        """What prefix caches had."""
        hit_frac = self.number("prefix_cache", "hit_frac")
        return [("Prompt tokens found in the cache", share(hit_frac))] if hit_frac else []

    def _handing_over(self) -> list[tuple[str, str]]:
        """From prefill to decode replicas: each side, and the link between them."""
        if not self.summary.get("transfer"):
            return []
        at = self.number
        busy = [(f"Busy, {pool['name']}", share(number(pool.get("busy_frac")))) for pool in self.pools]
        waits = [
            (f"Mean wait for {name}", seconds(at("transfer", "mean_wait_s", name)))
            for name in ("prefill", "link", "decode")
        ]
        apart_frac = at("transfer", "apart_frac")
        apart = [("Prefilled apart", share(apart_frac))] if apart_frac is not None and apart_frac < 1 else []
        return [
            *apart,
            *busy,
            ("Busy, busiest port of the link", share(at("transfer", "link_busy_frac"))),
            ("Handed over, p99", seconds(at("transfer", "p99"))),
            *waits,
            ("Held up most by", self.binds or "nothing"),
        ]

    def trusts(self, key: str) -> bool:
        """One of the summary's claims about what its numbers stand on."""
        return bool((self.summary.get("trust") or {}).get(key))
