"""Conservation laws that must hold at the end of a run, whatever the policies did."""

from collections.abc import Sequence

from simserve.engine.recorder import FINISHED, REJECTED, TIMED_OUT, UNFINISHED, Recorder
from simserve.engine.replica import Replica
from simserve.errors import InvariantError
from simserve.units import to_s


def check_conservation(n_sent: int, replicas: Sequence[Replica], recorder: Recorder, now_ps: int) -> None:
    """Raise InvariantError unless every request sent has ended or is present, and these hold all blocks in use."""
    at_s = to_s(now_ps)
    there = (each for r in replicas for group in (r.batch.running, r.batch.waiting, r.in_transit) for each in group)
    still_there = sum(recorder.status[request.row] == UNFINISHED for request in there)
    ended = sum(map(recorder.n_with, (FINISHED, REJECTED, TIMED_OUT)))
    if n_sent != ended + still_there:
        raise InvariantError("requests sent = ended + still there", n_sent, ended + still_there, at_s)
    for replica in replicas:
        pool = replica.pool
        held_blocks = pool.used_blocks + pool.reserved_blocks
        all_blocks = pool.free_blocks + held_blocks
        if all_blocks != pool.total_blocks:
            raise InvariantError("free + held = all blocks", all_blocks, pool.total_blocks, at_s)
        if held_blocks and not replica.batch.running and not replica.n_away:
            raise InvariantError(f"blocks held by no request on replica {replica.index}", held_blocks, 0, at_s)
