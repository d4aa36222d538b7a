"""Every mistake of a scenario, each with file, line, path, rule, value and remedy, all at once."""
# ruff: noqa: E501 - messages are as long as they are

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from simserve.errors import ScenarioError
from simserve.scenario import Scenario, load_scenario

Load = Callable[..., Scenario]
MessagesOf = Callable[..., list[str]]

MANY_WRONG = """\
schema: simserve/2
name: chat burst
seed: -1
model: llama-3.1-8b
gpu: h100-sxm
weight_dtype: bf17
kv-cache-dtype: fp8
max_num_seqs: 64
cluster:
  router: least_outstandin
  pools:
    - name: serve
      replicas: 1.5
      tensor_parallel_size: 2
      parallel: {tensor: 6}
      scheduler: {kind: chunked, max_num_batched_tokens: 64, max_num_seqs: 256, max_batch_size: 3}
    - name: serve
      role: prefill
      replicas: 2
      replicas: 3
workload:
  arrivals: {kind: poisson, rate_per_s: .nan}
  trace: {path: nowhere.csv, format: azur}
  duration_s: 90
  n_requests: 100_000
measure: {warmup_s: 95}
slo: {ttft_ms: 500, tpot_s: 0}
"""

TEXT_OF_MANY = """\
a.yaml:1: schema: must be 'simserve/1', got 'simserve/2'; did you mean simserve/1?
a.yaml:2: name: must be letters, digits, '-', '_' and '.', as it names a folder, got 'chat burst'
a.yaml:3: seed: must be at least 0, got -1
a.yaml:6: weight_dtype: must be one of bf16, fp16, fp8, fp8_block, w8a8, nvfp4, mxfp4, int8 or int4, got 'bf17'; did you mean bf16?
a.yaml:7: kv-cache-dtype: unknown key; use kv_dtype
a.yaml:8: max_num_seqs: unknown key; use cluster.pools.0.scheduler.max_num_seqs
a.yaml:10: cluster.router: unknown router, got 'least_outstandin'; did you mean least_outstanding? (your own: my_module:MyClass)
a.yaml:13: cluster.pools.0.replicas: must be a whole number, got 1.5
a.yaml:14: cluster.pools.0.tensor_parallel_size: unknown key; use cluster.pools.0.parallel.tensor
a.yaml:15: cluster.pools.0.parallel.tensor: must divide the model's 32 attention heads, got 6; try 1, 2, 4 or 8
a.yaml:16: cluster.pools.0.scheduler.max_batch_size: unknown argument; use cluster.pools.0.scheduler.max_num_seqs
a.yaml:16: cluster.pools.0.scheduler.max_num_batched_tokens: must be at least max_num_seqs, 256, got 64; a step decodes one token of each running request
a.yaml:17: cluster.pools.1.name: must differ from other pools' names, got 'serve'; rename it
a.yaml:18: cluster.pools.1.role: a prefill pool needs a decode pool, got 'prefill'; add one with role: decode, or use role: both
a.yaml:20: cluster.pools.1.replicas: is given twice, first on line 19; keep one of them
a.yaml:21: workload.lengths: is missing; for example {{kind: fixed, prompt_tokens: 1024, output_tokens: 128}}
a.yaml:22: workload.arrivals.rate_per_s: must be a finite number, got NaN
a.yaml:23: workload.trace.format: must be one of auto, azure, mooncake, burstgpt, vllm, simserve, log, prometheus or weka, got 'azur'; did you mean azure?
a.yaml:23: workload.trace: needs exactly one of arrivals, trace and client, and has arrivals and trace; leave out arrivals or trace, or give trace.next_turn: after_answer
a.yaml:23: workload.trace.path: there is no such file, got 'nowhere.csv'; looked in {here}
a.yaml:25: workload.n_requests: must be a whole number, got '100_000'; write 100000, without quotes or underscores
a.yaml:26: measure.warmup_s: must be less than workload.duration_s, 90 s, got 95; nothing would be measured
a.yaml:27: slo.ttft_ms: unknown key; use slo.ttft_s, in seconds
a.yaml:27: slo.tpot_s: must be more than 0, got 0
"""


