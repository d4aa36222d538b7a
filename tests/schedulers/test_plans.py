"""Plans of random views are those of the rules in plain words, with sums over what is planned so far."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from simserve.schedulers.base import PaddedBatches, Scheduler, StepPlan
from simserve.schedulers.chunked import Chunked, FairShares
from simserve.schedulers.continuous import Continuous
from simserve.schedulers.dynamic import Dynamic
from simserve.schedulers.prefill_first import PrefillFirst
from simserve.schedulers.sglang import SgLang
from simserve.schedulers.static import Static
from simserve.schedulers.trtllm import TrtLlm
from simserve.state.fair_share import ByService, TokenCounters
from simserve.state.queues import ByPriority
from simserve.state.request import DECODE, PREFILL, Request
from simserve.state.sglang_planner import most_running
from simserve.state.view import ReplicaView
from simserve.state.walk import ViewWalk
from simserve.units import to_ps

SIZE = 4


@dataclass
class Finder:
    """A prefix cache that finds what it is told, by row."""

    hits: dict[int, tuple[int, int]] = field(default_factory=dict)
    lacks: dict[int, int | None] = field(default_factory=dict)

    def hit(self, request: Request) -> tuple[int, int]:
        return self.hits[request.row]

    def missing(self, request: Request) -> int | None:
        return self.lacks[request.row]


@dataclass
class Scene:
    """A view, and what there is to say of its requests."""

    rng: Random
    caches: bool = True
    decoding: list[Request] = field(default_factory=list)
    prefilling: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)
    finder: Finder = field(default_factory=Finder)

    def __post_init__(self) -> None:
        rng, n = self.rng, 0
        lengths = {"decoding": rng.randint(0, 4), "prefilling": rng.randint(0, 2), "waiting": rng.randint(1, 6)}
        for name, length in lengths.items():
            for _ in range(length):
                request = Request(n, rng.randint(0, 9), rng.randint(1, 30), rng.randint(1, 30))
                request.emitted_tokens = rng.choice([0, 0, rng.randint(0, request.max_tokens - 1)])
                request.priority, request.tenant = rng.randint(0, 4), rng.choice("ab")
                self.finder.lacks[n] = rng.choice([None, rng.randint(0, 3)])
                n += 1
                if name == "decoding":
                    request.phase, request.emitted_tokens = DECODE, rng.randint(1, request.max_tokens)
                elif name == "prefilling":
                    request.phase = PREFILL
                    request.prefilled_tokens = rng.randrange(request.prompt_tokens + request.emitted_tokens)
                elif self.caches:
                    found = SIZE * rng.randint(0, (request.prompt_tokens - 1) // SIZE)
                    self.finder.hits[request.row] = found, rng.randint(0, found // SIZE)
                    request.finder = self.finder
                getattr(self, name).append(request)
        free = rng.choice([rng.randint(0, 12), rng.randint(0, 40)])
        total = free + (rng.randint(0, 30) if self.decoding or self.prefilling else 0)
        self.view = ReplicaView(
            self.waiting,
            self.prefilling,
            self.decoding + self.prefilling,
            total_blocks=total,
            block_size=SIZE,
            max_model_len=60,
            now_ps=rng.randint(0, 30),
            n_decoding=len(self.decoding),
            n_running=len(self.decoding) + len(self.prefilling),
            free_blocks=free,
            just_preempted=rng.random() < 0.1,
            decode_tokens=rng.choice([1, 1, 3]),
            finder=self.finder if self.caches else None,
        )

    def left(self, request: Request) -> int:
        """Return the tokens to compute before the next one comes."""
        found = self.finder.hits[request.row][0] if request.finder else 0
        return request.prompt_tokens + request.emitted_tokens - request.prefilled_tokens - found

    def to_admit(self, request: Request, n_tokens: int) -> int:
        """Return the free blocks that the first tokens of a waiting request take."""
        return blocks(n_tokens) + (self.finder.hits[request.row][1] if request.finder else 0)

    def to_go_on(self, request: Request, n_tokens: int) -> int:
        """Return the blocks that the next tokens of a started prompt take."""
        return blocks(request.prefilled_tokens + n_tokens) - blocks(request.prefilled_tokens)


def blocks(n_tokens: int) -> int:
    """Return the blocks that tokens lie in."""
    return len({token // SIZE for token in range(n_tokens)})


def budget_beside(scene: Scene, most: int, planned: list[tuple[Request, int]]) -> int:
    """Return the tokens of a budget beside those that decode and those planned."""
    return most - scene.view.decode_tokens * len(scene.decoding) - sum(n for _, n in planned)


def slots_beside(scene: Scene, most: int, planned: list[tuple[Request, int]]) -> int:
    """Return the slots that neither running requests nor those planned have."""
    new = [request for request, _ in planned if request in scene.waiting]
    return most - len(scene.decoding) - len(scene.prefilling) - len(new)


def chunked(scene: Scene, policy: Chunked) -> StepPlan:
    """Return the plan of vLLM V1."""
    planned: list[tuple[Request, int]] = []
    taken, why, view = 0, None, scene.view
    for request in scene.prefilling + scene.waiting:
        budget = budget_beside(scene, policy.max_num_batched_tokens, planned)
        most = policy.long_prefill_token_threshold or budget
        n, new = min(scene.left(request), budget, most), request in scene.waiting
        need = 0
        if budget <= 0:
            why = "budget"
        elif new:
            need = scene.to_admit(request, scene.left(request) if policy.scheduler_reserve_full_isl else n)
            if not slots_beside(scene, policy.max_num_seqs, planned) > 0:
                why = "seats"
            elif need > view.free_blocks - taken or view.just_preempted:
                why = "blocks"
        else:
            need = scene.to_go_on(request, n)
            why = "blocks" if need > view.free_blocks - taken else None
        if why:
            if why == "blocks" and not new and len(view.running) >= 2:
                return StepPlan(preempt=[policy.victim(view)], blocked_by="blocks")
            gap = policy.priority_preemption_threshold
            if new and why != "budget" and gap is not None and view.running and not view.just_preempted:
                worst = max(view.running, key=lambda each: (each.priority, each.arrival_ps, each.row))
                if worst.priority - request.priority > gap:
                    return StepPlan(preempt=[worst])
            break
        taken += need
        planned.append((request, n))
    valid_steps = policy.steps_in_order(view.decode_tokens) if why == "blocks" else None
    return StepPlan(prefill=planned, valid_steps=valid_steps, blocked_by=why)  # type: ignore[arg-type]


def prefill_first(scene: Scene, policy: PrefillFirst) -> StepPlan:
    """Return the plan of vLLM V0; there are no started prompts."""
    planned: list[tuple[Request, int]] = []
    most, why = policy.max_num_batched_tokens or max(scene.view.max_model_len, 2048), None
    for request in scene.waiting:
        need = sum(scene.to_admit(each, scene.left(each)) for each in [each for each, _ in planned] + [request])
        if slots_beside(scene, policy.max_num_seqs, planned) <= 0:
            why = "seats"
        elif need > scene.view.free_blocks or scene.view.just_preempted:
            why = "blocks"
        elif planned and sum(n for _, n in planned) + scene.left(request) > most:
            why = "budget"
        if why:
            break
        planned.append((request, scene.left(request)))
    return StepPlan(prefill=planned, decode=not planned, blocked_by=why)  # type: ignore[arg-type]


def continuous(scene: Scene, policy: Continuous) -> StepPlan:
    """Return the plan of Orca: as many as have slots and blocks to the end."""
    planned: list[tuple[Request, int]] = []
    why = None
    for request in scene.waiting:
        need = sum(blocks(each.prompt_tokens + each.max_tokens) for each in [each for each, _ in planned] + [request])
        if slots_beside(scene, policy.max_num_seqs, planned) <= 0:
            why = "seats"
        elif need > scene.view.free_blocks:
            why = "blocks"
        if why:
            break
        planned.append((request, scene.left(request)))
    reserve = [request.prompt_tokens + request.max_tokens for request, _ in planned]
    return StepPlan(prefill=planned, reserve_tokens=reserve, blocked_by=why)  # type: ignore[arg-type]


def padded(scene: Scene, policy: PaddedBatches) -> StepPlan:
    """Return the largest batch that fits when all are as long as the longest."""
    if scene.view.n_running:
        return StepPlan(blocked_by="seats")
    batch: list[Request] = []
    if isinstance(policy, Dynamic):
        wake = scene.waiting[0].arrival_ps + to_ps(policy.window_s)
        if len(scene.waiting) < policy.batch_size and scene.view.now_ps < wake:
            return StepPlan(wake_at_ps=wake)
    for n in range(1, min(policy.batch_size, len(scene.waiting)) + 1):
        few = scene.waiting[:n]
        length = max(each.prompt_tokens for each in few) + max(each.max_tokens for each in few)
        if n * blocks(length) > scene.view.free_blocks:
            break
        batch = few
    prompt = max((each.prompt_tokens for each in batch), default=0)
    answer = max((each.max_tokens for each in batch), default=0)
    return StepPlan(prefill=[(each, prompt) for each in batch], reserve_tokens=[prompt + answer] * len(batch))


def trtllm(scene: Scene, policy: TrtLlm) -> StepPlan:
    """Return the plan of TensorRT-LLM."""
    planned: list[tuple[Request, int]] = []
    view, why, taken = scene.view, None, 0
    computed = [scene.finder.lacks[each.row] for each in scene.prefilling] if scene.caches else []
    for request in scene.prefilling + scene.waiting:
        new, left = request in scene.waiting, scene.left(request)
        lacks = scene.finder.lacks[request.row] if scene.caches else None
        if new and lacks is not None and lacks in computed:
            continue
        computed += [lacks] if new else []
        budget = budget_beside(scene, policy.max_num_tokens, planned)
        alone = not planned and not scene.decoding
        n = left
        if left > budget:
            in_blocks = max(0, budget) // SIZE * SIZE
            n = (in_blocks or alone * budget) if policy.enable_chunked_context else alone * left
        if policy.reserves:
            need = blocks(request.prompt_tokens + request.max_tokens) if new else 0
        else:
            need = scene.to_admit(request, left) if new else scene.to_go_on(request, left)
        need_now = need if new or policy.reserves else scene.to_go_on(request, n)
        if new and slots_beside(scene, policy.max_batch_size, planned) <= 0:
            why = "seats"
        elif (new and view.just_preempted) or need_now > view.free_blocks - taken:
            why = "blocks"
        elif not n:
            why = "budget"
        if why:
            break
        taken += need
        planned.append((request, n))
    reserve = [each.prompt_tokens + each.max_tokens for each, _ in planned] if policy.reserves else ()
    return StepPlan(prefill=planned, reserve_tokens=reserve, blocked_by=why)  # type: ignore[arg-type]


def sglang(scene: Scene, policy: SgLang) -> StepPlan:
    """Return the plan of SGLang, whose batch is not marked as full."""
    view, planned = scene.view, list[tuple[Request, int]]()
    mixed = len(scene.decoding) * view.decode_tokens if policy.enable_mixed_chunk else 0
    chunk_size = policy.chunked_prefill_size
    clip = policy.clip_max_new_tokens_estimation

    def new_tokens(request: Request) -> int:
        return min(request.max_tokens - request.emitted_tokens, clip)

    room = view.free_blocks * SIZE - policy.new_token_ratio * sum(map(new_tokens, scene.decoding))
    spent, why = 0, None

    def why_not(request: Request) -> tuple[str | None, int]:
        """Return why a prompt may not go on or start, or its tokens."""
        left, paged = scene.left(request), blocks(scene.left(request)) * SIZE
        used = sum(blocks(n) * SIZE for _, n in planned)
        chunk = None if chunk_size is None else chunk_size - mixed - used
        if request in scene.prefilling:
            n = left if chunk is None else min(left, chunk)
            if n <= 0:
                return "budget", 0
            return ("blocks" if scene.to_go_on(request, n) > view.free_blocks else None), n
        found = (scene.finder.hits[request.row][1] if request.finder else 0) * SIZE
        alone = view.free_blocks == view.total_blocks and not planned
        inputs = policy.max_prefill_tokens - mixed - used
        most = policy.max_running_requests or 2048  # the least of its default
        if planned and room - spent <= 0:
            return "blocks", 0
        if inputs <= 0 or (chunk is not None and chunk <= 0):
            return "budget", 0
        if most - view.n_running - sum(each in scene.waiting for each, _ in planned) <= 0:
            return "seats", 0
        if left + found + new_tokens(request) + SIZE >= room - spent and not alone:
            return "blocks", 0
        if chunk is None:
            return ("budget" if planned and paged >= inputs else None), left
        if paged <= chunk:
            return None, left
        n = min(left, chunk // SIZE * SIZE) or (chunk if alone else 0)
        return (None if n else "budget"), n

    def take(request: Request, n: int) -> None:
        nonlocal spent
        planned.append((request, n))
        spent += blocks(n) * SIZE + SIZE + (new_tokens(request) if n == scene.left(request) else 0)
        if request.finder:
            spent += scene.finder.hits[request.row][1] * SIZE

    for request in scene.prefilling[:1] + scene.waiting:
        if request in scene.waiting and view.just_preempted:
            why = "blocks"
            break
        why, n = why_not(request)
        if why:
            break
        take(request, n)
    return StepPlan(
        prefill=planned,
        decode=policy.enable_mixed_chunk or not planned,
        valid_steps=1 if why == "budget" and not planned else None,
        blocked_by=why,  # type: ignore[arg-type]
    )


def draw_chunked(rng: Random) -> Chunked:
    policy = rng.choice(["fcfs", "priority"])
    return Chunked(
        max_num_batched_tokens=rng.randint(1, 40),
        max_num_seqs=rng.randint(1, 9),
        long_prefill_token_threshold=rng.choice([0, rng.randint(1, 12)]),
        scheduler_reserve_full_isl=rng.random() < 0.5,
        policy=policy,  # type: ignore[arg-type]
        priority_preemption_threshold=rng.choice([None, 0, 2]) if policy == "priority" else None,
    )


def draw_trtllm(rng: Random) -> TrtLlm:
    return TrtLlm(
        max_num_tokens=rng.randint(1, 40),
        max_batch_size=rng.randint(1, 9),
        capacity_scheduler_policy=rng.choice(["guaranteed_no_evict", "max_utilization"]),
        enable_chunked_context=rng.random() < 0.5,
    )


def draw_sglang(rng: Random) -> SgLang:
    return SgLang(
        chunked_prefill_size=rng.choice([None, rng.randint(1, 40)]),
        max_prefill_tokens=rng.randint(1, 40),
        max_running_requests=rng.choice([None, rng.randint(1, 9)]),
        enable_mixed_chunk=rng.random() < 0.5,
        init_new_token_ratio=rng.choice([0.0, 0.5, 1.0]),
        clip_max_new_tokens_estimation=rng.choice([3, 4096]),
    )


POLICIES: dict[str, tuple[Any, Callable[[Random], Scheduler]]] = {
    "chunked": (chunked, draw_chunked),
    "prefill_first": (
        prefill_first,
        lambda rng: PrefillFirst(rng.choice([None, rng.randint(1, 60)]), max_num_seqs=rng.randint(1, 9)),
    ),
    "continuous": (continuous, lambda rng: Continuous(rng.randint(1, 9))),
    "static": (padded, lambda rng: Static(rng.randint(1, 6))),
    "dynamic": (padded, lambda rng: Dynamic(rng.randint(1, 6), window_s=rng.randint(0, 20) * 1e-12)),
    "trtllm": (trtllm, draw_trtllm),
    "sglang": (sglang, draw_sglang),
}


@pytest.mark.parametrize("name", POLICIES)
def test_plans_are_those_of_the_rules(name: str) -> None:
    by_the_rules, draw = POLICIES[name]
    for seed in range(400):
        rng = Random(seed)
        policy: Scheduler = draw(rng)
        scene = Scene(rng, caches=policy.shares_blocks and rng.random() < 0.7)
        if name in ("prefill_first", "continuous", "static", "dynamic"):  # these never cut a prompt
            scene.prefilling.clear()
            scene.view.running, scene.view.n_running = scene.decoding, len(scene.decoding)
        if name in ("static", "dynamic") and rng.random() < 0.8:
            scene.view.n_running = 0
        for request in scene.decoding if policy.is_stateful else ():
            policy.on_join(request)
        plan, expected = policy.plan(scene.view), by_the_rules(scene, policy)
        for each in (plan, expected):
            each.prefill, each.reserve_tokens = list(each.prefill), list(each.reserve_tokens)
        assert plan == expected, seed


@pytest.mark.parametrize("seed", range(60))
def test_tenants_are_served_by_counters_that_hear_of_all(seed: int) -> None:
    rng = Random(seed)
    policy = draw_chunked(rng)
    policy = replace(policy, policy="vtc", vtc=FairShares(0.5, 3.0, {"a": 2.0}), priority_preemption_threshold=None)
    counters = TokenCounters(0.5, 3.0, {"a": 2.0})
    queue, twin = policy.queue(), ByService(counters)
    scene = Scene(rng)
    for request in scene.decoding:
        policy.on_admit(request)
        counters.admit(request)
        if rng.random() < 0.5:
            policy.on_join(request)
            counters.join(request)
        else:
            policy.on_resume(request)
            counters.join(request, 0)
        policy.on_commit(n := rng.randint(1, 9), False, None)
        counters.advance(n)
        policy.on_accept(request, n)
        counters.accept(request, n)
    for request in scene.decoding[:1]:
        policy.on_leave(request)
        counters.leave(request)
    assert policy.is_stateful
    assert policy.orders
    assert [policy._counters[tenant] for tenant in "ab"] == [counters[tenant] for tenant in "ab"]
    first = min(scene.waiting, key=lambda each: (counters[each.tenant], each.arrival_ps, each.row))
    assert policy.first_back(scene.waiting) is first
    queue.extend(scene.waiting)
    twin.extend(scene.waiting)
    twin.settle()
    scene.view.waiting, scene.waiting = queue, list(twin)
    plan, expected = policy.plan(scene.view), chunked(scene, policy)
    plan.prefill, expected.prefill = list(plan.prefill), list(expected.prefill)
    assert plan == expected
    assert policy.steps_in_order(3) == twin.steps_in_order(3)


@pytest.mark.parametrize("seed", range(20))
def test_the_worst_yields_and_the_best_returns(seed: int) -> None:
    rng = Random(seed)
    scene = Scene(rng)
    by_arrival, by_priority = Chunked(), Chunked(policy="priority")
    order = sorted(scene.waiting, key=lambda each: (each.priority, each.arrival_ps, each.row))
    assert by_arrival.first_back(scene.waiting) is scene.waiting[0]
    assert by_priority.first_back(scene.waiting) is order[0]
    scene.view.running = scene.waiting
    assert by_arrival.victim(scene.view) is scene.waiting[-1]
    assert by_priority.victim(scene.view) is order[-1]
    assert isinstance(by_priority.queue(), ByPriority)
    assert isinstance(by_arrival.queue(), deque)
    assert (by_arrival.orders, by_priority.orders, by_priority.is_stateful) == (False, True, False)
    assert by_arrival.steps_in_order(1) is by_priority.steps_in_order(1) is None


@pytest.mark.parametrize(
    ("policy", "defaults"),
    [
        (Chunked(), {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "long_prefill_token_threshold": 0}),
        (PrefillFirst(), {"max_num_batched_tokens": None, "max_num_seqs": 256}),
        (Continuous(), {"max_num_seqs": 256}),
        (Static(), {"batch_size": 32}),
        (TrtLlm(), {"max_num_tokens": 8192, "max_batch_size": 2048}),
        (SgLang(), {"chunked_prefill_size": 8192, "max_prefill_tokens": 16384, "retract_decode_steps": 20}),
        (SgLang(), {"new_token_ratio_decay_steps": 600, "clip_max_new_tokens_estimation": 4096}),
    ],
)
def test_defaults_are_those_of_the_engines(policy: Scheduler, defaults: dict[str, int | None]) -> None:
    assert {name: getattr(policy, name) for name in defaults} == defaults


def test_the_longest_chunk_is_what_a_step_may_compute_of_one_prompt() -> None:
    assert Chunked(99).most_chunk == 99
    assert (SgLang(chunked_prefill_size=99).most_chunk, SgLang(chunked_prefill_size=None).most_chunk) == (99, None)
    chunks = [TrtLlm(99, enable_chunked_context=is_cut).most_chunk for is_cut in (False, True)]
    assert chunks == [None, 99]
    assert PrefillFirst(99).most_chunk is None


def test_a_prompt_above_the_budget_never_fits_where_none_is_cut() -> None:
    policy = PrefillFirst(10)
    assert policy.never_fits(10) is PrefillFirst().never_fits(10**6) is Chunked(10).never_fits(11) is None
    assert policy.never_fits(11) == "prompt longer than max_num_batched_tokens, and prompts are not chunked"


@pytest.mark.parametrize(("n_blocks", "max_running"), [(10, 2048), (80, 2730), (1000, 4096)])
def test_sglang_runs_as_many_as_its_memory_is_for(n_blocks: int, max_running: int) -> None:
    view = ReplicaView([], [], [], n_blocks, SIZE, max_model_len=60)
    assert most_running(ViewWalk(view)) == max_running


@pytest.mark.parametrize("seed", range(80))
def test_sglang_notes_in_pieces_what_it_notes_at_once(seed: int) -> None:
    """Its ratio, the room of its requests and whether its batch is full are those of single steps, by plain sums."""
    rng = Random(seed)
    arguments: dict[str, Any] = {"new_token_ratio_decay_steps": 40, "clip_max_new_tokens_estimation": 12}
    at_once, singly = SgLang(**arguments), SgLang(**arguments)
    emitted: dict[Request, int] = {}
    ratio, n_decayed, full, has_shrunk, has_retracted = 0.7, 0, None, False, False
    for row in range(40):
        move = rng.choice(
            ["join", "join", "commit", "commit", "leave", "stranger", "abandon", "preempt", "idle", "accept"]
        )
        request = Request(row, 0, rng.randint(1, 9), rng.randint(200, 900))
        each = rng.choice([*emitted, request])
        if move == "join":
            for policy in (at_once, singly):
                rng.choice([policy.on_join, policy.on_resume])(request)
            emitted[request] = 0
        elif move == "commit":
            n, has_prefill, why = rng.randint(1, 4), rng.random() < 0.3, rng.choice([None, "seats", "blocks", "budget"])
            at_once.on_commit(n, has_prefill, why)  # type: ignore[arg-type]
            for _ in range(n):
                singly.on_commit(1, has_prefill, why)  # type: ignore[arg-type]
                if has_shrunk:
                    full = None
                elif why in ("seats", "blocks") and emitted and not has_retracted:
                    full = why
                n_decayed += not has_prefill and not has_retracted
                has_shrunk = has_retracted = False
                emitted = {member: tokens + 1 for member, tokens in emitted.items()}
        elif move in ("leave", "stranger"):
            gone = each if move == "leave" else request  # one whose first token was the last is no member
            at_once.on_leave(gone)
            singly.on_leave(gone)
            full, has_shrunk = (full, full is not None) if gone in emitted else (None, False)
            emitted.pop(gone, None)
        elif move == "abandon":
            at_once.on_abandon(request)
            singly.on_abandon(request)
            full, has_shrunk = None, False
        elif move == "preempt" and emitted:
            at_once.on_preempt()
            singly.on_preempt()
            most = sum(member.max_tokens for member in emitted)
            ratio, n_decayed = min((sum(emitted.values()) + 20 * len(emitted)) / (most + 1), 1.0), 0
            full, has_shrunk, has_retracted = None, False, True
        elif move == "idle":
            at_once.on_idle()
            singly.on_idle()
            ratio, n_decayed = 0.7, 0
        elif move == "accept" and each in emitted:
            at_once.on_accept(each, 2)
            singly.on_accept(each, 2)
            emitted[each] += 2
        assert at_once.new_token_ratio == singly.new_token_ratio
        now = ratio - n_decayed * 0.7 * 0.86 / 40
        assert at_once.new_token_ratio == pytest.approx(max(now, 0.098) if n_decayed else ratio)
        room = sum(min(member.max_tokens - tokens, 12) for member, tokens in emitted.items())
        assert at_once._planner.running.total == singly._planner.running.total == room
        prompt = [Request(99, 0, 5, 9)] if rng.random() < 0.5 else []
        view = ReplicaView([], prompt, [*emitted], 100, SIZE, 1000, n_decoding=len(emitted), free_blocks=100)
        plans = [policy.plan(view) for policy in (at_once, singly)]
        assert plans[0] == plans[1]
        if full and emitted and not prompt:
            assert plans[0] == StepPlan([], valid_steps=1 if has_shrunk else None, blocked_by=full)  # type: ignore[arg-type]
        else:
            assert len(plans[0].prefill) == len(prompt)
        if len(emitted) < 2 and prompt:
            assert at_once.victim(view) is prompt[0]
        elif emitted:
            assert emitted[at_once.victim(view)] == min(emitted.values())
