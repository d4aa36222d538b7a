"""Time account of the oracle: the use of each picosecond of a request's life.

Nothing is summed in advance: at every instant with a change, it looks up the state of the request.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from tests.oracle import OracleRun
from tests.oracle_replica import Life, OracleReplica, Step


@dataclass
class Account:
    """Time account of one finished request."""

    run: OracleRun
    life: Life
    front_end: FrontEnd
    how: Disaggregation | None = None

    def __post_init__(self) -> None:
        life = self.life
        self.sent_ps = self.run.sent_ps[life.request.row]
        self.routed_ps = life.request.arrival_ps
        self.computed_at = self.run.replicas[life.prefill_replica if life.prefill_replica >= 0 else life.replica]
        self.decoded_at = self.run.replicas[life.replica]
        pushed = self.how is not None and self.how.is_pushed and self.computed_at.setup.role == "prefill"
        self.room_ps = self.routed_ps + (life.transfer_wait_ps if pushed else 0)
        self.told_ps = self.room_ps + (max(1, self.how.link.latency_ps) if pushed and self.how else 0)
        self.first_ps = next(at_ps for at_ps, what in life.moves if what == "joined")
        self.fetched_ps = self.first_ps + (0 if pushed else life.transfer_wait_ps)
        self.there_ps = self.first_ps + life.transfer_ps
        self.end_ps = next(at_ps for at_ps, what in life.moves if what == "ended")

    def parts(self) -> dict[str, int]:
        """Return picoseconds by part, without empty parts."""
        edges = {self.sent_ps, self.routed_ps, self.room_ps, self.told_ps, self.fetched_ps, self.there_ps, self.end_ps}
        edges |= {self.life.finish_ps} | {at_ps for at_ps, _ in self.life.moves}
        for replica in (self.computed_at, self.decoded_at):
            edges |= {at_ps for at_ps, _ in replica.stalls}
            for step in replica.steps:
                alone_ps = step.start_ps + step.alone_ps
                edges |= {step.start_ps, alone_ps, alone_ps + step.copied_ps, step.end_ps}
        last_ps = self.life.finish_ps
        instants = sorted(at_ps for at_ps in edges if self.sent_ps <= at_ps <= last_ps)
        result: dict[str, int] = {}
        for at_ps, until_ps in pairwise(instants):
            part = self.at(at_ps)
            result[part] = result.get(part, 0) + until_ps - at_ps
        if self.front_end.respond_ps:
            result["front_end_s"] = result.get("front_end_s", 0) + self.front_end.respond_ps
        return result

    def at(self, now_ps: int) -> str:
        """Return the state from an instant on."""
        if now_ps < self.routed_ps:
            return "front_end_s"
        if now_ps < self.told_ps:
            return "transfer_wait_s" if now_ps < self.room_ps else "link_s"
        if now_ps >= self.end_ps:
            return "batch_wait_s"
        moves = [what for at_ps, what in self.life.moves if at_ps <= now_ps]
        if not moves:
            return f"queue_{self.kept_out_by(now_ps)}_s"
        return getattr(self, moves[-1])(now_ps)  # type: ignore[no-any-return]

    def kept_out_by(self, now_ps: int) -> str:
        step, replica = step_at(self.computed_at, now_ps), self.computed_at
        if step is not None:
            return step.blocked_by or "turn"
        stalls = [stall for stall in replica.stalls if stall[0] <= now_ps]
        if stalls and not any(stalls[-1][0] <= each.start_ps <= now_ps for each in replica.steps):
            return stalls[-1][1]
        return "turn"

    def scheduled(self, now_ps: int) -> str:
        step = step_at(self.computed_at, now_ps)
        has_tokens = step is not None and self.life.request.row in step.computed
        return "prefill_s" if has_tokens else "prefill_wait_s"

    def joined(self, now_ps: int) -> str:
        if now_ps < self.there_ps:
            return "transfer_wait_s" if now_ps < self.fetched_ps else "link_s"
        step = step_at(self.decoded_at, now_ps)
        if step is None or self.life.request.row not in step.decoded:
            return "interference_s"
        since_ps = now_ps - step.start_ps
        if since_ps < step.alone_ps:
            return "decode_s"
        return "copy_s" if since_ps < step.alone_ps + step.copied_ps else "interference_s"

    swapped_back = joined

    def left(self, now_ps: int) -> str:
        return "preempted_s"

    def back(self, now_ps: int) -> str:
        return "recompute_s"


def step_at(replica: OracleReplica, now_ps: int) -> Step | None:
    """Return the step in flight from an instant on."""
    place = bisect_right(replica.steps, now_ps, key=lambda step: step.start_ps) - 1
    step = replica.steps[place] if place >= 0 else None
    return step if step is not None and step.end_ps > now_ps else None
