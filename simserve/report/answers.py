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

    @property
    def has_slo(self) -> bool:
        """There are targets, of all requests or of a class."""
        return bool(self.slo or self.summary.get("slo_classes"))

    @property
    def classes(self) -> dict[str, "Answers"]:
        """The run as each class of requests had it."""
        found = self.summary.get("classes") or {}
        return {name: Answers({**self.summary, **own, "classes": None}) for name, own in found.items()}

    @property
    def judged_class(self) -> str | None:
        """The class that fares worst, by which a run with classes is judged; None without classes that have targets."""
        shares = {name: own.attainment for name, own in self.classes.items()}
        known = {name: met for name, met in shares.items() if met is not None}
        return min(known, key=lambda name: known[name], default=None)

    @property
    def judged(self) -> "Answers":
        """What the verdict is about: the run as that class had it, or as a whole."""
        worst = self.judged_class
        return self if worst is None else self.classes[worst]

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
        return self.number("slo_attainment", "frac") if self.has_slo else None

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
        judged = self.judged
        if judged.attainment is None:
            return "none"
        if judged.attainment_interval is None:
            return "few" if judged.attainment >= SURELY_MISSED_FRAC else "missed"
        low, high = judged.attainment_interval
        if low < GOAL_FRAC <= high:
            return "edge"
        return "met" if judged.attainment >= GOAL_FRAC else "missed"

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
            *self._asking_again(),
            ("Preemptions", count(at("preemptions", "n"))),
            ("Tokens recomputed", count(at("preemptions", "recomputed_tokens"))),
            ("KV capacity", f"{rate(at('kv', 'tokens'))} tokens"),
            ("KV peak, fullest replica", share(at("kv", "peak_frac"))),
            ("Busy", share(at("busy_frac"))),
            ("FLOP utilisation (MFU)", share(at("mfu"))),
            ("Bandwidth utilisation (MBU)", share(at("mbu"))),
            ("GPU-hours", rate((at("gpu_seconds") or 0) / 3600)),
            *self._found(),
            *self._routed(),
            *self._speculation(),
            *self._handing_over(),
            *self._beside_the_gpus(),
            *self._in_sessions(),
        ]

    def _asking_again(self) -> list[tuple[str, str]]:
        """What clients did that gave up, or asked again."""
        attempts, wasted = self.number("retries", "attempts_per_request"), self.number("wasted", "frac")
        told = []
        if attempts is not None and attempts > 1:
            told.append(("Attempts a request", rate(attempts)))
            told.append(("Answered in the end", share(self.number("retries", "succeeded_frac"))))
        return [*told, ("Tokens computed for nobody", share(wasted))] if wasted else told

    def _found(self) -> list[tuple[str, str]]:
        """What prefix caches had."""
        hit_frac = self.number("prefix_cache", "hit_frac")
        return [("Prompt tokens found in the cache", share(hit_frac))] if hit_frac else []

    def _routed(self) -> list[tuple[str, str]]:
        """How far apart the router let its replicas come."""
        if not self.summary.get("routing"):
            return []
        spread, kept_frac = self.number("routing", "outstanding_std"), self.number("routing", "session_kept_frac")
        kept = [] if kept_frac is None else [("Next request of a session on the same replica", share(kept_frac))]
        return [("Requests at a replica, standard deviation", rate(spread)), *kept]

    def _beside_the_gpus(self) -> list[tuple[str, str]]:
        """What went to host memory and disk, and came from there."""
        if not self.summary.get("host_tier"):
            return []
        at = self.number
        out, back, read = (
            f"{(at('host_tier', f'{name}_bytes') or 0) / 1e9:.3g} GB" for name in ("swapped_out", "swapped_in", "read")
        )
        hits = {where: at("host_tier", "hit_tokens", where) for where in ("gpu", "host", "disk")}
        return [
            ("Requests swapped out", count(at("host_tier", "n_swaps"))),
            (
                "Copied by swaps, out / in",
                f"{out} / {back}",
            ),
            ("Prefixes read from host and disk", read),
            ("Tokens found on GPU / host / disk", " / ".join(map(count, hits.values()))),
            ("Steps waited for copies", seconds(at("host_tier", "wait_s"))),
        ]

    def _speculation(self) -> list[tuple[str, str]]:
        """What proposing tokens gave and took."""
        if not self.summary.get("speculation"):
            return []
        at = self.number
        return [
            ("Tokens a request and step", rate(at("speculation", "tokens_per_step"))),
            ("Proposed tokens accepted", share(at("speculation", "accepted_frac"))),
            ("Time spent drafting", share(at("speculation", "drafting_frac"))),
        ]

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

    def _in_sessions(self) -> list[tuple[str, str]]:
        """Conversations and tasks whose requests wait for the answers of others."""
        found = self.summary.get("sessions")
        if not found:
            return []
        at = self.number
        ends = " / ".join(count(found[end]) for end in ("finished", "refused", "cut"))
        return [
            ("Sessions finished, refused, cut off", ends),
            ("Session, p50", seconds(at("sessions", "e2e_s", "p50"))),
            ("Session, p99", seconds(at("sessions", "e2e_s", "p99"))),
            ("Session, mean", seconds(at("sessions", "e2e_s", "mean"))),
            ("Of it with a request in flight, mean", seconds(at("sessions", "in_flight_s", "mean"))),
        ]

    def trusts(self, key: str) -> bool:
        """One of the summary's claims about what its numbers stand on."""
        return bool((self.summary.get("trust") or {}).get(key))
