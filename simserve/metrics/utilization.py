"""Utilization: busy time of replicas, and their shares of peak FLOP/s (MFU) and bandwidth (MBU)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Required

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from simserve.metrics.integrals import Places
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.speculation import DraftedWork, drafted
from simserve.metrics.summary_schema import Amount, Count, Measured, Number, Size, with_facts
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Flags, Floats
from simserve.tables.facts import PoolFacts, RunFacts, WorkFacts
from simserve.tables.pieces import Rows


class SpeculatingJson(TypedDict, total=False):
    """How a pool speculates."""

    kind: Required[str]
    tokens: Required[Count]
    acceptance: Sequence[Number]
    model: str | None


@with_facts(PoolFacts, {int: Count, float: Amount, int | float: Amount}, "work", "reserving")
class PoolJson(TypedDict, total=False):
    """A pool."""

    name: Required[str]
    n_replicas: Required[Annotated[int, Field(ge=0, le=10**9)]]
    gpus_per_replica: Required[Size]
    ranks_per_replica: Size
    gpu: Required[str]
    model: Required[str]
    engine: Required[str]
    scheduler: Required[str]
    speculation: SpeculatingJson | None
    mean_gpus: Measured
    busy_frac: Measured
    mfu: Measured
    mbu: Measured


@dataclass(frozen=True)
class WorkDone:
    """Cumulative work of replicas up to given instants, `(n_replicas, n_instants)` each."""

    busy_s: Floats
    prefill_tokens: Floats
    flop: Floats
    """All computed FLOP, including padding and recomputed tokens, without the LM head at the end of a prefill."""
    bytes: Floats
    """Weights once per step, keys and values read by decoding requests, and those written."""

    def between(self) -> "WorkDone":
        """Return the work from each instant to the next."""
        return WorkDone(
            *(np.diff(amount, axis=1) for amount in (self.busy_s, self.prefill_tokens, self.flop, self.bytes))
        )


@dataclass(frozen=True)
class Shares:
    """Utilization of some replicas together over a window, 0..1; NaN for an empty window."""

    busy_frac: float
    mfu: float
    mbu: float


@dataclass(frozen=True)
class Utilization:
    """Utilization of the cluster and of each pool over a window."""

    whole: Shares
    by_pool: tuple[Shares, ...]


def work_done(steps: Columns, places: Places, facts: RunFacts) -> WorkDone:
    """Sum the work of steps up to the instants of `places`."""

    def total(name: str) -> Floats:
        return places.sums(lambda part: part[name].astype(np.float64), steps)

    n_decoded = places.sums(lambda part: part["decode_requests"].astype(np.float64) * part["n_steps"], steps)
    prefill_tokens, prefill_pairs = total("prefill_tokens"), total("prefill_pairs")
    keys_read = places.sums(_keys, steps)
    extra = _proposed(facts)  # proposals that each decoding request verifies besides its next token
    decode_tokens = n_decoded * (1 + extra)
    pairs = prefill_pairs + (1 + extra) * keys_read + n_decoded * (extra * (extra + 1) / 2)
    tokens = prefill_tokens + decode_tokens
    of = [facts.pools[pool].work for pool in facts.replica_pool]
    flop = _each(of, "flop_per_token") * tokens + _each(of, "flop_per_pair") * pairs
    flop += _each(of, "flop_per_sampled") * decode_tokens
    moved = _each(of, "kv_bytes_per_token") * (keys_read + n_decoded * extra + tokens)
    moved += _each(of, "weight_bytes_per_step") * total("n_steps")
    if extra.any():
        decodes = places.sums(lambda part: (part["decode_requests"] > 0) * part["n_steps"].astype(np.float64), steps)
        own = drafted(facts, DraftedWork(prefill_tokens, prefill_pairs, n_decoded, keys_read, decodes))
        flop, moved = flop + own.flop, moved + own.bytes
    busy_s = places.sums(lambda part: part["end_s"] - part["start_s"], steps)
    return WorkDone(busy_s, prefill_tokens, flop, moved)


def _keys(steps: Rows) -> Floats:
    """Return the sum of contexts of each row: kv_tokens in its first step, decode_requests more in each further one."""
    n_steps, n_decoding = steps["n_steps"], steps["decode_requests"].astype(np.float64)
    keys: Floats = (steps["kv_tokens"] + n_decoding * ((n_steps - 1) / 2)) * n_steps
    return keys


def _proposed(facts: RunFacts) -> Floats:
    """Return the proposals per request and step of each replica, `(n_replicas, 1)`."""
    hows = [facts.pools[pool].speculation for pool in facts.replica_pool]
    return np.array([0 if how is None else how.tokens for how in hows], np.float64).reshape(-1, 1)


def shares(work: WorkDone, lasts_s: Floats, facts: RunFacts) -> tuple[Floats, Floats, Floats]:
    """Return busy, MFU and MBU of each replica and interval, all `(n_replicas, n_intervals)`."""
    of = [facts.pools[pool].work for pool in facts.replica_pool]
    peak, bandwidth = _each(of, "peak_flop_per_s"), _each(of, "hbm_bytes_per_s")
    busy = np.minimum(work.busy_s / lasts_s, 1.0)  # sums of many rows have rounding errors
    return busy, work.flop / (peak * lasts_s), work.bytes / (bandwidth * lasts_s)


def utilization(work: WorkDone, window: Window, facts: RunFacts) -> Utilization:
    """Return the utilization of all replicas and of each pool over the window; `work` is `(n_replicas, 1)`, and
    replicas weigh by their peaks and by their time in the fleet."""
    pool, duration_s = np.array(facts.replica_pool, np.int64), window.duration_s
    lived_frac = Lifetimes(facts).lived_frac(window.span_s)
    by_pool = (_shares(work, pool == index, duration_s, lived_frac, facts) for index in range(len(facts.pools)))
    return Utilization(_shares(work, pool >= 0, duration_s, lived_frac, facts), tuple(by_pool))


def _shares(work: WorkDone, chosen: Flags, duration_s: float, lived_frac: Floats, facts: RunFacts) -> Shares:
    """Return the utilization of the chosen replicas, `(n_replicas,)`."""
    lived = lived_frac[chosen].reshape(-1, 1)
    if not duration_s > 0 or not lived.sum():
        return Shares(np.nan, np.nan, np.nan)
    of = [facts.pools[pool].work for pool in np.array(facts.replica_pool, np.int64)[chosen]]
    peak, bandwidth = ((_each(of, name) * lived).sum() for name in ("peak_flop_per_s", "hbm_bytes_per_s"))
    return Shares(
        busy_frac=min(float(work.busy_s[chosen].sum() / lived.sum() / duration_s), 1.0),
        mfu=float(work.flop[chosen].sum() / (peak * duration_s)),
        mbu=float(work.bytes[chosen].sum() / (bandwidth * duration_s)),
    )


def _each(of: list[WorkFacts], name: str) -> Floats:
    """Return one fact of each replica, `(n_replicas, 1)`."""
    return np.array([getattr(work, name) for work in of], np.float64).reshape(-1, 1)


def pool_figures(facts: RunFacts, use: Utilization, mean_gpus: Floats) -> list[dict[str, Any]]:
    """Return the facts of each pool and its use over the window, as the summary holds them."""
    return [
        _without(pool, "work", "speculation", "reserving")
        | {"speculation": _without(pool.speculation, "draft"), "mean_gpus": n_gpus, **vars(shares)}
        for pool, shares, n_gpus in zip(facts.pools, use.by_pool, mean_gpus, strict=True)
    ]


def _without(facts: Any, *names: str) -> Any:
    """Return facts by name, without some; None stays None."""
    return facts and {name: value for name, value in vars(facts).items() if name not in names}
