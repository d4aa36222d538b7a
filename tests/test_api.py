"""The Python API answers what the commands answer, shows it, and says what is wrong in their sentences."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

import simserve
from simserve.cli.app import app
from simserve.errors import OutputError, ScenarioError, SimserveError
from simserve.metrics.result_folder import read_result_folders
from simserve.tables.files import plain
from tests.cli.invoke import invoke
from tests.effort import is_thorough
from tests.golden_answers.studies import scenarios
from tests.pages import blocks
from tests.test_readme import shorter

ROOT = Path(__file__).resolve().parents[1]
RATE = "workload.arrivals.rate_per_s"
SLOWER: Any = {"engine.exposed_step_s": 0.001}
WRONG: Any = "wrong"


def at(rate_per_s: float) -> Any:
    """Return the change to another load."""
    return {RATE: rate_per_s}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the scenarios of small studies by name, and the baseline of one."""
    folder = tmp_path_factory.mktemp("api")
    baseline = folder / "baseline.json"
    written = scenarios(folder) | {"baseline": baseline}
    command = ("check", written["limited"], "--goal", "0.9", "--tolerance", "0.5", "--update", "--baseline", baseline)
    assert invoke(*command).exit_code == 0
    return written


ToAnswer = Callable[[dict[str, Path]], Any]
Study = tuple[ToAnswer, str]

STUDIES: dict[str, Study] = {
    "run": (lambda f: simserve.run(f["tiny"], replications=3), "run {tiny} --replications 3"),
    "rate": (
        lambda f: simserve.capacity(f["limited"], goal=0.9, precision=0.5),
        "capacity {limited} --goal 0.9 --precision 0.5",
    ),
    "replicas": (
        lambda f: simserve.capacity(f["tiny"], goal="p90", replicas="serve", **at(60)),
        f"capacity {{tiny}} --goal 0.9 --replicas serve --set {RATE}=60",
    ),
    "ratio": (
        lambda f: simserve.capacity(f["split"], goal=0.9, precision=0.5, ratio="prefill:decode"),
        "capacity {split} --goal 0.9 --precision 0.5 --ratio prefill:decode",
    ),
    "plan": (
        lambda f: simserve.plan(f["tiny"], gpus=["h100-sxm", "h200-sxm"], tensors=[1, 3], growth=0.2, **at(8)),
        f"plan {{tiny}} --gpu h100-sxm,h200-sxm --tensor 1,3 --growth 0.2 --set {RATE}=8",
    ),
    "sweep": (
        lambda f: simserve.sweep(f["tiny"], vary={"replicas": range(1, 3), "gpu": ["h100-sxm", "l40s"]}),
        "sweep {tiny} --vary cluster.pools.0.replicas=1..2 --vary gpu=h100-sxm,l40s",
    ),
    "compare": (
        lambda f: simserve.compare(f["limited"], f["slower"], replications=2),
        "compare {limited} {slower} --replications 2",
    ),
    "check": (
        lambda f: simserve.check(f["limited"], baseline=f["baseline"], **SLOWER),
        "check {limited} --baseline {baseline} --set engine.exposed_step_s=0.001",
    ),
}


Answers = Callable[[str], Any]


@pytest.fixture(scope="module")
def answers(files: dict[str, Path]) -> Answers:
    """Return the answers by name, each computed once."""
    return cache(lambda name: STUDIES[name][0](files))


def facts(answer: Any) -> Any:
    """Return an answer as JSON has it."""
    known = json.loads(json.dumps(plain(answer.summary if isinstance(answer, simserve.Results) else answer.facts())))
    return {key: value for key, value in known.items() if key != "wall_s"}


@pytest.mark.parametrize("name", STUDIES)
def test_the_answer_is_that_of_the_command(name: str, answers: Answers, files: dict[str, Path], tmp_path: Path) -> None:
    answer = answers(name)
    outcome = invoke(*STUDIES[name][1].format(**files).split(), "--json", "--out", tmp_path / "out")
    printed = json.loads(outcome.out)
    assert facts(answer) == {key: value for key, value in printed.items() if key != "wall_s"}
    table = next((tmp_path / "out").glob(f"{answer.command}.parquet"), None) or tmp_path / "out" / "requests.parquet"
    if name in ("compare", "check"):
        assert not table.exists()
    else:
        assert list(answer.to_frame().columns) == pq.read_schema(table).names
        assert len(answer.to_frame()) == pq.read_metadata(table).num_rows
    (folder,) = read_result_folders([tmp_path / "out"])
    if name not in ("run", "compare", "check", "plan"):
        assert folder.answer.facts() == answer.facts()
        with pytest.raises(OutputError, match="as it was read from a file; read the parquet file beside it"):
            folder.answer.to_frame()


@pytest.mark.parametrize("name", STUDIES)
def test_an_answer_shows_itself(name: str, answers: Answers, tmp_path: Path) -> None:
    answer = answers(name)
    assert isinstance(answer.to_frame(), pd.DataFrame)
    assert len(answer.to_frame())
    html = answer.page(tmp_path / "page.html").read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    head = answer._repr_html_()
    assert "<h1>" in head and "tile" in head and len(head) < 5000
    assert "<script" not in head
    chart = answer.plot()
    assert len(chart.data)
    assert not re.search(r'"\$[a-z]', chart.to_json()), "tokens of the page's colors"
    assert "\n" not in repr(answer) and repr(answer).startswith(f"<{type(answer).__name__}: ")
    assert str(answer) == repr(answer)


