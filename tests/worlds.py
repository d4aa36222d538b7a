"""Random worlds: small clusters and loads in which every limit binds now and then, for the oracle's tests."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st

from simserve.catalog import load_engine, load_gpu
from simserve.catalog.latent import Indexer, SharedVector
from simserve.catalog.layers import GroupKind, Heads, LayerGroup
from simserve.catalog.specs import ModelSpec
from simserve.cost.kv_groups import kv_layout
from simserve.cost.model import CostModel
from simserve.cost.shard import Shard
from simserve.cost.speculative import Drafting, ModelDrafting, SpeculativeCost
from simserve.cost.step import StepCost
from simserve.engine.frontend import FrontEnd
from simserve.engine.link import LinkSpec
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.least_kv import LeastKv
from simserve.routers.least_outstanding import LeastOutstanding
from simserve.routers.power_of_two import PowerOfTwo
from simserve.routers.random import Random
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.base import Scheduler
from simserve.schedulers.chunked import Chunked, FairShares
from simserve.schedulers.continuous import Continuous
from simserve.schedulers.dynamic import Dynamic
from simserve.schedulers.prefill_first import PrefillFirst
from simserve.schedulers.sglang import SgLang
from simserve.schedulers.static import Static
from simserve.schedulers.trtllm import TrtLlm
from simserve.splitters.base import Splitter
from simserve.splitters.load import LoadSplitter
from simserve.splitters.mixed import Mixed
from simserve.splitters.prompt_length import PromptLength
from simserve.state.layer_blocks import KvGroup, LayerBlocks
from simserve.tables.facts import KvSizes
from simserve.units import to_ps
from simserve.workload.trace import Prefixes, Trace
from tests.doubles import LineCost, balance, plain_blocks, trace
from tests.oracle_fleet import MOVES, Change, Kind

KINDS: tuple[Kind, ...] = ("join", "join", "drain", "fail", "resend", "move", "rescue", "slow")
"""Changes of a fleet, as often as they are drawn."""

ROUTERS = (RoundRobin, Random, LeastOutstanding, LeastKv, PowerOfTwo)


@st.composite
def schedulers(draw: st.DrawFn) -> Scheduler:
    """Draw any policy, with small arguments so that every limit binds now and then."""
    batch = draw(st.integers(1, 6))
    kind = draw(st.sampled_from(["chunked", "prefill_first", "continuous", "trtllm", "sglang", "static", "dynamic"]))
    if kind == "chunked":
        return Chunked(
            max_num_batched_tokens=batch + draw(st.integers(0, 40)),
            max_num_seqs=batch,
            long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3, 11])),
            scheduler_reserve_full_isl=draw(st.booleans()),
        )
    if kind == "prefill_first":
        return PrefillFirst(max_num_batched_tokens=draw(st.sampled_from([None, 25])), max_num_seqs=batch)
    if kind == "continuous":
        return Continuous(max_num_seqs=batch)
    if kind == "trtllm":
        return TrtLlm(
            max_num_tokens=batch + draw(st.integers(0, 60)),
            max_batch_size=batch,
            capacity_scheduler_policy=draw(st.sampled_from(["guaranteed_no_evict", "max_utilization"])),
            enable_chunked_context=draw(st.booleans()),
        )
    if kind == "sglang":
        return SgLang(
            chunked_prefill_size=draw(st.sampled_from([None, 7, 16, 48])),
            max_prefill_tokens=draw(st.sampled_from([20, 64])),
            max_running_requests=draw(st.sampled_from([None, batch])),
            enable_mixed_chunk=draw(st.booleans()),
            schedule_conservativeness=draw(st.sampled_from([0.0, 0.1, 1.0])),
            new_token_ratio_decay_steps=draw(st.sampled_from([7, 600])),
            retract_decode_steps=draw(st.integers(0, 20)),
            clip_max_new_tokens_estimation=draw(st.sampled_from([9, 4096])),
            scheduler_recv_interval=draw(st.sampled_from([1, 1, 2, 5])),
        )
    if kind == "static":
        return Static(batch_size=batch, stream=draw(st.booleans()))
    return Dynamic(batch_size=batch, window_s=draw(st.sampled_from([0.0, 0.011, 0.2])), stream=draw(st.booleans()))


@st.composite
def setups(draw: st.DrawFn) -> list[ReplicaSetup]:
    """Draw one to three equal replicas, with few enough blocks that they run out."""
    scheduler = draw(schedulers())
    cost = draw(st.sampled_from([
        LineCost(step=5_000_003, token=70_001, row=11, pair=101, key=1_009, shared=50_021, busiest=30_011),
        LineCost(step=1_000_000),
        LineCost(token=1_000_000),
        LineCost(step=10, key=1_000_000, pair=13),
    ]))  # fmt: skip
    host = draw(st.sampled_from([(0, 0)] * 3 + [(5_300_001, 0), (300_007, 40_009), (30_000_001, 2_000_003)]))
    split = draw(st.sampled_from([(0, 0), (1, 3_000_017), (1, 900_001), (2, 3_000_017)]))  # two-batch overlap
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    cost = replace(cost, host=host[0], host_row=host[1], groups=groups, split=split[0], sent=split[1])
    block_size = draw(st.sampled_from([1, 3, 4, 16]))
    n_blocks = -(-draw(st.integers(60, 160)) // block_size)
    limit = min(n_blocks * block_size, draw(st.sampled_from([10**6, 50])))
    parallel = draw(st.sampled_from([*[(1, 1)] * 3, (2, 1), (3, 1), (1, 2), (1, 3), (2, 2), (3, 2)]))
    setup = ReplicaSetup(scheduler, cost, n_blocks, plain_blocks(block_size), limit, draw(st.booleans()), *parallel)
    setup = replace(setup, keeps_contents=scheduler.shares_blocks and draw(st.booleans()))
    if setup.n_in_step > 1:
        waits = draw(st.sampled_from([None, (1, 2), (3, 0), (7, 2)]))
        setup = replace(setup, balance=waits and balance(*waits))
    return [setup] * draw(st.integers(1, 3))


@st.composite
def balanced(draw: st.DrawFn) -> list[ReplicaSetup]:
    """Draw ranks in lockstep that hold prompts back until each has one."""
    waits = balance(draw(st.integers(1, 7)), draw(st.integers(0, 3)))
    n_ranks = draw(st.integers(2, 3))
    return [replace(setup, n_in_step=n_ranks, balance=waits) for setup in draw(setups())]


@st.composite
def disaggregated(draw: st.DrawFn) -> list[ReplicaSetup]:
    """Draw one or two prefill and as many decode replicas, all different; in any order."""
    pools = []
    roles: list[Literal["prefill", "decode"]] = ["prefill", "decode"]
    for role in draw(st.permutations(roles)):
        setup, *_ = draw(setups().filter(lambda result: can_be_disaggregated(result[0].scheduler)))
        pools += [replace(setup, role=role)] * draw(st.integers(1, 2))
    return pools


@st.composite
def cached(draw: st.DrawFn, result: list[ReplicaSetup]) -> list[ReplicaSetup]:
    """Add prefix caches: to all replicas, or only to one side of a hand-over."""
    without = draw(st.sampled_from([None, None, "prefill", "decode"]))
    caches = [setup.role != without and setup.scheduler.shares_blocks for setup in result]
    pairs = zip(result, caches, strict=True)
    return [replace(setup, caches_prefixes=each, keeps_contents=each) for setup, each in pairs]


@st.composite
def caching(draw: st.DrawFn) -> list[ReplicaSetup]:
    """Draw replicas with prefix caches, with or without a hand-over."""
    separate, together = disaggregated(), setups().filter(lambda result: result[0].scheduler.shares_blocks)
    return draw(cached(draw(st.one_of(together, together, separate))))


@st.composite
def shared_prompts(draw: st.DrawFn, least: int = 1, recurring: tuple[int, ...] = (0, 0, 2, 3, 5)) -> Trace:
    """Let each prompt share a prefix with an earlier one; its own ids may extend into its output.

    The blocks of these ids may be smaller and larger than those of the replicas, and not divide them. A few prompts may
    recur again and again, so that what one evicts another needs.
    """
    load, n_recurring = draw(traces(least)), draw(st.sampled_from(recurring))
    block_tokens = draw(st.integers(1, 9) | st.sampled_from([12, 16, 32]))
    chains: list[list[int]] = [[]]
    n_ids = 0
    for prompt, output in zip(load.prompt_tokens, load.output_tokens, strict=True):
        most = int(prompt + output) // block_tokens
        if n_recurring:
            if len(chains) <= n_recurring:
                chains.append(list(range(n_ids, n_ids + most)))
                n_ids += most
            else:
                chains.append(chains[draw(st.integers(1, n_recurring))][:most])
            continue
        parent = chains[draw(st.integers(0, len(chains) - 1))]
        chain = parent[: draw(st.integers(0, most))]
        n_new = draw(st.integers(0, most - len(chain)))
        chains.append(chain + list(range(n_ids, n_ids + n_new)))
        n_ids += n_new
    ids = np.array([block for chain in chains[1:] for block in chain], np.int64)
    offsets = np.cumsum([0, *map(len, chains[1:])])
    return replace(load, prefixes=Prefixes.from_ids(block_tokens, ids, offsets))


@st.composite
def split(draw: st.DrawFn) -> list[ReplicaSetup]:
    """Draw prefill and decode replicas, with or without "both" replicas."""
    pools = draw(disaggregated())
    both = draw(st.none() | setups().filter(lambda result: len(result) == 1))
    return pools if both is None else draw(st.permutations([*pools, *both]))


@st.composite
def splitters(draw: st.DrawFn) -> Splitter:
    """Draw a splitter that sends about half of the requests to prefill replicas."""
    shortest = draw(st.integers(1, 30))
    if draw(st.booleans()):
        return PromptLength(min_prompt_tokens=shortest)
    return LoadSplitter(max_outstanding=draw(st.integers(1, 3)), min_prompt_tokens=draw(st.sampled_from([1, shortest])))


@st.composite
def mixing(draw: st.DrawFn) -> Splitter:
    """Draw a splitter that lets prefill replicas decode some requests."""
    return Mixed(
        max_prefill_waiting=draw(st.integers(1, 4)), max_decode_kv_frac=draw(st.sampled_from([0.1, 0.3, 0.6, 1.0]))
    )


def can_be_disaggregated(scheduler: Scheduler) -> bool:
    """Return whether prompt and answer may be computed on different replicas."""
    return not scheduler.reserves and not scheduler.runs_to_completion


@st.composite
def links(draw: st.DrawFn) -> LinkSpec:
    """Draw links from much faster than a step to as slow as several, with ports for each replica or one for all.

    Now and then layers keep different tokens, and a prompt is not sent whole.
    """
    speed = draw(st.sampled_from([1e-9, 1.37e-7, 1e-6])), draw(st.sampled_from([0, 1_000_003, 10**9]))
    groups = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 24), st.booleans()), max_size=2))
    n_layers = sum(n for n, _, _ in groups) + draw(st.integers(0 if groups else 1, 3))
    several = KvSizes(n_layers, tuple(groups), draw(st.sampled_from([0, 0, 7])))
    sizes = draw(st.sampled_from([KvSizes(), several, KvSizes(0, (), 1)]))
    return LinkSpec(*speed, is_shared=draw(st.booleans()), sizes=sizes)


@st.composite
def traces(draw: st.DrawFn, least: int = 1) -> Trace:
    """Draw up to 25 requests; whole milliseconds, so that arrivals tie with each other and with step ends."""
    n = draw(st.integers(least, 25))
    unit_s = draw(st.sampled_from([1e-6, 1e-5, 1e-3, 0.0137]))
    gaps = draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))
    prompts = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    most = draw(st.none() | st.lists(st.integers(1, 45), min_size=n, max_size=n))
    return trace(list(np.cumsum(gaps) * unit_s), prompts, outputs, most)


@st.composite
def front_ends(draw: st.DrawFn) -> FrontEnd:
    """Draw no front end, or one with work of about a step."""
    unit_ps = draw(st.sampled_from([0, 0, 1_000_003, 10**9]))
    receive_ps, token_ps, respond_ps, bootstrap_ps = (unit_ps * draw(st.integers(0, 3)) for _ in range(4))
    return FrontEnd(receive_ps, token_ps, respond_ps, draw(st.integers(1, 3)), bootstrap_ps)


@st.composite
def ordered(draw: st.DrawFn, together: st.SearchStrategy[list[ReplicaSetup]]) -> list[ReplicaSetup]:
    """Let requests pass each other, by priority or by their tenants' service; perhaps not on decode replicas."""
    batch = draw(st.integers(1, 6))
    knobs: dict[str, Any] = {
        "max_num_batched_tokens": batch + draw(st.integers(0, 40)),
        "max_num_seqs": batch,
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 3, 11])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
    }
    shares = FairShares(
        input_weight=draw(st.sampled_from([0.0, 0.5, 1.0])),
        output_weight=draw(st.sampled_from([1.0, 2.0])),
        tenant_weights=draw(st.sampled_from([{}, {"a": 2.0, "b": 0.5}])),
    )
    vtc = Chunked(**knobs, policy="vtc", vtc=shares)
    threshold = draw(st.sampled_from([None, 0, 1]))
    by_priority = Chunked(**knobs, policy="priority", priority_preemption_threshold=threshold)
    policy = draw(st.sampled_from([Chunked(**knobs), by_priority, by_priority, vtc, vtc]))
    roles = draw(st.sampled_from([("both", "prefill"), ("both", "prefill", "decode"), ("both", "decode")]))
    return [replace(setup, scheduler=deepcopy(policy)) if setup.role in roles else setup for setup in draw(together)]


