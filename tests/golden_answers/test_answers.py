"""What ten small studies answer is what is pinned, in sentences that a terminal's reader takes in."""

import re

import pytest

from tests.golden_answers.differences import report
from tests.golden_answers.pinned import compare, pinned
from tests.golden_answers.studies import COMMANDS, Studies


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Studies:
    return Studies(tmp_path_factory.mktemp("golden"))


@pytest.mark.law("answers")
@pytest.mark.parametrize("study", COMMANDS)
def test_a_study_answers_as_pinned(studies: Studies, study: str) -> None:
    found = compare(pinned(), studies, study)
    if found:
        pytest.fail(report(study, found), pytrace=False)


def test_no_study_is_pinned_that_does_not_run() -> None:
    assert {study for content in pinned().values() for study in content} == COMMANDS.keys()


MOST_WORDS, MOST_SEMICOLONS = 30, 1


def test_no_sentence_of_a_terminal_is_long() -> None:
    sentences = [
        sentence
        for texts in pinned()["sentences"].values()
        for key, each in texts.items()
        if key.startswith("terminal") and "|" not in each["words"]  # rows of tables
        for sentence in re.split(r"(?<=[.!?]) (?=[A-Z{\"(≥~])", each["words"].removeprefix("simserve: warning: "))
    ]
    assert len(sentences) > 50
    long = [each for each in sentences if len(re.findall(r"\S*[\w{]\S*", each)) > MOST_WORDS]
    assert long + [each for each in sentences if each.count(";") > MOST_SEMICOLONS] == []
