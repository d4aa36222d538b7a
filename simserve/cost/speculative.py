"""SpeculativeCost: what steps cost in which tokens are proposed and verified."""

from dataclasses import dataclass

from simserve.cost.drafting import Drafting
from simserve.cost.model import CostModel
from simserve.cost.shape import StepShape


@dataclass(frozen=True)
class SpeculativeCost:
    """A CostModel whose decoding requests each put n_proposed + 1 tokens through the target, after these were proposed.

    All of them go through the layers and the LM head. Attention reads the keys of a request once for all its tokens,
    as kernels for several queries do; what it computes may then weigh more than what it reads (`key_floor_ps`). So for
    a number of requests the step is still a line in the keys that their next tokens attend.
    """

    target: CostModel
    drafting: Drafting
    n_proposed: int
    key_floor_ps: int = 0
    """A key's least share of a step: the n_proposed + 1 queries computed against it."""
    row_host_ps: int = 0
    """Host time that the target counts for a row of the LM head; a request takes it once, whatever its rows."""
    propose_ps: int = 0
    """Host time of a step for proposals."""

    def tokens_ps(self, n_tokens: int) -> int:
        """Of the target."""
        return self.target.tokens_ps(n_tokens)

    def sampled_ps(self, n_rows: int) -> int:
        """Of the target."""
        return self.target.sampled_ps(n_rows)

    def prefill_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int) -> int:
        """Of the target."""
        return self.target.prefill_ps(n_tokens, n_pairs, n_context_tokens)

    def group_ps(self, n_tokens: int) -> int:
        """Of the target."""
        return self.target.group_ps(n_tokens)

    def decode_line(self, n: int) -> tuple[int, int]:
        """All that n requests take beyond tokens_ps(n) and sampled_ps(n)."""
        verify_ps, verify_slope_ps = self._verify_line(n)
        draft_ps, draft_slope_ps = self.draft_line(n)
        n_rows = n * (self.n_proposed + 1)
        more_tokens_ps = self.target.tokens_ps(n_rows) - self.target.tokens_ps(n)
        more_rows_ps = self.target.sampled_ps(n_rows) - self.target.sampled_ps(n) - n * self._spare_host_ps
        return more_tokens_ps + more_rows_ps + verify_ps + draft_ps, verify_slope_ps + draft_slope_ps

    def draft_line(self, n: int) -> tuple[int, int]:
        """The part of it that is spent on proposals."""
        intercept_ps, slope_ps = self.drafting.line(n)
        return intercept_ps + self.propose_ps, slope_ps

    def draft_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int, kv_tokens: int) -> int:
        """Of a step as in `mixed_ps`, what is spent on proposals."""
        total_ps = self.drafting.prompt_ps(n_tokens, n_pairs, n_context_tokens, n) if n_tokens else 0
        if n:
            intercept_ps, slope_ps = self.draft_line(n)
            total_ps += intercept_ps + slope_ps * kv_tokens
        return total_ps

    def mixed_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int, kv_tokens: int, n_rows: int) -> int:
        """A step of prompt chunks and n decoding requests, each of which has one of the n_rows."""
        target, n_more = self.target, n * self.n_proposed
        total_ps = (
            target.tokens_ps(n_tokens + n + n_more) + target.sampled_ps(n_rows + n_more) - n * self._spare_host_ps
        )
        if n_tokens:
            total_ps += target.prefill_ps(n_tokens, n_pairs, n_context_tokens)
        if n:
            intercept_ps, slope_ps = self._verify_line(n)
            total_ps += intercept_ps + slope_ps * kv_tokens
        return total_ps + self.draft_ps(n_tokens, n_pairs, n_context_tokens, n, kv_tokens)

    def step_ps(self, shape: StepShape) -> int:
        """A step of that shape."""
        return self.mixed_ps(
            shape.prefill_tokens,
            shape.prefill_pairs,
            shape.prefill_context_tokens,
            shape.decode_requests,
            shape.kv_tokens,
            shape.sampled_rows,
        )

    @property
    def _spare_host_ps(self) -> int:
        return self.n_proposed * self.row_host_ps

    def _verify_line(self, n: int) -> tuple[int, int]:
        """Attention of all tokens of n requests, whose last ones attend their own fellows too."""
        intercept_ps, slope_ps = self.target.decode_line(n)
        slope_ps = max(slope_ps, self.key_floor_ps)
        return intercept_ps + slope_ps * n * self.n_proposed, slope_ps