@st.composite
def tagged(draw: st.DrawFn, loads: st.SearchStrategy[Trace]) -> Trace:
    """Add a few priorities and tenants."""
    load = draw(loads)
    n = len(load)
    priorities = draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n))
    tenants = draw(st.lists(st.sampled_from("abc"), min_size=n, max_size=n))
    return replace(load, priority=np.array(priorities, np.int64), tenant=np.array(tenants, np.str_))


@st.composite
def changes(draw: st.DrawFn, setups: list[ReplicaSetup], load: Trace) -> list[Change]:
    """Draw members that join and leave, a few steps after a request comes; in the end each role has one that is ready,
    so that all requests are served."""
    unit_ps = draw(st.sampled_from((10**6, 5_000_003, 17 * 10**6, 10**9)))
    arrival_ps = [to_ps(arrival_s) for arrival_s in load.arrival_s.tolist()]
    result = []
    for _ in range(draw(st.integers(1, 8))):
        at_ps = draw(st.sampled_from(arrival_ps)) + draw(st.integers(0, 40)) * unit_ps
        kind, which = draw(st.sampled_from(KINDS)), draw(st.integers(0, 5))
        if kind in MOVES and not all(setup.scheduler.stream for setup in setups):
            kind = "resend"  # clients have no token to go on from before the whole answer
        takes_ps, speed = draw(st.sampled_from((0, 0, 1, 7, 30))) * unit_ps, draw(st.sampled_from((0.5, 0.3, 0.9)))
        with_kv = kind in MOVES and draw(st.booleans())
        result.append(Change(at_ps, kind, which, takes_ps, speed, with_kv=with_kv))
    last_ps = max((change.at_ps + change.takes_ps for change in result), default=0)
    roles = list(dict.fromkeys(setup.role for setup in setups))
    first = [next(i for i, setup in enumerate(setups) if setup.role == role) for role in roles]
    return result + [Change(last_ps, "join", which) for which in first]


