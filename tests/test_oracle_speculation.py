"""Engine and oracle agree exactly on speculative decoding."""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve import catalog
from simserve.catalog.layers import Heads, LayerGroup
from simserve.catalog.specs import ModelSpec
from simserve.catalog.states import StateLayers
from simserve.columns.run import serve as run_cluster
from simserve.cost.kv_groups import kv_layout
from simserve.cost.shard import Shard
from simserve.cost.speculative import Drafting, ModelDrafting, SpeculativeCost
from simserve.engine.cluster import Cluster
from simserve.engine.decode import Speculation
from simserve.engine.frontend import FrontEnd
from simserve.engine.offered import Offered
from simserve.engine.recorder import FINISHED, REJECTED
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.prefix_affinity import PrefixAffinity
from simserve.scenario.proposals import SpeculationSetup
from simserve.state.acceptance import Acceptance
from simserve.workload.trace import Trace
from tests.agreement import assert_agreement, engine_steps, own, request_rows, run_both, token_times
from tests.doubles import LineCost
from tests.effort import examples
from tests.worlds import ROUTERS, caching, front_ends, grouped, setups, shared_prompts, traces

RATES = st.sampled_from([0.0, 0.3, 0.7, 0.95, 1.0])


def can_speculate(result: list[ReplicaSetup]) -> bool:
    return not result[0].scheduler.runs_to_completion


def is_one_pool(result: list[ReplicaSetup]) -> bool:
    return result[0].role == "both"


@st.composite
def speculating(draw: st.DrawFn, plain: st.SearchStrategy[list[ReplicaSetup]]) -> list[ReplicaSetup]:
    """Add up to five proposed tokens, by a model or for free; each pair of rates is 1 now and then."""
    result = draw(plain.filter(can_speculate))
    rates = tuple(draw(st.lists(RATES, min_size=1, max_size=5)))
    k = len(rates)
    drafts: st.SearchStrategy[Drafting] = st.sampled_from(
        [Drafting(), ModelDrafting(LineCost(step=70_001, token=1_013, row=7, pair=5, key=91), k)]
    )
    how = Speculation(Acceptance(rates, draw(st.integers(0, 5))), 1 + k + draw(st.sampled_from([0, k])))
    drafting = draw(drafts)
    floor_ps, host_ps = draw(st.sampled_from([0, 0, 2_003])), draw(st.sampled_from([0, 0, 3]))
    host: dict[str, Any] = {
        "propose_ps": draw(st.sampled_from([0, 333])),
        "launch_ps": draw(st.sampled_from([0, 0, 2_000_003])),
    }
    return [
        replace(setup, cost=SpeculativeCost(setup.cost, drafting, k, floor_ps, host_ps, **host), speculation=how)
        for setup in result
    ]


SMALL_STATE = StateLayers.of(
    "gated_delta_net", n_key_heads=1, key_head_dim=8, n_value_heads=1, value_head_dim=8, conv_size=4
)

BASES = tuple(
    replace(catalog.load_model(name), linear=SMALL_STATE)
    for name in ("qwen3-next-80b-a3b", "deepseek-v3", "gemma-3-1b")
)
"""Experts with gates, latent vectors with experts, and one KV head; all may have states that fit a small block."""

