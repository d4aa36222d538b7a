"""Full steps: expands step runs into one row per step."""

import numpy as np

from simserve.tables.columns import Columns, Floats, Ints
from simserve.units import array_to_ps, array_to_s


def full_steps(steps: Columns) -> Columns:
    """Return one row per step, `(n_steps in all,)`: times and kv_tokens are exact for each step.

    Blocks, queue_len and blocked_by are those at the start of the step run; its chunks belong to its first step.
    """
    n_steps = steps["n_steps"]
    row = np.repeat(np.arange(len(n_steps)), n_steps)
    place = np.arange(len(row)) - np.repeat(np.cumsum(n_steps) - n_steps, n_steps)
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