def test_all_mistakes_of_a_file_are_told_at_once_in_the_order_of_its_lines(messages_of: MessagesOf) -> None:
    assert sorted(messages_of(MANY_WRONG)) == sorted(TEXT_OF_MANY.format(here=Path.cwd()).splitlines())
    lines = [int(message.split(":")[1]) for message in messages_of(MANY_WRONG)]
    assert lines == sorted(lines)


# -- the file itself ---------------------------------------------------------------------------------------------------


def test_a_missing_file_names_a_similar_one(load: Load) -> None:
    load()
    with pytest.raises(ScenarioError, match=r"^b\.yaml: there is no such file; did you mean a\.yaml\?$"):
        load_scenario("b.yaml")


def test_a_folder_is_no_scenario(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="is a folder"):
        load_scenario(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.yaml: is empty; `simserve init` writes one to start from"),
        ("# nothing\n", "a.yaml: is empty; `simserve init` writes one to start from"),
        ("[1, 2]", "a.yaml:1: a scenario must be a mapping of keys to values, got [1, 2]"),
        ("hello", "a.yaml:1: a scenario must be a mapping of keys to values, got 'hello'"),
    ],
)
def test_a_file_that_holds_no_scenario_is_told_why(messages_of: MessagesOf, text: str, message: str) -> None:
    assert messages_of(text) == [message]


def test_a_file_that_is_not_yaml_is_told_where(messages_of: MessagesOf, small: str) -> None:
    (message,) = messages_of(small.replace("gpu: h100-sxm", "gpu: [h100-sxm"))
    assert message.startswith("a.yaml:4: is not YAML: ")


def test_a_file_that_is_no_text_is_told_where(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(ScenarioError, match=r"is not UTF-8 text \(byte 6\)"):
        load_scenario(tmp_path / "a.yaml")


def test_a_byte_order_mark_does_no_harm(tmp_path: Path, small: str) -> None:
    (tmp_path / "a.yaml").write_text("\ufeff" + small, encoding="utf-8")
    assert load_scenario(tmp_path / "a.yaml").name == "small"


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["schema", "model", "gpu"])
def test_a_missing_key_is_told_at_the_mapping_that_lacks_it(messages_of: MessagesOf, small: str, key: str) -> None:
    (message,) = messages_of("".join(line for line in small.splitlines(keepends=True) if not line.startswith(key)))
    assert message.startswith(f"a.yaml:1: {key}: is missing; ")


def test_a_scenario_without_a_workload_says_what_to_give(messages_of: MessagesOf, small: str) -> None:
    (message,) = messages_of(small.partition("workload")[0])
    assert message == "a.yaml:1: workload: is missing; give arrivals, a trace or a client"


def test_a_missing_key_inside_has_the_line_of_its_parent(messages_of: MessagesOf, small: str) -> None:
    text = small.partition("workload")[0] + "workload:\n  trace:\n    format: azure\n"
    assert messages_of(text) == ["a.yaml:6: workload.trace.path: is missing"]


