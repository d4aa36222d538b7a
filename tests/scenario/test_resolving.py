"""A loaded scenario is resolved: every default is there, and where it came from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.specs import GpuSpec
from simserve.errors import ScenarioError
from simserve.routers.least_outstanding import LeastOutstanding
from simserve.scenario import Scenario, load_scenario
from simserve.scenario.scheduler_rules import engine_arguments
from simserve.schedulers.chunked import Chunked
from simserve.schedulers.static import Static
from simserve.simulation import simulate

Load = Callable[..., Scenario]
HERE = "cluster.pools.0"


def test_a_small_scenario_gets_one_pool_of_one_replica(load: Load) -> None:
    scenario = load()
    (pool,) = scenario.cluster.pools
    assert (pool.name, pool.role, pool.replicas, pool.parallel.tensor) == ("serve", "both", 1, 1)
    assert (scenario.seed, scenario.engine.name, scenario.weight_dtype, scenario.kv_dtype) == (
        0,
        "vllm",
        "bf16",
        "bf16",
    )


def test_the_engines_own_scheduler_has_the_engines_own_knobs_on_this_gpu(load: Load) -> None:
    scenario = load()
    assert scenario.cluster.pools[0].scheduler == {
        "kind": "chunked",
        "max_num_batched_tokens": 8192,  # vllm serve on 70 GiB or more
        "max_num_seqs": 1024,
        "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": True,  # the engine's version is 0.19
        "policy": "fcfs",
        "priority_preemption_threshold": None,
        "vtc": None,
    }
    assert scenario.origins[f"{HERE}.scheduler.kind"] == "engine vllm"
    assert scenario.origins[f"{HERE}.scheduler.max_num_batched_tokens"] == "engine vllm"
    assert scenario.origins[f"{HERE}.scheduler.long_prefill_token_threshold"] == "default"


def test_small_cards_and_exceptions_keep_the_engines_first_knobs(load: Load) -> None:
    engine = load().setups[0].engine
    big = load().setups[0].gpu
    small = _like(big, name="small", hbm_bytes=50e9)
    assert engine_arguments(engine, small)["max_num_batched_tokens"] == 2048
    excepted = _like(big, name=engine.scheduler_by_gpu_bytes[0]["except"][0], hbm_bytes=big.hbm_bytes)
    assert engine_arguments(engine, excepted)["max_num_seqs"] == 256


@pytest.mark.parametrize(("version", "reserves"), [(None, True), ("0.18.1", False), ("0.19.0", True), ("0.24", True)])
def test_whether_a_whole_prompt_must_fit_goes_by_the_engines_version(
    load: Load, small: str, version: str | None, reserves: bool
) -> None:
    knobs = "{max_num_batched_tokens: 256, long_prefill_token_threshold: 128}"
    overrides = [f"{HERE}={{num_gpu_blocks: 40, scheduler: {knobs}}}", "workload.n_requests=2"]
    burst = "workload.arrivals={kind: constant, rate_per_s: 1000}"  # two prompts of 32 blocks at once
    engine = "engine=vllm" if version is None else f"engine={{name: vllm, version: '{version}'}}"
    scenario = load(small, *overrides, burst, engine, "workload.lengths.output_tokens=2", "measure.replays=0")
    scheduler = scenario.cluster.pools[0].scheduler
    assert scheduler is not None and scheduler["scheduler_reserve_full_isl"] == reserves
    assert scenario.origins[f"{HERE}.scheduler.scheduler_reserve_full_isl"] == "engine vllm"
    assert simulate(scenario).requests.n_preemptions.tolist() == [0, 0 if reserves else 1]


def test_explicit_knobs_come_before_the_engines_and_the_engines_before_the_class(load: Load, small: str) -> None:
    scenario = load(small, f"{HERE}.scheduler={{kind: chunked, max_num_batched_tokens: 4096}}")
    origins = {key: scenario.origins[f"{HERE}.scheduler.{key}"] for key in ("kind", "max_num_batched_tokens")}
    assert origins == {"kind": "explicit", "max_num_batched_tokens": "explicit"}
    assert scenario.setups[0].scheduler == Chunked(
        max_num_batched_tokens=4096, max_num_seqs=1024, scheduler_reserve_full_isl=True
    )


def test_another_policy_than_the_engines_has_its_classs_defaults(load: Load, small: str) -> None:
    scenario = load(small, f"{HERE}.scheduler=static")
    assert scenario.setups[0].scheduler == Static()
    assert scenario.origins[f"{HERE}.scheduler.batch_size"] == "default"


def test_default_seats_give_way_to_an_explicit_token_budget(load: Load, small: str) -> None:
    scenario = load(small, f"{HERE}.scheduler.max_num_batched_tokens=512")
    assert scenario.setups[0].scheduler == Chunked(
        max_num_batched_tokens=512, max_num_seqs=512, scheduler_reserve_full_isl=True
    )
    assert scenario.origins[f"{HERE}.scheduler.max_num_seqs"] == "no more than max_num_batched_tokens"


def test_memory_knobs_come_from_the_engine(load: Load) -> None:
    scenario = load()
    pool, engine = scenario.cluster.pools[0], scenario.setups[0].engine
    assert (pool.gpu_memory_utilization, pool.block_size) == (engine.gpu_memory_utilization, engine.block_size)
    assert scenario.origins[f"{HERE}.block_size"] == "engine vllm"


def test_the_longest_request_is_the_models_where_the_cache_holds_it(load: Load) -> None:
    scenario = load()
    assert scenario.cluster.pools[0].max_model_len == scenario.setups[0].max_model_len == 131072
    assert scenario.origins[f"{HERE}.max_model_len"] == "model llama-3.1-8b"


def test_the_longest_request_is_what_the_cache_holds_where_that_is_less(load: Load, small: str) -> None:
    scenario = load(small, f"{HERE}.num_gpu_blocks=1000")
    assert scenario.setups[0].max_model_len == 16_000
    assert scenario.setups[0].ledger.verified
    assert scenario.origins[f"{HERE}.max_model_len"] == "what the KV cache holds"


def test_requests_beyond_a_sliding_window_take_blocks_for_the_window_only(load: Load, small: str) -> None:
    windowed = """{"model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_size": 4096,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": 4096, "torch_dtype": "bfloat16",
        "tie_word_embeddings": false, "hidden_act": "silu"}"""
    load()  # makes the folder the current one
    Path("config.json").write_text(windowed)
    setup = load(small, "model=config.json").setups[0]
    assert setup.max_model_len == 32768
    budget = setup.scheduler.most_chunk or 0
    assert setup.ledger.layout.blocks.most(32768) == -(-(4095 + budget) // 16) + 1
    within = load(small, "model=config.json", f"{HERE}.max_model_len=4096").setups[0]
    assert within.ledger.layout.blocks.is_plain and within.caches_prefixes


def test_a_pool_may_differ_from_the_scenario(load: Load, small: str) -> None:
    pools = "[{name: a}, {name: b, gpu: b200-sxm, engine: ideal, model: llama-3.1-70b, replicas: 3}]"
    first, second = load(small, f"cluster.pools={pools}").setups
    assert (first.gpu.name, first.engine.name, first.model.name) == ("h100-sxm", "vllm", "llama-3.1-8b")
    assert (second.gpu.name, second.engine.name, second.model.name) == ("b200-sxm", "ideal", "llama-3.1-70b")
    assert (second.n_replicas, second.name) == (3, "b")


def test_constants_of_an_engine_replace_the_catalogs(load: Load, small: str) -> None:
    engine: EngineSpec = load(small, "engine.step_host_s=0.25").setups[0].engine
    assert (engine.name, engine.step_host_s) == ("vllm", 0.25)


def test_the_ledger_is_that_of_the_pools_parallelism(load: Load, small: str) -> None:
    one = load().setups[0]
    two = load(small, f"{HERE}.parallel.tensor=2").setups[0]
    assert two.parallel.tensor == 2
    assert two.ledger.weights_bytes < one.ledger.weights_bytes
    assert two.ledger.n_blocks > one.ledger.n_blocks


def test_building_a_router_gives_a_new_one_each_time(load: Load, small: str) -> None:
    scenario = load(small, "cluster.router=least_outstanding")
    assert isinstance(scenario.build_router(), LeastOutstanding)
    assert scenario.build_router() is not scenario.build_router()


def test_plugins_of_the_workload_are_spelled_out(load: Load) -> None:
    workload = load().workload
    assert workload.arrivals is not None and workload.lengths is not None
    assert workload.arrivals["kind"] == "poisson"
    assert workload.lengths["prompt_tokens"] == 512


def test_the_slo_has_one_form_inside_and_two_outside(load: Load, small: str) -> None:
    short = load(small + "slo: {ttft_s: 0.5}\n")
    full = load(small + "slo: {default: {ttft_s: 0.5}}\n")
    assert short.slo.default.ttft_s == 0.5
    assert short == full
    assert short.origins["slo.ttft_s"] == full.origins["slo.ttft_s"] == "explicit"


def test_a_scenario_without_a_name_has_that_of_its_file(load: Load, small: str, tmp_path: Path) -> None:
    nameless = small.replace("name: small\n", "")
    assert load(nameless).name == "a"
    (tmp_path / "my chat (2).yaml").write_text(nameless)
    assert load_scenario(tmp_path / "my chat (2).yaml").name == "my-chat-2"


def test_without_a_warm_up_everything_counts(load: Load, small: str) -> None:
    scenario = load()
    assert (scenario.measure.warmup_s, scenario.origins["measure.warmup_s"]) == (0.0, "default")
    assert load(small, "measure.warmup_requests=5").measure.warmup_s is None


def test_every_value_has_an_origin(load: Load) -> None:
    scenario = load()
    assert scenario.origins["model"] == "explicit"
    assert scenario.origins["seed"] == "default"
    assert scenario.origins["workload.lengths.prompt_tokens"] == "explicit"


def test_a_scenario_cannot_be_changed(load: Load) -> None:
    scenario = load()
    with pytest.raises(ValidationError):
        scenario.seed = 1  # type: ignore[misc]


def test_an_explicit_nothing_is_as_good_as_leaving_out(load: Load, small: str) -> None:
    assert load(small, f"{HERE}.scheduler=", "workload.trace=", "workload.max_tokens=") == load()


# -- files -------------------------------------------------------------------------------------------------------------

TRACE = "arrival_s,prompt_tokens,output_tokens\n0.5,10,2\n1.5,20,3\n"


def _replay(small: str, path: str) -> str:
    return small.partition("workload")[0] + f"workload:\n  trace: {{path: {path}}}\n"


def test_a_trace_is_found_beside_the_scenario_first_then_in_the_current_directory(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "a.yaml").write_text(_replay(small, "t.csv"))
    (tmp_path / "t.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path)
    assert _trace_path(load_scenario("scenarios/a.yaml")) == str(tmp_path / "t.csv")
    (tmp_path / "scenarios" / "t.csv").write_text(TRACE)
    assert _trace_path(load_scenario("scenarios/a.yaml")) == str(tmp_path / "scenarios" / "t.csv")


def test_a_resolved_scenario_refuses_a_trace_that_has_changed(load: Load, small: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    resolved = load(_replay(small, "t.csv")).to_yaml()
    load(resolved)
    (tmp_path / "t.csv").write_text(TRACE + "2.5,30,4\n")
    with pytest.raises(ScenarioError, match=r"workload\.trace\.sha256: the file t\.csv has changed"):
        load(resolved)


def test_a_resolved_scenario_finds_its_trace_from_anywhere(
    load: Load, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    scenario = load(_replay(small, "t.csv"))
    elsewhere = tmp_path / "reports" / "small"
    elsewhere.mkdir(parents=True)
    (elsewhere / "scenario.yaml").write_text(scenario.to_yaml())
    monkeypatch.chdir(elsewhere)
    assert load_scenario("scenario.yaml") == scenario


def _trace_path(scenario: Scenario) -> str:
    assert scenario.workload.trace is not None
    return scenario.workload.trace.path


def _like(gpu: GpuSpec, **changes: object) -> GpuSpec:
    return replace(gpu, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "slots", "are_equal"), [("vllm", "max_num_seqs", False), ("trtllm", "max_batch_size", True)]
)
def test_slots_size_logits_where_the_engine_measures_with_all_of_them(
    load: Load, small: str, engine: str, slots: str, are_equal: bool
) -> None:
    few, many = (
        load(small, f"engine={engine}", f"cluster.pools.0.scheduler={{{slots}: {n}}}").setups[0].ledger
        for n in (8, 8192)
    )
    assert (few.activations_bytes == many.activations_bytes) is are_equal
