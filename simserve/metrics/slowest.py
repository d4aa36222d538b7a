"""Slowest: the time split of the slowest requests compared with the average, to answer "why this p99"."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from simserve.metrics.answers.struct import Figures
from simserve.metrics.summary_schema import Count, Number
from simserve.metrics.time_split import PARTS
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Floats, Ints
from simserve.tables.facts import RunFacts
from simserve.tables.pieces import computed, in_turn, pieces, rows_where
from simserve.tables.schema import SPLIT


class TimePartsJson(Figures):
    """Parts of a latency: means of the columns of requests.parquet with these names, which sum to it."""

    front_end_s: Number
    """[s] Tokenizing and streaming."""
    transfer_wait_s: Number
    """[s] Wait for room on the decode side."""
    queue_seats_s: Number
    """[s] Wait for a slot."""
    queue_blocks_s: Number
    """[s] Wait for KV blocks."""
    queue_budget_s: Number
    """[s] Wait for the token budget."""
    queue_turn_s: Number
    """[s] Rest of the wait in the queue."""
    prefill_s: Number
    """[s] Steps that computed the prompt."""
    prefill_wait_s: Number
    """[s] Time between the steps that computed the prompt."""
    link_s: Number
    """[s] KV cache on the link."""
    decode_s: Number
    """[s] Decode steps, as without prompts in them."""
    interference_s: Number
    """[s] Rest of the decode time."""
    copy_s: Number
    """[s] Copies that decode steps waited for."""
    preempted_s: Number
    """[s] Wait after evictions."""
    recompute_s: Number
    """[s] Recomputation after evictions."""
    batch_wait_s: Number
    """[s] Wait for the rest of the batch."""


class SlowestRequestsJson(Figures):
    """Where the time of the slowest requests went."""

    n: Count
    """Requests: the slowest 1%, at least one."""
    from_s: Number
    """[s] Latency of the fastest of them."""
    mean: TimePartsJson
    """Mean of each part over them; adds up to the mean of their latency."""
    all: TimePartsJson
    """Mean of each part over all finished requests."""
    binds: str | None
    """The part that grew most from all requests to the slowest; null if none did."""


class TimeSplitJson(Figures):
    """Where the time of finished requests went."""

    parts: Sequence[str]
    """The columns of requests.parquet that add up to `e2e_s`, in the order of a request's life."""
    mean: TimePartsJson
    """Mean of each part."""
    slowest: dict[str, SlowestRequestsJson | None]
    """The slowest requests by `ttft_s` (parts before the first token), `tpot_s` (parts after it, per token; null if
    every answer has one token) and `e2e_s`."""


SLOWEST_FRAC = 0.01
"""Share of requests that count as slowest, at least one."""

BEFORE_FIRST = SPLIT[: SPLIT.index("link_s")]
"""Parts that end before the first token, unless the answer is returned whole."""

TIMES = ("first_token_s", "finish_s", "output_tokens", "transfer_s")
"""Columns that tell which of the parts end before the first token."""

ROUNDING_S = 1e-9
"""Differences of times below this are rounding."""

SlowestParts = dict[str, Floats]


def time_split(requests: Columns, window: Window, facts: RunFacts) -> TimeSplitJson | None:
    """Return the mean of each part over the window's finished requests, and over the slowest by each latency. None
    where nothing finished, or where there is no time split."""
    chosen = window.finished(requests)
    table = requests | {"chosen": chosen}
    rows = rows_where(lambda part: part["chosen"], table)
    if not len(rows) or any(np.isnan(part[name][part["chosen"]]).any() for part in pieces(table) for name in PARTS):
        return None
    slowest = {}
    parts_of = parts_by_latency(requests, rows, facts)
    for latency in in_turn(LATENCIES, requests):  # one at a time, as its parts are as large as the table
        parts = parts_of(latency)
        slowest[latency] = _of_slowest(requests[latency][chosen], parts)
        if latency == "e2e_s":
            mean = _means(parts, slice(None))
    return TimeSplitJson(parts=PARTS, mean=mean, slowest=slowest)


