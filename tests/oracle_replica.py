"""Replicas of the oracle, stepped one step at a time, with lists for everything."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from simserve.cost.model import StepShape, shape_ps
from simserve.cost.speculative import ModelDrafting, SpeculativeCost
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import LinkSpec
from simserve.engine.replica_setup import ReplicaSetup
from simserve.schedulers.base import StepPlan
from simserve.state.request import Phase, Request
from tests.oracle_cache import Key, OracleCache
from tests.oracle_counters import OracleCounters, came
from tests.oracle_host import OracleHost, places
from tests.oracle_layers import OracleLayers, attended, first_attended, tokens_on_the_link
from tests.oracle_view import OracleView


@dataclass
class Life:
    """State of one request in the oracle."""

    request: Request
    output_tokens: int
    replica: int = -1
    prefill_replica: int = -1
    transfer_ps: int = 0
    transfer_wait_ps: int = 0
    is_kept: bool = False
    """Its prefill replica decodes it."""
    goes_to: "OracleReplica | None" = None
    """Its decode replica, if known before its prompt is computed."""
    sent_tokens: int = 0
    there_ps: int = 0
    stored: int = 0
    reserved: int = 0
    padding: int = 0
    finished: bool = False
    token_ps: list[int] = field(default_factory=list)
    scheduled_ps: int = -1
    finish_ps: int = -1
    preempted_at_ps: int = -1
    preempted_ps: int = 0
    n_preemptions: int = 0
    n_recomputed_tokens: int = 0
    cached_tokens: int = 0
    host_cached_tokens: int = 0
    disk_cached_tokens: int = 0
    n_swaps: int = 0
    n_held_ids: int = 0
    keys: list[Key] = field(default_factory=list)
    """Blocks with an id that it holds."""
    found_keys: list[Key] = field(default_factory=list)
    """Those of its prompt that its decode replica holds for it until it decodes there."""
    decode_cached_tokens: int = 0
    found_tokens: int = 0
    """Tokens that the replica which goes on with it has found."""
    migrates: bool = False
    """Its replica left, and another one goes on with its keys and values."""
    first_places: tuple[int, int] | None = None
    """Where it decoded and where its prompt was computed before it first went on elsewhere."""
    n_computed: int = 0
    """Its tokens computed by steps, without those after its end in a padded batch."""
    first_ps: int | None = None
    """Instant of its client's first token; -1: timed out without one; None: not yet."""
    slots: int = 0
    """Tokens it had blocks for in its last step, with speculation."""
    n_decoded: int = 0
    """Number of its decode steps."""
    before: "Life | None" = None
    """What it was on the replica that was lost, from which it goes on here with a longer prompt."""
    moves: list[tuple[int, str]] = field(default_factory=list)
    """Events: scheduled, joined the decoding requests, left, back, swapped_back, ended."""

    @property
    def sent(self) -> int:
        """Tokens that another replica has when it goes on with it."""
        return max(self.stored, self.request.prompt_tokens)

    @property
    def held(self) -> int:
        """Tokens that its blocks cover."""
        return max(self.stored, self.slots)


@dataclass(frozen=True)
class Step:
    """One step."""

    start_ps: int
    end_ps: int
    prefill_tokens: int
    decode_requests: int
    kv_tokens: int
    used_blocks: int
    queue_len: int
    accepted_tokens: int = 0
    alone_ps: int = 0
    """Time of its decoding requests alone."""
    copied_ps: int = 0
    blocked_by: str | None = None
    computed: tuple[int, ...] = ()
    """Rows of the requests in prefill."""
    decoded: tuple[int, ...] = ()


