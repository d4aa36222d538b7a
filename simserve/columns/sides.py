"""Sides of a hand-over, with requests in columns: prefill replicas, and decode replicas which fetch prompts."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from heapq import heapify, heappop, heappush
from itertools import takewhile

from mypy_extensions import i64

from simserve.columns.entrance import Loads
from simserve.columns.handover import Handover, HandoverSide, in_time
from simserve.columns.lines import Line
from simserve.columns.live import ASKS, DECODES, ENDED, LOST, MIGRATES, MOVES
from simserve.columns.prompts import PromptColumns
from simserve.engine.replica import Replica
from simserve.engine.step_run import StepRun
from simserve.integers import NEVER, NONE
from simserve.state.planner import BLOCKS, SEATS
from simserve.state.queues import Waiting
from simserve.state.request import Request


class Sends(HandoverSide):
    """The side of a prefill replica from which others fetch computed prompts."""

    def __init__(self, prompts: PromptColumns, handover: Handover, loads: Loads) -> None:
        super().__init__(loads)
        self._running, self._handover, self._live = prompts.running, handover, prompts.live
        self.hands_over = True

    def takes(self, place: i64, now_ps: i64) -> bool:
        """Take a request with a computed prompt, which holds its blocks; return whether another replica decodes it."""
        if self._live.is_kept[place]:
            return False
        self._running.leave(place)
        self._running.n_away += 1
        self._live.phase[place] = MOVES
        self._handover.done.append(place)
        return True


class Sending(HandoverSide):
    """The side of a prefill replica that pushes prompts, each once its decode replica has blocks for it."""

    def __init__(self, replica: Replica, prompts: PromptColumns, handover: Handover, loads: Loads) -> None:
        super().__init__(loads)
        self._replica, self._n_stages = replica.id, replica.stepping.n_stages
        self._running, self._handover, self._live = prompts.running, handover, prompts.live
        self.hands_over, self.asks_first, self.streams = True, True, handover.streams

    def passes_stages(self, prompts: PromptColumns, ends_ps: tuple[int, ...], stage_ps: int) -> None:
        """Push the chunks of a step as they leave each stage, if they are sent as they are computed."""
        live = self._live
        for i in range(prompts.n_chunks if self.streams else 0):
            place = prompts.places[i]
            n_new = live.prefilled_tokens[place] + prompts.tokens[i] - live.there_tokens[place]
            if n_new > 0 and not live.is_kept[place] and live.phase[place] != LOST:
                self._handover.stage(place, n_new, ends_ps, stage_ps)

    def send(self, prompts: PromptColumns, start_ps: i64, now_ps: i64) -> None:
        """Push the chunks of a step: tokens that the receiver lacks, and those from the cache here."""
        live, handover = self._live, self._handover
        if handover.is_staged:
            if self._n_stages == 1:
                self.passes_stages(prompts, (now_ps,), now_ps - start_ps)
            handover.send_staged(now_ps, self._replica)
            return
        for i in range(prompts.n_chunks):
            place = prompts.places[i]
            if live.is_kept[place] or live.phase[place] == LOST:
                continue
            n_new = live.prefilled_tokens[place] + prompts.tokens[i] - live.there_tokens[place]
            if n_new > 0:
                there_ps = handover.streamed_ps(place, n_new, (start_ps, now_ps))
                live.there_ps[place] = max(int(live.there_ps[place]), there_ps)
                live.there_tokens[place] += n_new

    def takes(self, place: i64, now_ps: i64) -> bool:
        """Push the rest of a computed prompt."""
        live, handover = self._live, self._handover
        if live.is_kept[place]:
            return False
        self._running.leave(place)
        self._running.n_away += 1
        live.phase[place] = MOVES
        del handover.pushes[place]
        prompt_tokens, sender, receiver = live.prompt_tokens[place], live.sender[place], live.receiver[place]
        if live.there_tokens[place] < prompt_tokens:
            first = live.there_tokens[place]
            live.there_ps[place] = handover.arrival_ps(prompt_tokens, first, sender, receiver, now_ps)
        handover.recorder.hand_over(live.row[place], sender, receiver)
        live.replica[place] = receiver
        handover.fetching[receiver].expect(place, live.there_ps[place])
        return True

    def ended(self, place: i64, now_ps: i64) -> bool:
        """Let the receiver free its blocks: the first token was the last."""
        live, handover = self._live, self._handover
        if live.is_kept[place]:
            return False
        live.phase[place] = ENDED
        del handover.pushes[place]
        there_ps = max(int(now_ps) + handover.notice_ps, int(live.there_ps[place]))
        handover.fetching[live.receiver[place]].expect(place, there_ps)
        return True


class BeforeHandedOver(Collection[Request]):
    """Waiting requests before the first that another replica prefills, in the order of their queue."""

    def __init__(self, waiting: Waiting, handed_over: Container[Request]) -> None:
        self._waiting = waiting
        self._handed_over = handed_over

    def __iter__(self) -> Iterator[Request]:
        return takewhile(lambda request: request not in self._handed_over, self._waiting)

    def __contains__(self, request: object) -> bool:
        return any(request is each for each in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Fetches(HandoverSide):
    """The side of a decode replica: requests come with a first token, and decode once their keys and values are there.

    At a step boundary it gives slots and blocks to handed-over requests, in order, unless a local request waits for
    its prefill. Under a policy that orders, both wait in its queue: the first request that does not fit keeps out all
    behind it. What its prefix cache has of a prompt is held from then on, and only the rest is sent (vLLM V1,
    NixlConnector). A request with all its KV decodes from the next boundary on.
    """

    def __init__(self, replica: Replica, prompts: PromptColumns, handover: Handover) -> None:
        super().__init__(handover.loads)
        live = prompts.live
        self._replica = replica.id
        self._live, self._prompts, self._handover = live, prompts, handover
        self._running, self._contents, self._waiting = prompts.running, prompts.contents, prompts.waiting
        self._pool, self._cohort = replica.pool, replica.cohort
        self._orders = replica.scheduler.orders
        self._coming_in, self._here = prompts.waiting if self._orders else Line(live), Line(live)
        """Requests without blocks here, with those that wait among them, and those that have all their keys and values
        and do not decode yet."""
        self._elsewhere: dict[Request, None] = {}
        """Requests of other replicas, under a policy that orders: they wait in its queue."""
        if self._orders:
            self._startable = BeforeHandedOver(replica.batch.waiting, self._elsewhere)
            replica.batch.startable = self._startable
        else:
            self.queues = (self._coming_in,)
        self._in_transfer: list[tuple[int, int, int]] = []
        """A heap of (instant of arrival, number of the transfer, request)."""
        self._n_transfers = 0
        self._n_without_blocks: i64 = 0
        """Requests of other replicas that wait."""
        self._blocked: i64 = 0
        """What kept out the requests without blocks at the last plan."""

    def come(self, place: i64) -> bool:
        """Accept a request that another replica prefills; return whether it may get blocks at the next plan."""
        leads = self._coming_in.may_lead(place)
        if self._orders:
            self._elsewhere[self._live.requests[place]] = None
        self._coming_in.append(place)
        self._n_without_blocks += 1
        return leads or not self._blocked

    def holds(self, place: i64) -> bool:
        """Return whether a request is in transfer, or waits for others that are."""
        moves = self._live.phase[place] in (MOVES, MIGRATES)
        if moves or self._orders:
            return moves or self.is_elsewhere(place)
        return place in self._coming_in.places()

    def arrives_at(self, place: i64) -> i64:
        """Return when a transfer in flight ends; NONE: it has, or has not begun."""
        for at_ps, _, other in self._in_transfer:
            if other == place:
                return at_ps
        return NONE

    def take_here(self, place: i64) -> bool:
        """Drop a request with all its keys and values here that does not decode yet; return whether it was one."""
        if place not in self._here.places():
            return False
        self._here.drop(place)
        return True

    def withdraw(self, place: i64) -> None:
        """Drop a request without blocks here."""
        self._coming_in.drop(place)
        if self._orders:
            self._elsewhere.pop(self._live.requests[place], None)
        self._n_without_blocks -= 1 - self._live.is_kept[place]

    def n_elsewhere(self) -> int:
        """Return how many requests in the queue have a prompt that another replica computes, or wait behind these."""
        return self._waiting.n - len(self._startable) if self._orders else 0

    def is_elsewhere(self, place: i64) -> bool:
        """Return whether a request in the queue has a prompt that another replica computes."""
        return self._orders and self._live.requests[place] in self._elsewhere

    def waits(self, place: i64) -> bool:
        """Let a request with a prompt that is computed here wait behind those of others; return whether it does."""
        if self._coming_in.n and not self._orders:
            self._coming_in.append(place)
            return True
        return False

    def let_decode(self, now_ps: i64) -> None:
        """Let requests decode that have all their keys and values."""
        running = self._running
        running.n_away -= self._here.n
        running.n_promised = running.n_away
        while self._here.n:
            self._decode(self._here.pop_left(), now_ps)

    def before_plan(self, now_ps: i64) -> None:
        """Let arrived requests decode, and give slots and blocks to others, unless some wait here."""
        running = self._running
        if self._here.n:
            self.let_decode(now_ps)
        self._blocked = BLOCKS if self._waiting.n or self._prompts.n_swapped else 0
        if self._coming_in.n:
            self._allocate(now_ps)
        self.n_before_queue = 0 if self._orders else self._coming_in.n
        running.n_promised = running.n_away

    def _decode(self, place: i64, now_ps: i64) -> None:
        live, running = self._live, self._running
        if live.phase[place] == MIGRATES:
            self._handover.recorder.resume(live.row[place], live.preempted_ps[place], now_ps, is_swapped=True)
            running.returned.append(place)
        live.phase[place] = DECODES
        self._contents.receive(place)
        live.join_step[place] = self._cohort.step
        running.admit(place)
        running.join(place, live.output_tokens[place] - live.emitted_tokens[place])
        self._prompts.resumed(place)

    def _allocate(self, now_ps: i64) -> None:
        """Give slots and blocks to requests in order, and fetch what is not here of their prompts."""
        live, coming_in, running, contents = self._live, self._coming_in, self._running, self._contents
        handover, pool, n_growing = self._handover, self._pool, self._cohort.blocks_of_next()
        while coming_in.n:
            place = coming_in.first()
            kv_tokens = live.sent_tokens(place)
            if self._orders:
                if not self.is_elsewhere(place):
                    return
            elif live.is_kept[place]:
                self._waiting.append(coming_in.pop_left())
                continue
            waits = (self._waiting.n > 0 and not self._orders) or self._prompts.n_swapped > 0
            if waits or running.n + running.n_away >= self._prompts.slots:
                self._blocked = BLOCKS if waits else SEATS
                return
            n_next: i64 = self._cohort.n_slots
            n_left = live.prompt_tokens[place] + live.most_tokens[place] - kv_tokens
            if n_left < n_next:
                n_next = n_left
            n_blocks = pool.blocks_in_step(kv_tokens, n_next) - contents.shared_blocks(place)
            if n_blocks > pool.free_blocks - n_growing:
                self._blocked = BLOCKS
                return
            coming_in.pop_left()
            if self._orders:
                self._prompts.planner.granted(place)
                del self._elsewhere[live.requests[place]]
            self._n_without_blocks -= 1
            running.n_away += 1
            found_tokens = contents.take_ahead(place)
            live.there_tokens[place], row, waited_ps = found_tokens, live.row[place], now_ps - live.joined_ps[place]
            if live.phase[place] == ASKS:
                handover.recorder.find_room(row, waited_ps, found_tokens, handover.notice_ps)
                handover.notify(place, int(now_ps) + handover.notice_ps)
                continue
            if live.phase[place] == MOVES:
                handover.recorder.find_room(row, waited_ps, found_tokens)
            sender = live.sender[place]
            self.expect(place, handover.arrival_ps(kv_tokens, found_tokens, sender, self._replica, now_ps))
        if self._orders:
            self._blocked = 0

    def expect(self, place: i64, at_ps: int) -> None:
        """Await the keys and values of a request, or the notice that none will come. Raises EndsTooLate."""
        self._n_transfers += 1
        heappush(self._in_transfer, (in_time(at_ps), self._n_transfers, place))
        if self._in_transfer[0][1] == self._n_transfers:
            self._handover.arrivals.set(self._replica, at_ps)

    def after_plan(self, step_run: StepRun | None) -> i64:
        """Cut the step run that begins at the next arrival; return what keeps out requests of other replicas."""
        if step_run is not None and step_run.n_steps > 1 and self._in_transfer:
            n_steps = step_run.steps_begun(self._in_transfer[0][0])
            if n_steps < step_run.n_steps:
                step_run.cut(n_steps)
        if not self._n_without_blocks:
            return 0
        if step_run is not None and self._blocked == BLOCKS:
            n_most = self._prompts.planner.steps_in_order(self._cohort.n_tokens)
            if n_most is not None and n_most < step_run.n_steps:
                step_run.cut(n_most)
        return self._blocked

    def arrived(self, now_ps: i64) -> i64:
        """Accept the next request with all its keys and values; return it, NONE if there is no other."""
        in_transfer = self._in_transfer
        if not in_transfer or in_transfer[0][0] > now_ps:
            self._handover.arrivals.set(self._replica, in_transfer[0][0] if in_transfer else NEVER)
            return NONE
        place: i64 = heappop(in_transfer)[2]
        if self._live.phase[place] == ENDED:
            return place
        if self._live.phase[place] == MOVES:
            self._handover.recorder.arrive(self._live.row[place], now_ps - self._live.joined_ps[place])
        self._here.append(place)
        return place

    def places(self) -> list[int]:
        """Return the requests that others have prefilled and that have not begun to decode."""
        live = self._live
        fetched = [place for _, _, place in self._in_transfer if live.phase[place] != ENDED]
        granted = [place for _, place in self._handover.notices if live.receiver[place] == self._replica]
        coming_in = [] if self._orders else self._coming_in.places()
        return [*self._here.places(), *fetched, *granted, *coming_in]

    # -- this replica fails, or one that computes prompts --------------------------------------------------------------

    def awaits(self, place: i64) -> bool:
        """Return whether a request of another replica has no blocks here yet."""
        return not self._live.is_kept[place] and place in self._coming_in.places()

    def coming_from(self, sender: i64) -> list[int]:
        """Return the requests of a prefill replica that have no blocks here yet."""
        live = self._live
        return [place for place in self._handed_over() if live.sender[place] == sender]

    def _handed_over(self) -> list[int]:
        """Return the requests of others without blocks here, in the order in which they came."""
        if self._orders:
            return [int(self._live.place_of(request)) for request in self._elsewhere]
        return [place for place in self._coming_in.places() if not self._live.is_kept[place]]

    def fetched_from(self, sender: i64) -> list[int]:
        """Return the requests of a prefill replica in transfer, which ends without them."""
        live = self._live
        fetched = [one for one in self._in_transfer if live.sender[one[2]] == sender and live.phase[one[2]] != ENDED]
        self._in_transfer = [one for one in self._in_transfer if one not in fetched]
        heapify(self._in_transfer)
        self._handover.arrivals.set(self._replica, self._in_transfer[0][0] if self._in_transfer else NEVER)
        return [place for _, _, place in fetched]

    def lose_all(self) -> tuple[list[int], list[int]]:
        """Lose all requests that do not decode yet, as this replica fails; return them, and those of which prefill
        replicas hold the blocks."""
        live, handover = self._live, self._handover
        fetched = [place for _, _, place in self._in_transfer if live.phase[place] != ENDED]
        for _, _, place in self._in_transfer:
            if live.phase[place] == ENDED:
                live.remove(place)
        coming = self._handed_over() if self._orders else self._coming_in.places()
        held = [*(place for place in coming if not live.is_kept[place]), *fetched]
        here = self._here.places()
        for place in coming:
            self.withdraw(place)
        for place in here:
            self._here.drop(place)
        self._in_transfer.clear()
        handover.arrivals.set(self._replica, NEVER)
        return [*here, *fetched, *coming], held


def side_of(
    replica: Replica, role: str, prompts: PromptColumns, handover: Handover | None, loads: Loads
) -> HandoverSide:
    """Return the side of a replica with a role; requests are counted in loads, but for those decoded for others."""
    if handover is None or (role == "both" and handover.has_roles):
        return HandoverSide(loads)
    if role == "prefill":
        return Sending(replica, prompts, handover, loads) if handover.is_pushed else Sends(prompts, handover, loads)
    side = handover.fetching[replica.id] = Fetches(replica, prompts, handover)
    return side
