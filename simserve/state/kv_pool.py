"""KvPool: counts of free, used and reserved KV blocks."""


class KvPool:
    """Counts of KV blocks of one replica.

    Invariant: used_blocks + reserved_blocks + free_blocks = total_blocks, and none is negative.
    """

    __slots__ = ("block_size", "free_blocks", "least_free_blocks", "reserved_blocks", "total_blocks", "used_blocks")

    def __init__(self, total_blocks: int, block_size: int) -> None:
        self.total_blocks = total_blocks
        self.block_size = block_size
        self.free_blocks = total_blocks
        self.least_free_blocks = total_blocks
        """Minimum of free_blocks so far."""
        self.used_blocks = 0
        """Blocks that hold tokens."""
        self.reserved_blocks = 0
        """Blocks reserved for running requests that hold no token yet."""

    def blocks_for(self, n_tokens: int) -> int:
        """Return the blocks that n_tokens of one request fill."""
        return -(-n_tokens // self.block_size)

    def reserve(self, n_blocks: int) -> None:
        """Reserve free blocks."""
        self.reserved_blocks += n_blocks
        self.free_blocks -= n_blocks
        if self.free_blocks < self.least_free_blocks:
            self.least_free_blocks = self.free_blocks

    def take(self, n_blocks: int, from_reserved: bool) -> None:
        """Put tokens into reserved or free blocks."""
        self.used_blocks += n_blocks
        if from_reserved:
            self.reserved_blocks -= n_blocks
            return
        self.free_blocks -= n_blocks
        if self.free_blocks < self.least_free_blocks:
            self.least_free_blocks = self.free_blocks

    def release(self, n_used: int, n_reserved: int = 0) -> None:
        """Free used blocks and reserved blocks."""
        self.used_blocks -= n_used
        self.reserved_blocks -= n_reserved
        self.free_blocks += n_used + n_reserved