def test_a_chart_has_colors_for_the_tokens_of_the_page(answers: Answers) -> None:
    assert set(answers("compare").plot().data[0].marker.color) <= {"#13683f", "#ad2117", "#5b5b55"}


def test_a_name_is_no_markup_in_a_notebook(answers: Answers) -> None:
    html = answers("compare").model_copy(update={"a": "<script>alert(1)</script>"})._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_a_run_has_its_decision(files: dict[str, Path]) -> None:
    results = simserve.run(files["tiny"], budget_runs=8, seed=5)
    assert results.decision is not None
    assert results.decision.word == results.summary["decision"]["word"]
    assert results.summary["seed"] == 5
    assert simserve.run(files["tiny"], slo={}).decision is None


def test_b_is_a_with_its_changes_where_it_is_left_out(answers: Answers, files: dict[str, Path]) -> None:
    answer = simserve.compare(files["limited"], replications=2, **SLOWER)
    assert answer.decision == answers("compare").decision
    assert answer.b == "limited with engine.exposed_step_s=0.001"


def test_results_can_be_compared(files: dict[str, Path], tmp_path: Path) -> None:
    results = simserve.simulate(files["limited"])
    results.write(tmp_path / "run")
    other = simserve.simulate(files["slower"])
    from_folder = simserve.compare(str(tmp_path / "run"), other)
    assert from_folder.measures == simserve.compare(results, other).measures
    with pytest.raises(SimserveError, match="only a scenario can be changed, got results; leave out gpu"):
        simserve.compare(results, gpu="h200-sxm")


def test_a_plan_holds_the_fleet_to_take(files: dict[str, Path]) -> None:
    planned = simserve.plan(files["tiny"], tensors=[1], **at(8))
    assert planned.scenario_yaml is not None and planned.best is not None
    fleet = simserve.Scenario.from_dict(yaml.safe_load(planned.scenario_yaml))
    assert fleet.cluster.pools[0].replicas == planned.best.replicas


def test_points_may_be_listed(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("gpu\nh200-sxm\n")
    listed = simserve.sweep(files["tiny"], points=[{"gpu": "h200-sxm"}])
    assert listed == simserve.sweep(files["tiny"], points=tmp_path / "points.csv")
    assert listed.points[0].values == {"gpu": "h200-sxm"}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda f: simserve.run(f["tiny"], gpu="h99"), "argument gpu='h99': no such GPU in the catalog, got 'h99'"),
        (lambda f: simserve.run(f["tiny"], horizon=3), "argument horizon=3: unknown key; choose from"),
        (lambda f: simserve.run(f["split"], replicas=3), 'give **{"cluster.pools.0.replicas": 3}'),
        (lambda f: simserve.sweep(f["split"], vary={"replicas": [1, 2]}), "argument replicas: is a key of each pool"),
        (lambda f: simserve.sweep(f["tiny"], vary={"replicas": []}), "argument replicas=[]: needs at least one value"),
        (lambda f: simserve.sweep(f["tiny"], vary={"gpu": ["h99"]}), "no such GPU in the catalog, got 'h99'"),
        (lambda f: simserve.sweep(f["tiny"]), "a sweep needs keys to vary"),
        (lambda f: simserve.run(f["tiny"], budget_runs=4), "--budget-runs: must be from 8 to 1024, got 4; 32 are the"),
        (lambda f: simserve.run(f["tiny"], confidence=1), "--confidence: must be above 0.75 and below 1, got 1"),
        (lambda f: simserve.capacity(f["tiny"], precision=WRONG), "--precision: must be from 0.001 to 0.5, got wrong"),
        (lambda f: simserve.capacity(f["tiny"], goal=2), "--goal: must be a share from 0.01 to 0.9999"),
        (lambda f: simserve.capacity(f["tiny"], by=WRONG), "--by: must be noise or total, got wrong"),
        (lambda f: simserve.capacity(f["tiny"], gpus=4), "--gpus: says how many GPUs --ratio splits, got 4"),
        (lambda f: simserve.plan(f["tiny"], tensors=[0]), "--tensor: must be whole numbers from 1 on, got 0"),
        (lambda f: simserve.plan(f["tiny"], growth=float("nan")), "--growth: must be from 0 to 1, got nan"),
        (lambda f: simserve.compare(f["tiny"]), "compare: needs another side, got one; give B"),
        (lambda f: simserve.compare(f["tiny"], f["tiny"], replications=1), "--replications: must be from 2 to 1000"),
        (lambda f: simserve.check(f["tiny"]), "check: must have one of --baseline FILE"),
        (lambda f: simserve.check({**read(f["tiny"])}, against="HEAD"), "the scenario must be a file, got plain data"),
    ],
)
def test_errors_are_those_of_the_command(call: ToAnswer, sentence: str, files: dict[str, Path]) -> None:
    with pytest.raises(SimserveError) as caught:
        call(files)
    assert sentence in str(caught.value)


