"""What ten small studies answer is what is pinned."""

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
