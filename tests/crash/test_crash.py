"""Every command that writes is killed at random instants, and its place then holds a whole result that it accepts."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simserve import load_results
from simserve.input_files import read_json
from simserve.study.check.baseline import read_baseline
from simserve.workload.readers import read_trace
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.cli.test_check import SLO, WORKLOAD
from tests.effort import is_thorough

ROOT = Path(__file__).resolve().parents[2]

N_KILLS = 12 if is_thorough() else 2

SERVER = """
import json, os, signal, sys, time
import pandas, plotly, simserve.report.page, simserve.simulation, simserve.tables.parquet, xlsxwriter  # once for all
from simserve.cli.main import execute

for line in sys.stdin:
    folder, arguments, kill_after_s = json.loads(line)
    started_s = time.monotonic()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        os.chdir(folder)
        os.dup2(os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        os._exit(execute(arguments))
    try:
        os.setpgid(child, child)  # here too: a kill may come before the child has done it
    except OSError:  # it has ended
        pass
    status = 0, 0
    while not status[0] and (kill_after_s is None or time.monotonic() - started_s < kill_after_s):
        time.sleep(0.0005)
        status = os.waitpid(child, os.WNOHANG)
    if not status[0]:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    exit_code = os.waitstatus_to_exitcode(status[1]) if status[0] else None
    print(json.dumps([exit_code, time.monotonic() - started_s]), flush=True)
"""
"""Runs commands in processes of their own, and kills them, with the imports of one."""


def a_run(folder: Path) -> None:
    assert len(load_results(folder).requests) == 40
    assert "</html>" in (folder / "report.html").read_text()


def an_answer(folder: Path) -> None:
    (answer,) = (file for file in folder.iterdir() if file.suffix == ".json")
    assert read_json(answer)
    assert "</html>" in (folder / "report.html").read_text()


def sheets(folder: Path) -> None:
    assert (folder / "summary.csv").read_text().endswith("\n")


def a_book(file: Path) -> None:
    import openpyxl

    assert openpyxl.load_workbook(file).sheetnames[0] == "Summary"


ARRIVALS = "{{kind: poisson, rate_per_s: 8}}"
LENGTHS = "{{kind: fixed, prompt_tokens: 9, output_tokens: 9}}"

COMMANDS: dict[str, tuple[str, tuple[str, ...], Callable[[Path], object]]] = {
    "run": ("out", ("run", "{scenario}", "--out", "{out}"), a_run),
    "report": ("run", ("report", "{run}"), a_run),
    "export csv": ("out", ("export", "{run}", "--csv", "{out}"), sheets),
    "export xlsx": ("out.xlsx", ("export", "{run}", "--xlsx", "{out}"), a_book),
    "compare": ("out", ("compare", "{run}", "{run2}", "--out", "{out}"), an_answer),
    "trace convert": ("out.parquet", ("trace", "convert", "{trace}", "{out}"), read_trace),
    "trace convert csv": ("out.csv", ("trace", "convert", "{trace}", "{out}"), read_trace),
    "trace generate": (
        "out.csv",
        ("trace", "generate", "{out}", "--arrivals", ARRIVALS, "--lengths", LENGTHS, "--n-requests", "40"),
        read_trace,
    ),
    "init": ("out.yaml", ("init", "{out}"), lambda file: invoke("explain", file).exit_code == 0),
    "sweep": ("out", ("sweep", "{scenario}", "--vary", "gpu=h100-sxm,h200-sxm", "--out", "{out}"), an_answer),
    "capacity": ("out", ("capacity", "{gate}", "--out", "{out}"), an_answer),
    "plan": ("out", ("plan", "{scenario}", "--gpu", "h100-sxm", "--tensor", "1", "--out", "{out}"), an_answer),
    "check": ("out.json", ("check", "{gate}", "--baseline", "{out}", "--update", "--tolerance", "0.15"), read_baseline),
}
"""By command: what it writes, its command line, and the reader that accepts only a whole one."""

QUICK = ("run", "init")
"""Commands that are killed by default, and not only under --thorough."""

STUDIES = ("capacity", "check", "compare", "plan", "sweep")
"""Commands of many runs, which are killed less often."""

Killer = Callable[[Path, list[str], float | None], float]


@pytest.fixture(scope="module")
def run_or_kill() -> Iterator[Killer]:
    """Run a command to its end, or kill all its processes after some seconds; return how long it ran."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LOKY_MAX_CPU_COUNT": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SERVER], env=environment, **pipes) as server:
        stdin, stdout = server.stdin, server.stdout
        assert stdin is not None and stdout is not None

        def run(folder: Path, arguments: list[str], kill_after_s: float | None) -> float:
            stdin.write(json.dumps([str(folder), arguments, kill_after_s]) + "\n")
            stdin.flush()
            exit_code, lasts_s = json.loads(stdout.readline())
            assert exit_code in ((0, 1) if kill_after_s is None else (0, 1, None)), (folder / "output").read_text()
            return float(lasts_s)

        yield run
        stdin.close()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The inputs of the commands."""
    tmp_path = tmp_path_factory.mktemp("inputs")
    scenario = write_scenario(tmp_path)
    for name in ("run", "run2"):
        assert invoke("run", scenario, "--out", tmp_path / name).exit_code == 0
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{n},10,5\n" for n in range(2_000)))
    (tmp_path / "gate").mkdir()
    gate = write_scenario(tmp_path / "gate", workload=WORKLOAD, slo=SLO)
    return {"scenario": scenario, "gate": gate, "trace": trace} | {name: tmp_path / name for name in ("run", "run2")}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in COMMANDS]
)
def test_a_kill_leaves_the_earlier_result_or_the_new_one(
    name: str, places: dict[str, Path], run_or_kill: Killer, tmp_path: Path
) -> None:
    written, command, accept = COMMANDS[name]
    out = places["run"] if written == "run" else tmp_path / written
    arguments = [argument.format(out=out, **places) for argument in command]
    instants = random.Random(name)
    lasts_s = run_or_kill(tmp_path, arguments, None)
    may_repeat = name != "init"
    for _ in range(3 if name in STUDIES else N_KILLS):
        if not may_repeat:
            out.unlink(missing_ok=True)
        run_or_kill(tmp_path, arguments, instants.uniform(0, 1.1 * lasts_s))
        if may_repeat or out.exists():
            accept(out)
    if may_repeat:
        run_or_kill(tmp_path, arguments, None)
        accept(out)
    assert not [file.name for file in tmp_path.iterdir() if file.name.startswith(".") and file.is_dir()]
