"""KvPool: counts of free, used and reserved KV blocks."""

from simserve.state.block_counts import counts_of
from simserve.state.layer_blocks import LayerBlocks


class KvPool:
    """Counts of KV blocks of one replica.

    Invariant: used_blocks + reserved_blocks + free_blocks = total_blocks, and none is negative.
    """

    __slots__ = (
        "block_size",
        "counts",
        "free_blocks",
        "freed_blocks",
        "layers",
        "least_free_blocks",
        "reserved_blocks",
        "total_blocks",
        "used_blocks",
    )

    def __init__(self, total_blocks: int, layers: LayerBlocks) -> None:
        self.total_blocks = total_blocks
        self.block_size = layers.id_tokens
        self.layers = None if layers.is_plain else layers
        """Blocks by group of layers; None: all layers keep all tokens."""
        self.counts = counts_of(layers)
        """Counts the blocks of a request."""
        self.free_blocks = total_blocks
        self.least_free_blocks = total_blocks
        """Minimum of free_blocks so far."""
        self.freed_blocks = 0
        """Blocks freed so far."""
        self.used_blocks = 0
        """Blocks that hold tokens."""
        self.reserved_blocks = 0
        """Blocks reserved for running requests that hold no token yet."""

    def blocks_for(self, n_tokens: int) -> int:
        """Return the blocks of a request between steps, with n_tokens computed."""
        return self.counts.held(n_tokens)

    def blocks_in_step(self, n_tokens: int, n_next: int) -> int:
        """Return the blocks of a request in a step that adds n_next tokens to n_tokens computed ones."""
        return self.counts.held(n_tokens) + self.counts.begun(n_tokens, n_next)

    def most_blocks(self, n_tokens: int) -> int:
        """Return the most blocks that a request of n_tokens ever holds."""
        return self.counts.most(n_tokens, 0)

    def reserve(self, n_blocks: int) -> None:
        """Reserve free blocks."""
        self.reserved_blocks += n_blocks
        self.free_blocks = free_blocks = self.free_blocks - n_blocks
        if free_blocks < self.least_free_blocks:
            self.least_free_blocks = free_blocks

    def take(self, n_blocks: int, from_reserved: bool) -> None:
        """Put tokens into reserved or free blocks."""
        self.used_blocks += n_blocks
        if from_reserved:
            self.reserved_blocks -= n_blocks
            return
        self.free_blocks = free_blocks = self.free_blocks - n_blocks
        if free_blocks < self.least_free_blocks:
            self.least_free_blocks = free_blocks

    def drop(self, n_blocks: int, to_reserved: bool) -> None:
        """Free blocks of a request that goes on, or those for its proposed tokens; reserved blocks stay so."""
        self.count_dropped(n_blocks, to_reserved)

    def count_dropped(self, n_blocks: int, to_reserved: bool) -> None:
        """Count used blocks as free, or as reserved."""
        if to_reserved:
            self.take(-n_blocks, from_reserved=True)
        else:
            self.release(n_blocks)

    def take_at_once(self, n_blocks: int) -> None:
        """Put tokens into free blocks when a step is about to take others; what these held goes then."""
        self.take(n_blocks, from_reserved=False)

    def keep_within(self, n_blocks: int) -> None:
        """Let only n_blocks free blocks keep what they held; here none does."""

    def release(self, n_used: int, n_reserved: int = 0) -> None:
        """Free used blocks and reserved blocks."""
        self.used_blocks -= n_used
        n_blocks = n_used
        if n_reserved:
            self.reserved_blocks -= n_reserved
            n_blocks += n_reserved
        self.free_blocks += n_blocks
        self.freed_blocks += n_blocks
