"""Scenarios that come with simserve are found by their names."""

from pathlib import Path

import pytest

from simserve import load_scenario
from simserve.errors import ScenarioError
from simserve.scenario.shipped import about, shipped


@pytest.mark.parametrize("name", ["@chat_burst", "@chat-burst"])
def test_one_is_found_from_anywhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_scenario(name).name == "chat-burst"


def test_its_problems_are_told_by_its_name() -> None:
    with pytest.raises(
        ScenarioError, match=r"^@chat_brst: no such scenario comes with simserve; did you mean @chat_burst"
    ):
        load_scenario("@chat_brst")
    with pytest.raises(ScenarioError, match=r"^command line --set seed=-1: "):
        load_scenario("@constant", ["seed=-1"])


def test_in_a_package_they_lie_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "mine.yaml").write_text("# Mine alone. And more.\nschema: simserve/1\n")
    monkeypatch.setattr("simserve.scenario.shipped.PACKAGE", tmp_path)
    assert {name: about(file) for name, file in shipped().items()} == {"mine": "Mine alone."}


def test_each_says_what_it_is_about() -> None:
    texts = [about(file) for file in shipped().values()]
    assert len(texts) > 30
    assert all(len(text) > 15 and text.endswith(".") for text in texts)
