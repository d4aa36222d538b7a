"""The scenario as it stands at another git ref, and what is said where there is none."""

from pathlib import Path

import pytest
import yaml

from simserve.errors import ScenarioError, SimserveError
from simserve.study.check.against import load_at_ref
from tests.cli.scenarios import write_scenario
from tests.repositories import git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A scenario in a folder of a repository, committed as `before`, and then changed."""
    folder = tmp_path / "repo" / "scenarios"
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    write_scenario(folder)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    git(folder, "tag", "before")
    write_scenario(folder, name="changed")
    git(folder, "commit", "-qam", "second")
    return folder


def test_it_is_the_file_as_it_was_there(repository: Path) -> None:
    file = repository / "tiny.yaml"
    assert load_at_ref(file, "before").name == "tiny"
    assert load_at_ref(file, "HEAD").name == "changed"
    assert load_at_ref(file, "main~1", seed=77).seed == 77


def test_files_that_it_names_are_found_beside_it(repository: Path) -> None:
    (repository / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0.5,10,10\n1.5,10,10\n")
    write_scenario(repository, workload={"trace": {"path": "mine.csv", "format": "simserve"}})
    git(repository, "commit", "-qam", "a trace")
    trace = load_at_ref(repository / "tiny.yaml", "HEAD").workload.trace
    assert trace is not None
    assert Path(trace.path) == repository / "mine.csv"


def test_mistakes_there_are_told_with_the_ref(repository: Path) -> None:
    content = yaml.safe_load((repository / "tiny.yaml").read_text()) | {"gpu": "h900"}
    (repository / "tiny.yaml").write_text(yaml.safe_dump(content))
    git(repository, "commit", "-qam", "a mistake")
    with pytest.raises(ScenarioError, match=r"^HEAD:.*tiny.yaml:\d+: gpu"):
        load_at_ref(repository / "tiny.yaml", "HEAD")


@pytest.mark.parametrize("ref", ["nowhere", "--help", "", "main:tiny.yaml"])
def test_a_ref_that_is_not_there_is_refused(ref: str, repository: Path) -> None:
    with pytest.raises(SimserveError, match=f"--against {ref}: must be a commit, branch or tag, got .*fetch it first"):
        load_at_ref(repository / "tiny.yaml", ref)


def test_a_file_that_was_not_there_is_refused(repository: Path) -> None:
    (repository / "tiny.yaml").rename(repository / "new.yaml")
    with pytest.raises(SimserveError, match=r"--against before: .*new.yaml must be in that commit, got .*name a ref"):
        load_at_ref(repository / "new.yaml", "before")


def test_without_a_repository_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(SimserveError, match=r"tiny.yaml must lie in a git repository, got fatal: not a git repository"):
        load_at_ref(write_scenario(tmp_path), "main")


def test_without_git_it_is_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SimserveError, match="--against: needs the program git, got none on the PATH"):
        load_at_ref(repository / "tiny.yaml", "before")
