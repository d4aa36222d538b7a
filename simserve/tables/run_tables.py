"""RunTables: the engine's output of a finished run. Everything reported is computed from it.

Its steps are rows of several steps; `full_steps` expands them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.tables.columns import Columns, Floats, Ints, counted_up
from simserve.units import array_to_ps, array_to_s


@dataclass(frozen=True)
class ExtraColumns:
    """Columns of the engine that no file holds; the split of a request's time is computed from them."""

    routed_s: Floats
    """Instant at which each request reached the router, `(n_requests,)`."""
    notice_s: Floats
    """Time of the notice that the decode replica has blocks, with push; 0 for requests without one, `(n_requests,)`."""
    chunks_s: Floats
    """Time of the steps with a chunk of its prompt, except the last chunk, before any preemption, `(n_requests,)`."""
    pauses: Columns
    """One row per finished preemption: request_id (row number), left_s, back_s, is_swapped; in the order of back_s."""
    stalls: Columns
    """Instants at which a replica began no step although requests waited: replica, at_s, blocked_by; by replica, then
    in time order."""


@dataclass(frozen=True)
class RunTables:
    """Three tables; their columns are the engine's own among those of `tables/schema.py`."""

    requests: Columns
    """Row i is row i of the offered load."""
    steps: Columns
    """One row per step run; by replica, then in time order."""
    spans: Columns
    """One row per completed prefill: a token at join_s, then one at the end of each decode step first..last."""
    extra: ExtraColumns | None = None
    """None for tables read from files: their requests have the columns computed from it."""


def prefilled_at(requests: Columns, rows: Any = slice(None)) -> Ints:
    """Return the replica that first computed the prompts of some requests, `(n,)`; -1 for none."""
    elsewhere, own = requests["prefill_replica"][rows], requests["replica"][rows]
    at: Ints = np.where(elsewhere >= 0, elsewhere, own)
    return at


def full_steps(steps: Columns) -> Columns:
    """Return one row per step, `(n_steps in all,)`: times and kv_tokens are exact for each step. Blocks, queue_len and
    blocked_by are those at the start of the step run; its chunks belong to its first step."""
    n_steps = steps["n_steps"]
    row = np.repeat(np.arange(len(n_steps)), n_steps)
    place = counted_up(0, n_steps)
    full: Columns = {name: column[row] for name, column in steps.items()}
    first_ps = array_to_ps(steps["first_step_s"])
    growth_ps = ((array_to_ps(steps["last_step_s"]) - first_ps) // np.maximum(n_steps - 1, 1))[row]
    start_ps, first_ps = array_to_ps(steps["start_s"])[row], first_ps[row]
    lasts_s = array_to_s(first_ps + place * growth_ps)

    def after_s(n: Ints) -> Floats:
        """Return when the first n steps of each step run end."""
        return array_to_s(start_ps + n * first_ps + growth_ps * (n * (n - 1) // 2))

    return full | {
        "step": full["step"] + place,
        "decode_step": full["decode_step"] + place * (full["decode_requests"] > 0),
        "n_steps": np.ones(len(row), n_steps.dtype),
        # A float64 cannot count the picoseconds of a day: both ends of a step run keep their bits.
        "start_s": np.where(place == 0, full["start_s"], after_s(place)),
        "end_s": np.where(place == full["n_steps"] - 1, full["end_s"], after_s(place + 1)),
        "first_step_s": lasts_s,
        "last_step_s": lasts_s,
        "prefill_tokens": np.where(place == 0, full["prefill_tokens"], 0),
        "prefill_pairs": np.where(place == 0, full["prefill_pairs"], 0),
        "kv_tokens": full["kv_tokens"] + place * full["decode_requests"],
    }