class OracleReplica:
    """A replica with lists for everything."""

    def __init__(self, setup: ReplicaSetup, lives: dict[Request, Life], on_done: Callable[[int, int], None]) -> None:
        self.setup, self.lives, self.on_done = setup, lives, on_done
        self.id = -1
        self.waiting: deque[Request] = deque()
        self.coming: list[list[Any]] = []
        self.n_unseen = 0
        """Decode steps since the scheduler last looked for arrivals."""
        self.prefilling: list[Request] = []
        self.decoding: list[Request] = []
        self.running: dict[Request, None] = {}
        self.step: tuple[StepPlan, list[Request], int, StepShape, int, int] | None = None
        self.step_end_ps: int | None = None
        self.wake_ps: int | None = None
        self.must_plan = self.is_frozen = False
        self.frozen_ps: int | None = None
        """When its last step ends, as it is frozen."""
        self.steps: list[Step] = []
        self.alone_ps = self.copied_ps = self.host_ps = self.alone_host_ps = 0
        self.kept_out_by: str | None = None
        """Reason of the step in flight: see Step."""
        self.stalls: list[tuple[int, str]] = []
        """Instants and reasons of stalls: no step although requests wait."""
        self.n_outstanding = 0
        self.total_blocks, self.block_size = setup.n_blocks, setup.block_size
        self.layers = OracleLayers(setup.layers)
        self.block_tokens = setup.block_size if setup.caches_prefixes else None
        self.stages_free_ps: list[int] = []
        """When each stage of its pipeline is free; one list for all lanes."""
        self.group: list[OracleReplica] = [self]
        """Ranks in lockstep."""
        self.counts = {"waited": 0, "batching": 0}
        """Steps for which prompts were held back in a row; one dictionary for all ranks and lanes."""
        self.is_held = False
        """Its prompts are held back at this boundary."""
        self.away: list[Request] = []
        """Requests prefilled here, with blocks not fetched yet."""
        self.leaving: list[Request] = []
        """Requests that go on elsewhere with the keys and values that are here still."""
        self.adopts = setup.role == "decode"
        """It goes on with requests of other replicas."""
        self.handed_over: list[Request] = []
        """Those of `away` that are not routed yet."""
        self.without_blocks: list[Request] = []
        """Requests to push that have no blocks on the decode side yet."""
        self.doomed: list[Request] = []
        """Lost requests with a part of their prompts in the step in flight."""
        self.coming_in: list[tuple[Request, OracleReplica | None]] = []
        """Requests and their prefill replicas; None: this one."""
        self.kept: list[Request] = []
        """Requests with a slot and blocks for their prompts that do not decode yet."""
        self.words: list[tuple[int, Request, OracleReplica]] = []
        """(instant, request, recipient): notices of allocated blocks."""
        self.in_transfer: list[tuple[int, Request, OracleReplica]] = []
        self.here: list[Request] = []
        """Requests with all their KV that decode from the next step on."""
        self.ports = [[0] for _ in range(setup.n_stages if setup.role == "prefill" else 1)]
        """When the port of each stage is free; the lanes of a rank share them, or all replicas have one."""
        self.carrier: Any = None
        """What its ports carry over time."""
        self.slow: Sequence[tuple[int, int, float]] = ()
        """From when until when it has which share of its speed."""
        self.stage_sends: list[tuple[int, int, Request, float, int]] = []
        """(end, start, request, tokens, stage) of chunks whose layers are still to be computed and sent."""
        keeps = setup.keeps_contents and not setup.scheduler.reserves
        self.cache = OracleCache() if keeps or setup.caches_prefixes else None
        self.numbers = count(-1, -1)
        self.chains: dict[Request, list[int]] = {}
        """Numbers of the blocks of each request that may get full: names of the load, then those no other block has."""
        self.n_own: dict[Request, int] = {}
        """How many of these are used where layers keep different tokens: beyond the load's, those of whole blocks that
        a preemption frees."""
        self.host = OracleHost(setup.host_tier) if setup.has_tier and setup.host_tier else None
        self.offloads = self.host is not None and self.host.spec.offloads and self.cache is not None

        slots = setup.scheduler.max_running
        self.n_slots = 10**9 if slots is None else slots
        self.policy = getattr(setup.scheduler, "policy", "fcfs")
        self.senders: dict[Request, OracleReplica] = {}
        """Prefill replicas of handed-over requests among those that wait in the policy's order."""
        self.vtc = OracleCounters(setup.scheduler) if self.policy == "vtc" else None

    @property
    def n_waiting(self) -> int:
        return len(self.waiting) + len(self.coming) + len(self.coming_in)

    def in_order(self) -> Collection[Request]:
        """Return the waiting requests in the policy's order."""
        if self.vtc is not None:
            return self.vtc.in_order(lambda request: not self.lives[request].n_preemptions)
        if self.policy == "priority":
            return sorted(self.waiting, key=lambda request: (request.priority, came(request)))
        return self.waiting

    def startable(self) -> list[Request]:
        """Return the waiting requests before the first that another replica prefills, in the policy's order."""
        result: list[Request] = []
        for request in self.in_order():
            if request in self.senders:
                break
            result.append(request)
        return result

    def blocks(self, n_tokens: int) -> int:
        """Return the blocks of a request between steps, with n_tokens computed."""
        return self.layers.blocks(n_tokens, n_tokens)

    def blocks_of(self, request: Request, n_tokens: int) -> int:
        """Return the blocks with which it has room for n_tokens in a step."""
        in_prefill = request.phase is Phase.PREFILL or request in self.doomed
        computed = request.prefilled_tokens if in_prefill else self.lives[request].stored
        return self.layers.blocks(self.lives[request].sent if request in self.kept else computed, n_tokens)

    def blocks_for(self, n_tokens: int) -> int:
        return self.layers.most(n_tokens)

    def holders(self) -> list[Request]:
        return [*self.running, *self.away, *self.kept, *self.doomed]

    def held(self, request: Request) -> int:
        """Return the tokens it has blocks for here."""
        return self.lives[request].sent if request in self.kept else self.lives[request].held

    def held_keys(self, request: Request) -> list[Key]:
        """Return the blocks with an id that it holds here."""
        life = self.lives[request]
        return life.found_keys if request in self.kept else life.keys

    def used_blocks(self) -> int:
        if self.cache is None:
            return sum(self.blocks_of(r, self.held(r)) for r in self.holders())
        return sum(self.own_blocks(r) for r in self.holders()) + self.cache.n_held() + self.n_reading()

    def own_blocks(self, request: Request) -> int:
        """Return its blocks not counted as blocks of an id."""
        return self.blocks_of(request, self.held(request)) - len(self.held_keys(request))

    def named(self, request: Request) -> list[int]:
        """Return its blocks with a name in the load."""
        return list(request.chains[self.block_size]) if self.setup.caches_prefixes else []

    def chain(self, request: Request) -> list[int]:
        """Return all blocks that it may fill, by number; none where contents are not kept."""
        if request not in self.chains and self.cache is not None:
            named, n_most = self.named(request), (request.prompt_tokens + request.max_tokens) // self.block_size
            own = range(len(named), n_most)
            self.chains[request] = named + [next(self.numbers) for _ in own]
        chain = self.chains.get(request, [])
        return (
            chain if self.setup.layers.is_plain else chain[: max(len(self.named(request)), self.n_own.get(request, 0))]
        )

    def found_tokens(self, request: Request) -> int:
        most = (request.prompt_tokens - 1) // self.block_size if self.cache else 0
        is_shared = self.host is not None and self.host.store is not None  # what all have says nothing about this one
        return self.hits(self.chain(request), most, on_gpu=is_shared) * self.block_size

    def keys(self, chain: list[int], n_ids: int, computed: int) -> list[Key]:
        """Return the blocks of the first ids that a request with `computed` tokens keeps."""
        kinds = self.layers.kinds
        firsts = [first_attended(group, computed) for group, _ in kinds]
        return [
            (kind, number, chain[number])
            for number in range(n_ids)
            for kind, first in enumerate(firsts)
            if self.layers.ends(kinds[kind], number) and (number + 1) * self.block_size > first
        ]

    def hits(self, chain: list[int], most: int, *, on_gpu: bool = False) -> int:
        """Return hits on the GPU, and on host and disk where prefixes are kept there."""
        if self.cache is None:
            return 0
        host = self.host if self.offloads and not on_gpu else None
        kinds = self.layers.kinds
        whole = [kind for kind, (group, _) in enumerate(kinds) if group is None]
        n = 0
        while n < min(most, len(chain)) and all(
            self.is_here((kind, n, chain[n]), host) for kind in whole if self.layers.ends(kinds[kind], n)
        ):
            n += 1
        while any(n % n_ids for _, n_ids in kinds) or not all(
            self.is_here(key, host) for key in self.keys(chain, n, n * self.block_size)
        ):
            n -= 1
        return n

    def is_here(self, key: Key, host: OracleHost | None) -> bool:
        """Tell whether a block is on the GPU or in host memory."""
        return (self.cache is not None and key in self.cache.copies) or (host is not None and host.has(key))

    def look_up(self) -> None:
        for request in [each for each in self.waiting if each not in self.senders] if self.cache else ():
            most = (request.prompt_tokens + request.emitted_tokens - 1) // self.block_size
            request.prefilled_tokens = self.hits(self.chain(request), most) * self.block_size
            request.n_idle = self.idle_blocks(request)  # type: ignore[attr-defined]

    def idle_blocks(self, request: Request) -> int:
        """Return the free blocks that the cache hit of a waiting request takes: those that no request holds."""
        if self.cache is None:
            return 0
        found = request.prefilled_tokens
        hit = self.keys(self.chain(request), found // self.block_size, found)
        return sum(not self.cache.is_held(key) for key in hit)

    def missing_block(self, request: Request) -> int | None:
        """Return the first whole block of a prefill that is neither on the GPU nor beside it."""
        n_blocks = (request.prompt_tokens + request.emitted_tokens) // self.block_size
        whole = self.chain(request)[:n_blocks] if self.cache else []
        n_hit = self.hits(whole, len(whole))
        return whole[n_hit] if n_hit < len(whole) else None

    def unused(self, request: Request) -> int:
        """Return the blocks reserved for a request that hold no token yet."""
        return max(self.lives[request].reserved - self.blocks_of(request, self.held(request)), 0)

    def note_computed(self, request: Request, n_tokens: int, kept: int = 0) -> None:
        """Let others find its whole blocks; in windows only what it keeps with `kept` tokens computed."""
        life, chain = self.lives[request], self.chain(request)
        n_before = life.n_held_ids
        if self.cache:
            life.n_held_ids = max(n_before, min(n_tokens // self.block_size, len(chain)))
        for key in self.keys(chain, life.n_held_ids, kept):
            if self.cache and key[1] >= n_before:
                self.cache.add(request, key)
                life.keys.append(key)
        n_named = len(self.named(request))
        if self.offloads and self.host and min(life.n_held_ids, n_named) > n_before:
            held = [key for key in life.keys if key[1] < n_named]
            self.host.use(sorted(held, key=lambda key: (key[1], key[0])), [])

    def let_go(self, request: Request, findable: int | None = None) -> None:
        """Free its blocks; the contents of its findable tokens, by default of all, stay until they are taken."""
        life = self.lives[request]
        if self.cache:
            self.note_computed(request, life.stored if findable is None else findable, life.stored)
            self.cache.let_go(request, life.keys, self.own_blocks(request))
        life.n_held_ids, life.slots, life.keys = 0, 0, []

    def left_blocks(self, before: int, after: int) -> list[tuple[int, int]]:
        """Return what windows leave as a request's tokens computed grow: kinds and numbers of blocks."""
        left = [(kind, self.layers.left(each, after)) for kind, each in enumerate(self.layers.kinds)]
        return [(kind, n) for kind, now in left for n in now - self.layers.left(self.layers.kinds[kind], before)]

    def leave_windows(self, tokens: list[tuple[Request, int, int]]) -> None:
        """Leave blocks that windows no longer keep, to be evicted after all that are idle now: first those of requests
        that leave none with an id."""
        if not self.cache:
            return
        left = [(request, after, self.left_blocks(before, after)) for request, before, after in tokens]
        named = [any(n < len(self.chain(request)) for _, n in blocks) for request, _, blocks in left]
        n_plain = sum(len(blocks) for (_, _, blocks), is_named in zip(left, named, strict=True) if not is_named)
        self.cache.idle += [[None, n_plain]] if n_plain else []
        for request, after, blocks in [each for each, is_named in zip(left, named, strict=True) if is_named]:
            life = self.lives[request]
            self.note_computed(request, after)
            keys = [key for key in life.keys if key[:2] in blocks]
            self.cache.let_go(request, keys, len(blocks) - len(keys))
            life.keys = [key for key in life.keys if key not in keys]

    def n_doubled(self) -> int:
        """Return the holders of blocks in windows that share one with another, where each pays for all that it has."""
        kinds = self.layers.kinds if self.cache and self.setup.scheduler.reserves else []
        blocks = self.cache.copies.items() if self.cache else ()
        return sum(
            sum(map(len, users)) - len(users) for key, users in blocks if kinds and kinds[key[0]][0] and any(users)
        )

    def shrink_cache(self) -> None:
        if self.cache:
            self.cache.shrink(self.total_blocks - self.used_blocks())

    def held_blocks(self) -> int:
        in_step = set(self.step[1]) if self.step else set()
        if self.cache and self.setup.scheduler.reserves:
            return self.total_blocks - self.free_blocks()
        if self.cache:
            return self.used_blocks() + sum(
                self.blocks_of(r, self.room(r)) - self.blocks_of(r, self.lives[r].held) for r in in_step
            )
        return sum(
            max(self.lives[r].reserved, self.blocks_of(r, self.room(r) if r in in_step else self.held(r)))
            for r in self.holders()
        )

    def free_blocks(self) -> int:
        if self.cache:
            n_unused = sum(self.unused(r) for r in self.holders())
            return self.total_blocks - self.used_blocks() - n_unused - self.n_doubled()
        holders = self.holders()
        return self.total_blocks - sum(max(self.lives[r].reserved, self.blocks_of(r, self.held(r))) for r in holders)

    def growth(self) -> int:
        if self.setup.scheduler.reserves:
            return 0
        return sum(self.blocks_of(r, self.room(r)) - self.blocks_of(r, self.lives[r].held) for r in self.decoding)

    def room(self, request: Request) -> int:
        """Return the tokens it needs blocks for in its next step."""
        stored = self.lives[request].stored
        if self.setup.speculation is None:
            return stored + 1
        return min(stored + self.setup.speculation.n_slots, request.prompt_tokens + request.max_tokens)

    def tokens_of(self, life: Life) -> int:
        """Return the tokens of its next step: proposals up to the first rejection, and one of the target's own."""
        if self.setup.speculation is None:
            return 1
        acceptance = self.setup.speculation.acceptance
        drawn, reached, n_accepted = draw(acceptance.seed, life.request.row, life.n_decoded), 1.0, 0
        for rate in acceptance.rates:
            reached *= rate
            if drawn >= reached:
                break
            n_accepted += 1
        return min(1 + n_accepted, life.output_tokens - len(life.token_ps))

    def arrive(self, request: Request) -> None:
        """Show an arrival to the scheduler, a step later where steps are planned ahead."""
        self.n_outstanding += 1
        if self.coming_in:
            self.coming_in.append((request, None))
        elif self.setup.async_scheduling and (self.step or self.running):
            self.coming.append([request, 2 if self.step else 1])
        elif self.setup.scheduler.recv_interval > 1 and (self.step or (self.running and self.n_unseen)):
            self.coming.append([request, 1 if self.step else 0])
        else:
            self.queue(request)
        self.must_plan = self.must_plan or self.step is None

    def queue(self, request: Request) -> None:
        self.waiting.append(request)
        if self.vtc is not None:
            self.vtc.arrive(request)

    # -- commit

    def commit(self, now_ps: int, how: Disaggregation | None = None) -> None:
        assert self.step is not None
        plan, decoded, start_ps, shape, used, queue_len = self.step
        n_each = {request: self.tokens_of(self.lives[request]) for request in decoded}
        counts = (shape.prefill_tokens, shape.decode_requests, shape.kv_tokens, used, queue_len)
        rows = [tuple(r.row for r in chosen) for chosen in ([r for r, _ in plan.prefill], decoded)]
        times = (self.alone_ps, self.copied_ps, self.kept_out_by)
        self.steps.append(Step(start_ps, now_ps, *counts, sum(n - 1 for n in n_each.values()), *times, *rows))
        self.step = self.step_end_ps = None
        self.must_plan = True
        scheduler = self.setup.scheduler
        scheduler.on_commit(1 if decoded else 0, bool(plan.prefill), plan.blocked_by)
        for request, n_tokens in n_each.items():
            if n_tokens > 1:
                scheduler.on_accept(request, n_tokens - 1)
        for newcomer in self.coming:
            newcomer[1] -= 1
        if self.cache:
            grown = sum(self.blocks_of(r, self.room(r)) - self.blocks_of(r, self.lives[r].held) for r in decoded)
            self.cache.shrink(self.total_blocks - self.used_blocks() - grown)
        before = [self.lives[request].stored for request in decoded]
        for request in decoded:
            life = self.lives[request]
            life.slots = self.room(request) if self.setup.speculation else 0
            life.stored += n_each[request]
            life.n_decoded += 1
            life.n_computed += 0 if life.finished else n_each[request]
            for _ in range(0 if life.finished else n_each[request]):
                self.token(request, now_ps)
        self.leave_windows([(r, n, self.lives[r].stored) for r, n in zip(decoded, before, strict=True)])
        for request in [r for r in decoded if len(self.lives[r].token_ps) == self.lives[r].output_tokens]:
            if not self.lives[request].finished:
                self.end(request, now_ps)
        for request, n_tokens in plan.prefill:
            if request in self.doomed:
                request.prefilled_tokens += n_tokens
                self.lives[request].n_computed += n_tokens
                self.leave_windows([(request, request.prefilled_tokens - n_tokens, request.prefilled_tokens)])
                self.let_go(request)
                self.doomed.remove(request)
                continue
            if (
                how
                and how.is_pushed
                and how.link.n_layers
                and self.lives[request].goes_to
                and self.setup.role == "prefill"
                and not self.stages_free_ps
            ):
                n_new = self.not_sent(request, n_tokens, how.link)
                if n_new is not None:
                    self.send_layers(request, n_new, how.link, (start_ps, now_ps), 0)
            request.prefilled_tokens += n_tokens
            self.lives[request].n_computed += n_tokens
            left = request.prefill_left_tokens
            self.note_computed(request, request.prefilled_tokens)
            self.leave_windows([(request, request.prefilled_tokens - n_tokens, request.prefilled_tokens)])
            if left <= 0:
                self.lives[request].padding = -left
                request.prefilled_tokens += left
                self.prefilling.remove(request)
                self.decoding.append(request)
                request.phase = Phase.DECODE
                self.token(request, now_ps)
                self.lives[request].moves.append((now_ps, "joined"))
                if (
                    self.setup.role == "prefill"
                    and self.lives[request].output_tokens > 1
                    and not self.lives[request].is_kept
                ):
                    self.send_away(request)
                elif len(self.lives[request].token_ps) == self.lives[request].output_tokens:
                    self.end(request, now_ps)
                    receiver = self.lives[request].goes_to
                    if receiver is not None and how is not None and self.setup.role == "prefill":
                        at_ps = max(now_ps + max(1, how.link.latency_ps), self.lives[request].there_ps)
                        receiver.expect(at_ps, request, self)
                else:
                    scheduler.on_join(request)
        all_finished = all(self.lives[r].finished for r in self.running)
        if self.setup.scheduler.runs_to_completion and self.running and all_finished:
            self.end_batch(now_ps)
        self.n_unseen += 1
        if plan.prefill or self.n_unseen == self.setup.scheduler.recv_interval:
            self.n_unseen = 0
        while self.coming and self.coming[0][1] <= 0 and not self.n_unseen:
            self.queue(self.coming.pop(0)[0])
        if self.host:
            self.host.copy(now_ps)

    def send_away(self, request: Request) -> None:
        self.setup.scheduler.on_leave(request)
        self.decoding.remove(request)
        del self.running[request]
        request.phase = Phase.TRANSFER
        self.n_outstanding -= 1
        self.away.append(request)
        self.handed_over.append(request)

    def not_sent(self, request: Request, n_tokens: int, link: LinkSpec) -> float | None:
        """Return what a chunk adds to the tokens sent, if anything, which counts them as sent."""
        life = self.lives[request]
        n_before = life.sent_tokens
        life.sent_tokens = max(n_before, request.prefilled_tokens + n_tokens)
        if life.sent_tokens == n_before:
            return None
        return tokens_on_the_link(link.sizes, n_before, life.sent_tokens, request.prompt_tokens)

    def send_layers(self, request: Request, n_tokens: float, link: LinkSpec, step: tuple[int, int], stage: int) -> None:
        """Send tokens layer by layer, each when it is computed and each port is free. The layers of a stage are its
        part of all, at its part of the sender's speed."""
        life, n_stages = self.lives[request], self.setup.n_stages
        assert life.goes_to is not None and link.n_layers
        n_layers = (link.n_layers + n_stages - 1) // n_stages
        (to,) = life.goes_to.ports
        receiver = life.goes_to.carrier
        parts = [(self.ports[stage], n_layers, self.carrier)] if self.ports[0] is not to else []
        for port, n_parts, carrier in [*parts, (to, n_layers * n_stages, receiver)]:
            layer_ps = (link.busy_ps(n_tokens) + n_parts - 1) // n_parts
            for layer in range(n_layers):
                ready_ps = step[1] - (n_layers - 1 - layer) * ((step[1] - step[0]) // n_layers)
                port[0] = carrier.end_ps(max(port[0], ready_ps), layer_ps)
            life.there_ps = max(life.there_ps, port[0] + link.latency_ps)

    def send_stages(self, link: LinkSpec, now_ps: int) -> None:
        """Send the layers of stages that chunks leave now."""
        due = [part for part in self.stage_sends if part[0] == now_ps]
        self.stage_sends = [part for part in self.stage_sends if part[0] > now_ps]
        for end_ps, start_ps, request, n_tokens, stage in due:
            stage = 0 if len(self.ports) == 1 else stage
            self.send_layers(request, n_tokens, link, (start_ps, end_ps), stage)

    def send_whole(self, request: Request, sender: "OracleReplica", link: LinkSpec, now_ps: int) -> int:
        ports = [(port, self.carrier) for port in self.ports]
        if self.ports[0] is not sender.ports[0]:
            ports += [(port, sender.carrier) for port in sender.ports]
        life = self.lives[request]
        n_tokens = tokens_on_the_link(link.sizes, life.found_tokens, life.sent, life.sent)
        for port, carrier in ports:
            port[0] = carrier.end_ps(max(now_ps, port[0]), link.busy_ps(n_tokens))
        return max(port[0] for port, _ in ports) + link.latency_ps

    def expect(self, at_ps: int, request: Request, sender: "OracleReplica") -> None:
        self.in_transfer.append((at_ps, request, sender))
        self.in_transfer.sort(key=lambda transfer: transfer[0])

    def receive(self, request: Request, sender: "OracleReplica") -> None:
        if self.policy == "fcfs":
            self.coming_in.append((request, sender))
        else:
            self.queue(request)
            self.senders[request] = sender
        self.n_outstanding += 1
        self.must_plan = self.must_plan or self.step is None

    def end_transfers(self, now_ps: int) -> None:
        while self.in_transfer and self.in_transfer[0][0] == now_ps:
            _, request, sender = self.in_transfer.pop(0)
            self.must_plan = self.must_plan or self.step is None
            if request.phase is Phase.DONE:
                self.give_up(request)
                self.n_outstanding -= 1
                continue
            if not self.lives[request].migrates:
                self.lives[request].transfer_ps = now_ps - self.lives[request].token_ps[0]
            sender.give_away(request)
            self.here.append(request)
            sender.must_plan = sender.must_plan or sender.step is None

    def give_away(self, request: Request) -> None:
        """Free what another replica has, or needs no longer."""
        if request in self.leaving:
            self.leaving.remove(request)
        else:
            self.let_go(request)
            self.away.remove(request)

    def depart(self, request: Request, now_ps: int) -> None:
        """Let a decoding request go on elsewhere: what was known of it here is forgotten."""
        life = self.lives[request]
        self.decoding.remove(request)
        del self.running[request]
        request.phase, life.migrates, life.preempted_at_ps = Phase.TRANSFER, True, now_ps
        life.keys, life.n_held_ids, life.slots, life.n_decoded = [], 0, 0, 0

    def give_up(self, request: Request) -> None:
        """Drop what is kept for a request that will not decode here."""
        if self.cache:
            self.cache.let_go(request, self.held_keys(request), self.own_blocks(request))
        self.kept.remove(request)

    def let_decode(self, now_ps: int) -> None:
        """Start decoding arrived requests; their whole prompts can be found."""
        for request in self.here:
            self.kept.remove(request)
            life = self.lives[request]
            life.n_held_ids, life.keys = life.found_tokens // self.block_size, life.found_keys
            self.note_computed(request, life.sent, life.sent)
            if life.migrates:
                life.preempted_ps += now_ps - life.preempted_at_ps
                life.preempted_at_ps, life.migrates = -1, False
            self.running[request] = None
            self.decoding.append(request)
            request.phase = Phase.DECODE
            self.setup.scheduler.on_resume(request)
        self.here = []

    def let_in(self, how: Disaggregation, now_ps: int) -> None:
        """Fetch handed-over requests if there is room."""
        while True:
            if self.vtc is not None:
                self.vtc.take_in(self.waiting)
            ordered = [] if self.policy == "fcfs" else [(each, self.senders.get(each)) for each in self.in_order()]
            queue = ordered or self.coming_in
            if not queue:
                return
            request, sender = queue[0]
            if sender is None and ordered:
                return
            if sender is None:
                self.waiting.append(request)
                self.coming_in.pop(0)
                continue
            if (self.waiting and not ordered) or (self.host and self.host.swapped):
                return
            how_many = 1 if self.setup.speculation is None else self.setup.speculation.n_slots
            life = self.lives[request]
            most = request.prompt_tokens + request.max_tokens
            n_blocks = self.layers.blocks(life.sent, min(life.sent + how_many, most))
            n_found = self.hits(self.chain(request), (life.sent - 1) // self.block_size, on_gpu=True)
            found = self.keys(self.chain(request), n_found, life.sent)
            n_blocks -= sum(self.cache is not None and self.cache.is_held(key) for key in found)
            batch = len(self.running) + len(self.kept)
            if batch >= self.n_slots or n_blocks > self.free_blocks() - self.growth():
                return
            if ordered:
                self.waiting.remove(request)
                del self.senders[request]
                if self.vtc is not None:
                    self.vtc.admit(request, is_first=True)
            else:
                self.coming_in.pop(0)
            self.kept.append(request)
            life.found_keys = found
            life.found_tokens = n_found * self.block_size
            for key in found:
                assert self.cache is not None
                self.cache.hold(request, key)
            self.shrink_cache()
            if life.migrates:
                self.expect(self.send_whole(request, sender, how.link, now_ps), request, sender)
                continue
            life.sent_tokens = life.decode_cached_tokens = life.found_tokens
            if how.is_pushed:
                life.transfer_wait_ps = now_ps - request.arrival_ps
                self.words.append((now_ps + max(1, how.link.latency_ps), request, sender))
            else:
                life.transfer_wait_ps = now_ps - life.token_ps[0]
                self.expect(self.send_whole(request, sender, how.link, now_ps), request, sender)

    def token(self, request: Request, now_ps: int) -> None:
        self.lives[request].token_ps.append(now_ps)
        if self.vtc is not None:
            self.vtc.add(request, self.vtc.shares.output_weight)
        request.emitted_tokens = len(self.lives[request].token_ps)

    def end(self, request: Request, now_ps: int) -> None:
        life = self.lives[request]
        life.finished = True
        life.moves.append((now_ps, "ended"))
        scheduler = self.setup.scheduler
        scheduler.on_leave(request)
        if scheduler.stream:
            self.answer(life, now_ps)
        if not scheduler.runs_to_completion:
            self.leave(request)

    def end_batch(self, now_ps: int) -> None:
        batch = sorted(self.decoding, key=lambda r: (self.lives[r].token_ps[-1], list(self.running).index(r)))
        for request in batch:
            self.leave(request)
            if not self.setup.scheduler.stream:
                life = self.lives[request]
                life.token_ps = [now_ps] * len(life.token_ps)
                self.answer(life, now_ps)

    def answer(self, life: Life, now_ps: int) -> None:
        self.n_outstanding -= 1
        if life.first_ps is None:
            life.finish_ps = now_ps
        self.on_done(life.request.row, now_ps)

    def leave(self, request: Request) -> None:
        self.let_go(request)
        request.phase = Phase.DONE
        self.decoding.remove(request)
        del self.running[request]

    # -- lost and timed-out requests

    def drop(self, request: Request) -> None:
        """Drop a request whose decode replica has failed; what a step computes keeps its blocks until that ends."""
        scheduler = self.setup.scheduler
        self.must_plan = self.must_plan or self.step is None
        self.stage_sends = [part for part in self.stage_sends if part[2] is not request]
        if request in self.away:
            self.let_go(request)
            self.away.remove(request)
            self.handed_over = [each for each in self.handed_over if each is not request]
            return
        self.n_outstanding -= 1
        self.coming = [newcomer for newcomer in self.coming if newcomer[0] is not request]
        if request in self.waiting:
            self.leave_queue(request)
        if request in self.prefilling:
            scheduler.on_abandon(request)
            self.prefilling.remove(request)
            del self.running[request]
            if self.step is not None and any(request is each for each, _ in self.step[0].prefill):
                self.doomed.append(request)
            else:
                self.let_go(request)

    def leave_before_hand_over(self, life: Life) -> None:
        """Drop a request that waits for a decode replica to be ready."""
        self.must_plan = True
        if life.request.phase is Phase.TRANSFER:
            self.give_away(life.request)
        else:
            self.n_outstanding -= 1
            self.without_blocks.remove(life.request)
        life.request.phase = Phase.DONE

    def uncomputed_tokens(self) -> int:
        unseated = [request for request in self.waiting if request not in self.senders]
        unseated += [request for request, _ in self.coming]
        whole = sum((r.prompt_tokens + r.emitted_tokens for r in unseated), 0)
        return whole + sum(r.prefill_left_tokens for r in self.prefilling)

    def withdraw(self, request: Request, how: Disaggregation, now_ps: int) -> None:
        """Tell the decode replica of a pushed request that its client has given up."""
        receiver = self.lives[request].goes_to
        assert receiver is not None
        if any(each is request for each, _ in receiver.coming_in):
            receiver.coming_in = [pair for pair in receiver.coming_in if pair[0] is not request]
            receiver.n_outstanding -= 1
            receiver.must_plan = receiver.must_plan or receiver.step is None
        elif request in receiver.senders:
            receiver.leave_queue(request)
            receiver.n_outstanding -= 1
            receiver.must_plan = receiver.must_plan or receiver.step is None
        else:
            receiver.words = [word for word in receiver.words if word[1] is not request]
            self.stage_sends = [part for part in self.stage_sends if part[2] is not request]
            at_ps = max(now_ps + max(1, how.link.latency_ps), self.lives[request].there_ps)
            receiver.expect(at_ps, request, self)

    def leave_queue(self, request: Request) -> None:
        self.waiting.remove(request)
        self.senders.pop(request, None)
        if self.vtc is not None:
            self.vtc.forget(request)

    def let_leave(self, request: Request, now_ps: int, how: Disaggregation | None) -> bool:
        """Drop a timed-out request; False: a step or a transfer of it is in flight."""
        if self.step is not None or any(request is each for _, each, _ in self.in_transfer):
            return False
        if self.host and any(request is read.request for read in self.host.ahead):
            return False
        life, scheduler = self.lives[request], self.setup.scheduler
        self.must_plan = True
        if request in self.decoding and scheduler.runs_to_completion:
            if not life.finished:
                life.finished = True
                self.n_outstanding -= scheduler.stream
            if all(self.lives[r].finished for r in self.running):
                self.end_batch(now_ps)
            return True
        if request.phase is Phase.DONE:
            return True
        self.n_outstanding -= 1
        self.coming = [newcomer for newcomer in self.coming if newcomer[0] is not request]
        self.without_blocks = [each for each in self.without_blocks if each is not request]
        if request in self.here:
            self.here.remove(request)
            self.give_up(request)
        if how is not None and self.setup.role == "prefill" and life.goes_to is not None:
            self.withdraw(request, how, now_ps)
        for sender in [*(sender for each, sender in self.coming_in if each is request), self.senders.get(request)]:
            if sender is not None:
                sender.give_away(request)
                sender.must_plan = sender.must_plan or sender.step is None
        self.coming_in = [pair for pair in self.coming_in if pair[0] is not request]
        if self.host:
            self.host.forget(request)
        if request in self.waiting:
            self.leave_queue(request)
        if request in self.running:
            (scheduler.on_leave if request in self.decoding else scheduler.on_abandon)(request)
            self.let_go(request)
            (self.decoding if request in self.decoding else self.prefilling).remove(request)
            del self.running[request]
        request.phase = Phase.DONE
        return True

    # -- plan

    def plan(self, now_ps: int, how: Disaggregation | None) -> None:
        self.must_plan = False
        self.wake_ps = None
        self.let_decode(now_ps)
        if self.host:
            self.host.bring_back(self, now_ps)
        if how is not None and self.adopts:
            self.let_in(how, now_ps)
        just_preempted, n_before = False, len(self.running)
        while self.growth() > self.free_blocks():
            self.preempt(self.setup.scheduler.victim(self.view(now_ps, True)), now_ps)
            just_preempted = True
        if just_preempted:
            self.setup.scheduler.on_preempt()
            if self.host and self.host.swapped:
                self.host.hides_waiting = True
        has_preempted = just_preempted
        plan = StepPlan()
        while (self.waiting or self.prefilling) and not (self.is_held and self.decoding):
            self.look_up()
            if self.vtc is not None:
                self.vtc.take_in(self.waiting)
            plan = self.setup.scheduler.plan(self.view(now_ps, just_preempted))
            if plan.preempt:
                for request in plan.preempt:
                    self.preempt(request, now_ps)
                just_preempted = just_preempted or plan.blocked_by == "blocks"
                continue
            if self.host and self.offloads and self.host.spec.overlaps:
                new = [request for request, _ in plan.prefill if request.phase is Phase.WAITING]
                if any(self.host.must_wait(request, self) for request in new):
                    continue
            if plan.prefill or self.decoding:
                break
            if just_preempted:  # no step runs, so the next boundary is now
                just_preempted = False
                continue
            if plan.blocked_by != "blocks" or len(self.running) < 2 or self.away or self.kept or self.n_reading():
                break
            self.preempt(self.setup.scheduler.victim(self.view(now_ps, True)), now_ps)
            just_preempted = True
        decoded = list(self.decoding) if plan.decode else []
        if plan.prefill or decoded:
            self.start(plan, decoded, now_ps)
        elif self.coming:
            self.n_unseen = 0
            while self.coming:
                self.queue(self.coming.pop(0)[0])
            self.plan(now_ps, how)
        else:
            self.wake_ps = plan.wake_at_ps
            if plan.blocked_by is not None:
                self.stalls.append((now_ps, plan.blocked_by))
            if not self.running and not self.waiting:
                self.setup.scheduler.on_idle()
        if self.host:
            self.host.copy(now_ps)
            if has_preempted and self.step is None and self.host.swapped:
                self.plan(now_ps, how)  # no step runs, so the next boundary is now
                return
        is_away = bool(self.senders) or bool(self.host and self.host.waiting)
        if self.step is None and len(self.running) < n_before and is_away:
            self.plan(now_ps, how)  # likewise for who has room before the scheduler plans

    def n_reading(self) -> int:
        """Return the blocks of prefixes on their way from host memory."""
        return sum(len(read.missing) for read in self.host.ahead) if self.host else 0

    def view(self, now_ps: int, just_preempted: bool) -> OracleView:
        setup = self.setup
        hides_waiting = self.host is not None and self.host.hides_waiting
        return OracleView(
            () if hides_waiting else [r for r in self.startable() if not self.host or r not in self.host.waiting],
            self.prefilling,
            self.running,
            setup.n_blocks,
            setup.block_size,
            setup.max_model_len,
            now_ps,
            len(self.decoding),
            len(self.running) + len(self.kept),
            self.free_blocks() - self.growth(),
            just_preempted,
            1 if setup.speculation is None else 1 + len(setup.speculation.acceptance.rates),
            idle_blocks=self.idle_blocks,
            layers_by_number=self.layers,
            missing=self.missing_block,
        )

    def preempt(self, request: Request, now_ps: int) -> None:
        life = self.lives[request]
        (self.decoding if request.phase is Phase.DECODE else self.prefilling).remove(request)
        if request.phase is Phase.DECODE:
            self.setup.scheduler.on_leave(request)
        is_swapped = self.host and request.phase is Phase.DECODE and self.host.can_take(self.blocks(life.stored))
        findable = life.stored if self.setup.scheduler.caches_answers else request.prefilled_tokens
        self.n_own[request] = max(self.n_own.get(request, 0), findable // self.block_size)
        self.let_go(request, findable)
        del self.running[request]
        life.n_preemptions += 1
        life.preempted_at_ps = now_ps
        life.moves.append((now_ps, "left"))
        request.phase = Phase.WAITING
        if self.host and is_swapped:
            life.n_swaps += 1
            self.host.take(request, self.blocks(life.stored))
            request.prefilled_tokens = life.stored
            return
        life.n_recomputed_tokens += life.stored
        life.stored = 0
        request.prefilled_tokens = 0
        self.waiting.insert(len(self.waiting) if self.setup.scheduler.requeues_last else 0, request)
        if self.vtc is not None:
            self.vtc.known.append(request)

    def start(self, plan: StepPlan, decoded: list[Request], now_ps: int) -> None:
        tokens = pairs = context = complete = 0
        chunks = []
        for i, (request, n) in enumerate(plan.prefill):
            life = self.lives[request]
            if request.phase is Phase.WAITING:
                self.waiting.remove(request)
                if self.vtc is not None:
                    self.vtc.admit(request, is_first=not life.n_preemptions)
                self.prefilling.append(request)
                self.running[request] = None
                request.phase = Phase.PREFILL
                self.hold_hits(request)
                life.moves.append((now_ps, "scheduled" if life.scheduled_ps < 0 else "back"))
                if life.scheduled_ps < 0:
                    life.scheduled_ps = now_ps
                if life.preempted_at_ps >= 0:
                    life.preempted_ps += now_ps - life.preempted_at_ps
                    life.preempted_at_ps = -1
                if plan.reserve_tokens:
                    life.reserved = self.layers.most(plan.reserve_tokens[i])
            complete += n >= request.prefill_left_tokens
            for query in range(n):
                pairs += request.prefilled_tokens + query + 1
            life.stored = request.prefilled_tokens + n
            chunks.append((request.prefilled_tokens, life.stored))
            tokens += n
            context += life.stored
        self.shrink_cache()
        kv_tokens = sum(self.lives[r].stored + 1 for r in decoded)
        stored = [self.lives[r].stored for r in decoded]
        windows = self.layers.works(chunks, stored)
        shape = StepShape(tokens, pairs, context, len(decoded), kv_tokens, len(decoded) + complete, windows)
        queue_len = len(self.waiting) + len(self.coming_in) + len(self.host.swapped if self.host else ())
        self.step = (plan, decoded, now_ps, shape, self.used_blocks(), queue_len)
        self.host_ps, self.alone_host_ps = self.host_time(shape), 0
        self.step_end_ps = now_ps + max(self.step_ps(shape, stored), self.host_ps * self.is_on_its_own)
        windows = self.layers.works([], stored)
        alone = StepShape(0, 0, 0, len(decoded), kv_tokens, len(decoded), windows)
        self.alone_ps = 0
        if decoded:
            self.alone_host_ps = self.host_time(alone)
            self.alone_ps = max(self.step_ps(alone, stored), self.alone_host_ps * self.is_on_its_own)
        self.copied_ps = 0
        self.kept_out_by = plan.blocked_by
        if self.host:
            self.host.end_reads()
            self.copied_ps = self.host.copy(now_ps)
            self.step_end_ps += self.copied_ps
            if self.host.swapped and plan.blocked_by is None:
                self.kept_out_by = "seats" if len(self.running) >= self.n_slots else "blocks"

    def slowed_ps(self, step_ps: int, now_ps: int) -> int:
        """Return how long a step takes that begins now."""
        speeds = [speed for start, end, speed in self.slow if start <= now_ps < end]
        return round(step_ps / min(speeds)) if speeds else step_ps

    def host_time(self, shape: StepShape) -> int:
        """Return the host's time for a step, which its kernels hide if they last longer."""
        cost = self.setup.cost
        line: Any = cost.target if isinstance(cost, SpeculativeCost) else cost
        launches = cost.launch_ps if isinstance(cost, SpeculativeCost) else 0
        return getattr(line, "host", 0) + getattr(line, "host_row", 0) * shape.sampled_rows + launches

    @property
    def is_on_its_own(self) -> bool:
        """Whether it need not wait for other ranks, and for what they compute together."""
        return self.setup.n_in_step == 1

    def step_ps(self, shape: StepShape, stored: list[int]) -> int:
        """Return the time of a step with speculation: draft passes one by one, then verification, query by query."""
        cost = self.setup.cost
        if self.setup.speculation is None:
            return shape_ps(cost, shape)
        assert isinstance(cost, SpeculativeCost), "who speculates has such a cost"
        n_queries = 1 + len(self.setup.speculation.acceptance.rates)
        prompts = shape.prefill_tokens, shape.prefill_pairs, shape.prefill_context_tokens
        total_ps = cost.propose_ps if stored else 0
        n_own = len(shape.windows) - cost.drafting.n_windows
        windows, of_draft = shape.windows[:n_own], shape.windows[n_own:]
        if isinstance(cost.drafting, ModelDrafting):
            model = cost.drafting.model
            if stored:
                for i in range(cost.drafting.n_passes):
                    keys = sum(n + 1 + i for n in stored)
                    first = prompts if i == 0 else (0, 0, 0)
                    reads = of_draft if i == 0 else tuple((0, 0, keys) for _, _, keys in of_draft)
                    total_ps += shape_ps(model, StepShape(*first, len(stored), keys, len(stored), reads))
            elif prompts[0]:
                total_ps += shape_ps(model, StepShape(*prompts, windows=of_draft))
        rows = shape.sampled_rows - len(stored) + len(stored) * n_queries
        n_own = cost.target.own_tokens(prompts[0]) + len(stored) * n_queries
        total_ps += cost.target.tokens_ps(n_own) + cost.target.sampled_ps(rows)
        total_ps += cost.target.prefill_ps(*prompts) if prompts[0] else 0
        if prompts[0] and windows:
            total_ps += cost.target.prefill_windows_ps(prompts[0], [(pairs, keys) for pairs, keys, _ in windows])
        if stored:
            slopes = cost.target.window_slopes(len(stored))
            for slope_ps, group in zip(slopes, self.layers.windows, strict=False):  # the cost may know more groups
                total_ps += slope_ps * sum(len(attended(group, n)) + n_queries - 1 for n in stored)
        intercept_ps, slope_ps = cost.target.decode_line(len(stored))
        for n in stored:  # the last query attends them all
            total_ps += max(slope_ps, cost.key_floor_ps) * (n + n_queries) - (n_queries - 1) * cost.row_host_ps
        return total_ps + (intercept_ps if stored else 0)

    def hold_hits(self, request: Request) -> None:
        life = self.lives[request]
        life.stored = request.prefilled_tokens
        request.n_idle = 0  # type: ignore[attr-defined]
        life.n_held_ids = request.prefilled_tokens // self.block_size if self.cache else 0
        result = self.keys(self.chain(request), life.n_held_ids, request.prefilled_tokens) if self.cache else []
        life.keys = list(result)
        missing = [block for block in result if self.cache and block not in self.cache.copies]
        if self.offloads and self.host:
            self.host.read(request, [key for key in result if key[1] < len(self.named(request))], missing)
            if life.scheduled_ps < 0:
                there = places(self.layers, missing, [block for block in missing if not self.host.is_on_host(block)])
                read_from = self.host.fetched.get(request, there)
                n_disk = min(read_from.count("disk"), life.n_held_ids)
                life.host_cached_tokens = min(read_from.count("host"), life.n_held_ids - n_disk) * self.block_size
                life.disk_cached_tokens = n_disk * self.block_size
        for block in result:
            assert self.cache is not None
            if block in missing:
                self.cache.add(request, block)
            else:
                self.cache.hold(request, block)
        if life.scheduled_ps < 0:
            life.cached_tokens = request.prefilled_tokens
        else:
            life.n_recomputed_tokens -= request.prefilled_tokens

    def through_stages(self, now_ps: int, step_ps: int) -> list[int]:
        """Pass a batch through the stages: each takes the same time, and begins when batch and stage are free."""
        n = len(self.stages_free_ps)
        ends: list[int] = []
        for stage in range(n):
            there_ps = ends[-1] if ends else now_ps
            ends.append(max(there_ps, self.stages_free_ps[stage]) + (step_ps + n - 1) // n)
            self.stages_free_ps[stage] = ends[-1]
        return ends

    def note_stages(self, link: LinkSpec, ends_ps: list[int], stage_ps: int) -> None:
        """Note when the layers of each chunk will be computed."""
        for request, n_tokens in self.step[0].prefill if self.step else ():
            n_new = self.not_sent(request, n_tokens, link) if self.lives[request].goes_to else None
            if n_new is not None:
                self.stage_sends += [(end, end - stage_ps, request, n_new, i) for i, end in enumerate(ends_ps)]


def hold_back(group: list[OracleReplica]) -> None:
    """Hold prompts back until all ranks have one, for as many steps as the setup says."""
    balance, counts = group[0].setup.balance, group[0].counts
    if balance is None or len(group) == 1:
        return
    to_do = [rank for rank in group if rank.decoding or rank.waiting or rank.prefilling or rank.coming]
    if not to_do:
        return
    all_decode = all(rank.decoding for rank in to_do)
    all_prompt = all(rank.prefilling or (rank.waiting and len(rank.running) < rank.n_slots) for rank in group)
    which, most = ("batching", balance.batching_wait_iters) if all_prompt else ("waited", balance.timeout_iters - 1)
    if all_prompt:
        counts["waited"] = 0
    is_held = all_decode and counts[which] < most
    if is_held:
        counts[which] += 1
    elif all_decode or not all_prompt:
        counts[which] = 0
    for rank in group:
        rank.is_held = is_held


def begin_together(group: list[OracleReplica], now_ps: int, how: Disaggregation | None) -> None:
    """Plan on all ranks if none is in a step; the step lasts as the slowest, plus the experts for all."""
    is_stepping = any(rank.step is not None or rank.is_frozen for rank in group)
    if not is_stepping:
        hold_back(group)
    for rank in group:
        rank.must_plan, rank.wake_ps = False, None
        if not is_stepping:
            rank.plan(now_ps, how)
    if is_stepping:
        return
    stepping = [rank for rank in group if rank.step is not None]
    shapes = [rank.step[3] for rank in stepping if rank.step is not None]
    if len(group) > 1 and stepping:
        each = 1 if group[0].setup.speculation is None else 1 + len(group[0].setup.speculation.acceptance.rates)
        n_tokens = [
            group[0].setup.cost.own_tokens(shape.prefill_tokens) + each * shape.decode_requests for shape in shapes
        ]
        slowest_ps = max(rank.step_end_ps or 0 for rank in stepping)
        copied_ps = slowest_ps - max((rank.step_end_ps or 0) - rank.copied_ps for rank in stepping)
        n_decoding = [each * shape.decode_requests for shape in shapes]
        alone_ps = max(rank.alone_ps for rank in stepping)
        cost, decoding, tokens = group[0].setup.cost, (sum(n_decoding), max(n_decoding)), (sum(n_tokens), max(n_tokens))
        pairs = zip(n_tokens, shapes, strict=True)
        sent_ps = [cost.overlapped_ps(n, shape.prefill_tokens > 0) for n, shape in pairs]
        is_split = len(shapes) == len(group) and min(sent_ps) > 0
        alone_sent_ps = max(cost.overlapped_ps(n, False) for n in n_decoding) if is_split else 0
        alone_ps = max(alone_ps + cost.group_ps(*decoding, is_split), alone_sent_ps)
        alone_ps = max([alone_ps, *(rank.alone_host_ps for rank in stepping)])
        least_ps = max(max(sent_ps) if is_split else 0, *(rank.host_ps for rank in stepping))
        for rank in stepping:
            computed_ps = slowest_ps + cost.group_ps(*tokens, is_split)
            rank.step_end_ps = max(computed_ps, now_ps + copied_ps + least_ps)
            rank.alone_ps, rank.copied_ps = alone_ps, copied_ps
    for rank in stepping:
        begin_ps = now_ps + rank.copied_ps
        rank.step_end_ps = begin_ps + rank.slowed_ps((rank.step_end_ps or 0) - begin_ps, now_ps)
        rank.alone_ps = rank.slowed_ps(rank.alone_ps, now_ps)
    if stepping and group[0].stages_free_ps:
        begin_ps = now_ps + stepping[0].copied_ps
        step_ps = (stepping[0].step_end_ps or 0) - begin_ps
        ends_ps = group[0].through_stages(begin_ps, step_ps)
        n_stages = len(group[0].stages_free_ps)
        for rank in stepping:
            rank.step_end_ps = ends_ps[-1] if any(shape.sampled_rows for shape in shapes) else ends_ps[0]
            if how is not None and how.is_pushed and how.link.n_layers and rank.setup.role == "prefill":
                rank.note_stages(how.link, ends_ps, (step_ps + n_stages - 1) // n_stages)
            rank.alone_ps = n_stages * ((rank.alone_ps + n_stages - 1) // n_stages)


def replicas_of(
    setup: ReplicaSetup, lives: dict[Request, Life], on_done: Callable[[int, int], None]
) -> list[OracleReplica]:
    """Build the ranks of a replica, connected as its setup says."""
    ranks = [
        OracleReplica(replace(setup, scheduler=deepcopy(setup.scheduler)), lives, on_done) for _ in range(setup.n_ranks)
    ]
    stages_free_ps, n = [0] * setup.n_stages, setup.n_in_step
    for index, rank in enumerate(ranks):
        rank.group = ranks[index // n * n :][:n]
        rank.counts = ranks[0].counts
        if setup.n_stages > 1:
            rank.stages_free_ps = stages_free_ps
            beside = ranks[index % n]  # on the same GPUs
            rank.ports = beside.ports
            if rank.host and beside.host:
                rank.host.free_ps = beside.host.free_ps
    return ranks


def draw(seed: int, row: int, n_earlier: int) -> float:
    """SplitMix64, written out: one stream per request, its state advanced by an odd number per draw."""
    odd, mask = 0x9E3779B97F4A7C15, 2**64 - 1

    def output(state: int) -> int:
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        return state ^ (state >> 31)

    state = output(((output((seed + odd) & mask) + row * odd) + odd) & mask)
    for _ in range(n_earlier + 1):
        state = (state + odd) & mask
    return (output(state) >> 11) / 2**53
