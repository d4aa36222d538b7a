"""StepShape: the sufficient statistics of one step."""

from dataclasses import dataclass


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
