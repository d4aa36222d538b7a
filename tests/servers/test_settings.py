"""Command lines of servers: every flag is simulated, assumed, listed or refused; none is dropped in silence."""

from pathlib import Path
from typing import Any

import pytest

from simserve.errors import ScenarioError
from simserve.metrics.answers.twin import ServerSetting
from simserve.servers.command_line import ENGINES, known_flags, server_command
from simserve.servers.forms import FORMS
from simserve.servers.server_settings import POOL, ServerSettings
from simserve.servers.settings import settings_of

DEEPSEEK = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8"


def read(line: str, **env: str) -> ServerSettings:
    return settings_of(server_command(line, env))


def keys(line: str, **env: str) -> dict[str, Any]:
    """Return what a line sets, without the beginning of keys of the pool."""
    return {key.removeprefix(f"{POOL}."): value for key, value in read(line, **env).keys.items()}


def note(settings: ServerSettings, name: str) -> ServerSetting:
    [found] = [each for each in settings.notes if each.name == name]
    return found


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-num-seqs 128",
            {"model": "Qwen/Qwen3-32B", "parallel.tensor": 2, "scheduler.max_num_seqs": 128},
        ),
        (
            "vllm serve --port 8000 Qwen/Qwen3-32B -tp 2 -pp=2 --max_num_seqs=64 --max-num-batched-tokens 8k",
            {
                "model": "Qwen/Qwen3-32B",
                "parallel.tensor": 2,
                "parallel.pipeline": 2,
                "scheduler.max_num_seqs": 64,
                "scheduler.max_num_batched_tokens": 8000,
            },
        ),
        (
            "python -m vllm.entrypoints.openai.api_server --model qwen3-8b --max-model-len 16K "
            "--kv-cache-dtype fp8_e4m3 --no-enable-prefix-caching --gpu-memory-util 0.85",
            {
                "model": "qwen3-8b",
                "max_model_len": 16384,
                "kv_dtype": "fp8",
                "enable_prefix_caching": False,
                "gpu_memory_utilization": 0.85,
            },
        ),
        ("vllm serve qwen3-8b --quantization fp8", {"model": "qwen3-8b", "weight_dtype": "fp8"}),
        (
            f"{DEEPSEEK} --scheduler-recv-interval 30 --stream-interval 30",
            {"model": "deepseek-ai/DeepSeek-R1", "parallel.tensor": 8, "scheduler.scheduler_recv_interval": 30},
        ),
        ("vllm serve qwen3-8b --dtype half", {"model": "qwen3-8b", "weight_dtype": "fp16"}),
        ("vllm serve Qwen/Qwen3-8B-FP8 --quantization fp8 --dtype half", {"model": "Qwen/Qwen3-8B-FP8"}),
        ("vllm serve /models/Qwen3-32B-AWQ", {"model": "qwen3-32b", "weight_dtype": "int4"}),
        ("vllm serve qwen3-8b --max-model-len auto", {"model": "qwen3-8b", "max_model_len": None}),
        ("vllm serve qwen3-8b -dp 4", {"model": "qwen3-8b"}),
        (
            "vllm serve qwen3-8b --enable-dbo --dbo-decode-token-threshold 64 --dbo-prefill-token-threshold 256",
            {
                "model": "qwen3-8b",
                "engine.enable_dbo": True,
                "engine.dbo_decode_token_threshold": 64,
                "engine.dbo_prefill_token_threshold": 256,
            },
        ),
        (
            f"{DEEPSEEK} --enable-two-batch-overlap",
            {"model": "deepseek-ai/DeepSeek-R1", "parallel.tensor": 8, "engine.enable_dbo": True},
        ),
        ("vllm serve qwen3-8b --enforce-eager", {"model": "qwen3-8b", "engine.enforce_eager": True}),
        (
            "vllm serve qwen3-8b --no-enforce-eager --no-enable-dbo",
            {"model": "qwen3-8b", "engine.enforce_eager": False, "engine.enable_dbo": False},
        ),
        (
            f"{DEEPSEEK} --disable-cuda-graph",
            {"model": "deepseek-ai/DeepSeek-R1", "parallel.tensor": 8, "engine.enforce_eager": True},
        ),
        (
            "vllm serve Qwen/Qwen3-30B-A3B -tp 2 -dp 4 --enable-expert-parallel",
            {"model": "Qwen/Qwen3-30B-A3B", "parallel.tensor": 2, "parallel.data": 4, "parallel.expert": 8},
        ),
        (
            'vllm serve qwen3-8b --speculative-config \'{"method": "ngram", "num_speculative_tokens": 4}\'',
            {"model": "qwen3-8b", "speculation": {"kind": "ngram", "tokens": 4, "acceptance": 0.7}},
        ),
        (f"{DEEPSEEK} --dp 2", {"model": "deepseek-ai/DeepSeek-R1", "parallel.tensor": 8}),
        (
            "vllm serve deepseek-ai/DeepSeek-R1 -tp 8 -dcp 8 --prefill-context-parallel-size 2",
            {
                "model": "deepseek-ai/DeepSeek-R1",
                "parallel.tensor": 8,
                "parallel.decode_context": 8,
                "parallel.prefill_context": 2,
            },
        ),
        (
            f"{DEEPSEEK} --dcp-size 4",
            {"model": "deepseek-ai/DeepSeek-R1", "parallel.tensor": 8, "parallel.decode_context": 4},
        ),
        (
            "trtllm-serve serve deepseek-ai/DeepSeek-R1 --cp_size 4 --tp_size 2 --ep_size 8",
            {
                "model": "deepseek-ai/DeepSeek-R1",
                "parallel.tensor": 8,
                "parallel.expert": 8,
                "parallel.decode_context": 4,
            },
        ),
        (
            f"{DEEPSEEK} --dp 8 --enable-dp-attention --ep 8 --chunked-prefill-size -1 --mem-fraction-static 0.8",
            {
                "model": "deepseek-ai/DeepSeek-R1",
                "parallel.tensor": 1,
                "parallel.data": 8,
                "parallel.expert": 8,
                "scheduler.chunked_prefill_size": None,
                "gpu_memory_utilization": 0.8,
            },
        ),
        (
            f"{DEEPSEEK} --page-size 64 --max-total-tokens 65536 --disable-radix-cache --speculative-algorithm NEXTN",
            {
                "model": "deepseek-ai/DeepSeek-R1",
                "parallel.tensor": 8,
                "block_size": 64,
                "num_gpu_blocks": 1024,
                "enable_prefix_caching": False,
                "speculation": {"kind": "mtp", "tokens": 3, "acceptance": 0.7},
            },
        ),
        (
            "trtllm-serve serve qwen3-32b --tp_size 4 --max_batch_size 256 --kv_cache_free_gpu_memory_fraction 0.8",
            {
                "model": "qwen3-32b",
                "parallel.tensor": 4,
                "scheduler.max_batch_size": 256,
                "gpu_memory_utilization": 0.8,
            },
        ),
    ],
)
def test_flags_set_what_the_engine_means_by_them(line: str, wanted: dict[str, Any]) -> None:
    assert keys(line) == wanted