@pytest.mark.parametrize(
    ("where", "key", "remedy"),
    [
        ("", "tensor_parallel_size", "use cluster.pools.0.parallel.tensor"),
        ("cluster.", "replicas", "use cluster.pools.0.replicas"),
        ("cluster.pools.0.", "cache-dtype", "use kv_dtype"),
        ("cluster.pools.0.", "num_gpu_blocks_override", "use cluster.pools.0.num_gpu_blocks"),
        (
            "cluster.pools.0.",
            "max_num_batched_tokens",
            "use cluster.pools.0.scheduler.max_num_batched_tokens",
        ),
        ("cluster.pools.0.", "enable_chunked_prefill", "with it the cluster.pools.0.scheduler is chunked, without it"),
        ("cluster.pools.0.parallel.", "tensr", "did you mean tensor?"),
        (
            "cluster.pools.0.scheduler.",
            "gpu_memory_utilization",
            "use cluster.pools.0.gpu_memory_utilization",
        ),
        ("workload.", "request_rate", "use workload.arrivals.rate_per_s"),
        ("workload.", "rate_per_s", "use workload.arrivals.rate_per_s"),
        ("workload.", "num_prompts", "use workload.n_requests"),
        ("workload.", "warmup_s", "use measure.warmup_s"),
        ("slo.", "ttft", "use slo.ttft_s, in seconds"),
        ("slo.", "tpot_sec", "did you mean tpot_s?"),
        ("measure.", "zzz", "choose from warmup_s, warmup_requests"),
        ("engine.", "step_host", "did you mean step_host_s?"),
    ],
)
def test_an_unknown_key_is_told_what_it_is_called_here(
    messages_of: MessagesOf, small: str, where: str, key: str, remedy: str
) -> None:
    (message,) = messages_of(small, f"{where}{key}=1")
    assert f": unknown {'argument' if 'scheduler' in where else 'key'}; {remedy}" in message


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("engine.version=0.12", """got 0.12; write version: "0.12"; on a command line 'engine.version="0.12"'"""),
        ("workload.trace=file.csv", "must be a mapping, got 'file.csv'; write trace: {path: file.csv}"),
        ("seed=1.5", "must be a whole number, got 1.5"),
        ("seed=true", "must be a whole number, got true"),
        ("seed='7'", "must be a whole number, got '7'; write 7, without quotes or underscores"),
        ("name=", "must be text, got nothing"),
        ("name=../up", "must be letters, digits, '-', '_' and '.', as it names a folder, got '../up'"),
        ("model=[1]", "must be text, got [1]"),
        ("cluster=3", "must be a mapping, got 3"),
        ("cluster.pools=[]", "must have at least 1 items, got []"),
        ("cluster.pools={}", "must be a list, got a mapping"),
        ("cluster.pools=[3]", "cluster.pools.0: must be a mapping, got 3"),
        ("cluster.pools.0.replicas=0", "must be at least 1, got 0"),
        ("cluster.pools.0.gpu_memory_utilization=90", "must be at most 1, got 90"),
        ("cluster.pools.0.role=prefil", "must be one of both, prefill or decode, got 'prefil'; did you mean prefill?"),
        ("workload=5", "must be a mapping, got 5"),
        ("workload.n_requests=0", "must be at least 1, got 0"),
        ("workload.n_requests=.inf", "must be a finite number, got infinity"),
        ("workload.drain_limit_s=-1", "must be more than 0, got -1"),
        ("workload.max_tokens=0", "must be at least 1, got 0"),
        ("measure.warmup_s=soon", "must be a number or 'auto', got 'soon'"),
        ("measure.warmup_s=-1", "must be at least 0"),
        ("measure.warmup_requests=-1", "must be at least 0, got -1"),
        ("measure.warmup_s=1e19", "must be at most 1e+18 or 'auto', got 1e+19"),
        ("slo.ttft_s=fast", "must be a number, got 'fast'"),
        ("slo.tpot_s=9223372036854775808", "must be at most 1e+18, got 9223372036854775808"),
        ("slo=0.5", "must be a mapping, got 0.5"),
        ("engine.step_host_s=-1", "must be at least 0, got -1"),
        ("engine.compute_efficiency=1.5", "must be at most 1, got 1.5"),
        ("kv_dtype=fp16", "must be one of bf16 or fp8, got 'fp16'"),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(messages_of: MessagesOf, small: str, override: str, rule: str) -> None:
    (message,) = messages_of(small, override)
    assert message.startswith(f"command line --set {override}: ")
    assert rule in message
    assert "Input should" not in message


