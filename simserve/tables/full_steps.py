"""Full steps: expands step runs into one row per step."""

import numpy as np

from simserve.tables.columns import Columns, Ints
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
    growth_ps = (array_to_ps(steps["last_step_s"]) - first_ps) // np.maximum(n_steps - 1, 1)
    start_ps = array_to_ps(steps["start_s"])[row]
    lasts_s = array_to_s(first_ps[row] + place * growth_ps[row])
    decodes = full["decode_requests"] > 0
    return full | {
        "step": full["step"] + place,
        "decode_step": full["decode_step"] + place * decodes,
        "n_steps": np.ones(len(row), n_steps.dtype),
        # A float64 cannot count the picoseconds of a day: both ends of a step run keep their bits.
        "start_s": np.where(
            place == 0, full["start_s"], array_to_s(start_ps + _sums(first_ps[row], growth_ps[row], place))
        ),
        "end_s": np.where(
            place == full["n_steps"] - 1,
            full["end_s"],
            array_to_s(start_ps + _sums(first_ps[row], growth_ps[row], place + 1)),
        ),
        "first_step_s": lasts_s,
        "last_step_s": lasts_s,
        "prefill_tokens": np.where(place == 0, full["prefill_tokens"], 0),
        "prefill_pairs": np.where(place == 0, full["prefill_pairs"], 0),
        "kv_tokens": full["kv_tokens"] + place * full["decode_requests"],
    }


def _sums(first: Ints, growth: Ints, n: Ints) -> Ints:
    """Return the duration of the first n steps of a step run."""
    return n * first + growth * (n * (n - 1) // 2)
