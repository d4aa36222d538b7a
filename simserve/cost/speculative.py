"""SpeculativeCost: the cost of steps that propose and verify tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from simserve.cost.drafting import Drafting
from simserve.cost.model import CostModel, step_ps
from simserve.cost.shape import StepShape


@dataclass(frozen=True)
class SpeculativeCost:
    """A CostModel of decoding requests that each verify n_proposed + 1 tokens after proposing them.

    All tokens go through the layers and the LM head. Attention reads the keys of a request once for all its tokens, as
    multi-query kernels do; its compute may then outweigh its reads (`key_floor_ps`). For a number of requests the step
    is therefore still a line in the keys that their next tokens attend.
    """

    target: CostModel
    drafting: Drafting
    n_proposed: int
    key_floor_ps: int = 0
    """Lower bound of a key's share of a step: the n_proposed + 1 queries computed against it."""
    row_host_ps: int = 0
    """Host time that the target counts per row of the LM head; a request takes it once, whatever its rows."""
    propose_ps: int = 0
    """Host time of a step for proposals."""
    query_ps: int = 0
    """Attention of a further query of a request that shares no keys with the first (sparse attention)."""
    window_floors_ps: tuple[int, ...] = ()
    """Lower bounds of a key's share by group with a window; empty for none."""
    step_lines: dict[int, tuple[int, int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def tokens_ps(self, n_tokens: int) -> int:
        """Return the target's part."""
        return self.target.tokens_ps(n_tokens)

    def sampled_ps(self, n_rows: int) -> int:
        """Return the target's part."""
        return self.target.sampled_ps(n_rows)

    def prefill_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int) -> int:
        """Return the target's part."""
        return self.target.prefill_ps(n_tokens, n_pairs, n_context_tokens)

    def prefill_windows_ps(self, n_tokens: int, reads: Sequence[tuple[int, int]]) -> int:
        """Return that in layers with a window, from the reads of the target's groups and then the draft's."""
        n = len(reads) - self.drafting.n_windows
        return self.target.prefill_windows_ps(n_tokens, reads[:n]) + self.draft_windows_ps(n_tokens, reads[n:])

    def window_slopes(self, n: int) -> tuple[int, ...]:
        """Return the time per key of all tokens of n requests, by group with a window, the target's first."""
        return self._verify_slopes(n) + self.drafting.window_slopes(n)

    def group_ps(self, n_tokens: int, n_busiest: int) -> int:
        """Return the target's part."""
        return self.target.group_ps(n_tokens, n_busiest)

    def host_ps(self, n_rows: int) -> int:
        """Return the target's part: a request takes the host once, whatever its rows of the LM head."""
        return self.target.host_ps(n_rows)

    def decode_line(self, n: int) -> tuple[int, int]:
        """Return the line of n requests beyond tokens_ps(n) and sampled_ps(n)."""
        verify_ps, verify_slope_ps = self._verify_line(n)
        draft_ps, draft_slope_ps = self.draft_line(n)
        n_rows = n * (self.n_proposed + 1)
        more_tokens_ps = self.target.tokens_ps(n_rows) - self.target.tokens_ps(n)
        more_rows_ps = self.target.sampled_ps(n_rows) - self.target.sampled_ps(n) - n * self._spare_host_ps
        return more_tokens_ps + more_rows_ps + verify_ps + draft_ps, verify_slope_ps + draft_slope_ps

    def draft_line(self, n: int) -> tuple[int, int]:
        """Return the part of that line spent on proposals."""
        intercept_ps, slope_ps = self.drafting.line(n)
        return intercept_ps + self.propose_ps, slope_ps

    def draft_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int, kv_tokens: int) -> int:
        """Return the part of a step as in `mixed_ps` that is spent on proposals."""
        total_ps = self.drafting.prompt_ps(n_tokens, n_pairs, n_context_tokens, n) if n_tokens else 0
        if n:
            intercept_ps, slope_ps = self.draft_line(n)
            total_ps += intercept_ps + slope_ps * kv_tokens
        return total_ps

    def draft_windows_ps(
        self, n_tokens: int, reads: Sequence[tuple[int, int]], n: int = 0, keys: Sequence[int] = ()
    ) -> int:
        """Return the part that is spent in the draft's layers with a window: the reads of chunks, and the keys of n
        decoding requests, by group."""
        total_ps = self.drafting.prompt_windows_ps(n_tokens, reads) if n_tokens else 0
        for slope_ps, n_keys in zip(self.drafting.window_slopes(n), keys, strict=False):
            total_ps += slope_ps * n_keys
        return total_ps

    def mixed_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int, kv_tokens: int, n_rows: int) -> int:
        """Return a step of prompt chunks and n decoding requests, each of which has one of the n_rows."""
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
        """Return the cost of a step of that shape."""
        return step_ps(self, shape)

    @property
    def _spare_host_ps(self) -> int:
        return self.n_proposed * self.row_host_ps

    def _verify_line(self, n: int) -> tuple[int, int]:
        """Return the attention of all tokens of n requests, where later proposals also attend earlier ones."""
        intercept_ps, slope_ps = self.target.decode_line(n)
        slope_ps = max(slope_ps, self.key_floor_ps)
        later_ps = slope_ps + sum(self._verify_slopes(n))
        return intercept_ps + (later_ps + self.query_ps) * n * self.n_proposed, slope_ps

    def _verify_slopes(self, n: int) -> tuple[int, ...]:
        """Return the target's part of `window_slopes`."""
        slopes = self.target.window_slopes(n)
        return tuple(map(max, slopes, self.window_floors_ps)) if self.window_floors_ps else slopes