@pytest.mark.parametrize("rate", ["0", "-3", ".nan", ".inf", "fast"])
def test_a_rate_must_be_a_positive_number(messages_of: MessagesOf, small: str, rate: str) -> None:
    (message,) = messages_of(small.replace("rate_per_s: 8", f"rate_per_s: {rate}"))
    assert message.startswith("a.yaml:6: workload.arrivals.rate_per_s: must be ")


def test_a_duration_beyond_the_clock_is_refused(messages_of: MessagesOf, small: str) -> None:
    (message,) = messages_of(small.replace("n_requests: 100", "duration_s: 1e8"))
    assert message == "a.yaml:8: workload.duration_s: must be at most 7776000, got 100000000"


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "name"), [("model", "lama-3.1-8b"), ("gpu", "h100-sxn"), ("engine", "vlm")])
def test_a_name_that_the_catalog_lacks_gets_a_did_you_mean(
    messages_of: MessagesOf, small: str, key: str, name: str
) -> None:
    (message,) = messages_of(small, f"{key}={name}")
    assert message.startswith(f"command line --set {key}={name}: ")
    assert "did you mean" in message


def test_a_wrong_name_is_told_once_for_all_pools(messages_of: MessagesOf, small: str) -> None:
    assert len(messages_of(small, "gpu=nonsense", "cluster.pools=[{name: a}, {name: b}, {name: c}]")) == 1


def test_a_pools_own_gpu_is_told_at_the_pool(messages_of: MessagesOf, small: str) -> None:
    (message,) = messages_of(small, "cluster.pools.0.gpu=h100-sxn")
    assert message.startswith("command line --set cluster.pools.0.gpu=h100-sxn: ")


TALKS = "workload.prefixes={kind: conversations, turns: 2, think_s: 1}"


# -- the workload's own rules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["workload.arrivals="], "workload: needs exactly one of arrivals, trace and client; give one"),
        (["workload.client={concurrency: 4}"], "and has arrivals and client; leave out arrivals or client"),
        (["workload.lengths="], "workload.lengths=: is missing; for example {kind: fixed"),
        (["workload.n_requests="], "workload: must end; give duration_s or n_requests"),
        (["workload.duration_s=10"], "workload.n_requests: the load ends by duration_s or by n_requests, not both"),
        (["workload.arrivals=", "workload.client={}"], "concurrency: is missing"),
        (["workload.arrivals=", "workload.client={concurrency: 0}"], "concurrency: must be at least 1, got 0"),
        (["workload.arrivals=", "workload.client={kind: open, concurrency: 1}"], "must be 'closed_loop', got 'open'"),
        (["workload.arrivals={rate_per_s: 8}"], "workload.arrivals.kind: is missing; name the arrival process"),
        (["workload.prefixes=sharred"], "unknown prefix structure, got 'sharred'; did you mean shared?"),
        (["workload.prefixes={kind: shared}"], "workload.prefixes.prefix_tokens: is missing"),
        (
            ["workload.prefixes={kind: shared, prefix_tokens: -1}"],
            "prefix_tokens: must be at least 1 or a list, got -1",
        ),
        (
            ["workload.prefixes={kind: shared, prefix_tokens: [1, 2], n_prefixes: 3}"],
            "2 by prefix_tokens and 3 by n_pre",
        ),
        (
            ["workload.prefixes={kind: shared, prefix_tokens: 9, weights: [1, 2], zipf_exponent: 1}"],
            "got both; leave one",
        ),
        (
            ["workload.prefixes={kind: documents, n_documents: 5, document_tokens: 9, n_docs: 4}"],
            "did you mean n_documents?",
        ),
        (["workload.prefixes={kind: documents, n_documents: 5, document_tokens: [9, 3]}"], "the first bound must not"),
        (
            ["workload.prefixes={kind: conversations, turns: 20000, think_s: 1}"],
            "turns must be at most 10000, got 20000",
        ),
        (
            ["workload.prefixes={kind: conversations, turns: 2, think_s: {mean: -3}}"],
            "think_s.mean: must be more than 0, got -3",
        ),
        (
            ["workload.prefixes={kind: conversations, turns: 2, think_s: {mean: 3, max: 9}}"],
            "mean (exponential), or median",
        ),
        (
            ["workload.prefixes={kind: shared, gsp_num_groups: 3, prefix_tokens: 9}"],
            "use workload.prefixes.n_pref",
        ),
        (
            ["workload.arrivals=", "workload.client={concurrency: 2}", TALKS],
            "needs arrivals, as it sets arrival times; closed-loop clients send when they are answered",
        ),
    ],
)
def test_a_workload_has_one_source_of_requests_and_one_end(
    messages_of: MessagesOf, small: str, overrides: list[str], message: str
) -> None:
    (sentence,) = messages_of(small, *overrides)
    assert message in sentence


