"""HandoverSide: what a replica does with requests of others; Handover: prompts on their way between replicas."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from mypy_extensions import i64

from simserve.columns.entrance import Loads, is_own
from simserve.columns.lines import Line
from simserve.columns.live import ENDED, LOST, MOVES, Live
from simserve.columns.prompts import PromptColumns
from simserve.engine.cluster import Cluster
from simserve.engine.handoff import Handoff
from simserve.engine.step_run import StepRun
from simserve.integers import NEVER, NONE, Tournament
from simserve.state.request import Request
from simserve.units import EndsTooLate


class HandoverSide:
    """A side of a hand-over; of this class, a replica serves requests from prompt to answer."""

    def __init__(self, loads: Loads) -> None:
        self.loads = loads
        """Where its router counts its requests."""
        self.n_before_queue: i64 = 0
        """Requests of other replicas that had no blocks here at the last plan."""
        self.queues: tuple[Line, ...] = ()
        """Requests of other replicas without a slot or blocks here."""
        self.hands_over = self.asks_first = self.streams = False
        """Other replicas decode its requests, but for those that it keeps; they have blocks for a prompt before it is
        computed; and chunks are sent as they are computed."""

    def let_decode(self, now_ps: i64) -> None:
        """Let requests decode that have all their keys and values: the first that happens at a step boundary."""

    def before_plan(self, now_ps: i64) -> None:
        """Change what is there before prompts are chosen."""

    def after_plan(self, step_run: StepRun | None) -> i64:
        """Cut the step run that begins, if any; return what keeps out requests of other replicas, as recorded."""
        return 0

    def takes(self, place: i64, now_ps: i64) -> bool:
        """Take a request with a computed prompt, which holds its blocks; return whether another replica decodes it."""
        return False

    def ended(self, place: i64, now_ps: i64) -> bool:
        """Note that a request has its last token; return whether another replica has blocks for it still."""
        return False

    def passes_stages(self, prompts: PromptColumns, ends_ps: tuple[int, ...], stage_ps: int) -> None:
        """Note when a step that has begun leaves the stages of a pipeline, each after stage_ps."""

    def send(self, prompts: PromptColumns, start_ps: i64, now_ps: i64) -> None:
        """Send the chunks of a step that is over and not committed yet."""

    def come(self, place: i64) -> bool:
        """Accept a request that another replica prefills; return whether it may get blocks at the next plan."""
        raise NotImplementedError

    def expect(self, place: i64, at_ps: int) -> None:
        """Await the keys and values of a request, or the notice that none will come. Raises EndsTooLate."""
        raise NotImplementedError

    def arrived(self, now_ps: i64) -> i64:
        """Accept the next request with all its keys and values; return it, NONE if there is no other."""
        raise NotImplementedError

    def holds(self, place: i64) -> bool:
        """Return whether a request is in transfer, or waits for others that are."""
        return False

    def arrives_at(self, place: i64) -> i64:
        """Return when a transfer in flight ends; NONE: it has, or has not begun."""
        raise NotImplementedError

    def take_here(self, place: i64) -> bool:
        """Drop a request with all its keys and values here that does not decode yet; return whether it was one."""
        raise NotImplementedError

    def withdraw(self, place: i64) -> None:
        """Drop a request without blocks here."""
        raise NotImplementedError

    def awaits(self, place: i64) -> bool:
        """Return whether a request of another replica has no blocks here yet."""
        return False

    def coming_from(self, sender: i64) -> list[int]:
        """Return the requests of a prefill replica that have no blocks here yet."""
        return []

    def fetched_from(self, sender: i64) -> list[int]:
        """Return the requests of a prefill replica in transfer, which ends without them."""
        return []

    def lose_all(self) -> tuple[list[int], list[int]]:
        """Lose all requests that do not decode yet, as this replica fails; return them, and those of which prefill
        replicas hold the blocks."""
        return [], []

    def n_elsewhere(self) -> int:
        """Return how many requests in the queue have a prompt that another replica computes, or wait behind these."""
        return 0

    def waits(self, place: i64) -> bool:
        """Let a request with a prompt that is computed here wait behind those of others; return whether it does."""
        return False

    def places(self) -> list[int]:
        """Return the requests that others have prefilled and that have not begun to decode."""
        return []


class Handover:
    """Prompts of other replicas and the links that carry their keys and values: decode replicas fetch these, or give
    blocks before a prompt is computed and have them pushed."""

    def __init__(self, cluster: Cluster, handoff: Handoff, live: Live, entering: Loads) -> None:
        """entering: where requests are counted that enter the cluster, and those that go on there."""
        self.recorder, self._live, self.has_roles = cluster.recorder, live, handoff.has_roles
        fetching = [rank.id for each in cluster.members if each.setup.role == "decode" for rank in each.ranks]
        joins_shortest = handoff.router.joins_shortest and is_own(handoff.router)
        self.loads = Loads(cluster, fetching, joins_shortest=joins_shortest) if self.has_roles else entering
        """Where the router of decode replicas counts their requests."""
        self.is_asked = self.loads.is_asked or (cluster.splits and cluster.refresher is not None)
        """The router is asked about a request: its delayed views, which a splitter looks at, may count its answers."""
        self._clock = cluster.clock
        self.fetching: dict[int, HandoverSide] = {}
        """Sides of decode replicas, by id."""
        self.done: list[int] = []
        """Computed prompts that are not routed yet."""
        self.held: list[int] = []
        """Requests that wait for a decode replica to be ready."""
        self.arrivals = Tournament(len(cluster.replicas))
        """When the next keys and values arrive at each replica."""
        self._handoff, self._replicas = handoff, cluster.replicas
        self.is_pushed, self.streams, self.notice_ps = handoff.is_pushed, handoff.streams, handoff.notice_ps
        self.pushes: dict[int, None] = {}
        """Requests that are to be pushed, in the order in which their decode replicas were picked."""
        self.notices: deque[tuple[int, int]] = deque()
        """(instant, request) of notices of allocated blocks, in flight."""
        self.notice_at_ps: i64 = NEVER
        """Instant of the first of them."""
        self.is_staged = handoff.streams and any(each.stepping.n_stages > 1 for each in cluster.replicas)
        """Chunks are sent as they leave the stages of pipelines."""
        self._staged: list[tuple[int, int, int, int, int, float, int, int]] = []
        """A heap of (instant at which it leaves, sender, number, place, life, tokens, stage, its time there)."""
        self._n_staged = 0
        self.stage_at_ps: i64 = NEVER
        """Instant of the first of them."""

    def notify(self, place: int, at_ps: int) -> None:
        """Send a notice of blocks for a request. Raises EndsTooLate."""
        self.notices.append((in_time(at_ps), place))
        self.notice_at_ps = self.notices[0][0]

    def noticed(self) -> i64:
        """Return the request of the first notice, which has come."""
        _, place = self.notices.popleft()
        self.notice_at_ps = self.notices[0][0] if self.notices else NEVER
        return place

    def forget_notice(self, place: int) -> bool:
        """Forget the notice for a request; return whether one was in flight."""
        n_before = len(self.notices)
        self.notices = deque(notice for notice in self.notices if notice[1] != place)
        self.notice_at_ps = self.notices[0][0] if self.notices else NEVER
        return len(self.notices) < n_before

    def pick(self, request: Request | None, now_ps: i64) -> i64:
        """Return the decode replica of a request; NONE: none is ready."""
        if not self.is_asked or request is None:
            return self.loads.shortest()
        self._clock._now = now_ps
        receiver = self._handoff.pick(request)
        return NONE if receiver is None else receiver.id

    def take(self) -> list[int]:
        """Return the computed prompts to route, which are routed from now on."""
        done, self.done = self.done, []
        return done

    def take_held(self) -> list[int]:
        """Return the requests that wait for a decode replica to be ready, which are routed once more."""
        held, self.held = self.held, []
        return held

    def forget(self, place: int) -> bool:
        """Drop a request that waits for a decode replica to be ready; return whether it did."""
        if place not in self.held:
            return False
        self.held.remove(place)
        return True

    def lose_from(self, sender: int) -> list[int]:
        """Lose the requests of a prefill replica that have no decode replica yet; return them."""
        live = self._live
        lost = [place for place in (*self.done, *self.held) if live.replica[place] == sender]
        self.done = [place for place in self.done if place not in lost]
        self.held = [place for place in self.held if place not in lost]
        return lost

    def arrival_ps(self, prompt_tokens: int, first: int, sender: int, receiver: int, now_ps: int) -> int:
        """Return when a prompt's tokens from the first on, that are sent now, have arrived. Raises EndsTooLate."""
        one, other = self._replicas[sender], self._replicas[receiver]
        return in_time(self._handoff.arrival_ps(prompt_tokens, first, one, other, now_ps))

    def stage(self, place: int, n_tokens: int, ends_ps: tuple[int, ...], stage_ps: int) -> None:
        """Note when the next tokens of a prompt leave the stages of their replica, each after stage_ps."""
        live, handoff = self._live, self._handoff
        first, life, sender = live.there_tokens[place], live.life[place], live.sender[place]
        kv_tokens = handoff.chunk_tokens(live.prompt_tokens[place], first, first + n_tokens)
        live.there_tokens[place] += n_tokens
        for stage, end_ps in enumerate(ends_ps):
            self._n_staged += 1
            part = (in_time(end_ps), int(sender), self._n_staged, place, int(life), kv_tokens, stage, stage_ps)
            heappush(self._staged, part)
        self.stage_at_ps = self._staged[0][0]

    def send_staged(self, now_ps: int, upto: int) -> None:
        """Push what has left its stage by now; at this very instant, only from replicas up to one."""
        live, handoff, staged = self._live, self._handoff, self._staged
        while staged and staged[0][0] <= now_ps and not (staged[0][0] == now_ps and staged[0][1] > upto):
            end_ps, sender, _, place, life, kv_tokens, stage, stage_ps = heappop(staged)
            if live.life[place] != life or live.phase[place] in (MOVES, ENDED, LOST):
                continue  # it has ended or was lost meanwhile, and its row may be here anew
            one, other = self._replicas[sender], self._replicas[live.receiver[place]]
            at_ps = in_time(handoff.staged_ps(kv_tokens, stage, one, other, (end_ps - stage_ps, end_ps)))
            live.there_ps[place] = max(int(live.there_ps[place]), at_ps)
        self.stage_at_ps = staged[0][0] if staged else NEVER

    def streamed_ps(self, place: int, n_tokens: int, step: tuple[int, int]) -> int:
        """Return when the next tokens of a prompt, computed in a step from start to end, have arrived. Raises
        EndsTooLate."""
        live, handoff = self._live, self._handoff
        sender, receiver, first = live.sender[place], live.receiver[place], live.there_tokens[place]
        kv_tokens = handoff.chunk_tokens(live.prompt_tokens[place], first, first + n_tokens)
        return in_time(handoff.staged_ps(kv_tokens, 0, self._replicas[sender], self._replicas[receiver], step))


def in_time(at_ps: int) -> int:
    """Return an instant that 64 bits hold. Raises EndsTooLate."""
    if at_ps >= NEVER:
        raise EndsTooLate
    return at_ps
