"""CI tries all that --thorough does within ten commits, and all of oracle and wheels where they may have changed."""

import shutil
import subprocess
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from tests.effort import N_SLICES, in_slice, tries_more
from tests.repositories import OUTSIDE, git

CI = Path(__file__).resolve().parents[1] / ".ci" / "run"
FOLDERS = (
    "admission",
    "catalog",
    "cost",
    "engine",
    "metrics",
    "routers",
    "scenario",
    "schedulers",
    "splitters",
    "state",
)
PARTS = [
    *(f"simserve/{name}" for name in (*FOLDERS, "tables", "workload")),
    *(f"simserve/{name}.py" for name in ("shards", "simulation", "units")),
    *("hatch_build.py", "pyproject.toml"),
    *(f"tests/{name}.py" for name in ("oracle", "test_oracle_agrees", "test_shards", "worlds")),
]
FILES = [part if part.endswith((".py", ".toml")) else f"{part}/file.py" for part in PARTS]


def plan(folder: Path) -> tuple[str, str]:
    """Return the option that says what is thorough, and for which parts oracle and wheels are tried in all cases."""
    command = [str(folder / ".ci" / "run"), "plan"]
    said = subprocess.run(command, env=OUTSIDE, check=True, capture_output=True, text=True).stdout.strip()
    option, _, parts = said.removeprefix("pytest ").partition("; oracle and wheels in all cases for: ")
    return option, parts


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of one commit, at which oracle and wheels have passed."""
    folder = tmp_path / "repository"
    for name in (*FILES, "README.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("first\n")
    (folder / ".ci").mkdir()
    shutil.copy(CI, folder / ".ci" / "run")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / ".ci" / "whole").write_text(git(folder, "ls-tree", "HEAD", "--", *PARTS))
    return folder


def test_ten_commits_try_each_slice_once_and_the_tenth_all_of_oracle_and_wheels(repository: Path) -> None:
    plans = []
    for _ in range(N_SLICES):
        plans.append(plan(repository))
        git(repository, "commit", "-qm", "next", "--allow-empty")
    assert sorted(plans) == sorted(
        (f"--slice={place}", "all parts" if place == N_SLICES else "nothing, no part has changed")
        for place in range(1, N_SLICES + 1)
    )


@pytest.mark.parametrize(("part", "file"), [*zip(PARTS, FILES, strict=True)])
def test_where_a_part_differs_from_what_passed_oracle_and_wheels_run(part: str, file: str, repository: Path) -> None:
    (repository / file).write_text("second\n")
    assert plan(repository) == ("--slice=2", file)  # before it is committed too
    git(repository, "commit", "-qam", "second")
    (repository / "README.md").write_text("second\n")
    git(repository, "commit", "-qam", "third")
    assert plan(repository) == ("--slice=4", part)


def test_a_part_that_is_gone_or_not_yet_known_to_git_differs(repository: Path) -> None:
    (repository / "simserve/engine/new.py").write_text("first\n")
    assert plan(repository)[1] == "simserve/engine/new.py"
    (repository / "simserve/engine/new.py").unlink()
    git(repository, "rm", "-q", "hatch_build.py")
    git(repository, "commit", "-qm", "second")
    assert plan(repository)[1] == "hatch_build.py"


def test_parts_that_passed_each_with_others_have_not_passed_together(repository: Path) -> None:
    whole = repository / ".ci" / "whole"
    (repository / FILES[0]).write_text("second\n")
    git(repository, "commit", "-qam", "second")
    whole.write_text(whole.read_text() + git(repository, "ls-tree", "HEAD", "--", PARTS[0]))  # as a merge may leave it
    assert plan(repository)[1] != "nothing, no part has changed"


def test_a_word_that_ci_does_not_know_is_refused() -> None:
    outcome = subprocess.run([CI, "whol"], env=OUTSIDE, capture_output=True, text=True)
    assert (outcome.returncode, outcome.stderr) == (
        2,
        ".ci/run: must be followed by nothing, plan or whole, got whol\n",
    )


def test_without_a_base_all_of_oracle_and_wheels_run(repository: Path) -> None:
    (repository / ".ci" / "whole").unlink()
    assert set(plan(repository)[1].split()) == set(PARTS)


def test_without_its_history_a_checkout_tries_all(repository: Path, tmp_path: Path) -> None:
    git(repository, "commit", "-qm", "second", "--allow-empty")
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), "shallow")
    assert plan(tmp_path / "shallow") == ("--thorough", "all parts")
    shutil.rmtree(repository / ".git")
    assert plan(repository) == ("--thorough", "all parts")


def test_slices_hold_each_test_once_of_which_more_can_be_tried_and_are_of_like_size(
    request: pytest.FixtureRequest,
) -> None:
    tests = request.session.items
    slices = [in_slice(place, tests) for place in range(1, N_SLICES + 1)]
    trying_more = [test for test in tests if tries_more(test)]
    assert Counter(chain(*slices)) == Counter(trying_more)
    assert request.node not in trying_more
    if len(trying_more) > 300:  # not where only some tests were asked for
        assert all(0.05 < len(each) / len(trying_more) < 0.15 for each in slices), [len(each) for each in slices]
