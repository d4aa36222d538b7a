"""Subjects: each kind of input, spoilt, and the command that reads it, held to the rules of every command."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from simserve import load_scenario
from simserve.cost.calibration import calibration_path
from simserve.study.check.baseline import portable
from simserve.workload.size import expected_requests
from tests.cli.scenarios import write_scenario
from tests.fuzz.configs import KEYS, config_of
from tests.fuzz.mutants import mutant, spoilt, typed, write_json
from tests.fuzz.rules import BrokenRule, checked, checked_reading
from tests.fuzz.tables import answer, facts, log, parquet, points_table, result, tables
from tests.workload.weka import fan_out, in_background

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))

MOST_RUN = 300
"""Requests up to which a scenario that loads is also run: a larger one may rightly take its time."""

TRACES = {
    "simserve.csv": b"arrival_s,prompt_tokens,output_tokens,session_id\n0,10,5,a\n1,20,7,b\n2.5,30,9,a\n",
    "azure.csv": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    b"2023-11-16 18:15:50.9951690,396,109\n",
    "burst.csv": b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,472,18,490,API log\n",
    "mooncake.jsonl": b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
    b'{"timestamp": 3000, "input_length": 1030, "output_length": 9, "hash_ids": [1, 3, 4]}\n',
    "log.jsonl": b'{"arrival_s": 0, "prompt_tokens": 9, "output_tokens": 3, "ttft_s": 0.1, "e2e_ms": 90}\n'
    b'{"arrival_s": 1, "prompt_tokens": 9, "output_tokens": 3, "ttft_s": 0.1, "e2e_ms": 95, "hash_ids": [1, 2]}\n',
    "result.json": b'{"start_times": [0, 1.5], "input_lens": [4, 5], "output_lens": [3, 3], "ttfts": [0.1, 0.2], '
    b'"itls": [[0.1, 0.1], [0.1, 0.1]], "request_rate": 2.0, "duration": 3.0}',
    "weka_log.jsonl": "".join(f"{json.dumps(each)}\n" for each in (fan_out(), in_background())).encode(),
}


def one_case(seed: int, folder: Path, subject: str | None = None) -> None:
    """Try one mutant, of one kind of input or any. Raises BrokenRule, and leaves its files in the folder."""
    random = Random(seed)
    SUBJECTS[subject or random.choices(list(SUBJECTS), [WEIGHTS.get(name, 1) for name in SUBJECTS])[0]](random, folder)


def scenario(random: Random, folder: Path) -> None:
    """Explain a mutant of a shipped scenario; where it loads, reload its resolved form and run it."""
    name, tree = random.choice(_trees())
    small = _small(tree) if random.random() < 0.7 else tree
    text = yaml.safe_dump(mutant(small, random), sort_keys=False, allow_unicode=True).encode()
    file = folder / f"{name}.yaml"
    file.write_bytes(spoilt(text, random) if random.random() < 0.2 else text)
    explained = checked("explain", file, "--json")
    if explained.exit_code:
        return
    answer = json.loads(explained.out)
    resolved = folder / "resolved.yaml"
    loaded = load_scenario(file)
    resolved.write_text(loaded.to_yaml(), encoding="utf-8")
    if load_scenario(resolved).digest != answer["digest"]:
        raise BrokenRule(f"the resolved scenario of {file} has another digest")
    n_requests = expected_requests(loaded.workload)
    n_ranks = sum(setup.n_replicas * setup.ranks_per_replica for setup in loaded.setups)
    if n_requests is not None and n_requests <= MOST_RUN and n_ranks <= 64 and loaded.workload.prefixes is None:
        # The run holds its own laws of conservation: an InvariantError is exit code 70.
        checked("run", file, "--out", folder / "out", "--no-report", "--set", "measure.replays=0", "--quiet")


def trace(random: Random, folder: Path) -> None:
    """Read a spoilt trace as one, and as a log."""
    name = random.choice(list(TRACES))
    file, content = folder / name, TRACES[name]
    if name.endswith(".jsonl") and random.random() < 0.7:
        rows = [json.loads(line) for line in content.splitlines()]
        content = b"".join(json.dumps(row).encode() + b"\n" for row in typed(rows, random))
    file.write_bytes(content if content is not TRACES[name] and random.random() < 0.8 else spoilt(content, random))
    checked_reading(2, "trace", "info", file)
    checked("trace", "convert", file, folder / random.choice(("out.csv", "out.parquet")))
    if random.random() < 0.2 or "log" in name:
        checked_reading(2, "validate", file, "--scenario", write_scenario(folder))


def model(random: Random, folder: Path) -> None:
    """Explain a scenario with a mutant of the config.json of any family."""
    changes = random.choice((room("h200-sxm", 8), room("b300-sxm", 1)))
    _explained_with("model", config_of(random.choice(list(KEYS))), random, folder, **changes)


def room(gpu: str, tensor: int) -> dict[str, Any]:
    """Return changes to a scenario for a model of any size and dtype."""
    pool = {"name": "serve", "replicas": 1, "parallel": {"tensor": tensor}}
    return {"gpu": gpu, "weight_dtype": ..., "cluster": {"pools": [pool]}}


def calibration(random: Random, folder: Path) -> None:
    """Explain a scenario with a mutant of a shipped calibration."""
    _explained_with("cluster.pools.0.calibration", json.loads(_calibration()), random, folder)


def baseline(random: Random, folder: Path) -> None:
    """Check against a mutant of a baseline of a few seeds, of another scenario or of this one."""
    tree = json.loads((ROOT / "scenarios" / "baselines" / "chat_burst.json").read_text())
    tree["loads"] = [load | {"n_met": load["n_met"][:4], "n_arrived": load["n_arrived"][:4]} for load in tree["loads"]]
    tree["crowd"]["frac"] = tree["crowd"]["frac"][:4]
    tiny = write_scenario(folder)
    if random.random() < 0.7:
        tree["scenario"] = portable(load_scenario(tiny))
    write_json(folder / "base.json", tree, random)
    checked_reading(0, "check", tiny, "--baseline", folder / "base.json", "--jobs", 1)


def bench(random: Random, folder: Path) -> None:
    """Read a mutant of the result of a benchmark, and compare it with itself."""
    tree = json.loads(TRACES["result.json"]) | {"errors": ["", ""], "max_concurrency": 4, "mean_ttft_ms": 12.0}
    file = folder / "result.json"
    write_json(file, tree, random)
    checked_reading(2, "validate", file, "--scenario", write_scenario(folder))
    checked_reading(0, "compare", file, file)


def overrides(random: Random, folder: Path) -> None:
    """Explain a scenario under spoilt --set options."""
    options = [
        b"cluster.pools.0.replicas=4",
        b"workload.arrivals={kind: poisson, rate_per_s: 8}",
        b"cluster.router=least_kv",
        b"slo.classes.a.ttft_s=1",
    ]
    texts = [spoilt(random.choice(options), random).decode("utf-8", "replace").replace("\0", "") for _ in range(2)]
    checked("explain", write_scenario(folder), *(f"--set={text}" for text in texts))


def points(random: Random, folder: Path) -> None:
    """Read spoilt points of a sweep; the scenario has no file, so none runs."""
    name, content = random.choice(
        [
            ("p.csv", b"gpu,cluster.pools.0.replicas\nh100-sxm,1\nh200-sxm,2\n"),
            ("p.yaml", b"- {gpu: h100-sxm}\n- {gpu: x}\n"),
        ]
    )
    (folder / name).write_bytes(spoilt(content, random))
    checked("sweep", folder / "none.yaml", "--points", folder / name, "--out", folder / "sweep")


SUBJECTS: dict[str, Callable[[Random, Path], None]] = {
    each.__name__: each
    for each in (
        *(scenario, trace, model, calibration, baseline, bench, overrides, points),
        *(parquet, log, points_table, result, tables, facts, answer),
    )
}

WEIGHTS = {"scenario": 6, "trace": 2, "model": 2, "calibration": 2}
"""How often a kind of input is tried; others once."""


def _explained_with(key: str, tree: Any, random: Random, folder: Path, **changes: Any) -> None:
    write_json(folder / "file.json", tree, random)
    command = (write_scenario(folder, **changes), "--set", f"{key}={folder / 'file.json'}")
    outcome = checked("explain", *command)
    if outcome.exit_code == 0 and random.random() < 0.3:
        checked("run", *command, "--out", folder / "out", "-q")


@cache
def _trees() -> list[tuple[str, Any]]:
    return [(file.stem, yaml.safe_load(file.read_text())) for file in SCENARIOS]


def _small(tree: Any) -> Any:
    """Return a scenario of few requests, where its load has a number or a duration."""
    workload = {key: value for key, value in tree["workload"].items() if key not in ("n_requests", "duration_s")}
    if "trace" not in workload:
        workload["n_requests"] = 30
    return {**tree, "workload": workload, "measure": {}}


@cache
def _calibration() -> str:
    return calibration_path("h100-sxm/vllm").read_text()
