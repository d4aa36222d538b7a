"""Goodput: rates and outcomes of the window's requests, and the share and rates of those that met every SLO."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from pydantic import Field

from simserve.metrics.answers.struct import Figures
from simserve.metrics.intervals import inefficiency, share_interval
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.summary_schema import Count, Measured, Share
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Flags
from simserve.tables.facts import RunFacts


class FatesJson(Figures):
    """Requests by what became of them."""

    offered: Count = 0
    """Requests of the whole run; left out for a class or tenant."""
    arrived: Count
    """Requests that arrived in the window."""
    finished: Count
    """Requests of the window that got their whole answer."""
    rejected: Count
    """Requests of the window that were refused."""
    timed_out: Count
    """Requests of the window that the client gave up."""
    failed: Count = 0
    """Requests of the window that were lost with their replica."""
    unfinished: Count = 0
    """Requests of the window still in progress when the run ended."""
    reasons: dict[str, Count] = Field(default_factory=dict)
    """The three most frequent `status_reason` of requests that did not finish, with counts."""


class AttainmentJson(Figures):
    """Share of requests that met the SLO."""

    frac: Share | None
    """[share] Requests that arrived in the window and met every limit. A request without a full answer is a miss; one
    with one output token meets limits on TPOT and ITL."""
    low_frac: Share | None = None
    """[share] Low end of its interval; null below 64 requests."""
    high_frac: Share | None = None
    """[share] High end of its interval; null below 64 requests."""
    confidence: Share = 0.0
    """[share] Confidence of the interval: 0.95."""
    interval: str = ""
    """How the interval is made, in words."""
    n_batches: Count | None = None
    """Batches in order of arrival by which the effective sample size is found: 20, or 8 below 160 requests."""
    correlated: bool | None = None
    """Whether the effective sample size is below 50: run longer."""
    denominator: str = ""
    """What the share is of, in words."""
    n_met: Count = 0
    """Requests that met every limit."""
    n_arrived: Count = 0
    """Requests that arrived in the window."""
    of_admitted_frac: Share | None = None
    """[share] Those that met every limit, of the requests that were not rejected."""
    of_finished_frac: Share | None = None
    """[share] Those that met every limit, of the requests that finished."""
    by_slo: dict[str, Share | None] = Field(default_factory=dict)
    """[share] Requests that met each limit alone, by latency."""


class GoodputJson(Figures):
    """Rates of the requests that met the SLO."""

    per_s: Measured = None
    """[/s] Requests that met every limit, per second of the window."""
    per_gpu_s: Measured = None
    """[/s] Requests that met every limit, per second and GPU."""
    per_usd: Measured = None
    """[/USD] Requests that met every limit, per dollar, at the catalog's prices."""
    output_tokens_per_s: Measured = None
    """[tokens/s] Output tokens of requests that met every limit; left out for a class or tenant."""
    total_tokens_per_s: Measured = None
    """[tokens/s] Prompt and output tokens of requests that met every limit; left out for a class or tenant."""


GOALS = {"ttft_s": "ttft_s", "tpot_s": "tpot_s", "e2e_s": "e2e_s", "itl_s": "max_itl_s"}
"""Each goal of an SLO and the column that must not exceed it: an ITL goal holds when the largest gap does."""

NO_CLASSES: Mapping[str, Mapping[str, float]] = MappingProxyType({})


def met_by_goal(
    requests: Columns, slo: Mapping[str, float], slo_classes: Mapping[str, Mapping[str, float]] = NO_CLASSES
) -> dict[str, Flags]:
    """Return which requests met each goal, `(n_requests,)`: finished, with a latency at most the goal.

    A request with one output token has neither TPOT nor gaps and so meets goals for them (vLLM counts 0). Goals of a
    class replace those of `slo`; a request without a goal has met it when it finished.
    """
    finished = requests["status"].is_("finished")
    met = {}
    for goal in dict.fromkeys([*slo, *(goal for targets in slo_classes.values() for goal in targets)]):
        latency_s = requests[GOALS[goal]]
        limit_s = np.full(len(latency_s), slo.get(goal, np.inf))
        for name, targets in slo_classes.items():
            if requests["slo_class"] is not None:
                limit_s[np.equal(requests["slo_class"], name)] = targets.get(goal, np.inf)
        has_none = np.isnan(latency_s) & (goal in ("tpot_s", "itl_s"))
        met[goal] = finished & ((latency_s <= limit_s) | np.isinf(limit_s) | has_none)
    return met


def all_met(met: Mapping[str, Flags]) -> Flags | None:
    """Return which requests met every goal; None without goals."""
    return np.logical_and.reduce(list(met.values())) if met else None


