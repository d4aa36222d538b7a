"""Stretch: consecutive steps with the same members, whose ends are known at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from simserve.state.request import Request


@dataclass(slots=True)
class Stretch:
    """Steps whose durations grow by the same amount from one to the next, so that every end has a closed form.

    Step i (from 0) lasts first_ps + i * growth_ps, in whole picoseconds.
    """

    start_ps: int
    first_ps: int
    growth_ps: int
    n_steps: int
    """Steps it will make, unless the bell cuts it."""
    chunks: Sequence[tuple[Request, int]]
    n_prefill_tokens: int
    n_prefill_pairs: int
    n_decoding: int
    """Requests that produce a token in each step."""
    kv_tokens: int
    """Keys that they attend in the first step."""
    used_blocks: int
    reserved_blocks: int
    queue_len: int
    blocked_by: int
    """What kept the head of the queue out, as the recorder's code."""

    def end_ps(self, n_steps: int) -> int:
        """The instant at which the first n_steps are done."""
        return self.start_ps + n_steps * self.first_ps + self.growth_ps * (n_steps * (n_steps - 1) // 2)

    def steps_begun(self, at_ps: int) -> int:
        """Steps begun before that instant: those done by then and the one in flight, if any; at least 1.

        The inverse of `end_ps`: the smallest number of steps that are done at at_ps or later.
        """
        elapsed_ps = at_ps - self.start_ps
        first_ps, growth_ps = self.first_ps, self.growth_ps
        if not growth_ps:
            return max(-(-elapsed_ps // first_ps), 1)
        half_ps = first_ps - growth_ps / 2
        n_steps = int(2 * elapsed_ps / (half_ps + sqrt(half_ps * half_ps + 2.0 * growth_ps * elapsed_ps)))
        # The estimate is a step or two off at most; whole numbers decide.
        while n_steps > 1 and (n_steps - 1) * first_ps + growth_ps * ((n_steps - 1) * (n_steps - 2) // 2) >= elapsed_ps:
            n_steps -= 1
        while n_steps * first_ps + growth_ps * (n_steps * (n_steps - 1) // 2) < elapsed_ps:
            n_steps += 1
        return n_steps or 1

    def steps_done(self, at_ps: int) -> int:
        """Steps done at that instant."""
        n_steps = self.steps_begun(at_ps)
        return n_steps if self.end_ps(n_steps) <= at_ps else n_steps - 1