KINDS = ("draft_model", "eagle", "mtp", "ngram", "medusa")


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Draw a model whose layers keep all keys or latent vectors, windows with heads of their own, chunks or states."""
    base = draw(st.sampled_from(BASES))
    widths = [Heads(16, 4, 256), Heads(4, 1, 256), Heads(8, 2, 96, 64)]
    heads = None if base.mla else draw(st.sampled_from([None, *widths]))
    n_layers, window = st.integers(1, 4), st.integers(1, 24)
    whole = LayerGroup("latent" if base.mla else "full", draw(n_layers))
    others = [
        LayerGroup("windowed", draw(n_layers), draw(window), heads),
        LayerGroup("chunked", draw(n_layers), draw(window)),
        LayerGroup("state", draw(n_layers)),
    ]
    groups = (*draw(st.lists(st.sampled_from(others), max_size=2, unique=True)), whole)
    if draw(st.integers(0, 3)) == 0 and groups[0].attends:
        groups = groups[:1]  # none keeps all
    experts = base.experts and replace(base.experts, n_dense_layers=0)
    mtp = draw(st.sampled_from([("full", "experts"), ("windowed", "dense")]))
    n = sum(group.n_layers for group in groups)
    return replace(base, n_layers=n, groups=groups, experts=experts, n_mtp_layers=1, mtp_layer=mtp)


@st.composite
def of_models(draw: st.DrawFn, plain: st.SearchStrategy[list[ReplicaSetup]]) -> list[ReplicaSetup]:
    """Let layers be those of a model and of its draft, of any kind, in blocks as their layout has them."""
    result = draw(speculating(plain))
    first = result[0]
    assert isinstance(first.cost, SpeculativeCost) and isinstance(first.cost.target, LineCost)
    assert first.speculation is not None
    limit, k, kind = first.max_model_len, first.cost.n_proposed, draw(st.sampled_from(KINDS))
    target, chunk = Shard(draw(models()).within(limit)), first.scheduler.most_chunk
    own = draw(models()).within(limit) if kind == "draft_model" else None
    given = SpeculationSetup(kind, (0.5,) * k, 0.0, own)
    draft = given.shard(target)
    most_chunk = None if chunk is None else max(chunk, given.n_slots)
    keeps = bool(first.caches_prefixes)
    size = draw(st.sampled_from([1, 4, 16]))
    layers = kv_layout(target, size, most_chunk, limit, 1 + k, keeps_states=keeps, draft=draft).blocks
    n_windows, n_of_draft = (
        0 if each is None else sum(g.window is not None for g in each.model.groups) for each in (target, draft)
    )
    slopes = draw(st.sampled_from([(0,) * 9, (811, 50_021, 7)]))
    drafting = Drafting()
    if draft is not None:
        model = LineCost(step=70_001, token=1_013, row=7, pair=5, key=91, windows=slopes[:n_of_draft])
        drafting = ModelDrafting(model, k, n_of_draft)
    cost = replace(first.cost, target=replace(first.cost.target, windows=slopes[:n_windows]), drafting=drafting)
    how = replace(first.speculation, n_slots=given.n_slots)
    n_blocks = draw(st.integers(1, 3)) * layers.most(limit)
    return [replace(each, layers=layers, cost=cost, speculation=how, n_blocks=n_blocks) for each in result]


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(of_models(setups()), st.sampled_from(ROUTERS), traces(), st.none() | st.integers(1, 5))
def test_engine_and_oracle_agree_on_models_and_drafts_of_all_kinds(
    setups: list[ReplicaSetup], router: Any, load: Trace, concurrency: int | None
) -> None:
    assert_agreement(setups, *run_both(setups, router, load, concurrency))


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(of_models(caching().filter(is_one_pool)), st.sampled_from(ROUTERS), st.data())
def test_engine_and_oracle_agree_on_prefix_caches_of_models_and_drafts(
    setups: list[ReplicaSetup], router: Any, data: st.DataObject
) -> None:
    assert_agreement(setups, *run_both(setups, router, data.draw(shared_prompts()), None))


@settings(max_examples=examples(400), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    speculating(setups()) | grouped(speculating(setups())),
    st.sampled_from(ROUTERS),
    traces(),
    st.none() | st.integers(1, 5),
    front_ends(),
)
def test_engine_and_oracle_agree_on_every_request_step_and_token(
    setups: list[ReplicaSetup], router: Any, load: Trace, concurrency: int | None, front_end: FrontEnd
) -> None:
    assert_agreement(setups, *run_both(setups, router, load, concurrency, front_end))


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    speculating(caching().filter(is_one_pool)) | grouped(speculating(caching().filter(is_one_pool))),
    st.sampled_from((*ROUTERS, PrefixAffinity)),
    st.data(),
    st.none() | st.integers(1, 5),
)
def test_engine_and_oracle_agree_on_prefix_caches(
    setups: list[ReplicaSetup], router: Any, data: st.DataObject, concurrency: int | None
) -> None:
    load = data.draw(shared_prompts())
    assert_agreement(setups, *run_both(setups, router, load, concurrency))


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(speculating(setups()) | grouped(speculating(setups())), st.sampled_from(ROUTERS), traces())
def test_requests_blocks_and_tokens_are_conserved(setups: list[ReplicaSetup], router: Any, load: Trace) -> None:
    cluster = Cluster(own(setups), router(), Offered(load), router_seed=1)
    run_cluster(cluster)
    recorder = cluster.recorder
    assert recorder.n_with(FINISHED) + recorder.n_with(REJECTED) == len(load)
    n_tokens = 0
    for replica in cluster.replicas:
        pool, cohort = replica.pool, replica.cohort
        assert (pool.free_blocks, pool.used_blocks, pool.reserved_blocks) == (replica.pool.total_blocks, 0, 0)
        assert (cohort.n, cohort.kv_tokens, cohort.blocks_to_grow(9)) == (0, 0, 0)
        step_runs, spans = recorder.step_runs(replica.id), recorder.spans(replica.id)
        held = step_runs["kv_blocks_used"] + step_runs["kv_blocks_reserved"]
        assert ((held >= 0) & (held <= replica.pool.total_blocks)).all()
        n_tokens += int((2 + spans["last_step"] - spans["first_step"]).sum() + step_runs["accepted_tokens"].sum())
    finished = (row for row in range(len(load)) if recorder.columns["status"][row] == FINISHED)
    assert n_tokens == sum(cluster.rows.output_tokens[row] for row in finished)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    (setups() | grouped(setups())).filter(can_speculate),
    st.sampled_from(ROUTERS),
    traces(),
    st.none() | st.integers(1, 5),
)
def test_a_replica_that_proposes_nothing_is_a_plain_one(
    setups: list[ReplicaSetup], router: Any, load: Trace, concurrency: int | None
) -> None:
    none = Speculation(Acceptance(()), n_slots=1)
    proposing = [replace(each, cost=SpeculativeCost(each.cost, Drafting(), 0), speculation=none) for each in setups]
    runs = [Cluster(own(each), router(), Offered(load, concurrency), router_seed=7) for each in (setups, proposing)]
    for cluster in runs:
        run_cluster(cluster)
    plain, other = runs
    assert request_rows(plain) == request_rows(other)
    assert token_times(plain) == token_times(other)
    for replica in range(len(setups)):
        times = [[(s["start_ps"], s["end_ps"], s["kv_tokens"]) for s in engine_steps(run, replica)] for run in runs]
        assert times[0] == times[1]
