"""Stretch: consecutive steps with the same members, whose ends are known at once."""

from collections.abc import Sequence
from math import sqrt

from simserve.state.request import Request


class StepRun:
    """Steps whose durations grow by the same amount from one to the next, so that every end has a closed form.

    Step i (from 0) lasts first_ps + i * growth_ps, in whole picoseconds.
    """

    __slots__ = (
        "chunks",
        "end_ps",
        "first_ps",
        "growth_ps",
        "n_decoding",
        "n_prefill_pairs",
        "n_prefill_tokens",
        "n_steps",
        "queue_len",
        "start_ps",
    )

    def __init__(
        self,
        start_ps: int,
        first_ps: int,
        growth_ps: int,
        n_steps: int,
        n_decoding: int,
        queue_len: int,
        chunks: Sequence[tuple[Request, int]] = (),
        n_prefill_tokens: int = 0,
        n_prefill_pairs: int = 0,
    ) -> None:
        self.start_ps = start_ps
        self.first_ps = first_ps
        self.growth_ps = growth_ps
        self.n_steps = n_steps
        """Steps it will make, unless the bell cuts it."""
        self.end_ps = start_ps + n_steps * first_ps + growth_ps * (n_steps * (n_steps - 1) // 2)
        """The instant at which they are done."""
        self.n_decoding = n_decoding
        """Requests that produce a token in each step."""
        self.queue_len = queue_len
        """Requests that waited at its start."""
        self.chunks = chunks
        self.n_prefill_tokens = n_prefill_tokens
        self.n_prefill_pairs = n_prefill_pairs

    def cut(self, n_steps: int) -> None:
        """Make so many steps only."""
        self.n_steps = n_steps
        self.end_ps = self.start_ps + n_steps * self.first_ps + self.growth_ps * (n_steps * (n_steps - 1) // 2)

    def last(self, step_ps: int) -> None:
        """Make one step only, that lasts so long."""
        self.first_ps, self.growth_ps = step_ps, 0
        self.cut(1)

    def steps_begun(self, at_ps: int) -> int:
        """Steps begun before that instant: those done by then and the one in flight, if any; at least 1.

        The inverse of the end: the smallest number of steps that are done at at_ps or later.
        """
        elapsed_ps = at_ps - self.start_ps
        first_ps, growth_ps = self.first_ps, self.growth_ps
        if not growth_ps:
            return max(-(-elapsed_ps // first_ps), 1)
        half_ps = first_ps - growth_ps / 2
        n_steps = int(2 * elapsed_ps / (half_ps + sqrt(half_ps * half_ps + 2.0 * growth_ps * elapsed_ps))) or 1
        # The estimate is a step or two off at most; whole numbers decide.
        done_ps = n_steps * first_ps + growth_ps * (n_steps * (n_steps - 1) // 2)
        while done_ps < elapsed_ps:
            done_ps += first_ps + growth_ps * n_steps
            n_steps += 1
        while n_steps > 1 and done_ps - first_ps - growth_ps * (n_steps - 1) >= elapsed_ps:
            n_steps -= 1
            done_ps -= first_ps + growth_ps * n_steps
        return n_steps

    def steps_done(self, at_ps: int) -> int:
        """Steps done at that instant."""
        n_steps = self.steps_begun(at_ps)
        end_ps = self.start_ps + n_steps * self.first_ps + self.growth_ps * (n_steps * (n_steps - 1) // 2)
        return n_steps if end_ps <= at_ps else n_steps - 1
