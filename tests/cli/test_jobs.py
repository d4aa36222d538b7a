"""--jobs: how many processes work at once, in every command that uses several."""

from pathlib import Path
from typing import Any

import pytest

from simserve.forks import Copy
from simserve.study import processes
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario


@pytest.mark.parametrize("command", ["run", "sweep", "capacity", "plan", "check", "compare"])
@pytest.mark.parametrize("jobs", [0, -1, 5])
def test_jobs_are_from_one_to_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, jobs: int
) -> None:
    monkeypatch.setattr(processes, "cpu_count", lambda: 4)
    scenario = write_scenario(tmp_path)
    files = [scenario, scenario] if command == "compare" else [scenario]
    outcome = invoke(command, *files, "--jobs", jobs)
    assert outcome.exit_code == 2
    assert f"--jobs: must be from 1 to the 4 cores of this machine, got {jobs}; leave it out" in outcome.err
    assert processes.n_jobs() == 4


def test_one_job_is_this_process_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def another(*_: Any, **__: Any) -> None:
        raise AssertionError("another process")

    monkeypatch.setattr(processes, "cpu_count", lambda: 4)
    monkeypatch.setattr(processes, "can_fork", lambda: True)
    monkeypatch.setattr(Copy, "of", another)
    monkeypatch.setattr(processes, "get_reusable_executor", another)
    scenario = write_scenario(tmp_path, measure={"replays": 2})
    outcome = invoke("run", scenario, "--out", tmp_path / "out", "--replications", 2, "--jobs", 1)
    assert outcome.exit_code == 0, outcome.err
    with pytest.raises(AssertionError, match="another process"), processes.limited_to(2):
        list(processes.in_processes(print, [(1,), (2,)]))
    assert processes.n_jobs() == 4