@pytest.mark.parametrize(
    ("line", "replicas"),
    [("vllm serve qwen3-8b -dp 4", 4), ("vllm serve Qwen/Qwen3-30B-A3B -dp 4", 1), (f"{DEEPSEEK} --dp 2", 2)],
)
def test_ranks_with_all_of_the_model_are_replicas(line: str, replicas: int) -> None:
    assert read(line).replicas == replicas


def test_a_share_of_memory_is_said_to_be_that_of_its_engine() -> None:
    assert (
        note(read("vllm serve qwen3-8b --gpu-memory-utilization .9"), "--gpu-memory-utilization").why == "of all memory"
    )
    assert note(read(f"{DEEPSEEK} --mem-fraction-static .8"), "--mem-fraction-static").why == "of weights and KV"
    line = "trtllm-serve qwen3-8b --free_gpu_memory_fraction .9"
    assert note(read(line), "--free_gpu_memory_fraction").why == "of what weights leave"


def test_no_flag_is_dropped_in_silence() -> None:
    line = (
        "HF_TOKEN=secret VLLM_USE_V1=1 vllm serve qwen3-8b --api-key secret --enforce-eager --enable-auto-tool-choice "
        "--new-flag-of-tomorrow 3 --served-model-name a b --port 80 2>&1 | tee log"
    )
    settings = read(line)
    assert {each.name: each.how for each in settings.notes} == {
        "MODEL": "simulated",
        "--api-key": "no effect",
        "--enforce-eager": "simulated",
        "--enable-auto-tool-choice": "no effect",
        "--new-flag-of-tomorrow": "unknown",
        "--served-model-name": "no effect",
        "--port": "no effect",
        "2": "unknown",
        ">& 1": "not read",
        "| tee log": "not read",
        "HF_TOKEN": "no effect",
        "VLLM_USE_V1": "not simulated",
    }
    assert "secret" not in str(settings.notes)


