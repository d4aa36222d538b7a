"""Mistakes that people make: each is exit code 2, one message with the place, the rule and the value or the remedy."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.invoke import invoke

SCENARIO = """\
schema: simserve/1
name: mistakes
model: llama-3.1-8b
gpu: h100-sxm
engine: vllm
cluster:
  router: least_outstanding
  pools:
    - name: serve
      replicas: 2
      parallel: {tensor: 1}
      scheduler: {kind: chunked, max_num_batched_tokens: 2048, max_num_seqs: 256}
workload:
  arrivals: {kind: poisson, rate_per_s: 5}
  lengths: {kind: fixed, prompt_tokens: 100, output_tokens: 20}
  duration_s: 20
measure: {warmup_s: 5}
slo: {ttft_s: 0.5}
"""

VALUES = (
    ("model=llama", "no such model in the catalog", "choose from llama-2-13b, llama-2-70b"),
    ("model=llama-3.1", "got 'llama-3.1'; choose from llama-3.1-70b, llama-3.1-8b"),
    ("model=meta-llama/Llama-3.1-80B", "the catalog knows no checkpoint of that name", "its config.json"),
    ("model=gpt-4", "got 'gpt-4'; choose from gpt-oss-120b, gpt-oss-20b"),
    ("model=lama-3.1-8b", "did you mean llama-3.1-8b?"),
    ("model=Qwen2.5-32B", "did you mean qwen2.5-32b?"),
    ("gpu=h100", "say which: h100-pcie, h100-sxm"),
    ("gpu=a100", "say which: a100-sxm, a100-sxm-40gb"),
    ("gpu=H100-SMX", "did you mean h100-sxm?"),
    ("gpu=H300", "got 'H300'; choose from h100-pcie"),
    ("gpu=rtx4090", "did you mean rtx-4090?"),
    ("engine=vlm", "did you mean vllm?"),
    ("engine=tgi", "choose from ideal, sglang, trtllm, vllm"),
    ("engine=tensorrt-llm", "did you mean trtllm?"),
    ("engine.version=0.12", "must be text, got 0.12", """on a command line 'engine.version="0.12"'"""),
    ("weight_dtype=bfloat16", "got 'bfloat16'; write bf16"),
    ("weight_dtype=fp4", "write nvfp4"),
    ("weight_dtype=AWQ", "write int4"),
    ("weight_dtype=FP8", "got 'FP8'; write fp8"),
    ("kv_dtype=fp8_e4m3", "write fp8"),
    ("kv_dtype=int8", "must be one of bf16 or fp8, got 'int8'"),
    ("cluster.pools.0.replicas=0", "must be at least 1, got 0"),
    ("cluster.pools.0.replicas=2.5", "must be a whole number, got 2.5"),
    ("cluster.pools.0.replicas=two", "must be a whole number, got 'two'"),
    ("cluster.pools[].replicas=4", "for example cluster.pools.0.replicas=4"),
    ("cluster.pools.replicas=4", "got 'replicas'; cluster.pools has 1 item, counted from 0: cluster.pools.0"),
    ("cluster.pools.3.replicas=4", "cluster.pools has 1 item, counted from 0: cluster.pools.0"),
    ("pools.0.replicas=4", "use cluster.pools"),
    ("replicas=4", "use cluster.pools.0.replicas"),
    ("replica=4", "did you mean cluster.pools.0.replicas?"),
    ("cluster.pools.0.replicas", "must be key.path=value"),
    ("=4", "must be key.path=value"),
    ("tp=2", "use cluster.pools.0.parallel.tensor"),
    ("qps=5", "use workload.arrivals.rate_per_s"),
    ("max_num_seqs=8", "use cluster.pools.0.scheduler.max_num_seqs"),
    ("cluster.pools.0.parallel=2", "must be a mapping, got 2; write parallel: {tensor: 2}"),
    ("cluster.pools.0.parallel.tensor=3", "must divide the model's 32 attention heads, got 3; try 1, 2, 4 or 8"),
    ("cluster.pools.0.parallel.tp=2", "use cluster.pools.0.parallel.tensor"),
    ("cluster.pools.0.scheduler=chunk", "did you mean chunked?"),
    ("cluster.pools.0.scheduler.max_num_seqs=0", "must be more than 0, got 0"),
    ("cluster.pools.0.scheduler.max_batch_size=8", "use cluster.pools.0.scheduler.max_num_seqs"),
    ("cluster.pools.0.scheduler.max_num_batched_tokens=128", "must be at least max_num_seqs, 256, got 128"),
    ("cluster.pools.0.role=decoder", "did you mean decode?"),
    ("cluster.pools.0.role=prefill", "add one with role: decode, or use role: both"),
    ("cluster.pools.0.gpu_memory_utilization=90", "must be at most 1, got 90"),
    ("cluster.pools.0.max_model_len=1000000", "must be at most the 131072 tokens of llama-3.1-8b"),
    ("cluster.router=round-robin", "did you mean round_robin?"),
    ("cluster.router=prefix", "prefix_affinity"),
    ("workload.arrivals={kind: poisson}", "workload.arrivals.rate_per_s: is missing"),
    ("workload.arrivals={kind: poisson, rate: 5}", "workload.arrivals.rate: unknown argument; use"),
    ("workload.arrivals.rate_per_s=-5", "must be at least 1e-12, got -5"),
    ("workload.arrivals.rate_per_s=5/s", "must be a number, got '5/s'"),
    ("workload.arrivals={kind: poison, rate_per_s: 5}", "did you mean poisson?"),
    ("workload.lengths={kind: fixed, prompt: 100, output_tokens: 9}", "did you mean prompt_tokens?"),
    ("workload.lengths={kind: profile, name: sharegpt}", "choose from azure-code-2023"),
    ("workload.trace=a.csv", "must be a mapping, got 'a.csv'; write trace: {path: a.csv}"),
    ("workload.trace={path: log.csv}", "leave out arrivals or trace"),
    ("workload.duration_s=0", "must be more than 0, got 0"),
    ("workload.duration=60", "use workload.duration_s"),
    ("workload.n_requests=100", "not both; leave one of them out"),
    ("measure.warmup_s=21", "must be less than workload.duration_s, 20 s, got 21"),
    ("measure.warmup=5", "use measure.warmup_s"),
    ("slo.ttft_s=0", "must be more than 0, got 0"),
    ("slo.ttft_ms=500", "use slo.ttft_s, in seconds"),
    ("slo.p99=0.5", "choose from ttft_s, tpot_s, e2e_s, itl_s"),
    ("slo=0.5", "must be a mapping, got 0.5; write slo: {ttft_s: 0.5}"),
    ("seed=-1", "must be at least 0, got -1"),
    ("schema=simserve/2", "must be 'simserve/1', got 'simserve/2'"),
)
"""What follows --set, and parts of the message."""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands find a scenario and files that are none."""
    monkeypatch.chdir(tmp_path)
    files = {
        "s.yaml": SCENARIO,
        "log.csv": "arrival_s,prompt_tokens,output_tokens\n0,10,20\n1,20,30\n",
        "bad.csv": "foo,bar\n1,2\n",
        "empty.yaml": "",
        "list.yaml": "- a\n- b\n",
        "bench.json": '{"model_id": "x"}',
        "rows.parquet": "no parquet",
    }
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")


