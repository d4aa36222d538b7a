"""Drafted: FLOP and bytes of the models that propose tokens."""

from dataclasses import dataclass

import numpy as np

from simserve.tables.columns import Floats
from simserve.tables.facts import RunFacts, WorkFacts

NOTHING = WorkFacts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


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
class Done:
    """FLOP and bytes, `(n_replicas, n_instants)` each."""

    flop: Floats
    bytes: Floats


def drafted(facts: RunFacts, work: DraftedWork) -> Done:
    """Sum the passes, one per proposed token: pass i, from 0, attends i keys per request more, and the first also
    computes prompts. Weights are read once per pass."""
    hows = [facts.pools[pool].speculation for pool in facts.replica_pool]
    works = [NOTHING if how is None or how.draft is None else how.draft for how in hows]
    n_passes = _column([0.0 if how is None else how.tokens for how in hows])
    keys = n_passes * work.keys + work.n_decoded * (n_passes * (n_passes - 1) / 2)
    sampled = n_passes * work.n_decoded
    tokens = work.prefill_tokens + sampled
    per_token, per_pair, per_sampled, weights, kv = (
        _column([getattr(each, name) for each in works])
        for name in (
            "flop_per_token",
            "flop_per_pair",
            "flop_per_sampled",
            "weight_bytes_per_step",
            "kv_bytes_per_token",
        )
    )
    flop = per_token * tokens + per_pair * (work.prefill_pairs + keys) + per_sampled * sampled
    return Done(flop, weights * n_passes * work.decode_steps + kv * (keys + tokens))


def _column(values: list[float]) -> Floats:
    """Return one number per replica, `(n_replicas, 1)`."""
    return np.array(values, np.float64).reshape(-1, 1)
