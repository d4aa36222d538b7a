"""Speculation: the benefit and the cost of proposing tokens, and the work of models that propose them."""

import math
from dataclasses import dataclass

import numpy as np
from typing_extensions import TypedDict

from simserve.metrics.summary_schema import Count, Measured
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Floats
from simserve.tables.facts import RunFacts, WorkFacts


class SpeculationJson(TypedDict, total=False):
    """Proposed tokens."""

    request_steps: Count
    tokens_per_step: Measured
    proposed_tokens: Count
    accepted_tokens: Count
    accepted_frac: Measured
    drafting_frac: Measured


def speculation(
    requests: Columns, spans: Columns, steps: Columns, window: Window, facts: RunFacts
) -> SpeculationJson | None:
    """Return the speculation of the window's finished requests in pools that speculate; None without any.

    A request-step is a decode step of one request. drafting_frac is a share of the compute time of those pools in the
    whole run.
    """
    if not any(pool.speculation for pool in facts.pools):
        return None
    hows = [facts.pools[pool].speculation for pool in facts.replica_pool]
    n_proposed = np.array([math.nan if how is None else how.tokens for how in hows])
    speculates = ~np.isnan(n_proposed)
    counted = requests["status"].is_("finished") & window.has & speculates[requests["replica"]]
    own = spans if counted.all() else {name: column[counted[spans["request_id"]]] for name, column in spans.items()}
    n_steps = own["last_step"] - own["first_step"] + 1
    n_request_steps = int(n_steps.sum())
    n_tokens = int(requests["output_tokens"][counted].sum()) - len(n_steps)  # a span's first token is a prefill's
    proposed = int((n_steps * n_proposed[own["replica"]]).sum())
    of_them = speculates[steps["replica"]]
    busy_s = float((steps["end_s"] - steps["start_s"])[of_them].sum())
    return {
        "request_steps": n_request_steps,
        "tokens_per_step": n_tokens / n_request_steps if n_request_steps else None,
        "proposed_tokens": proposed,
        "accepted_tokens": n_tokens - n_request_steps,
        "accepted_frac": (n_tokens - n_request_steps) / proposed if proposed else None,
        "drafting_frac": sum(facts.drafting_s) / busy_s if busy_s else None,
    }


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
