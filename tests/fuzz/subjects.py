"""Subjects: each kind of input, spoilt, and the command that reads it, held to the rules of every command."""

import json
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from simserve import load_scenario
from simserve.cost.calibration import calibration_path
from simserve.workload.size import expected_requests
from tests.cli.invoke import Outcome, invoke
from tests.cli.scenarios import write_scenario
from tests.fuzz.configs import KEYS, config_of
from tests.fuzz.mutants import mutant, spoilt

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))

MOST_S = 20
MOST_KIB = 2 * 2**20

MOST_RUN = 300
"""Requests up to which a scenario that loads is also run: a larger one may rightly take its time."""

TRACES = {
    "simserve.csv": b"arrival_s,prompt_tokens,output_tokens,session_id\n0,10,5,a\n1,20,7,b\n2.5,30,9,a\n",
    "azure.csv": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    b"2023-11-16 18:15:50.9951690,396,109\n",
    "burst.csv": b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,472,18,490,API log\n",
    "mooncake.jsonl": b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
    b'{"timestamp": 3000, "input_length": 1030, "output_length": 9, "hash_ids": [1, 3, 4]}\n',
    "result.json": b'{"start_times": [0, 1.5], "input_lens": [4, 5], "output_lens": [3, 3], "ttfts": [0.1, 0.2], '
    b'"itls": [[0.1, 0.1], [0.1, 0.1]], "request_rate": 2.0, "duration": 3.0}',
}


class BrokenRule(Exception):
    """An outcome that no input may have."""


def one_case(seed: int, folder: Path, subject: str | None = None) -> None:
    """Try one mutant. Raises BrokenRule, and leaves its files in the folder."""
    random = Random(seed)
    (drawn,) = random.choices(list(SUBJECTS), [6, 2, 1, 2, 2, 1, 1, 1, 1])
    SUBJECTS[subject or drawn](random, folder)


def checked(*arguments: object) -> Outcome:
    """Run a command within the limits of time and memory. Raises BrokenRule for an outcome other than 0, 1 and 2."""

    def too_long(_: int, frame: FrameType | None) -> None:
        raise BrokenRule(f"took more than {MOST_S} s: {arguments}")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(MOST_S)
    try:
        outcome = invoke(*arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if outcome.exit_code not in (0, 1, 2) or "Traceback" in outcome.err or "Warning:" in outcome.err:
        raise BrokenRule(f"exit code {outcome.exit_code} of {arguments}:\n{outcome.err}")
    if outcome.exit_code == 2 and not outcome.err.startswith(("simserve: error: ", "Usage: ")):
        raise BrokenRule(f"no message of {arguments}:\n{outcome.err}")
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
    if peak_kib > MOST_KIB:
        raise BrokenRule(f"took {peak_kib / 2**20:.2f} GiB by the end of {arguments}")
    return outcome


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
    file = folder / name
    file.write_bytes(spoilt(TRACES[name], random))
    checked("trace", "info", file)
    checked("trace", "convert", file, folder / random.choice(("out.csv", "out.parquet")))
    if random.random() < 0.2:
        checked("validate", file, "--scenario", write_scenario(folder))


def parquet(random: Random, folder: Path) -> None:
    """Read a parquet trace with a column of another type, or with spoilt bytes."""
    columns: dict[str, Any] = {
        "arrival_s": [0.0, 1.5, 2.5],
        "prompt_tokens": [5, 6, 7],
        "output_tokens": [3, 3, 4],
        "session_id": ["a", "b", "a"],
        "hash_ids": [[1], [2], [1]],
        "hash_block_tokens": [4, 4, 4],
    }
    others: list[Any] = [[[1], [2, 3], []], [[[1]], [[2]], [[3]]], [{"a": 1}] * 3, [b"x", b"\xff", b""], [None] * 3]
    others += [["x", "", None], [True, False, True], list(np.array([0, 1, 2], "datetime64[s]")), [1e308, -1e308, 0.0]]
    for _ in range(random.choice((0, 1, 2))):
        columns[random.choice(list(columns))] = random.choice(others)
    file = folder / "trace.parquet"
    pq.write_table(pa.table(columns), file)
    if random.random() < 0.5:
        file.write_bytes(spoilt(file.read_bytes(), random))
    checked("trace", "info", file)
    checked("validate", file, "--scenario", write_scenario(folder))


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
    """Check against a mutant of a baseline, with no time to run: what is read must be refused or differ."""
    tree = json.loads((ROOT / "scenarios" / "baselines" / "chat_burst.json").read_text())
    tree["loads"] = [load | {"n_met": load["n_met"][:4], "n_arrived": load["n_arrived"][:4]} for load in tree["loads"]]
    _write(folder / "base.json", tree, random)
    checked("check", write_scenario(folder), "--baseline", folder / "base.json")


def result(random: Random, folder: Path) -> None:
    """Read back a folder of a run with one spoilt file."""
    out = _result(folder / "result")
    file = random.choice(sorted(out.iterdir()))
    if file.name == "summary.json" and random.random() < 0.8:
        _write(file, json.loads(file.read_text()), random)
    else:
        file.write_bytes(spoilt(file.read_bytes(), random))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numbers that are not those of a run, as at the command line
        checked("report", out)
        checked("export", out, "--xlsx", folder / "book.xlsx")
        checked("compare", out, _result(folder / "other"))


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
    each.__name__: each for each in (scenario, trace, parquet, model, calibration, baseline, result, overrides, points)
}


def _explained_with(key: str, tree: Any, random: Random, folder: Path, **changes: Any) -> None:
    _write(folder / "file.json", tree, random)
    command = (write_scenario(folder, **changes), "--set", f"{key}={folder / 'file.json'}")
    outcome = checked("explain", *command)
    if outcome.exit_code == 0 and random.random() < 0.3:
        checked("run", *command, "--out", folder / "out", "-q")


def _write(file: Path, tree: Any, random: Random) -> None:
    content = json.dumps(mutant(tree, random)).encode()
    file.write_bytes(spoilt(content, random) if random.random() < 0.3 else content)


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


@cache
def _whole_result() -> dict[str, bytes]:
    """Return the files of a run, made once for all cases."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        if invoke("run", write_scenario(Path(folder)), "--out", out).exit_code:
            raise BrokenRule("the run of the tests must succeed")
        return {file.name: file.read_bytes() for file in out.iterdir()}


def _result(folder: Path) -> Path:
    folder.mkdir()
    for name, content in _whole_result().items():
        (folder / name).write_bytes(content)
    return folder
