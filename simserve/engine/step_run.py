"""StepRun: consecutive steps of one batch, with ends known in advance."""

from math import sqrt
from typing import Final

from mypy_extensions import i64

from simserve.units import MAX_PS, EndsTooLate

MANY_STEPS: Final = 4096
LONG_PS: Final = 10**12
"""Up to that many steps, the first of which lasts no longer, 64 bits hold the duration of a run."""

NEAR: Final = 1e-6
FAR: Final = 1.0 - NEAR
EXACT_STEPS: Final = 1e8
"""A number of steps below EXACT_STEPS in floating point, ten roundings of 2**-53 off, is less than NEAR off."""


def check_duration(first_ps: int, growth_ps: int, n_steps: int) -> None:
    """Raise EndsTooLate for steps that together take longer than 64 bits hold."""
    if n_steps * first_ps + growth_ps * (n_steps * (n_steps - 1) // 2) > MAX_PS:
        raise EndsTooLate


class StepRun:
    """Steps that grow by a constant duration, so that every end has a closed form.

    Step i (from 0) lasts first_ps + i * growth_ps, in whole picoseconds.
    """

    __slots__ = (
        "end_ps",
        "first_ps",
        "growth_ps",
        "n_accepted",
        "n_decoding",
        "n_prefill_pairs",
        "n_prefill_tokens",
        "n_steps",
        "queue_len",
        "start_ps",
        "wait_ps",
    )

    # fast: compiled, these are machine integers, which wrap; so durations are checked where a run begins
    start_ps: i64
    first_ps: i64
    growth_ps: i64
    n_steps: i64
    end_ps: i64

    def __init__(self) -> None:
        self.n_decoding = 0
        """Requests that produce a token in each step."""
        self.n_accepted = 0
        """Tokens of the last step beyond one a request, known before it is committed."""
        self.queue_len = 0
        """Requests waiting at its start."""
        self.n_prefill_tokens = self.n_prefill_pairs = 0
        self.begin(0, 0, 0, 1)

    def begin(self, start_ps: i64, first_ps: i64, growth_ps: i64, n_steps: i64) -> None:
        """Become a run of n_steps steps, unless it is cut.

        fast: a replica has one object for all its runs of a kind, as to make one takes longer than this.
        """
        self.start_ps = start_ps
        self.first_ps = first_ps
        self.growth_ps = growth_ps
        self.n_steps = n_steps
        self.wait_ps = 0
        """Hooks of the first step that waits for copies from or to host memory."""
        if n_steps == 1:
            end_ps = start_ps + first_ps
        else:
            if n_steps > MANY_STEPS or first_ps > LONG_PS:
                check_duration(first_ps, growth_ps, n_steps)
            end_ps = start_ps + n_steps * first_ps + growth_ps * (n_steps * (n_steps - 1) // 2)
        if end_ps < start_ps:
            raise EndsTooLate
        self.end_ps = end_ps
        """End of the last step."""

    def cut(self, n_steps: i64) -> None:
        """Shorten the run to n_steps steps."""
        self.n_steps = n_steps
        self.end_ps = self.start_ps + n_steps * self.first_ps + self.growth_ps * (n_steps * (n_steps - 1) // 2)
        if self.end_ps < self.start_ps:
            raise EndsTooLate

    def last(self, step_ps: i64) -> None:
        """Shorten the run to one step of this duration."""
        self.first_ps, self.growth_ps = step_ps, 0
        self.cut(1)

    def hold_to(self, least_ps: int) -> None:
        """Let no step be shorter than least_ps; the run ends before the first that is longer by itself."""
        short_ps, growth_ps = least_ps - self.first_ps, self.growth_ps
        if short_ps > 0:
            check_duration(least_ps, 0, self.n_steps)
            self.first_ps, self.growth_ps = least_ps, 0
            self.cut(min(self.n_steps, short_ps // growth_ps + 1) if growth_ps else self.n_steps)

    def steps_begun(self, at_ps: i64) -> i64:
        """Return the steps begun before an instant: those done by then and the one in flight, if any; at least 1.

        The inverse of the end: the smallest number of steps done at at_ps or later.
        """
        elapsed_ps, first_ps, growth_ps = at_ps - self.start_ps, self.first_ps, self.growth_ps
        if not growth_ps:
            return max(-(-elapsed_ps // first_ps), 1)
        growth: int = growth_ps  # machine integers do not mix with floats
        elapsed: int = elapsed_ps
        first: int = first_ps
        n_firsts, growth_frac = elapsed / first, growth / first
        half = 1.0 - 0.5 * growth_frac
        n_real = 2.0 * n_firsts / (half + sqrt(half * half + 2.0 * growth_frac * n_firsts))
        n_whole = int(n_real)
        if NEAR < n_real - n_whole < FAR and n_real < EXACT_STEPS and growth_frac <= 1.0:
            return n_whole + 1  # fast: rounding errors move it by less than NEAR
        n_steps: i64 = n_whole + 1
        # The estimate is off by a step or two at most; integers decide.
        done_ps = n_steps * first_ps + growth_ps * (n_steps * (n_steps - 1) // 2)
        while done_ps < elapsed_ps:
            done_ps += first_ps + growth_ps * n_steps
            n_steps += 1
        while n_steps > 1 and done_ps - first_ps - growth_ps * (n_steps - 1) >= elapsed_ps:
            n_steps -= 1
            done_ps -= first_ps + growth_ps * n_steps
        return n_steps

    def steps_done(self, at_ps: i64) -> i64:
        """Return the steps done at an instant."""
        n_steps = self.steps_begun(at_ps)
        end_ps = self.start_ps + n_steps * self.first_ps + self.growth_ps * (n_steps * (n_steps - 1) // 2)
        return n_steps if end_ps <= at_ps else n_steps - 1