def test_a_trace_brings_its_own_prefixes(messages_of: MessagesOf, small: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    (message,) = messages_of(small, "workload.arrivals=", "workload.lengths=", "workload.trace.path=t.csv", TALKS)
    assert "workload.prefixes={kind: conversations, turns: 2, think_s: 1}: a trace brings its own prefixes" in message


def test_a_trace_brings_its_own_lengths(messages_of: MessagesOf, small: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    (message,) = messages_of(small, "workload.arrivals=", "workload.trace.path=t.csv")
    assert "workload.lengths: a trace brings its own lengths; leave it out" in message


def test_a_missing_trace_file_is_told_with_the_folders_it_was_looked_for_in(
    messages_of: MessagesOf, small: str
) -> None:
    overrides = ("workload.arrivals=", "workload.lengths=", "workload.trace.path=traces/mine.csv")
    (message,) = messages_of(small, *overrides)
    assert message == (
        "command line --set workload.trace.path=traces/mine.csv: there is no such file, got 'traces/mine.csv'; "
        f"looked in {Path.cwd()}"
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["measure.warmup_s=10", "workload.n_requests=", "workload.duration_s=10"],
            "workload.duration_s, 10 s, got 10",
        ),
        (["measure.warmup_s=13"], "must be less than the run: 100 requests at 8 per second take about 12.5 s, got 13"),
        (["measure.warmup_requests=100"], "must be less than workload.n_requests, 100, got 100"),
        (["measure.warmup_requests=1", "measure.warmup_s=1"], "give warmup_s or warmup_requests, not both"),
    ],
)
def test_a_warm_up_leaves_something_to_measure(
    messages_of: MessagesOf, small: str, overrides: list[str], message: str
) -> None:
    (sentence,) = messages_of(small, *overrides)
    assert message in sentence


def test_one_replay_makes_no_interval(messages_of: MessagesOf, small: str) -> None:
    assert messages_of(small, "measure.replays=1") == [
        "command line --set measure.replays=1: one replay gives no interval, got 1; use 0 for none, or 2 at least"
    ]


# -- what must fit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensor", [3, 6, 7])
def test_tensor_parallelism_must_split_the_heads(messages_of: MessagesOf, small: str, tensor: int) -> None:
    (message,) = messages_of(small, f"cluster.pools.0.parallel.tensor={tensor}")
    assert f"got {tensor}; try 1, 2, 4 or 8" in message


def test_tensor_parallelism_fills_a_node_or_several(messages_of: MessagesOf, load: Load, small: str) -> None:
    assert load(small, "cluster.pools.0.parallel.tensor=16").setups[0].gpus_per_replica == 16
    (message,) = messages_of(small.replace("llama-3.1-8b", "llama-2-13b"), "cluster.pools.0.parallel.tensor=10")
    assert "must be at most the 8 GPUs of a node, or fill several: a GPU sums with those at its place" in message


