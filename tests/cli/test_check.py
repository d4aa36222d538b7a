"""`simserve check` fails what has surely lost p99 goodput, and nothing else."""

import errno
import html
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from simserve.metrics.result_folder import read_result_folders
from tests.cli.invoke import Outcome, invoke
from tests.cli.scenarios import write_scenario
from tests.effort import runs
from tests.repositories import git

WORKLOAD = {
    "arrivals": {"kind": "poisson", "rate_per_s": 40},
    "lengths": {"kind": "lognormal", "prompt_tokens": {"median": 256, "sigma": 0.5, "max": 1024}}
    | {"output_tokens": {"median": 24, "sigma": 0.3, "max": 64}},
    "n_requests": runs(300, quick=120),
}
SLO = {"ttft_s": 0.2, "tpot_s": 0.03}
TOLERANCE = ("--tolerance", 0.15)
"""So wide that few seeds do."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario and its baseline."""
    folder = tmp_path_factory.mktemp("check")
    outcome = invoke("check", scenario(folder), "--baseline", folder / "base.json", "--update", *TOLERANCE)
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.startswith(f"{folder / 'base.json'}: p99 goodput of tiny is ")
    return folder


def scenario(folder: Path, **changes: Any) -> Path:
    return write_scenario(folder, workload=WORKLOAD, slo=SLO, **changes)


def checked(place: Path, *options: object) -> Outcome:
    return invoke("check", place / "tiny.yaml", "--baseline", place / "base.json", *TOLERANCE, *options)


def test_what_has_not_changed_passes_and_has_lost_exactly_nothing(place: Path) -> None:
    outcome = checked(place, "--tolerance", 0, "--json")
    assert outcome.exit_code == 0
    result = json.loads(outcome.out)
    assert result["state"] == "unchanged"
    assert result["loss"]["frac"] == result["loss"]["low_frac"] == result["loss"]["high_frac"] == 0
    assert result["candidate"]["goodput_per_s"] == result["baseline"]["goodput_per_s"]
    assert result["changes"] == []
    assert outcome.err == ""


def test_the_same_inputs_print_the_same_bytes(place: Path) -> None:
    assert checked(place).out == checked(place).out


def test_a_worse_scheduler_fails_and_it_says_how_much_and_why(place: Path, tmp_path: Path) -> None:
    files = "--summary", tmp_path / "check.md", "--junit", tmp_path / "check.xml"
    outcome = checked(place, "--set", "cluster.pools.0.scheduler={kind: prefill_first, max_num_seqs: 8}", *files)
    assert outcome.exit_code == 1
    assert outcome.out.startswith("Regression: p99 goodput fell ")
    assert ", above the 15% tolerance: " in outcome.out and "same 32 seeds." in outcome.out
    assert "queueing" in outcome.out
    progress = (tmp_path / "check.md").read_text()
    assert progress.startswith("### simserve check: tiny fails\n")
    assert "- `cluster.pools.0.scheduler.max_num_seqs`: 1024 → 8\n" in progress
    suite = ElementTree.parse(tmp_path / "check.xml").getroot()[0]
    assert suite.attrib["failures"] == "1"
    failure = suite[0].find("failure")
    assert failure is not None
    assert failure.attrib["message"].startswith("Regression: ")


def test_noise_alone_passes(place: Path) -> None:
    outcome = checked(place, "--seed", 1000, "--json")
    assert outcome.exit_code == 0
    assert not json.loads(outcome.out)["loss"]["is_paired"]


def test_a_change_that_does_nothing_passes(place: Path) -> None:
    outcome = checked(place, "--tolerance", 0, "--set", "cluster.router=random")  # of one replica
    assert outcome.exit_code == 0
    assert 'Scenario: cluster.router "round_robin" → "random".' in outcome.out


def test_a_gain_passes(place: Path) -> None:
    result = json.loads(checked(place, "--set", "cluster.pools.0.replicas=2", "--json").out)
    assert result["state"] == "better"
    assert result["loss"]["frac"] < -0.5


def test_where_no_rate_holds_any_more_it_fails(place: Path) -> None:
    outcome = checked(place, "--set", "engine={name: vllm, step_host_s: 0.05}")
    assert outcome.exit_code == 1
    assert outcome.out.startswith("Regression: no rate meets the SLO any more. The baseline's p99 goodput is ")


@pytest.mark.parametrize(
    ("options", "progress"),
    [
        (
            ("--set", "slo.tpot_s=0.04"),
            "base.json: slo.tpot_s: must be that of tiny, 0.04, got 0.03",
        ),
        (
            ("--set", "workload.arrivals.rate_per_s=50"),
            "workload.arrivals.rate_per_s: must be that of tiny, 50.0, got 40",
        ),
        (("--set", "name=other"), 'base.json: name: must be that of other, "other", got "tiny"'),
        (("--goal", 0.9), "base.json: goal (--goal): must be that of tiny, 0.9, got 0.99"),
    ],
)
def test_a_baseline_of_another_question_is_refused(options: Sequence[object], progress: str, place: Path) -> None:
    outcome = checked(place, *options)
    assert outcome.exit_code == 2
    assert progress in outcome.err
    assert "answers another question than" in outcome.err.splitlines()[-1]
    assert "make it again (--baseline FILE --update)" in outcome.err


