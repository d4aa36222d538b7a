"""A baseline's file is small, can be read in a diff, and is refused unless it is whole and of this schema."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import OutputError
from simserve.metrics.answers.baseline import Baseline, BaselineLoad, Crowd, LoadFacts, Rate
from simserve.study.check.baseline import check_place, curve_of, read_baseline, text_of, write_baseline


def load(scale: float, n_met: tuple[int, ...]) -> BaselineLoad:
    facts = LoadFacts(by_slo={"ttft_s": 0.99}, parts={})
    return BaselineLoad(scale=scale, n_met=n_met, n_arrived=(200,) * len(n_met), load_facts=facts)


def baseline(n_seeds: int = 40) -> Baseline:
    return Baseline(
        schema_="simserve-check/1",
        simserve="0.1.0",
        goal_frac=0.99,
        goodput_per_s=Rate(value=10.0, low=9.0, high=11.0),
        scenario={"name": "tiny", "slo": {"ttft_s": 0.5}},
        first_seed=3,
        crowd=Crowd(above=12.0, frac=(0.01,) * n_seeds),
        loads=(load(0.9, (99,) * n_seeds), load(1.1, tuple(range(60, 60 + n_seeds)))),
    )


def changed(folder: Path, **changes: Any) -> Path:
    file = folder / "base.json"
    write_baseline(file, baseline())
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return file


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    write_baseline(file, baseline())
    assert read_baseline(file) == baseline()
    write_baseline(file, baseline(64))  # over an earlier one
    assert read_baseline(file).n_seeds == 64


def test_numbers_of_seeds_stand_in_few_lines() -> None:
    lines = text_of(baseline()).splitlines()
    assert len(lines) < 80
    assert "        60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75," in lines
    assert max(map(len, lines)) <= 120


def test_the_first_seeds_are_a_curve_of_their_own() -> None:
    result = curve_of(baseline(), 32)
    assert result.scales == (0.9, 1.1)
    assert result.seeds == tuple(range(3, 35))
    assert np.array_equal(result.n_met[1], np.arange(60, 92))


def test_it_may_be_asked_after_as_many_seeds_as_it_has() -> None:
    assert [baseline(n).looks for n in (20, 40, 64)] == [(20,), (32, 40), (32, 64)]


def test_a_baseline_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        OutputError, match=r"base.json: there is no such baseline; write it with --update and commit it"
    ):
        read_baseline(tmp_path / "base.json")


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"by_slo": {"ttft_s": 0.99}, "parts": {"queue_s": [0.1]}}, "parts.queue_s: must be a number, got "),
        ({"by_slo": {"ttft_s": 0.99}, "parts": 1.5}, "parts: must be a mapping, got 1.5"),
        ({"by_slo": {"ttft_s": "0.99"}, "parts": {}}, "by_slo.ttft_s: must be a number, got '0.99'"),
        ({"by_slo": {}, "parts": {}}, "by_slo: must have at least 1 items, got a mapping"),
        ({"by_slo": {"ttft_s": 1e300}, "parts": {}}, "by_slo.ttft_s: must be at most "),
        ({"parts": {}}, "by_slo: is missing"),
    ],
)
def test_facts_of_other_types_are_refused_by_their_place(facts: Any, problem: str, tmp_path: Path) -> None:
    loads = json.loads(text_of(baseline()))["loads"]
    file = changed(tmp_path, loads=[loads[0] | {"facts": facts}, loads[1]])
    with pytest.raises(OutputError, match=rf"base.json: loads.0.facts.{problem}.*; make it again with --update"):
        read_baseline(file)


@pytest.mark.parametrize(
    ("text", "progress"),
    [
        ("", "must be whole JSON"),
        (text_of(baseline())[:1000], "must be whole JSON, got: "),
        ("[1]", "must be a JSON object, got list"),
        ("\x00\xff", "must be whole JSON"),
    ],
)
def test_half_a_file_is_refused(text: str, progress: str, tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(OutputError, match=progress):
        read_baseline(file)


def test_another_schema_is_named_with_the_version_that_wrote_it(tmp_path: Path) -> None:
    progress = (
        r'schema: must be simserve-check/1, got "simserve-check/2", written by simserve 0.1.0; make it again with --upd'
    )
    with pytest.raises(OutputError, match=progress):
        read_baseline(changed(tmp_path, schema="simserve-check/2"))


@pytest.mark.parametrize(
    ("changes", "progress"),
    [
        ({"goal_frac": 1.5}, "goal_frac: must be less than 1, got 1.5; make it again with --update"),
        ({"loads": []}, "loads.0: "),
        ({"first_seed": "0"}, "first_seed: must be a whole number, got '0'"),
        ({"more": 1}, "more: unknown key; "),
        ({"crowd": {"above": 1.0, "frac": [0.1]}}, "n_met, n_arrived and crowd.frac must have a number for each"),
        (
            {"loads": [each.model_dump(by_alias=True) for each in reversed(baseline().loads)]},
            "the first load must be the lower one",
        ),
    ],
)
def test_what_no_update_writes_is_refused(changes: dict[str, Any], progress: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=progress):
        read_baseline(changed(tmp_path, **changes))


def test_more_that_met_the_slo_than_came_is_refused(tmp_path: Path) -> None:
    loads = [each.model_dump(by_alias=True) for each in baseline().loads]
    loads[0]["n_met"] = [201] * 40
    with pytest.raises(OutputError, match="n_met must not be more than n_arrived"):
        read_baseline(changed(tmp_path, loads=loads))


def test_a_slip_does_not_write_over_a_scenario(tmp_path: Path) -> None:
    file = tmp_path / "chat.yaml"
    file.write_text("schema: simserve/1\n")
    with pytest.raises(OutputError, match="must be a baseline or not be there, got another file; remove it or name"):
        write_baseline(file, baseline())
    assert file.read_text() == "schema: simserve/1\n"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="must lie in a folder that is there"):
        check_place(tmp_path / "no" / "base.json")