@pytest.mark.parametrize(
    "line",
    [
        "docker run --gpus all -e HF_TOKEN=x -p 80:80 vllm/vllm-openai:v0.11.0 --model qwen3-8b -tp 2",
        "docker run --gpus all vllm/vllm-openai:v0.11.0 vllm serve qwen3-8b -tp 2",
        "nohup vllm serve qwen3-8b \\\n  -tp 2 \\\n  --port 80 > log &",
        "export TP=2; vllm serve qwen3-8b --tensor-parallel-size $TP",
        "vllm serve ${MODEL:-qwen3-8b} -tp ${TP:-2}",
        "sh -c 'set -e; vllm serve qwen3-8b -tp 2 && echo done'",
        "CUDA_VISIBLE_DEVICES=0,1 /opt/venv/bin/vllm serve qwen3-8b –tensor-parallel-size 2",
    ],
)
def test_a_command_is_read_in_whatever_it_stands(line: str) -> None:
    assert keys(line) == {"model": "qwen3-8b", "parallel.tensor": 2}


def test_the_tag_of_an_image_is_the_version() -> None:
    line = "docker run vllm/vllm-openai:v0.11.0 --model qwen3-8b"
    assert server_command(line, {}).version == "0.11.0"
    assert server_command(line.replace("v0.11.0", "latest"), {}).version is None


def test_a_variable_is_that_of_the_option() -> None:
    assert keys("vllm serve qwen3-8b -tp $TP", TP="4")["parallel.tensor"] == 4


