"""Speculation: the benefit and the cost of proposing tokens."""

import math
from typing import TYPE_CHECKING

import numpy as np

from simserve.metrics.window import Window
from simserve.tables.columns import Columns
from simserve.tables.facts import RunFacts

if TYPE_CHECKING:
    from simserve.metrics.summary_schema import SpeculationJson


def speculation(
    requests: Columns, spans: Columns, steps: Columns, window: Window, facts: RunFacts
) -> "SpeculationJson | None":
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
