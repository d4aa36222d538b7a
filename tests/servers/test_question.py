"""What is known of a server beside its command: its version, copies, and a saved text of its /metrics."""

from pathlib import Path
from typing import Any

import pytest

from simserve.api.options import PRECISION
from simserve.errors import ScenarioError
from simserve.servers.command_line import server_command
from simserve.servers.load import load_of
from simserve.servers.question import TwinQuestion, complete
from simserve.servers.server_settings import POOL, ServerSettings
from simserve.servers.settings import settings_of

LINE = (
    "vllm serve Qwen/Qwen3-32B -tp 2 --speculative-config "
    '\'{"method": "eagle3", "model": "a/b", "num_speculative_tokens": 2}\''
)
METRICS = """# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="12000"} 1.0
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-32B"} 3.0
vllm:prefix_cache_queries_total{engine="0",model_name="Qwen/Qwen3-32B"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="Qwen/Qwen3-32B"} 250.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="Qwen/Qwen3-32B"} 100.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="Qwen/Qwen3-32B",position="0"} 80.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="Qwen/Qwen3-32B",position="1"} 60.0
python_gc_objects_collected_total{generation="0"} 1.0
"""


def completed(line: str = LINE, **known: Any) -> ServerSettings:
    server = server_command(line, {})
    settings = settings_of(server)
    complete(settings, TwinQuestion(server, "H100-SXM", load_of([], {}), PRECISION, **known))
    return settings


def metrics(folder: Path, text: str) -> Path:
    path = folder / "metrics.txt"
    path.write_text(text)
    return path


def test_what_no_flag_says_is_assumed() -> None:
    settings = completed()
    assumed = {note.name: note.value for note in settings.notes if note.how == "assumed"}
    assert assumed == {f"{POOL}.speculation.acceptance": "0.7", "engine.version": "0.19", "replicas": "1"}
    assert settings.keys["gpu"] == "h100-sxm"


def test_what_is_given_is_not_assumed() -> None:
    settings = completed("vllm serve qwen3-8b -dp 2", version="0.12", replicas=3)
    assert (settings.keys["engine.version"], settings.keys[f"{POOL}.replicas"]) == ("0.12", 6)
    assert [note.name for note in settings.notes if note.how == "assumed"] == ["cluster.router"]
    alone = completed("vllm serve qwen3-8b", version="0.12", replicas=1)
    assert not [note for note in alone.notes if note.how == "assumed"]


def test_metrics_tell_blocks_prefixes_and_proposals(tmp_path: Path) -> None:
    settings = completed(metrics=metrics(tmp_path, METRICS))
    assert settings.keys[f"{POOL}.num_gpu_blocks"] == 12000
    assert settings.keys[f"{POOL}.block_size"] == 16
    assert settings.keys[f"{POOL}.enable_prefix_caching"] is True
    assert settings.keys[f"{POOL}.speculation"] == {"kind": "eagle", "tokens": 2, "acceptance": [0.8, 0.75]}
    notes = {note.name: note for note in settings.notes}
    assert notes["prefix cache hits"].value == "25.0% of prompt tokens"
    assert f"{POOL}.speculation.acceptance" not in notes


def test_metrics_of_sglang_tell_its_pages(tmp_path: Path) -> None:
    text = 'sglang:max_total_num_tokens{model_name="Qwen/Qwen3-32B"} 640000.0\n'
    line = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2 --page-size 64"
    assert completed(line, metrics=metrics(tmp_path, text)).keys[f"{POOL}.num_gpu_blocks"] == 10000


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hello", "must have lines of vllm: or sglang:, got none; save it with: curl http://HOST:PORT/metrics"),
        (
            METRICS.replace("Qwen/Qwen3-32B", "gpt-oss-120b"),
            "must be of the server's model, Qwen/Qwen3-32B, got gpt-oss",
        ),
    ],
)
def test_metrics_of_another_server_are_refused(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        completed(metrics=metrics(tmp_path, text))
    assert sentence in str(caught.value)
    assert "--metrics: " in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"none.txt: cannot be read \(No such file or directory\)"):
        completed(metrics=tmp_path / "none.txt")


def test_a_served_name_is_that_of_the_metrics(tmp_path: Path) -> None:
    text = METRICS.replace("Qwen/Qwen3-32B", "chat")
    settings = completed(f"{LINE} --served-model-name chat", metrics=metrics(tmp_path, text))
    assert settings.keys[f"{POOL}.num_gpu_blocks"] == 12000
