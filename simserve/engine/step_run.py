"""StepRun: consecutive steps of one batch, with ends known in advance."""

from collections.abc import Sequence
from math import sqrt

from simserve.state.request import Request


class StepRun:
    """Steps that grow by a constant duration, so that every end has a closed form.

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
        "wait_ps",
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
        """Steps to run, unless the run is cut."""
        self.end_ps = start_ps + first_ps
        """End of the last step."""
        if n_steps > 1:
            self.end_ps += (n_steps - 1) * first_ps + growth_ps * (n_steps * (n_steps - 1) // 2)
        self.n_decoding = n_decoding
        """Requests that produce a token in each step."""
        self.queue_len = queue_len
        """Requests waiting at its start."""
        self.chunks = chunks
        self.n_prefill_tokens = n_prefill_tokens
        self.n_prefill_pairs = n_prefill_pairs
        self.wait_ps = 0
        """Part of the first step that waits for copies from or to host memory."""

    def cut(self, n_steps: int) -> None:
        """Shorten the run to n_steps steps."""
        self.n_steps = n_steps
        self.end_ps = self.start_ps + n_steps * self.first_ps + self.growth_ps * (n_steps * (n_steps - 1) // 2)

    def last(self, step_ps: int) -> None:
        """Shorten the run to one step of this duration."""
        self.first_ps, self.growth_ps = step_ps, 0
        self.cut(1)

    def hold_to(self, least_ps: int) -> None:
        """Let no step be shorter than least_ps; the run ends before the first that is longer by itself."""
        short_ps, growth_ps = least_ps - self.first_ps, self.growth_ps
        if short_ps > 0:
            self.first_ps, self.growth_ps = least_ps, 0
            self.cut(min(self.n_steps, short_ps // growth_ps + 1) if growth_ps else self.n_steps)

    def steps_begun(self, at_ps: int) -> int:
        """Return the steps begun before an instant: those done by then and the one in flight, if any; at least 1.

        The inverse of the end: the smallest number of steps done at at_ps or later.
        """
        elapsed_ps = at_ps - self.start_ps
        first_ps, growth_ps = self.first_ps, self.growth_ps
        if not growth_ps:
            return max(-(-elapsed_ps // first_ps), 1)
        half_ps = first_ps - growth_ps / 2
        n_steps = int(2 * elapsed_ps / (half_ps + sqrt(half_ps * half_ps + 2.0 * growth_ps * elapsed_ps))) or 1
        # The estimate is off by a step or two at most; integers decide.
        done_ps = n_steps * first_ps + growth_ps * (n_steps * (n_steps - 1) // 2)
        while done_ps < elapsed_ps:
            done_ps += first_ps + growth_ps * n_steps
            n_steps += 1
        while n_steps > 1 and done_ps - first_ps - growth_ps * (n_steps - 1) >= elapsed_ps:
            n_steps -= 1
            done_ps -= first_ps + growth_ps * n_steps
        return n_steps

    def steps_done(self, at_ps: int) -> int:
        """Return the steps done at an instant."""
        n_steps = self.steps_begun(at_ps)
        end_ps = self.start_ps + n_steps * self.first_ps + self.growth_ps * (n_steps * (n_steps - 1) // 2)
        return n_steps if end_ps <= at_ps else n_steps - 1
