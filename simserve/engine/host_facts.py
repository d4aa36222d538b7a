"""HostFacts of a finished run: bytes copied to and from host memory and disk."""

from collections.abc import Sequence

from simserve.engine.replica import Replica
from simserve.engine.tiered import Tiered
from simserve.tables.facts import HostFacts
from simserve.units import to_s


def host_facts(replicas: Sequence[Replica], block_bytes: Sequence[float]) -> HostFacts | None:
    """Sum over all replicas; None if no replica has a host tier.

    block_bytes: `(n_replicas,)`, bytes of a block over all GPUs of a replica.
    """
    tiers = [(each.tier, block_bytes[each.index]) for each in replicas if isinstance(each, Tiered)]
    if not tiers:
        return None

    def bytes_of(name: str) -> float:
        return float(sum(getattr(tier.counts, name) * n_bytes for tier, n_bytes in tiers))

    return HostFacts(
        swapped_out_bytes=bytes_of("swapped_out"),
        swapped_in_bytes=bytes_of("swapped_in"),
        dropped_bytes=bytes_of("dropped"),
        left_bytes=float(sum(tier.memory.swapped_blocks * n_bytes for tier, n_bytes in tiers)),
        written_bytes=bytes_of("written"),
        read_bytes=bytes_of("read"),
        disk_written_bytes=bytes_of("disk_written"),
        disk_read_bytes=bytes_of("disk_read"),
        wait_s=to_s(sum(tier.counts.wait_ps for tier, _ in tiers)),
    )
