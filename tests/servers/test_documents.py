"""Files that deploy a server: its container is found, with copies, version, variables and GPUs."""

from pathlib import Path

import pytest

from simserve.errors import ScenarioError, SimserveError
from simserve.servers.command_line import ServerCommand
from simserve.servers.documents import assignments, read_server, server_of_file
from simserve.servers.settings import settings_of

COMPOSE = """
services:
  redis: {image: "redis:7", command: redis-server}
  llm:
    image: vllm/vllm-openai:v0.11.0
    environment: [HF_TOKEN=secret, TP=2]
    command: >
      --model Qwen/Qwen3-32B
      --tensor-parallel-size ${TP}
      --max-num-seqs 128
    deploy: {replicas: 3}
"""

MANIFEST = """
apiVersion: v1
kind: Service
metadata: {name: front}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: qwen}
spec:
  replicas: 4
  template:
    spec:
      initContainers:
      - {name: load, image: busybox, command: [sh, -c, "echo vllm"]}
      containers:
      - name: engine
        image: vllm/vllm-openai:v0.12.0
        command: ["/bin/sh", "-c"]
        args: ["vllm serve Qwen/Qwen3-32B --tensor-parallel-size $(TP) --max-num-seqs 128"]
        env:
        - {name: TP, value: "2"}
        - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: a, key: b}}}
        resources: {limits: {nvidia.com/gpu: "2"}}
"""

VALUES = """
engine:
  image: {repository: lmsysorg/sglang, tag: v0.5.12-cu129}
  replicaCount: 2
  args:
    - python3
    - -m
    - sglang.launch_server
    - --model-path
    - Qwen/Qwen3-32B
    - --tp=2
    - --max-running-requests=128
    - --port
    - {{ .Values.port }}
"""

STACK = """
servingEngineSpec:
  modelSpec:
  - name: qwen
    repository: vllm/vllm-openai
    tag: v0.10.1
    modelURL: Qwen/Qwen3-32B
    replicaCount: 2
    requestGPU: 2
    vllmConfig:
      enablePrefixCaching: false
      enableChunkedPrefill: true
      tensorParallelSize: 2
      extraArgs: ["--max-num-seqs", "128", "--disable-log-requests"]
"""


def server(folder: Path, text: str, name: str | None = None, **env: str) -> ServerCommand:
    path = folder / "deploy.yaml"
    path.write_text(text)
    return server_of_file(path, env, name)


@pytest.mark.parametrize(
    ("text", "engine", "version", "replicas", "gpus"),
    [
        (COMPOSE, "vllm", "0.11.0", 3, None),
        (MANIFEST, "vllm", "0.12.0", 4, 2),
        (VALUES, "sglang", "0.5.12", 2, None),
        (STACK, "vllm", "0.10.1", 2, 2),
    ],
    ids=["compose", "manifest", "values", "stack"],
)
def test_a_container_is_the_server(
    text: str, engine: str, version: str, replicas: int, gpus: int | None, tmp_path: Path
) -> None:
    own = server(tmp_path, text)
    assert (own.engine, own.version, own.replicas, own.n_gpus) == (engine, version, replicas, gpus)
    keys = settings_of(own).keys
    assert (keys["model"], keys["cluster.pools.0.parallel.tensor"]) == ("Qwen/Qwen3-32B", 2)
    slots = "max_num_seqs" if engine == "vllm" else "max_running_requests"
    assert keys[f"cluster.pools.0.scheduler.{slots}"] == 128
    assert "secret" not in str(settings_of(own).notes)


def test_a_given_variable_goes_before_that_of_the_file(tmp_path: Path) -> None:
    keys = settings_of(server(tmp_path, COMPOSE, TP="4")).keys
    assert keys["cluster.pools.0.parallel.tensor"] == 4


def test_one_of_several_servers_is_named(tmp_path: Path) -> None:
    two = COMPOSE + COMPOSE.replace("\nservices:", "").replace("llm:", "small:").replace("redis:", "cache:")
    with pytest.raises(
        ScenarioError, match=r"deploy.yaml: has 2 servers, got llm, small; say which with --service NAME"
    ):
        server(tmp_path, two)
    assert server(tmp_path, two, "small").replicas == 3
    with pytest.raises(
        ScenarioError, match=r"--service: is in .*deploy.yaml the name of a server, got big; llm, small"
    ):
        server(tmp_path, two, "big")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1", "deploy.yaml:1: is not YAML (expected ',' or ']', but got '<stream end>'); correct it"),
        ("a: {{ x }}: {{ y\nb: [", "is not YAML"),
        (
            "services: {a: {image: redis}}",
            "must have a container that starts vllm serve, sglang.launch_server or trtllm",
        ),
        ("", "must have a container that starts vllm serve"),
        (
            "a: {image: 3, args: {b: 1}, resources: 4, env: 5, modelURL: [1], vllmConfig: 3}",
            "must have a container that",
        ),
        ("&a [*a]", "must have a container that starts vllm serve"),
    ],
)
def test_what_deploys_no_server_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        server(tmp_path, text)
    assert sentence in str(caught.value)


def test_a_line_or_one_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    for line, files, text in (
        (None, {}, "twin: takes a command line, or one of --compose, --manifest or --values, got neither; give one"),
        ("vllm serve x", {"--compose": path}, "got a command line, --compose; give one"),
        (None, {"--compose": path, "--values": path}, "got --compose, --values; give one"),
        ("deploy.yaml", {}, "COMMAND: must be a command line, got the file deploy.yaml; give it as one of --compose"),
    ):
        with pytest.raises(SimserveError) as caught:
            read_server(line, files, {})
        assert text in str(caught.value)
    with pytest.raises(SimserveError, match="--service: is for a file, got a beside a command line"):
        read_server("vllm serve x", {}, {}, "a")


def test_variables_are_pairs() -> None:
    assert assignments(["A=b=c", "D="], "--env") == {"A": "b=c", "D": ""}
    with pytest.raises(SimserveError, match="--env: must be NAME=VALUE, got A; for example --env TP=2"):
        assignments(["A"], "--env")
