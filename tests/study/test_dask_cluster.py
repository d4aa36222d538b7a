"""Runs on a real Dask cluster of separate worker processes, some of which die."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simserve.errors import SimserveError
from simserve.study import dask_cluster as module
from simserve.study.dask_cluster import dask_cluster
from simserve.study.processes import Lost
from simserve.study.sweep.run import run_row, task_of
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.study.sweep_work import die, die_once, echo

pytest.importorskip("distributed")

ROOT = Path(__file__).resolve().parents[2]

# distributed opens event loops of its own and warns of what it leaves behind; no business of ours
pytestmark = pytest.mark.filterwarnings("ignore")


@contextmanager
def started() -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The address of a cluster, and its process."""
    settings = {"PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    command = [sys.executable, "-m", "tests.study.local_cluster"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | settings,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip(), process
        finally:
            assert process.stdin
            process.stdin.close()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with started() as (result, _):
        yield result


def test_every_task_is_answered_once_with_its_place(address: str) -> None:
    with dask_cluster(address) as cluster:
        assert sorted(cluster.run(echo, [(n,) for n in range(20)])) == [(n, 10 * n) for n in range(20)]


def test_a_run_gives_the_row_that_it_gives_here(address: str, tmp_path: Path) -> None:
    from simserve import load_scenario

    task = task_of(load_scenario(write_scenario(tmp_path)), 7)
    with dask_cluster(address) as cluster:
        ((place, row),) = cluster.run(run_row, [task])
    here = run_row(task)
    assert place == 0
    assert row == here.model_copy(update={"wall_s": row.wall_s})


def test_the_command_gives_the_same_answer_there_as_here(address: str, tmp_path: Path) -> None:
    requested = (
        "sweep",
        write_scenario(tmp_path),
        "--vary",
        "cluster.pools.0.replicas=1,2",
        "--replications",
        2,
        "--json",
    )
    there = invoke(*requested, "--dask", address, "--out", tmp_path / "there")
    here = invoke(*requested, "--out", tmp_path / "here")
    assert (there.exit_code, here.exit_code) == (0, 0)
    assert there.out == here.out


def test_tasks_of_a_worker_that_dies_are_given_to_another(address: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.touch()
    with dask_cluster(address) as cluster:
        result = dict(cluster.run(die_once, [(n, str(runs)) for n in range(6)]))
    assert result == {n: 10 * n for n in range(6)}
    assert runs.read_text().split().count("4") == 2


def test_a_task_that_kills_every_worker_is_lost_and_no_other(address: str) -> None:
    with dask_cluster(address) as cluster:
        result = dict(cluster.run(die, [(n,) for n in range(6)]))
    lost = result.pop(4)
    assert isinstance(lost, Lost)
    assert lost.reason.startswith("the cluster could not run it: KilledWorker")
    assert result == {n: 10 * n for n in range(6) if n != 4}


def test_a_scheduler_that_goes_away_midway_is_said() -> None:
    with started() as (result, process), dask_cluster(result) as cluster:
        reader = cluster.run(echo, [(n,) for n in range(200)])
        next(reader)
        process.kill()
        with pytest.raises(
            SimserveError, match=r"the cluster (disappeared|has had no worker).*; check it and start again"
        ):
            list(reader)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("tcp://127.0.0.1:1", "no scheduler answers there within 1 s"),
        ("127.0.0.1", "missing port number"),
        ("tcp://nowhere.invalid:8786", "no scheduler answers there within 1 s"),
    ],
)
def test_a_scheduler_that_is_not_there_is_bad_input(given: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_S", 1)
    with pytest.raises(SimserveError) as caught, dask_cluster(given):
        pass
    assert str(caught.value).startswith(f"command line --dask {given}: ")
    assert sentence in str(caught.value)
    assert "start one with `dask scheduler --host 127.0.0.1`" in str(caught.value)


def test_workers_with_another_simserve_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "__version__", "9.9.9")
    with pytest.raises(SimserveError, match=r"needs simserve 9\.9\.9, as here, got 0\.1\.0"), dask_cluster(address):
        pass


def test_a_worker_that_joins_late_with_another_simserve_gives_no_answers(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dask_cluster(address) as cluster:
        monkeypatch.setattr(module, "__version__", "9.9.9")  # as if all whom it checked had gone, and others had come
        result = dict(cluster.run(echo, [(n,) for n in range(3)]))
    sentence = Lost("its worker needs simserve 9.9.9, got 0.1.0; install it there")
    assert result == dict.fromkeys(range(3), sentence)


def test_without_the_package_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SimserveError, match=r'pip install "simserve\[cluster\]"'), dask_cluster("tcp://127.0.0.1:1"):
        pass