def parts_by_latency(requests: Columns, rows: Ints, facts: RunFacts) -> Callable[[str], SlowestParts]:
    """Return a function that returns the share of each part in one latency of some requests, `(n_rows,)` each."""
    pushes = facts.link is not None and facts.link.how == "push"

    @lru_cache(maxsize=1)  # fast: the latencies of a run of one piece share them
    def basis(first: int, last: int) -> tuple[SlowestParts, SlowestParts, Columns]:
        own = rows[slice(*np.searchsorted(rows, (first, last + 1)))]
        parts = {name: requests[name][own] for name in PARTS}
        table = {name: requests[name][own] for name in (*LATENCIES, *TIMES)}
        return parts, _until_first(parts, table, pushes=pushes), table

    def parts_of(latency: str) -> SlowestParts:
        share = LATENCIES[latency]
        return computed(lambda part: share(*basis(int(part["row"][0]), int(part["row"][-1]))), {"row": rows})

    return parts_of


def _until_first(parts: SlowestParts, table: Columns, *, pushes: bool) -> SlowestParts:
    """Return the share of each part before the first token, summing to ttft_s. The rest is due to evictions: first
    waiting, then recomputation, as an evicted request waits first."""
    is_all = table["first_token_s"] == table["finish_s"]
    before = (*BEFORE_FIRST, "transfer_wait_s") if pushes else BEFORE_FIRST
    shares = {name: np.where(is_all | (name in before), values, 0.0) for name, values in parts.items()}
    if pushes:  # the notice that blocks are allocated is sent before the prefill, the KV after the first token
        shares["link_s"] = np.where(is_all, parts["link_s"], parts["link_s"] - table["transfer_s"])
    rest_s = np.where(is_all, 0.0, np.maximum(_rounded(table["ttft_s"] - sum(shares.values())), 0.0))
    waited_s = np.minimum(rest_s, parts["preempted_s"])
    shares["preempted_s"] = shares["preempted_s"] + waited_s
    shares["recompute_s"] = shares["recompute_s"] + (rest_s - waited_s)
    return shares


def _per_token(parts: SlowestParts, first: SlowestParts, table: Columns) -> SlowestParts:
    """Return the share of each part after the first token, per token, summing to tpot_s."""
    n_gaps = np.maximum(table["output_tokens"] - 1, 1)
    return {name: _rounded(values - first[name]) / n_gaps for name, values in parts.items()}


def _rounded(left_s: Floats) -> Floats:
    """Return differences of times without those that are only rounding."""
    return np.where(np.abs(left_s) >= ROUNDING_S, left_s, 0.0)


LATENCIES: dict[str, Callable[[SlowestParts, SlowestParts, Columns], SlowestParts]] = {
    "ttft_s": lambda parts, first, table: first,
    "tpot_s": _per_token,
    "e2e_s": lambda parts, first, table: parts,
}
"""Latency to rank by, with the share of each part in it."""


def _of_slowest(latency_s: Floats, parts: SlowestParts) -> SlowestRequestsJson | None:
    """Return the slowest requests by one latency: threshold, means, overall means, and the part that differs most."""
    known = np.flatnonzero(~np.isnan(latency_s))
    if not len(known):
        return None
    n = int(np.ceil(SLOWEST_FRAC * len(known)))
    slow = known[np.argsort(latency_s[known], kind="stable")[-n:]]
    mean, of_all = _means(parts, slow), _means(parts, known)
    more = {name: getattr(mean, name) - getattr(of_all, name) for name in PARTS}
    binds = max(more, key=lambda name: more[name])
    return SlowestRequestsJson(
        n=n, from_s=float(latency_s[slow].min()), mean=mean, all=of_all, binds=binds if more[binds] > 0 else None
    )


def _means(parts: SlowestParts, chosen: Any) -> TimePartsJson:
    return TimePartsJson(**{name: float(parts[name][chosen].mean()) for name in in_turn(PARTS, parts)})
