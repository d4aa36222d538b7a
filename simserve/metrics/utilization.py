"""Utilization: busy time of replicas, their shares of peak FLOP/s (MFU) and bandwidth (MBU), and what speculation costs
and yields."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.metrics.answers.pools import PoolJson
from simserve.metrics.answers.struct import Figures
from simserve.metrics.integrals import Places
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.summary_schema import Count, Measured
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Flags, Floats
from simserve.tables.facts import RunFacts, WorkFacts
from simserve.tables.pieces import Rows


class SpeculationJson(Figures):
    """Proposed tokens of the window's finished requests."""

    request_steps: Count = 0
    """Decode steps of one request each."""
    tokens_per_step: Measured = None
    """Mean output tokens of a decode step of one request."""
    proposed_tokens: Count = 0
    """[tokens] Tokens that were proposed."""
    accepted_tokens: Count = 0
    """[tokens] Proposed tokens that were accepted."""
    accepted_frac: Measured = None
    """[share] Proposed tokens that were accepted."""
    drafting_frac: Measured = None
    """[share] Compute time of pools that speculate, over the whole run, spent on proposals."""


NOTHING = WorkFacts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""Work of a pass that computes nothing."""


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
        return WorkDone(*(np.diff(amount, axis=1) for amount in vars(self).values()))


@dataclass(frozen=True)
class DraftedWork:
    """Cumulative work requested of replicas, `(n_replicas, n_instants)` each."""

    prefill_tokens: Floats
    prefill_pairs: Floats
    n_decoded: Floats
    """Decoding requests, summed over decode steps."""
    keys: Floats
    """Keys that these attend in their next token."""
    decode_steps: Floats


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
    works = [pool.work for pool in facts.pools_by_replica]
    flop = _flop(works, tokens, pairs, decode_tokens)
    moved = _each(works, "kv_bytes_per_token") * (keys_read + n_decoded * extra + tokens)
    moved += _each(works, "weight_bytes_per_step") * total("n_steps")
    moved += _each(works, "state_bytes_per_request") * n_decoded
    if extra.any():
        decodes = places.sums(lambda part: (part["decode_requests"] > 0) * part["n_steps"].astype(np.float64), steps)
        requested = DraftedWork(prefill_tokens, prefill_pairs, n_decoded, keys_read, decodes)
        drafted_flop, drafted_bytes = drafted(facts, requested)
        flop, moved = flop + drafted_flop, moved + drafted_bytes
    busy_s = places.sums(lambda part: part["end_s"] - part["start_s"], steps)
    return WorkDone(busy_s, prefill_tokens, flop, moved)


def drafted(facts: RunFacts, requested: DraftedWork) -> tuple[Floats, Floats]:
    """Return FLOP and bytes of the passes that propose, one per token, `(n_replicas, n_instants)` each. Pass i, from 0,
    attends i keys per request more, and the first also computes prompts. Each reads the weights once."""
    hows = [pool.speculation for pool in facts.pools_by_replica]
    works = [NOTHING if how is None or how.draft is None else how.draft for how in hows]
    n_passes = _proposed(facts)
    sampled = n_passes * requested.n_decoded
    keys = n_passes * requested.keys + requested.n_decoded * (n_passes * (n_passes - 1) / 2)
    tokens = requested.prefill_tokens + sampled
    moved = _each(works, "weight_bytes_per_step") * n_passes * requested.decode_steps
    moved += _each(works, "kv_bytes_per_token") * (keys + tokens) + _each(works, "state_bytes_per_request") * sampled
    return _flop(works, tokens, requested.prefill_pairs + keys, sampled), moved


def _flop(works: list[WorkFacts], tokens: Floats, pairs: Floats, sampled: Floats) -> Floats:
    """Return the FLOP of tokens, of the pairs that they attend, and of the LM head where one is sampled."""
    flop = _each(works, "flop_per_token") * tokens + _each(works, "flop_per_pair") * pairs
    return flop + _each(works, "flop_per_sampled") * sampled


def _keys(steps: Rows) -> Floats:
    """Return the sum of contexts of each row: kv_tokens in its first step, decode_requests more in each further one."""
    n_steps, n_decoding = steps["n_steps"], steps["decode_requests"].astype(np.float64)
    keys: Floats = (steps["kv_tokens"] + n_decoding * ((n_steps - 1) / 2)) * n_steps
    return keys


def _proposed(facts: RunFacts) -> Floats:
    """Return the proposals per request and step of each replica, `(n_replicas, 1)`."""
    hows = [pool.speculation for pool in facts.pools_by_replica]
    return np.array([0 if how is None else how.tokens for how in hows], np.float64).reshape(-1, 1)


def shares(work: WorkDone, lasts_s: Floats, facts: RunFacts) -> tuple[Floats, Floats, Floats]:
    """Return busy, MFU and MBU of each replica and interval, all `(n_replicas, n_intervals)`."""
    works = [pool.work for pool in facts.pools_by_replica]
    peak, bandwidth = _each(works, "peak_flop_per_s"), _each(works, "hbm_bytes_per_s")
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
    works = [pool.work for pool in facts.pools_by_replica]
    peak, bandwidth = ((_each(works, name)[chosen] * lived).sum() for name in ("peak_flop_per_s", "hbm_bytes_per_s"))
    return Shares(
        busy_frac=min(float(work.busy_s[chosen].sum() / lived.sum() / duration_s), 1.0),
        mfu=float(work.flop[chosen].sum() / (peak * duration_s)),
        mbu=float(work.bytes[chosen].sum() / (bandwidth * duration_s)),
    )


def _each(works: list[WorkFacts], name: str) -> Floats:
    """Return one fact of each replica, `(n_replicas, 1)`."""
    return np.array([getattr(work, name) for work in works], np.float64).reshape(-1, 1)


def speculation(
    requests: Columns, spans: Columns, steps: Columns, window: Window, facts: RunFacts
) -> SpeculationJson | None:
    """Return the speculation of the window's finished requests in pools that speculate; None without any.

    A request-step is a decode step of one request. drafting_frac is a share of the compute time of those pools in the
    whole run.
    """
    if not any(pool.speculation for pool in facts.pools):
        return None
    n_proposed = _proposed(facts)[:, 0]
    counted = window.finished(requests) & facts.in_pools(requests["replica"], lambda pool: pool.speculation)
    own = spans if counted.all() else {name: column[counted[spans["request_id"]]] for name, column in spans.items()}
    n_steps = own["last_step"] - own["first_step"] + 1
    n_request_steps = int(n_steps.sum())
    n_tokens = int(requests["output_tokens"][counted].sum()) - len(n_steps)  # a span's first token is a prefill's
    proposed = int((n_steps * n_proposed[own["replica"]]).sum())
    of_them = facts.in_pools(steps["replica"], lambda pool: pool.speculation)
    busy_s = float((steps["end_s"] - steps["start_s"])[of_them].sum())
    return SpeculationJson(
        request_steps=n_request_steps,
        tokens_per_step=n_tokens / n_request_steps if n_request_steps else None,
        proposed_tokens=proposed,
        accepted_tokens=n_tokens - n_request_steps,
        accepted_frac=(n_tokens - n_request_steps) / proposed if proposed else None,
        drafting_frac=sum(facts.drafting_s) / busy_s if busy_s else None,
    )


def pool_figures(facts: RunFacts, use: Utilization, mean_gpus: Floats) -> list[PoolJson]:
    """Return the facts of each pool and its use over the window, as the summary holds them."""
    return [
        PoolJson(
            **_without(pool, "work", "speculation", "reserving"),
            speculation=_without(pool.speculation, "draft"),
            mean_gpus=n_gpus,
            **vars(shares),
        )
        for pool, shares, n_gpus in zip(facts.pools, use.by_pool, mean_gpus, strict=True)
    ]


def _without(facts: Any, *names: str) -> Any:
    """Return facts by name, without some; None stays None."""
    return facts and {name: value for name, value in vars(facts).items() if name not in names}