def attainment(requests: Columns, window: Window, met: Mapping[str, Flags]) -> AttainmentJson | None:
    """Return the share of the window's arrivals that met every SLO, with its interval and with other denominators. A
    rejected, timed-out or unfinished request is a miss. None without an SLO."""
    everything = all_met(met)
    if everything is None:
        return None
    outcomes = everything[window.has]
    n_arrived = len(outcomes)
    n_met = int(np.count_nonzero(outcomes))
    n_rejected = int(np.count_nonzero(requests["status"].is_("rejected") & window.has))
    n_finished = int(np.count_nonzero(window.finished(requests)))
    interval = share_interval(outcomes, inefficiency(requests["n_in_system"][window.has]))
    return AttainmentJson(
        frac=_share(n_met, n_arrived),
        low_frac=interval.low_frac if interval else None,
        high_frac=interval.high_frac if interval else None,
        confidence=0.95,
        interval="Wilson's, for as many independent requests as batch means tell",
        n_batches=interval.n_batches if interval else None,
        correlated=interval.correlated if interval else None,
        denominator="arrived in the window",
        n_met=n_met,
        n_arrived=n_arrived,
        of_admitted_frac=_share(n_met, n_arrived - n_rejected),
        of_finished_frac=_share(n_met, n_finished),
        by_slo={goal: _share(int(np.count_nonzero(flags & window.has)), n_arrived) for goal, flags in met.items()},
    )


def goodput(attained: AttainmentJson | None, window: Window, facts: RunFacts, **tokens: float) -> GoodputJson | None:
    """Return SLO-meeting requests per second of the window, per GPU and second, and per dollar at catalog prices; None
    without an SLO. tokens: their tokens per second, where known."""
    if attained is None:
        return None
    gpus = Lifetimes(facts).gpus_by_pool(window.span_s).tolist()
    n_gpus = sum(gpus)
    usd_per_hour = sum(n * pool.price_per_gpu_hour_usd for n, pool in zip(gpus, facts.pools, strict=True))
    per_s = attained.n_met / window.duration_s
    return GoodputJson(
        per_s=per_s,
        per_gpu_s=per_s / n_gpus if n_gpus else np.nan,
        per_usd=per_s / (usd_per_hour / 3600) if usd_per_hour else np.nan,
        **tokens,
    )


def good_tokens(requests: Columns, window: Window, met: Mapping[str, Flags]) -> dict[str, float]:
    """Return tokens per second of requests that met every SLO: of answers, and of prompts and answers."""
    everything = all_met(met)
    counted = window.has if everything is None else window.has & everything
    n_output, n_input = (int(requests[name][counted].sum()) for name in ("output_tokens", "prompt_tokens"))
    return {
        "output_tokens_per_s": n_output / window.duration_s,
        "total_tokens_per_s": (n_input + n_output) / window.duration_s,
    }


def _share(n: int, of: int) -> float | None:
    return n / of if of else None


def throughput(requests: Columns, window: Window) -> dict[str, float]:
    """Return rates per second of the window.

    offered_per_s counts all arrivals; requests_per_s and the token rates count requests that arrived in the window and
    finished at any time; served_per_s counts requests that finished in the window, whenever they arrived.
    """
    counted = window.finished(requests)
    n_input = int(requests["prompt_tokens"][counted].sum())
    n_output = int(requests["output_tokens"][counted].sum())
    amounts: dict[str, int] = {
        "offered_per_s": window.n_requests,
        "requests_per_s": int(np.count_nonzero(counted)),
        "served_per_s": int(np.count_nonzero(served(requests, window))),
        "input_tokens_per_s": n_input,
        "output_tokens_per_s": n_output,
        "total_tokens_per_s": n_input + n_output,
    }
    return {name: amount / window.duration_s for name, amount in amounts.items()}


def served(requests: Columns, window: Window) -> Flags:
    """Return which requests finished within the window, whenever they arrived, `(n_requests,)`."""
    start_s, end_s = window.span_s
    finish_s = requests["finish_s"]
    result: Flags = requests["status"].is_("finished") & (finish_s >= start_s) & (finish_s <= end_s)
    return result


FATES = ("finished", "rejected", "timed_out", "failed", "unfinished")

MOST_REASONS = 3
"""Reported reasons at most; a custom policy may have any number."""


def outcomes(requests: Columns, window: Window, **offered: int) -> FatesJson:
    """Count the window's requests by what became of them, and why some did not finish."""
    fates = {fate: int(np.count_nonzero(requests["status"].is_(fate) & window.has)) for fate in FATES}
    return FatesJson(**offered, arrived=window.n_requests, **fates, reasons=reasons(requests, window))


def reasons(requests: Columns, window: Window) -> dict[str, int]:
    """Count the most frequent reasons of the window's unfinished requests."""
    column = requests["status_reason"].without_blank()
    lost = window.has & ~requests["status"].is_("finished") & (column.codes >= 0)
    counts = np.bincount(column.codes[lost], minlength=len(column.categories))
    most = np.argsort(-counts, kind="stable")[:MOST_REASONS]
    return {column.categories[code]: int(counts[code]) for code in most.tolist() if counts[code]}