@st.composite
def grouped(draw: st.DrawFn, plain: st.SearchStrategy[list[ReplicaSetup]]) -> list[ReplicaSetup]:
    """Let layers keep different tokens: windows and chunks of up to a prompt, states, and perhaps none keep all.

    There are blocks for the longest request, and now and then not for many more. Where prefixes are shared, states may
    be kept at the ends of blocks.
    """
    result, done = draw(plain), dict[object, ReplicaSetup]()
    kinds = [(setup.host_tier and setup.host_tier.store) or id(setup) for setup in result]
    for setup, kind in zip(result, kinds, strict=True):  # those that share a store are alike
        if kind not in done:
            plainly = st.nothing() if setup.speculation else beside_windows(setup)
            done[kind] = draw(grouped_replica(setup) | plainly)
    return [done[kind] for kind in kinds]


@st.composite
def drafted(draw: st.DrawFn, setup: ReplicaSetup, layers: LayerBlocks) -> tuple[LayerBlocks, Drafting]:
    """Let the layers of a draft model keep other tokens than those of its target, in larger or smaller blocks, and
    perhaps in blocks that both have in common."""
    assert isinstance(setup.cost, SpeculativeCost), "it has a draft"
    drafting = setup.cost.drafting
    if not isinstance(drafting, ModelDrafting) or draw(st.integers(0, 3)) == 0:
        return layers, drafting
    kinds: st.SearchStrategy[GroupKind] = st.sampled_from(["windowed", "windowed", "chunked"])
    sizes = st.integers(1, 24)
    groups = [LayerGroup(draw(kinds), 1, draw(sizes)) for _ in range(draw(st.integers(0, 2)))]
    n_windows = len(groups)
    if setup.caches_prefixes and draw(st.booleans()):
        groups.append(LayerGroup("state", 1, 2))
    counts = [draw(st.integers(0, 2)) for _ in groups]
    n_whole = draw(st.integers(0, 2))
    size, own = setup.block_size, [group.tokens // setup.block_size for group in layers.groups]
    in_common = st.just((1, min(own)))  # layers without blocks of their own are in those of the target
    pairs = [(1, 1), (1, 2), (1, 3), (1, 8), (2, 1), (3, 1)]
    other = st.sampled_from([
        (n, m) for n, m in pairs if all(m % (n * each) == 0 or n * each % m == 0 for each in own)
    ])  # fmt: skip
    of_target, of_draft = draw(other if n_whole or sum(counts) else in_common)
    target = (replace(group, tokens=group.tokens * of_target) for group in layers.groups)
    draft = (KvGroup(size * of_draft, n, group) for n, group in zip(counts, groups, strict=True))
    layers = replace(layers, groups=(*target, *draft, KvGroup(size * of_draft, n_whole)))
    model = drafting.model
    assert isinstance(model, LineCost), "costs of tests are lines"
    slopes = draw(st.sampled_from([(0, 0), (97, 3_019)]))[:n_windows]
    drafting = replace(drafting, model=replace(model, windows=slopes), n_windows=n_windows)
    return layers, drafting


@cache
def small_v4(window: int, ratios: tuple[int, ...]) -> Shard:
    """A model as DeepSeek-V4, but small: windows of 4 layers, and beside those of one layer each entries."""
    heads, index = Heads(4, 1, 8), Indexer(2, 4, top_k=3)
    beside = [LayerGroup("compressed", 1, ratio=ratio, indexer=None if ratio > 4 else index) for ratio in ratios]
    groups = (LayerGroup("windowed", 4, window, heads), *beside)
    model = ModelSpec(
        name="small",
        n_layers=4,
        hidden_size=16,
        n_heads=4,
        n_kv_heads=1,
        head_dim=8,
        intermediate_size=32,
        vocab_size=64,
        max_position_embeddings=4096,
        groups=groups,
        mla=SharedVector(8, 6, 2, 8, 4, group_heads=2, o_lora_rank=4),
    )
    return Shard(model)


@cache
def small_v4_cost(window: int, ratios: tuple[int, ...]) -> StepCost:
    """The steps of such a model, in which entries weigh as much as in the large one."""
    return StepCost(small_v4(window, ratios), replace(load_gpu("h100-sxm"), hbm_bytes_per_s=1e7), load_engine("ideal"))


@st.composite
def beside_windows(draw: st.DrawFn, setup: ReplicaSetup) -> ReplicaSetup:
    """Let the layers of a replica keep entries for several tokens beside their window, in blocks of few entries."""
    window, ratios = draw(st.sampled_from([3, 8, 17])), draw(st.sampled_from([(2, 8), (4,), (8,)]))
    with patch("simserve.cost.kv_groups.ENTRY_BLOCK", 8):
        layers = kv_layout(small_v4(window, ratios), setup.block_size, setup.scheduler.most_chunk).blocks
    n_blocks = max(layers.most(setup.max_model_len), draw(st.integers(1, 2)) * setup.n_blocks)
    return replace(setup, layers=layers, n_blocks=n_blocks, cost=small_v4_cost(window, ratios))


@st.composite
def layers_of_shapes(draw: st.DrawFn, setup: ReplicaSetup) -> LayerBlocks:
    """Draw the blocks of a model of which layers differ in their heads, and some have no attention."""
    heads = st.sampled_from([None, *(Heads(12, n, 16) for n in (1, 2, 3, 4))])
    kinds: st.SearchStrategy[GroupKind] = st.sampled_from(["windowed", "chunked", "full", "full", "matrix", "none"])
    groups = [LayerGroup("full", draw(st.integers(1, 4)))]
    for kind in draw(st.lists(kinds, max_size=4)):
        n_windows = sum(group.window is not None for group in groups)
        window = draw(st.integers(1, 24)) if kind in ("windowed", "chunked") else None
        if window is None or n_windows < 2:
            groups.append(LayerGroup(kind, draw(st.integers(1, 4)), window, draw(heads)))
    n_layers = sum(group.n_layers for group in groups)
    model = ModelSpec("shapes", n_layers, 64, 12, 4, 16, 64, 64, 64, groups=tuple(groups))
    return kv_layout(Shard(model), setup.block_size, setup.scheduler.most_chunk, setup.max_model_len).blocks


@st.composite
def grouped_replica(draw: st.DrawFn, setup: ReplicaSetup) -> ReplicaSetup:
    """Let the layers of a replica keep different tokens, or states alone."""
    kinds: st.SearchStrategy[GroupKind] = st.sampled_from(["windowed", "windowed", "chunked"])
    sizes = st.integers(1, 24)
    groups = [LayerGroup(draw(kinds), 1, draw(sizes)) for _ in range(draw(st.integers(0, 2)))]
    if setup.caches_prefixes and draw(st.booleans()):
        groups.append(LayerGroup("state", 1, 2))
    sizes_of = st.sampled_from(draw(st.sampled_from([[1], [1, 1, 1, 2, 4, 8], [1, 3]])))
    windows = [KvGroup(setup.block_size * draw(sizes_of), draw(st.integers(1, 3)), group) for group in groups]
    n_states = draw(st.sampled_from([0, 0, 1, 3]))
    has_ids = setup.caches_prefixes or setup.keeps_contents  # of blocks: those of states alone have none
    n_whole = draw(st.integers(0 if windows or (n_states and not has_ids) else 1, 2))
    whole_tokens = setup.block_size * (draw(sizes_of) if n_whole else 1)
    n_more = draw(st.sampled_from([0, 0, 1, 2])) if n_whole else 0  # layers with fewer heads, or narrower ones
    more = [KvGroup(setup.block_size * draw(sizes_of), n_more)] if n_more else []
    n_slots = 1 if setup.speculation is None else setup.speculation.n_slots
    chunk = setup.scheduler.most_chunk
    layers = LayerBlocks(
        (*windows, KvGroup(whole_tokens, n_whole), *more),
        n_states=n_states,
        most_chunk=None if chunk is None else max(chunk, n_slots),
    )
    if setup.speculation is None and draw(st.integers(0, 3)) == 0:
        layers = draw(layers_of_shapes(setup))
    slopes = draw(st.sampled_from([(0, 0), (811, 50_021)]))[: sum(group.layers.attends for group in layers.windows)]
    target = setup.cost.target if isinstance(setup.cost, SpeculativeCost) else setup.cost
    assert isinstance(target, LineCost), "costs of tests are lines"
    cost: CostModel = replace(target, windows=slopes)
    if isinstance(setup.cost, SpeculativeCost):
        layers, drafting = draw(drafted(setup, layers))
        cost = replace(setup.cost, target=cost, drafting=drafting)
    n_growing = sum(group.n_parts for group in layers.groups)
    most = draw(st.integers(1, max(1, n_growing))) * setup.n_blocks if layers.grows else draw(st.integers(1, 30))
    n_blocks = max(layers.most(setup.max_model_len), most)
    return replace(setup, layers=layers, n_blocks=n_blocks, cost=cost)