@pytest.mark.parametrize(
    "options", [(), ("--baseline", "a.json", "--against", "main"), ("--against", "main", "--update")]
)
def test_it_needs_one_thing_to_hold_it_against(options: Sequence[str], tmp_path: Path) -> None:
    outcome = invoke("check", scenario(tmp_path), *options)
    assert outcome.exit_code == 2
    assert "check: must have one of --baseline FILE" in outcome.err


def test_what_is_too_short_to_gate_on_is_said(place: Path) -> None:
    from simserve.study.check.baseline import read_baseline
    from simserve.study.check.measured import gate_warnings

    result = read_baseline(place / "base.json")
    assert gate_warnings(result, 0.99, 0.15) == []
    (progress,) = gate_warnings(result, 0.99, 0.001)
    assert progress.startswith("only a loss of ")
    facts = result.lower_facts.model_copy(update={"saturated_frac": 0.75})
    grows = result.loads[0].model_copy(update={"load_facts": facts})
    (progress,) = gate_warnings(result.model_copy(update={"loads": (grows, result.loads[1])}), 0.99, 0.15)
    assert progress.startswith("where the goal is just met the queue only grows in most runs")


def test_a_closed_loop_and_a_scenario_without_slo_are_refused(tmp_path: Path) -> None:
    outcome = invoke("check", write_scenario(tmp_path, slo={}), "--baseline", tmp_path / "base.json", "--update")
    assert outcome.exit_code == 2
    assert "tiny: needs an SLO, got none" in outcome.err
    loop = {"client": {"kind": "closed_loop", "concurrency": 4}, "n_requests": 40}
    file = write_scenario(tmp_path, workload=loop | {"lengths": WORKLOAD["lengths"]})
    outcome = invoke("check", file, "--baseline", tmp_path / "base.json", "--update")
    assert outcome.exit_code == 2
    assert "tiny: workload: needs a rate to be gated on" in outcome.err
    assert not (tmp_path / "base.json").exists()


def test_an_slo_that_no_rate_meets_cannot_be_gated_on(tmp_path: Path) -> None:
    file = write_scenario(tmp_path, slo={"ttft_s": 0.001})
    outcome = invoke("check", file, "--baseline", tmp_path / "base.json", "--update")
    assert outcome.exit_code == 2
    assert "tiny: slo: 99% of requests must meet it at some rate, got none down to " in outcome.err
    assert "(0% meet ttft_s there)" in outcome.err


def test_out_writes_the_answer_and_its_page_in_place_of_an_earlier_one(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    outcome = checked(place, "--out", folder, "--json")
    assert {file.name for file in folder.iterdir()} == {"check.json", "report.html"}
    assert (folder / "check.json").read_text() == outcome.out
    assert "No change</h1>" in (folder / "report.html").read_text()
    outcome = checked(place, "--set", "engine={name: vllm, step_host_s: 0.05}", "--seed", 3, "--out", folder)
    assert outcome.exit_code == 1
    assert outcome.out.endswith(f"\n\n{folder / 'report.html'} (all files: {folder}/)\n")
    page = (folder / "report.html").read_text()
    assert "Regression</h1>" in page
    words = f"{place / 'tiny.yaml'} --baseline {place / 'base.json'} --tolerance 0.15 --seed 3 --set"
    given = shlex.quote("engine={name: vllm, step_host_s: 0.05}")
    assert f"simserve check {words} {given} --update" in html.unescape(re.sub("</?span>", "", page))
    (read,) = read_result_folders([folder])
    assert (read.title, read.answer.passes) == ("Check tiny", False)
    refused = invoke("report", folder)
    assert refused.exit_code == 2
    assert "must be the folder of a run, got that of `simserve check`" in refused.err


def test_a_folder_with_other_files_is_refused_before_anything_runs(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simserve.study.check.side.each_run", None)
    (tmp_path / "notes.txt").write_text("mine")
    outcome = checked(place, "--out", tmp_path)
    assert outcome.exit_code == 2
    assert "must be empty or hold only an earlier result, got notes.txt; choose another --out" in outcome.err
    outcome = checked(place, "--out", tmp_path / "new", "--update")
    assert outcome.exit_code == 2
    assert "--out: must not be with --update, which writes a baseline and no answer, got " in outcome.err
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_page_that_cannot_be_written_leaves_the_earlier_answer(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    assert checked(place, "--out", folder).exit_code == 0
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    write = Path.write_bytes

    def write_or_fail(self: Path, data: bytes) -> int:
        if self.name == "report.html":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", write_or_fail)
    outcome = checked(place, "--set", "engine={name: vllm, step_host_s: 0.05}", "--out", folder)
    assert outcome.exit_code == 2
    assert "No space left on device" in outcome.err
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.thorough
def test_against_another_ref_both_are_run(tmp_path: Path) -> None:
    file = scenario(tmp_path)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        git(tmp_path, *command)
    outcome = invoke("check", file, "--against", "HEAD", "--tolerance", 0)
    assert outcome.exit_code == 0
    assert outcome.out.startswith("No change: results and scenario match baseline ")
    assert "tiny.yaml at HEAD (32 seeds)." in outcome.out
    file.write_text(file.read_text().replace("replicas: 1", "replicas: 2"))
    outcome = invoke("check", file, "--against", "HEAD", *TOLERANCE)
    assert "Scenario: cluster.pools.0.replicas 1 → 2." in outcome.out
    outcome = invoke("check", file, "--against", "no-such")
    assert outcome.exit_code == 2
    assert "--against no-such: must be a commit, branch or tag" in outcome.err