def test_files_of_flags_are_read_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "extra.yaml").write_text(
        "enable_attention_dp: true\nkv_cache_config: {free_gpu_memory_fraction: 0.7, enable_block_reuse: false}\n"
    )
    monkeypatch.chdir(tmp_path)
    line = "trtllm-serve deepseek-v3 --tp_size 8 --extra_llm_api_options extra.yaml"
    assert keys(line) == {
        "model": "deepseek-v3",
        "parallel.tensor": 1,
        "parallel.data": 8,
        "gpu_memory_utilization": 0.7,
        "enable_prefix_caching": False,
    }
    for value, is_eager in (("null", True), ("{enable_padding: true}", None)):
        (tmp_path / "extra.yaml").write_text(f"cuda_graph_config: {value}\n")
        assert keys(line).get("engine.enforce_eager") == is_eager
    monkeypatch.chdir("/")
    assert note(read(line), "--extra_llm_api_options").how == "not simulated"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "extra.yaml").write_text("[")
    with pytest.raises(ScenarioError, match=r"command line: extra.yaml: cannot be read as YAML"):
        read(line)


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        (
            "vllm srve x",
            ["command line: must start vllm serve, sglang.launch_server or trtllm-serve, got 'vllm srve x'"],
        ),
        (
            "vllm serve 'x",
            ["command line: must be words of a shell (no closing quotation), got 'vllm serve 'x'; close"],
        ),
        ("vllm serve --port 80", ["command line: model: is missing; name it: vllm serve Qwen/Qwen3-32B"]),
        (
            "vllm serve qwen3-8b -tp {{ .Values.tp }} --port {{ .Values.port }} | tee x",
            [
                "command line: -tp: is a template, got {{ .Values.tp }}; render it first (helm template), or write its",
                "command line: the rest was read: MODEL qwen3-8b; not read either: | tee x",
            ],
        ),
        ("vllm serve qwen3-8b -tp $TP", ["-tp: is a variable that is not known, got $TP; give --env NAME=VALUE"]),
        ("vllm serve qwen3-8b -tp `nproc`", ["-tp: is what another command prints, got `nproc`; write its value"]),
        (
            "vllm serve qwen3-8b --max-num-sequs 12",
            ["--max-num-sequs: vllm has no such flag, got 12; did you mean --max-num-seqs?"],
        ),
        ("vllm serve qwen3-8b -tp two", ["-tp: must be a whole number from 1 on, got two"]),
        ("vllm serve qwen3-8b -tp", ["-tp: needs a value"]),
        ("vllm serve qwen3-8b --gpu-memory-utilization 90", ["must be a share from 0 to 1, got 90"]),
        ("vllm serve qwen3-8b --max-model-len long", ["must be a number of tokens, got long; for example 8192 or 8k"]),
        (
            "vllm serve qwen3-8b --kv-cache-dtype int4",
            ["must be auto, bfloat16 or fp8: others are not simulated, got int4"],
        ),
        ("vllm serve qwen3-8b --dtype float32", ["must be auto, bfloat16 or float16: others are not simulated"]),
        (
            "vllm serve qwen3-8b -q mystery",
            ["-q: does not tell the precision of the weights, got mystery; give the path"],
        ),
        (
            "vllm serve qwen3-8b --speculative-config 3",
            ["--speculative-config: must be a JSON object in quotes, got 3"],
        ),
        (
            'vllm serve qwen3-8b --speculative-config \'{"method": "magic"}\'',
            ["must have a method of eagle, eagle3, "],
        ),
        (
            f"{DEEPSEEK} --dp 3 --enable-dp-attention",
            ["--enable-dp-attention: its 3 ranks must divide the 8 GPUs of --tp"],
        ),
        (f"{DEEPSEEK} --ep 4", ["--ep: must be 1 or all 8 GPUs: experts in groups are not simulated, got 4"]),
        (
            "vllm serve acme/unknown",
            ["MODEL: the catalog knows no checkpoint of that name, and neither a file nor the"],
        ),
    ],
)
def test_a_flag_that_cannot_be_read_is_refused_with_what_was(line: str, texts: list[str]) -> None:
    with pytest.raises(ScenarioError) as caught:
        read(line)
    for text in texts:
        assert text in str(caught.value)


def test_all_problems_of_a_line_are_told_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        read("vllm serve qwen3-8b -tp two --block-size none")
    assert [problem.place for problem in caught.value.problems] == [
        "command line: -tp",
        "command line: --block-size",
        "command line",
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_table_of_flags_is_whole(engine: str) -> None:
    known = known_flags(engine)
    every = [*known["simulated"], *known["no_effect"], *known["not_simulated"]]
    assert len(every) == len(set(every)), "a flag stands twice"
    assert {each["form"] for each in known["simulated"].values()} <= FORMS.keys()
    named = {*known["switches"], *known["many"], *known["aliases"].values()}
    assert named <= set(every)
