"""The comparer sees what an answer may change, and tells it in one screen."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.golden_answers.answers import answers, lines, masked, masked_words
from tests.golden_answers.differences import N_SHOWN, differences, report, sentence
from tests.golden_answers.page_sentences import words_of
from tests.golden_answers.pinned import KINDS, as_text, pinned
from tests.golden_answers.studies import Studies

Pinned = dict[str, Any]
LEAD = "terminal.1.out.1.1"


def told(change: Callable[[Pinned], None]) -> list[str]:
    """Return what is told of a run that answers otherwise than it is pinned."""
    expected = {kind: content.get("run", {}) for kind, content in pinned().items()}
    got = copy.deepcopy(expected)
    change(got)
    return [str(found) for found in differences(expected, got)]


def of_ttft(got: Pinned) -> dict[str, Any]:
    summary: dict[str, Any] = got["answers"]["summary.json"]["ttft_s"]
    return summary


def test_what_is_pinned_does_not_differ_from_itself() -> None:
    assert told(lambda got: None) == []


def test_a_changed_number_is_told_with_its_place_and_one_in_the_last_bits_is_none() -> None:
    (text,) = told(lambda got: of_ttft(got).update(p99=of_ttft(got)["p99"] * (1 + 1e-9)))
    p99 = of_ttft({kind: content.get("run", {}) for kind, content in pinned().items()})["p99"]
    assert text.splitlines()[:2] == ["number   answers summary.json ttft_s p99", f"  expected {p99!r}"]
    assert told(lambda got: of_ttft(got).update(p99=of_ttft(got)["p99"] * (1 + 1e-14))) == []


def test_a_count_that_became_a_fraction_is_another_number() -> None:
    (text,) = told(lambda got: of_ttft(got).update(n=60.0))
    assert text == "number   answers summary.json ttft_s n\n  expected 60\n  got      60.0"


def test_a_missing_key_and_a_new_one_are_told() -> None:
    (text,) = told(lambda got: of_ttft(got).pop("mean"))
    assert text.startswith("missing  answers summary.json ttft_s mean, expected 0.0")
    assert told(lambda got: of_ttft(got).update(p42=1.5)) == ["new      answers summary.json ttft_s p42: 1.5"]


def test_a_reworded_sentence_keeps_its_numbers_and_a_number_in_a_sentence_its_words() -> None:
    (text,) = told(lambda got: got["sentences"][LEAD].update(words="Only {}% of {} do"))
    assert text.startswith(f"words    sentences {LEAD} words\n  expected ")
    assert text.endswith("\n  got      'Only {}% of {} do'")
    (text,) = told(lambda got: got["sentences"][LEAD]["numbers"].__setitem__(0, "99.9"))
    assert text.startswith(f"number   sentences {LEAD} numbers 0\n  expected ")


def test_a_number_that_moved_within_prose_of_json_is_no_rewording() -> None:
    assert [found.kind for found in differences("costs $3 a day", "is $3 daily")] == ["words"]
    assert [found.kind for found in differences("costs $3 a day", "costs $4 a day")] == ["number"]


def test_a_new_cell_a_changed_formula_and_a_lost_sheet_are_told() -> None:
    sheets = {"Cost": {"3": {"A": "Price", "B": ["=C1*2", 4.0]}}, "Growth": {"1": {"A": 1}}}
    got = {"Cost": {"3": {"A": "Price", "B": ["=C1*3", 4.0], "C": 7}}}
    assert [str(found) for found in differences(sheets, got)] == [
        "number   Cost 3 B 0\n  expected '=C1*2'\n  got      '=C1*3'",
        "new      Cost 3 C: 7",
        "missing  Growth, expected {'1': {'A': 1}}",
    ]


def test_a_column_of_another_type_and_a_lost_one_are_told() -> None:
    assert told(lambda got: got["schemas"]["spans.parquet"]["columns"].__setitem__(1, "replica: int64")) != []
    assert told(lambda got: got["schemas"]["spans.parquet"]["columns"].pop()) != []


def test_a_report_names_the_study_and_shows_ten_in_one_screen() -> None:
    found = list(differences({f"{n}": "x" * 5000 for n in range(99)}, {f"{n}": "y" * 5000 for n in range(99)}))
    rows = report("plan", found).splitlines()
    assert rows[0] == "plan: 99 words; the first 10:"
    assert len(rows) == 3 * N_SHOWN + 2
    assert max(map(len, rows)) < 140


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("p99 of llama-3.1-8b on 2 × h100-sxm at 1,024.5 req/s (95% CI 3–4.5).", ["2", "1,024.5", "95", "3", "4.5"]),
        ("costs of h100-sxm/vllm 0.24.0; −5% and +3.2%, $0.80, ~12.", ["−5", "+3.2", "0.80", "12"]),
        ("1e-05 s of 2,000 tokens, 8.", ["1e-05", "2,000", "8"]),
    ],
)
def test_numbers_are_taken_out_of_a_sentence_but_not_out_of_names(text: str, numbers: list[str]) -> None:
    apart = sentence(text)
    assert apart["numbers"] == numbers
    assert apart["words"].format(*numbers) == text


def test_a_sentence_is_named_by_paragraph_and_line_and_columns_do_not_depend_on_widths() -> None:
    assert lines("terminal.1.out", "Met.\n\n  a   b\n  1  22\n") == {
        "terminal.1.out.1.1": "Met.",
        "terminal.1.out.2.1": "a | b",
        "terminal.1.out.2.2": "1 | 22",
    }


def test_what_depends_on_the_machine_is_masked_and_nothing_else() -> None:
    assert masked({"wall_s": 0.1, "points": [{"version": "1", "n": 2}]}) == {
        "wall_s": "<masked>",
        "points": [{"version": "<masked>", "n": 2}],
    }
    assert masked_words("2 s simulated in 7.07 ms") == "2 s simulated in <wall time>"


def test_a_chart_is_known_by_its_axes_notes_and_legend() -> None:
    layout = {"xaxis": {"title": {"text": "Load"}}, "yaxis": {}, "annotations": [{"text": "SLO"}]}
    assert words_of({"layout": layout, "data": [{"name": "p99"}, {"name": "p99"}, {}]}) == ["Load", "SLO", "p99"]


def test_what_is_written_reads_back_and_has_a_line_an_entry(tmp_path: Path) -> None:
    got = answers(Studies(tmp_path), "run")
    for kind in KINDS:
        text = as_text({"run": got[kind]})
        assert json.loads(text) == {"run": got[kind]}
    assert as_text({"run": got["sentences"]}).count("\n") == len(got["sentences"]) + 4 - 1
