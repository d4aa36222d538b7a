"""Options that studies share: the same names, letters and words in each, and what they do."""

import re
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from simserve.cli.app import app
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario

STUDIES = ("run", "capacity", "plan", "sweep", "compare", "check")
SHARED = {("-q", "--quiet"), ("-o", "--out"), ("--open",), ("--jobs",), ("--json",), ("--allow-plugin",)}
DECIDED = {("--by",), ("--confidence",), ("--budget-runs",)}


def options(name: str) -> dict[tuple[str, ...], Any]:
    """The options of a command by their names."""
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    return {tuple(sorted(each.opts, key=len)): each for each in command.params if each.opts[0].startswith("-")}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_the_shared_options(name: str) -> None:
    assert options(name).keys() >= SHARED


def test_an_option_of_several_studies_has_the_same_letters_and_words_in_all() -> None:
    words: dict[str, set[tuple[tuple[str, ...], str]]] = {}
    for name in STUDIES:
        for names, option in options(name).items():
            if names in SHARED | DECIDED:
                words.setdefault(names[-1], set()).add((names, option.help.partition(" Default: ")[0]))
    assert {option: len(each) for option, each in words.items() if len(each) > 1} == {}


@pytest.mark.parametrize("name", ["capacity", "plan", "sweep"])
def test_studies_that_decide_have_the_options_of_a_decision(name: str) -> None:
    assert options(name).keys() >= DECIDED


def helps(command: Any, *names: str) -> Iterator[tuple[str, str]]:
    """Yield the words and the help of each command."""
    yield " ".join(names), invoke(*names, "--help").out
    for name, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, *names, name)


def test_values_are_words_and_not_types() -> None:
    """Such as N, SHARE or r|cost|throughput, and no <int range>, <list[Path]> or lower-case name of an argument."""
    wrong = re.compile(r"^  (?:(?:-\w, )?--[\w-]+ )?(?:<[^ ]|\[?<|[a-z]+ {2,}[A-Z])", re.MULTILINE)
    texts = dict(helps(get_command(app)))
    assert len(texts) > 25
    del texts[""], texts["trace"], texts["lab"]  # whose help lists commands, not values
    assert {name: wrong.findall(text) for name, text in texts.items() if wrong.search(text)} == {}


def test_the_page_is_opened_where_it_was_written_or_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda place: not opened.append(place))  # type: ignore[func-returns-value]
    scenario, out = write_scenario(tmp_path), tmp_path / "out"
    assert invoke("run", scenario, "-o", out, "--open", "-q").out == ""
    assert opened == [(out / "report.html").as_uri()]
    first = invoke("compare", out, out, "--open")
    assert first.exit_code == 0, first.err
    made = Path(opened[1].removeprefix("file://"))
    assert made.name == "report.html" and "simserve compare" in made.read_text()
    assert invoke("compare", out, out).exit_code == 0
    assert len(opened) == 2


def test_without_a_browser_the_place_of_the_page_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    outcome = invoke("run", write_scenario(tmp_path), "-o", tmp_path / "out", "--open")
    assert outcome.exit_code == 0
    said = " ".join(outcome.err.split())
    assert f"no browser could be opened; the page is {tmp_path / 'out' / 'report.html'}" in said
