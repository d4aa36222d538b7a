"""A scenario written down again loads to an equal one, and its digest names what can change the result."""

from collections.abc import Callable
from pathlib import Path

import pytest

from simserve import catalog
from simserve.scenario import Scenario

Load = Callable[..., Scenario]

RICH = """\
schema: simserve/1
name: "2024"
seed: 7
model: llama-3.1-8b
gpu: h100-sxm
engine: {name: vllm, step_host_s: 2e-3}
kv_dtype: fp8
cluster:
  router: {kind: power_of_two}
  pools:
    - {name: "on", replicas: 3, parallel: {tensor: 2}, scheduler: prefill_first}
    - {name: 'a: b # c', gpu: b200-sxm, max_model_len: 4096, scheduler: {kind: dynamic, window_s: 0}}
    - {name: "0x10", scheduler: {max_num_seqs: 8}}
    - {name: "naïve ☃ 🚀"}
workload:
  client: {kind: closed_loop, concurrency: 64}
  lengths:
    kind: lognormal
    prompt_tokens: {median: 512, sigma: 0.6, max: 8192}
    output_tokens: {median: 200, sigma: 1e-3, max: 4096}
  duration_s: 1e3
  max_tokens: 4096
  drain_limit_s: 60
measure: {warmup_requests: 10}
slo: {ttft_s: 0.5, itl_s: 1e-1}
"""


def test_the_resolved_yaml_loads_to_an_equal_scenario(load: Load) -> None:
    scenario = load(RICH)
    again = load(scenario.to_yaml())
    assert again == scenario
    assert again.to_dict() == scenario.to_dict()
    assert again.digest == scenario.digest
    assert again.setups == scenario.setups
    assert [pool.name for pool in again.cluster.pools] == ["on", "a: b # c", "0x10", "naïve ☃ 🚀"]


def test_writing_twice_writes_the_same_but_for_the_comments(load: Load) -> None:
    once = load(RICH).to_yaml()
    twice = load(once).to_yaml()
    assert [line.split("  #")[0] for line in once.splitlines()] == twice.splitlines()


def test_plain_data_makes_the_same_scenario(load: Load) -> None:
    scenario = load(RICH)
    assert Scenario.from_dict(scenario.to_dict()) == scenario


def test_the_yaml_says_where_each_default_came_from(load: Load) -> None:
    lines = [line.strip() for line in load().to_yaml().splitlines()]
    assert "model: llama-3.1-8b" in lines
    assert "seed: 0  # default" in lines
    assert "block_size: 16  # engine vllm" in lines


def test_the_resolved_scenario_names_the_version_of_each_engine(load: Load, small: str) -> None:
    scenario = load(small + "cluster: {pools: [{name: a}, {name: b, engine: trtllm}]}\n", "engine=sglang")
    pools = scenario.to_dict()["cluster"]["pools"]
    assert scenario.to_dict()["engine"] == {"name": "sglang", "version": catalog.default_version("sglang")}
    assert ("engine" in pools[0], pools[1]["engine"]) == (False, {"name": "trtllm", "version": "1.3"})
    assert '        version: "1.3"  # default of engine trtllm\n' in scenario.to_yaml()
    named, left_out = load(small, 'engine.version="0.19"'), load(small)
    assert (named.digest, named.setups) == (left_out.digest, left_out.setups)
    assert load(small, 'engine.version="0.12"').digest != left_out.digest
    assert load(small, "engine=ideal").to_dict()["engine"] == "ideal"


def test_the_digest_ignores_names_and_nothing_else(load: Load, small: str) -> None:
    digest = load().digest
    assert load(small, "name=other").digest == digest
    for change in ("seed=1", "workload.n_requests=101", "engine.launch_s=0", "slo.ttft_s=1", "cluster.router=random"):
        assert load(small, change).digest != digest, change


def test_the_digest_of_a_replay_follows_the_traces_content_and_not_its_place(load: Load, small: str) -> None:
    load()  # makes the folder the current one
    content = "arrival_s,prompt_tokens,output_tokens\n0.5,10,2\n"
    for name, text in (("a.csv", content), ("b.csv", content), ("c.csv", content + "1.5,10,2\n")):
        Path(name).write_text(text)
    head = small.partition("workload")[0]
    first, same, other = (load(f"{head}workload:\n  trace: {{path: {name}.csv}}\n").digest for name in "abc")
    assert first == same != other


def test_equal_scenarios_have_equal_hashes(load: Load) -> None:
    assert hash(load()) == hash(load())
    assert load() != "small"


@pytest.mark.parametrize(
    "value", ["1e-6", "null", "true", "~", "-", "- a", "[x]", "a'b\"c", " lead", "tab\there", "", "#x"]
)
def test_any_text_survives_being_written(load: Load, small: str, value: str) -> None:
    data = load().to_dict()
    data["cluster"]["pools"][0]["name"] = value or "empty"
    scenario = Scenario.from_dict(data)
    assert load(scenario.to_yaml()).cluster.pools[0].name == (value or "empty")


def test_an_infinite_rate_survives_where_it_means_all_at_once(load: Load, small: str) -> None:
    scenario = load(small, "workload.arrivals={kind: vllm_bench, rate_per_s: .inf}", "measure.warmup_s=0")
    assert "rate_per_s: .inf" in scenario.to_yaml()
    assert load(scenario.to_yaml()) == scenario
