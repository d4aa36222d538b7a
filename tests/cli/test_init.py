"""`simserve init`: a starter scenario."""

from pathlib import Path

import pytest

from simserve import load_scenario
from tests.cli.invoke import invoke


def test_init_writes_a_scenario_that_loads(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    assert invoke("init", file).exit_code == 0
    assert invoke("explain", file).exit_code == 0


def test_init_without_a_path_writes_scenario_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = invoke("init")
    assert outcome.exit_code == 0
    assert "simserve run scenario.yaml" in outcome.err
    assert (tmp_path / "scenario.yaml").exists()


def test_init_never_overwrites(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("precious")
    outcome = invoke("init", file)
    assert outcome.exit_code == 2
    assert "never overwrites" in outcome.err
    assert file.read_text() == "precious"


def test_init_names_a_folder_that_is_not_there(tmp_path: Path) -> None:
    outcome = invoke("init", tmp_path / "no" / "mine.yaml")
    assert outcome.exit_code == 2
    assert "must be writable, got No such file or directory" in outcome.err


def test_it_begins_with_a_scenario_that_comes_along(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    assert invoke("init", "--from", "conversations", file).exit_code == 0
    assert load_scenario(file).name == "conversations"
    outcome = invoke("init", "--from", "chat_brst", tmp_path / "other.yaml")
    assert outcome.exit_code == 2
    assert (
        outcome.err == "simserve: error: chat_brst: no such scenario comes with simserve; did you mean @chat_burst?\n"
    )
    assert not (tmp_path / "other.yaml").exists()


def test_it_lists_them_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = invoke("init", "--list")
    assert "@conversations: Chats of several turns behind one system prompt, with prefix caches;" in outcome.out
    assert not list(tmp_path.iterdir())
