"""CostModel: the cost of a step, the interface of rooflines, fits and test doubles."""

from typing import Protocol

from simserve.cost.shape import StepShape


class CostModel(Protocol):
    """Integer picoseconds for the parts of a step; pure.

    A step lasts tokens_ps(all its tokens) + sampled_ps(rows of the LM head) + prefill_ps(its chunks)
    + intercept + slope * kv_tokens of decode_line(its decoding requests): see `step_ps`.
    """

    def tokens_ps(self, n_tokens: int) -> int:
        """Return the part that depends on the number of tokens in the step alone."""

    def sampled_ps(self, n_rows: int) -> int:
        """Return the cost of the LM head over n_rows positions."""

    def prefill_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int) -> int:
        """Return the attention of the prompt chunks, from their tokens, query-key pairs and keys read."""

    def decode_line(self, n: int) -> tuple[int, int]:
        """Return (intercept, slope per key attended) of n decoding requests."""

    def mixed_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int, kv_tokens: int, n_rows: int) -> int:
        """Return a step of prompt chunks and n decoding requests that attend kv_tokens keys: the sum of the parts."""

    def group_ps(self, n_tokens: int, n_busiest: int) -> int:
        """Return the joint work of data-parallel ranks that share experts, for the tokens of all of them and those of
        the rank with most."""

    def step_ps(self, shape: StepShape) -> int:
        """Return the cost of a StepShape."""
