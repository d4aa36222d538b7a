"""CostModel: the cost of a step, the interface of rooflines, fits and test doubles; StepShape: what it depends on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from simserve.cost.step_lines import StepLines


@dataclass(frozen=True, slots=True)
class StepShape:
    """All that the cost of a step depends on, as integer counts.

    Invariant: sampled_rows >= decode_requests; prefill_tokens == 0 means no pairs and no context.
    """

    prefill_tokens: int = 0
    """Prompt tokens computed, over all chunks."""
    prefill_pairs: int = 0
    """Query-key pairs of the chunks: sum of q * c + q * (q + 1) / 2 for q tokens after c cached ones."""
    prefill_context_tokens: int = 0
    """Keys that the chunks read: sum of c + q."""
    decode_requests: int = 0
    """Requests that produce one token each from the cache."""
    kv_tokens: int = 0
    """Keys that the decoding requests attend in this step, summed."""
    sampled_rows: int = 0
    """Positions through the LM head: decoding requests and prompts that complete."""
    windows: tuple[tuple[int, int, int], ...] = ()
    """Pairs and keys of the chunks, and keys of the decoding requests, in a layer of each group with a window."""


class CostModel(Protocol):
    """Integer picoseconds for the parts of a step; pure.

    A step lasts tokens_ps(its tokens) + sampled_ps(rows of the LM head) + prefill_ps(its chunks)
    + intercept + slope * kv_tokens of decode_line(its decoding requests); layers with a window add
    prefill_windows_ps(its chunks) and slope * keys of window_slopes(its decoding requests): see `shape_ps`. No step is
    shorter than host_ps(the requests it samples).
    """

    @property
    def step_lines(self) -> StepLines:
        """Times of steps of n decoding requests alone, as far as they were needed."""

    def tokens_ps(self, n_tokens: int) -> int:
        """Return the part that depends on the number of tokens in the step alone."""

    def own_tokens(self, n_tokens: int) -> int:
        """Return how many of n prompt tokens a GPU computes, of the groups that divide them among themselves."""

    def sampled_ps(self, n_rows: int) -> int:
        """Return the cost of the LM head over n_rows positions."""

    def prefill_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int) -> int:
        """Return the attention of the prompt chunks, from their tokens, query-key pairs and keys read."""

    def prefill_windows_ps(self, n_tokens: int, reads: Sequence[tuple[int, int]]) -> int:
        """Return that in layers with a window, from the pairs and keys read in a layer of each such group."""

    def decode_line(self, n: int) -> tuple[int, int]:
        """Return (intercept, slope per key attended) of n decoding requests."""

    def window_slopes(self, n: int) -> tuple[int, ...]:
        """Return the time per key that n decoding requests attend in a layer of each group with a window."""

    def mixed_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int, kv_tokens: int, n_rows: int) -> int:
        """Return a step of prompt chunks and n decoding requests that attend kv_tokens keys, without layers that have a
        window: the sum of the parts."""

    def group_ps(self, n_tokens: int, n_busiest: int, is_split: bool = False) -> int:
        """Return the joint work of data-parallel ranks that share experts, for the tokens of all of them and those of
        the rank with most."""

    def overlapped_ps(self, n_tokens: int, has_prompts: bool) -> int:
        """Return the exchange of a rank that would split a step of its n_tokens in two, beside compute; 0 of one that
        would not. A step is split if all ranks would, and is no shorter than any exchange."""

    def host_ps(self, n_rows: int) -> int:
        """Return the host's time for a step that samples n_rows requests, where it hides behind kernels; else 0."""


def shape_ps(cost: CostModel, shape: StepShape) -> int:
    """Return the cost of a step of a shape, without waits for the host."""
    n_tokens, n = shape.prefill_tokens, shape.decode_requests
    chunks = n_tokens, shape.prefill_pairs, shape.prefill_context_tokens
    total_ps = cost.mixed_ps(*chunks, n, shape.kv_tokens, shape.sampled_rows)
    if not shape.windows:
        return total_ps
    if n_tokens:
        total_ps += cost.prefill_windows_ps(n_tokens, [(pairs, keys) for pairs, keys, _ in shape.windows])
    if n:
        slopes = cost.window_slopes(n)
        total_ps += sum(slope * keys for slope, (_, _, keys) in zip(slopes, shape.windows, strict=True))
    return total_ps