def test_tensor_parallelism_must_split_the_kv_heads_too(messages_of: MessagesOf, small: str) -> None:
    (message,) = messages_of(small, "model=qwen2.5-7b", "cluster.pools.0.parallel.tensor=7")
    assert "must divide the model's 4 KV heads, or be a multiple, got 7; try 1, 2 or 4" in message


def test_a_model_that_does_not_fit_says_what_is_missing_and_what_would_do(messages_of: MessagesOf, small: str) -> None:
    (message,) = messages_of(small.replace("llama-3.1-8b", "llama-3.1-70b"))
    assert message.startswith(
        "a.yaml:1: cluster.pools.0: llama-3.1-70b in bf16 does not fit the memory of 1 h100-sxm: "
    )
    sentence = re.search(
        r"memory of 1 h100-sxm: ([\d.]+) GB are missing on each; try parallel.tensor (.*), or gpu (.*)", message
    )
    assert sentence is not None
    assert 60 < float(sentence[1]) < 75  # 141 GB of weights, 85.5 GB of memory of which 0.9 may be used
    assert sentence[2].endswith("4 or 8")
    assert "b200" in sentence[3]


def test_a_model_that_does_not_fit_is_told_at_its_pool(messages_of: MessagesOf, small: str) -> None:
    text = small + "cluster:\n  pools:\n    - name: a\n    - name: b\n      model: llama-3.1-70b\n"
    (message,) = messages_of(text)
    assert message.startswith("a.yaml:12: cluster.pools.1: ")


def test_counted_kv_blocks_must_fit_beside_the_weights(messages_of: MessagesOf, small: str) -> None:
    (message,) = messages_of(small, "cluster.pools.0.num_gpu_blocks=100000")
    assert "num_gpu_blocks=100000: a GPU has " in message
    assert "; at most " in message


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        (["cluster.pools.0.max_model_len=131073"], "must be at most the 131072 tokens of llama-3.1-8b, got 131073"),
        (
            ["cluster.pools.0.max_model_len=1601", "cluster.pools.0.num_gpu_blocks=100"],
            "must fit the KV cache, which holds 1600 tokens, got 1601",
        ),
    ],
)
def test_the_longest_request_must_fit_the_model_and_the_cache(
    messages_of: MessagesOf, small: str, overrides: list[str], rule: str
) -> None:
    (message,) = messages_of(small, *overrides)
    assert rule in message


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ("{max_num_batched_tokens: 64, max_num_seqs: 65}", "max_num_batched_tokens: must be at least max_num_seqs, 65"),
        ("{max_num_seqs: 10000}", "max_num_seqs: must be at most max_num_batched_tokens, 8192, got 10000"),
        (
            "{kind: trtllm, max_num_tokens: 64, max_batch_size: 65}",
            "max_num_tokens: must be at least max_batch_size, 65",
        ),
    ],
)
def test_a_step_must_hold_a_token_of_every_running_request(
    messages_of: MessagesOf, small: str, arguments: str, rule: str
) -> None:
    (message,) = messages_of(f"{small}cluster:\n  pools:\n    - scheduler: {arguments}\n")
    assert message.startswith("a.yaml:11: cluster.pools.0.scheduler.")
    assert rule in message


def test_two_pools_need_two_names(messages_of: MessagesOf, small: str) -> None:
    (message,) = messages_of(small, "cluster.pools=[{replicas: 1}, {replicas: 2}]")
    assert "cluster.pools.1.name: must differ from other pools' names, got 'serve'" in message


def test_a_broken_rule_is_said_without_the_other_types_that_the_value_might_have_had(
    messages_of: MessagesOf, small: str
) -> None:
    (message,) = messages_of(small, "workload.prefixes={kind: documents, n_documents: 5, document_tokens: [9, 3]}")
    assert message.endswith("document_tokens: the first bound must not be above the second, got [9, 3]")