def read(file: Path) -> Any:
    """Return a scenario as a dict."""
    return simserve.load_scenario(file).to_dict()


def test_wrong_values_are_errors_of_the_scenario(files: dict[str, Path]) -> None:
    with pytest.raises(ScenarioError):
        simserve.capacity(files["tiny"], model="nothing")


RENAMED = {"gpu": "gpus", "tensor": "tensors"}
NOT_OPTIONS = {
    "scenario",
    "a",
    "b",
    "assignments",
    "allow_plugin",
    "as_json",
    "out",
    "no_report",
    "steps",
    "quiet",
    "opens",
}
NOT_OPTIONS |= {"timeline", "timeline_requests", "update", "summary", "junit", "dask", "seed", "jobs"}


@pytest.mark.parametrize("name", ["run", "capacity", "plan", "sweep", "compare", "check"])
def test_options_have_the_names_and_defaults_of_the_command(name: str) -> None:
    (command,) = (each.callback for each in app.registered_commands if each.name == name)
    assert command is not None
    python = signature(getattr(simserve, name)).parameters
    for key, option in signature(command).parameters.items():
        if key in NOT_OPTIONS:
            continue
        ours = python[RENAMED.get(key, key) if name == "plan" else key]
        assert ours.kind is ours.KEYWORD_ONLY
        if option.default is not None and key != "tensor":
            assert ours.default == option.default, key
    assert "seed" in python or name == "compare"
    assert "jobs" in python


def test_the_page_of_the_api_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scenarios").mkdir()
    for name in ("chat_burst", "disaggregated"):
        text = (ROOT / "scenarios" / f"{name}.yaml").read_text(encoding="utf-8")
        (tmp_path / "scenarios" / f"{name}.yaml").write_text(shorter(text), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simserve.scenario.shipped.PACKAGE", tmp_path)
    names: dict[str, Any] = {}
    for block in blocks((ROOT / "docs" / "python.md").read_text(encoding="utf-8"), "python"):
        exec(block if is_thorough() else block.replace("precision=0.1", "precision=0.5"), names)
    assert (tmp_path / "report.html").exists()
    assert names["points"].points


def test_the_package_shows_its_public_names_alone() -> None:
    assert dir(simserve) == sorted([*simserve.__all__, "__version__"])
    assert all(getattr(simserve, name) for name in simserve.__all__)
    assert "calibrate" not in dir(simserve)
    for name in ("Scheduler", "Router", "Admission", "Autoscaler"):
        assert getattr(simserve, name).__module__.endswith(".base")


def test_types_are_known(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(
        "import simserve\n"
        "reveal_type(simserve.plan('x').best)\n"
        "reveal_type(simserve.run('x', gpu='h200-sxm', replicas=3).decision)\n"
        "reveal_type(simserve.check({}, against='main').loss)\n"
        "reveal_type(simserve.load_scenario('x').replace(seed=1))\n"
        "simserve.plan('x', months='a')\n"
        "simserve.calibrate\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "typed.py"]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("typed.py")]
    expected = (
        "PlanOption | None",
        "DecisionJson | None",
        "LossFacts | None",
        "scenario.Scenario",
        '"months"',
        "calibrate",
    )
    assert len(lines) == len(expected), done.stdout
    for line, part in zip(lines, expected, strict=True):
        assert part in line


SCRIPT = """
import simserve
answer = simserve.{call}
print(repr(answer))
"""


def from_stdin(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has no file and no `if __name__ == "__main__"`, as a here document and a notebook have it."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-"],
        input=program,
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "LOKY_MAX_CPU_COUNT"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_program_without_a_file_runs_on_all_cores_and_is_silent(method: str, files: dict[str, Path]) -> None:
    program = f"import multiprocessing\nmultiprocessing.set_start_method({method!r})\n"
    program += SCRIPT.format(call=f"sweep({str(files['tiny'])!r}, vary={{'replicas': [1, 2]}}, replications=2)")
    program += f"print(simserve.run({str(files['tiny'])!r}))\n"
    done = from_stdin(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("<SweepAnswer: ")
    assert done.stderr == ""


def test_threads_of_a_notebook_are_no_obstacle(files: dict[str, Path]) -> None:
    program = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    done = from_stdin(program + SCRIPT.format(call=f"run({str(files['tiny'])!r}, **{{'measure.replays': 2}})"))
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupted_study_can_be_repeated(files: dict[str, Path]) -> None:
    program = (
        "import simserve, sys\n"
        f"file = {str(files['tiny'])!r}\n"
        "try:\n"
        "    print('begin', flush=True)\n"
        "    simserve.sweep(file, vary={'replicas': [1, 2]}, replications=900)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "print(repr(simserve.sweep(file, vary={'replicas': [1, 2]}))[:12])\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "LOKY_MAX_CPU_COUNT"}
    command, pipe = [sys.executable, "-c", program], subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begin\n"
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert out.splitlines() == ["interrupted", "<SweepAnswer"], err
    assert err == ""