def refused(*arguments: str) -> str:
    """Run a command that must be refused as bad input, and return what it says."""
    outcome = invoke(*arguments)
    assert outcome.exit_code == 2, outcome
    assert "Traceback" not in outcome.err
    assert not outcome.out
    return " ".join(outcome.err.split())


@pytest.mark.parametrize(("change", "parts"), [(change, parts) for change, *parts in VALUES])
def test_a_wrong_value(change: str, parts: Sequence[str]) -> None:
    told = refused("run", "s.yaml", "--set", change)
    assert told.startswith(f"simserve: error: command line --set {change}")
    assert all(part in told for part in parts), told


def test_no_precision_is_advised_that_the_key_refuses() -> None:
    told = refused("run", "s.yaml", "--set", "kv_dtype=awq")
    assert told.endswith("kv_dtype=awq: must be one of bf16 or fp8, got 'awq'")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("\n  router", "\n\trouter", "s.yaml:7: is indented by a tab, which YAML does not allow; use spaces"),
        ("model: ", "model ", "s.yaml:3: is not YAML: could not find expected ':'; write `key: value`"),
        ("gpu: ", "gpu:", "s.yaml:4: is not YAML: could not find expected ':'; write `key: value`"),
        ("{tensor: 1}", "{tensor: 1", "s.yaml:11: is not YAML: did not find expected ',' or '}'; close the bracket"),
        ("      replicas", "     replicas", "s.yaml:10: is not YAML"),
        (
            "    - name",
            "      name",
            "s.yaml:8: cluster.pools: must be a list, got a mapping; begin each item with `- `",
        ),
        (
            "engine: vllm",
            "engine: {name: vllm, version: 0.12}",
            "s.yaml:5: engine.version: must be text, got 0.12; write",
        ),
        ("gpu: h100-sxm", "gpu: h100-sxm\ngpu: l4", "s.yaml:5: gpu: is given twice, first on line 4; keep one"),
        ("schema: simserve/1\n", "", "schema: is missing; begin the file with `schema: simserve/1`"),
        ("model: llama-3.1-8b\n", "", "model: is missing; name one: `simserve catalog models` lists them"),
        ("replicas: 2", "replicaz: 2", "s.yaml:10: cluster.pools.0.replicaz: unknown key; did you mean replicas?"),
        ("replicas: 2", "replicas: yes", "s.yaml:10: cluster.pools.0.replicas: must be a whole number, got 'yes'"),
        ("replicas: 2", "replicas:", "s.yaml:10: cluster.pools.0.replicas: must be a whole number, got nothing"),
        (
            "  arrivals: {kind: poisson, rate_per_s: 5}",
            "  trace: a.csv",
            "s.yaml:14: workload.trace: must be a mapping",
        ),
        ("  duration_s: 20\n", "", "workload"),
    ],
)
def test_a_wrong_line(old: str, new: str, told: str) -> None:
    assert old in SCENARIO
    Path("s.yaml").write_text(SCENARIO.replace(old, new, 1), encoding="utf-8")
    assert told in refused("run", "s.yaml")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("run nope.yaml", "nope.yaml: there is no such file"),
        ("run s.yml", "s.yml: there is no such file; did you mean s.yaml?"),
        ("run @chat_brust", "did you mean @chat_burst?"),
        ("run .", "is a folder; name a scenario file in it"),
        ("run empty.yaml", "is empty; `simserve init` writes one to start from"),
        ("run list.yaml", "a scenario must be a mapping of keys to values"),
        ("run log.csv", "log.csv: is not a scenario; a log of requests is workload.trace.path of a scenario"),
        ("compare s.yaml log.csv", "log.csv: is not a scenario"),
        ("run bench.json", "bench.json: is not a scenario"),
        ("run rows.parquet", "rows.parquet: is not a scenario"),
        ("rn s.yaml", "No such command 'rn'. Did you mean 'run'?"),
        ("run s.yaml --rate 5", "No such option: --rate; use workload.arrivals.rate_per_s, with --set KEY=VALUE"),
        ("run s.yaml --replicas 5", "No such option: --replicas; use cluster.pools.0.replicas, with --set KEY=VALUE"),
        ("run s.yaml --seed x", "'--seed': must be a whole number, got x"),
        ("run s.yaml --out s.yaml", "must be a folder, got a file; choose another --out"),
        ("sweep s.yaml", "for example --vary cluster.pools.0.replicas=1,2,4"),
        ("sweep s.yaml --vary cluster.pools.0.replicas=5..1", "a range goes upwards"),
        ("sweep s.yaml --vary cluster.pools.0.gpu=a100", "say which: a100-sxm, a100-sxm-40gb"),
        ("capacity s.yaml --goal 100", "got 100; try p99"),
        ("plan s.yaml --tensor 3", "--tensor: must divide the model's 32 attention heads, got 3; try 1, 2, 4 or 8"),
        ("plan s.yaml --gpu h100", "say which: h100-pcie, h100-sxm"),
        ("plan s.yaml --growth 5", "'--growth': must be less than or equal to 1, got 5"),
        ("plan s.yaml --price h100-sxm=free", "for example --price h100-sxm=2.5"),
        ("check s.yaml", "must have one of --baseline FILE"),
        ("check s.yaml --baseline nope.json", "there is no such baseline; write it with --update"),
        ("validate s.yaml", "a scenario goes with its log: `simserve validate LOG --scenario s.yaml`"),
        ("validate bad.csv", "a log of single requests needs --scenario"),
        ("calibrate --logs bad.csv --scenario s.yaml", "columns arrival_s, prompt_tokens, output_tokens are missing"),
        ("calibrate --logs log.csv --scenario s.yaml", "must have some of ttft_s, tpot_s, e2e_s"),
        ("report nope", "nope: no such folder; name what `simserve run` wrote"),
        ("trace convert log.csv", "Missing argument 'OUT'"),
        ("init s.yaml", "already exists, and init never overwrites"),
        ("init --from nope", "no such scenario comes with simserve; choose from @agents"),
        ("catalog gpus nope", "choose from a10, a100-sxm"),
        ("explain nope.yaml", "nope.yaml: there is no such file"),
        ("tune s.yaml --objective latency", "'latency' is not one of 'r', 'cost', 'throughput'"),
        ("tune s.yaml --points 0", "must be from 2 to 10000, got 0"),
    ],
)
def test_a_wrong_command(command: str, told: str) -> None:
    assert told in refused(*command.split())


@pytest.mark.parametrize(
    ("change", "key", "read"),
    [
        ("cluster.pools[0].replicas=1", "replicas", "replicas: 1"),
        ("workload.duration_s=1 minute", "duration_s", "duration_s: 60"),
        ("workload.duration_s=2min", "duration_s", "duration_s: 120"),
        ("slo.ttft_s=500ms", "ttft_s", "ttft_s: 0.5"),
        ("cluster.pools.0.gpu_memory_utilization=90%", "gpu_memory_utilization", "gpu_memory_utilization: 0.9"),
        ("workload.duration_s=1,000", "duration_s", "duration_s: 1000"),
        ("gpu=H100-SXM", "gpu", "gpu: h100-sxm"),
    ],
)
def test_what_is_clear_is_taken(change: str, key: str, read: str) -> None:
    lines = invoke("explain", "s.yaml", "--set", change).out.splitlines()
    assert any(line.strip().split("  #")[0].removesuffix(".0") == read for line in lines if key in line)
