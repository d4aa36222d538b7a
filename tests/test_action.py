"""The GitHub Action and the examples of docs/check.md are valid, and their shell runs."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from markdown_it import MarkdownIt

from simserve.report.check.words import junit_xml, markdown
from tests.cli.invoke import invoke
from tests.cli.test_check import TOLERANCE, scenario
from tests.composite import BOT, ROOT, Runner, action, run_step, step, workflow_commands
from tests.report.check.test_words import result

PAGE = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
FORBIDDEN = {"code": 2, "err": "simserve: warning: w\nsimserve: error: none.json: there is no such baseline\n"}
MARKER = "<!-- simserve check -->"


def passing(goodput: float | None = 13.4, **changes: Any) -> dict[str, Any]:
    """Return what simserve writes where a scenario passes, with this p99 goodput."""
    return answer(0, passes=True, state="same", candidate={"goodput_per_s": goodput}, **changes)


def failing(**changes: Any) -> dict[str, Any]:
    return answer(1, **changes)


def answer(code: int, **changes: Any) -> dict[str, Any]:
    made = result(**changes)
    texts = {"--summary": markdown(made), "--junit": junit_xml(made)}
    return texts | {"code": code, "out": json.dumps(made.facts())}


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    machine = Runner(tmp_path)
    machine.install_doubles()
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        (tmp_path / name).touch()
    machine.answers(any=passing())
    return machine


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Return .github/check.py as a module."""
    spec = importlib.util.spec_from_file_location("check_of_action", ROOT / ".github" / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Shown(HTMLParser):
    """What a reader of HTML sees: its text, and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags = "", list[str]()
        self.feed(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags += [tag, *(f"{name}={value}" for name, value in attrs)]


def test_the_action_has_what_a_composite_action_needs() -> None:
    content = action()
    assert content["runs"]["using"] == "composite"
    assert content["inputs"]["scenario"]["required"] is True
    assert all("uses" in each or each["shell"] == "bash" for each in content["runs"]["steps"])
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert used == set(content["inputs"])
    shell = [each["run"] for each in content["runs"]["steps"] if "run" in each]
    assert len(shell) == 5
    assert not any("${{" in text for text in shell)  # user input reaches the shell as variables, never as code
    assert all(text.count("\n") <= 3 for text in shell)


@pytest.mark.thorough
def test_it_passes_and_fails_with_the_gate(tmp_path: Path, runner: Runner) -> None:
    (tmp_path / "bin" / "simserve").unlink()
    file = scenario(tmp_path)
    assert invoke("check", file, "--baseline", tmp_path / "base.json", "--update", *TOLERANCE).exit_code == 0
    given = {"scenario": "tiny.yaml", "baseline": "base.json", "tolerance": "0.15"}
    ended = runner.job("1", **given)
    assert ended.exit_code == 0, ended.log
    assert json.loads(ended.output)["passes"] == "true"
    assert ended.summary.startswith("### simserve check: tiny passes\n")
    assert (tmp_path / "simserve-check.xml").is_file()
    assert {"1-tiny/page/report.html", "1-tiny/page/check.json"} < runner.artifacts["simserve check"]
    runner.clean()
    ended = runner.job("2", **given, arguments="--set cluster.pools.0.scheduler.max_num_seqs=8")
    assert (ended.exit_code, json.loads(ended.output)["passes"]) == (1, "false")
    assert ended.summary.startswith("### simserve check: tiny fails\n")
    (comment,) = runner.comments
    assert "Regression: p99 goodput fell " in comment["body"]
    assert re.search(r"^`█▁` [\d.]+ → [\d.]+ req/s, last 2 commits$", comment["body"], re.M)
    assert "--set cluster.pools.0.scheduler.max_num_seqs=8 --tolerance 0.15 --baseline base.json" in comment["body"]
    history = [json.loads(line) for line in (tmp_path / ".simserve-history.jsonl").read_text().splitlines()]
    assert [row["commit"] for row in history] == ["1", "2"]
    assert history[0]["low_per_s"] == history[0]["goodput_per_s"] == history[0]["high_per_s"]
    assert history[1]["low_per_s"] < history[1]["goodput_per_s"] < history[1]["high_per_s"]
    ended = run_step(tmp_path, **given | {"baseline": "none.json"})
    assert (ended.exit_code, ended.output.partition("report=")[0]) == (2, "")
    assert "Error: none&#46;json: there is no such baseline" in ended.summary


@pytest.mark.parametrize(
    ("exit_code", "result", "ends_with", "said"),
    [
        (0, '{"passes": true}', 0, "passes=true\n"),
        (1, '{"passes": false}', 1, "passes=false\n"),
        (0, '{"passes": false}', 2, ""),
        (0, '{"passes": 1}', 2, ""),
        (0, "[]", 2, ""),
        (0, "", 2, ""),
        (0, "Usage: simserve check", 2, ""),
        (1, "", 2, ""),
        (2, "", 2, ""),
        (139, '{"passes": true}', 139, ""),
    ],
)
def test_the_verdict_is_the_gates_own(
    exit_code: int, result: str, ends_with: int, said: str, runner: Runner, tmp_path: Path
) -> None:
    runner.answers(any={"code": exit_code, "out": result})
    ended = run_step(tmp_path, scenario="a.yaml", baseline="b.json")
    assert (ended.exit_code, ended.output.partition("report=")[0]) == (ends_with, said)


def test_an_error_of_the_script_itself_is_no_loss(runner: Runner, tmp_path: Path) -> None:
    ended = run_step(tmp_path, scenario="a.yaml", junit="a.yaml/report.xml")
    assert (ended.exit_code, ended.output) == (2, "")
    assert "FileExistsError" in ended.log and workflow_commands(ended.log) == []


def test_a_command_that_cannot_be_started_is_no_loss(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TOLERANCE", "0.02"), ("AGAINST", ""), ("PATH", "")):
        monkeypatch.setenv(name, value)
    made = script._checked("a.yaml", "b.json", [], tmp_path / "1-a")
    assert made.status == 2


def test_arguments_are_those_of_all_lines_and_quotes_group(runner: Runner, tmp_path: Path) -> None:
    given = "--goal 0.9\n--set \"workload.lengths={kind: fixed, prompt_tokens: 3}\" '--set=a=$(touch hacked) *'\n"
    run_step(tmp_path, scenario="--help", baseline="b.json", arguments=given)
    (arguments,) = runner.calls
    assert arguments[-2:] == ["--", "--help"]
    assert arguments[-7:-2] == [
        *("--goal", "0.9", "--set", "workload.lengths={kind: fixed, prompt_tokens: 3}"),
        "--set=a=$(touch hacked) *",
    ]
    assert not (tmp_path / "hacked").exists()


# Several scenarios.


@pytest.mark.parametrize(
    ("given", "files"),
    [
        ("a.yaml b.yaml", ["a.yaml", "b.yaml"]),
        ("a.yaml\n\n  b.yaml  c.yaml\n", ["a.yaml", "b.yaml", "c.yaml"]),
        ("*.yaml", ["a.yaml", "b.yaml", "c.yaml"]),
        ("@chat_burst [bc].yaml b.yaml", ["@chat_burst", "b.yaml", "c.yaml"]),
        ("deep/**/*.yaml a.yaml", ["deep/d.yaml", "deep/er/e.yaml", "a.yaml"]),
        ("no/such/*.yaml", ["no/such/*.yaml"]),
        ("'with a space.yaml' a.yaml", ["with a space.yaml", "a.yaml"]),
        ("with a space.yaml\na.yaml", ["with a space.yaml", "a.yaml"]),
        ("it's[1].yaml", ["it's[1].yaml"]),
    ],
)
def test_scenarios_are_lines_words_and_globs(given: str, files: list[str], runner: Runner, tmp_path: Path) -> None:
    for name in ("with a space.yaml", "it's[1].yaml", "deep/d.yaml", "deep/er/e.yaml"):
        (tmp_path / "deep" / "er").mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    if given == "*.yaml":
        files = [*files, "it's[1].yaml", "with a space.yaml"]
    run_step(tmp_path, scenario=given, against="main")
    assert [call[-1] for call in runner.calls] == files
    assert all(call[call.index("--against") + 1] == "main" for call in runner.calls)


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ({"scenario": " \n"}, "scenario: must be a file, @name or glob, got nothing"),
        ({"scenario": "'a.yaml"}, "scenario: No closing quotation, got 'a.yaml"),
        ({"scenario": "a.yaml", "arguments": '"'}, 'arguments: No closing quotation, got "'),
        ({"scenario": "a.yaml", "tolerance": "2%"}, "tolerance: must be a share from 0 to 0.9, got 2%25"),
        ({"scenario": "a.yaml", "tolerance": "nan"}, "tolerance: must be a share from 0 to 0.9, got nan"),
        (
            {"scenario": "*.yaml", "baseline": "a.yaml"},
            "baseline: must be a folder for 3 scenarios, got the file a.yaml",
        ),
    ],
)
def test_an_input_that_cannot_be_used_is_named(
    inputs: dict[str, str], error: str, runner: Runner, tmp_path: Path
) -> None:
    ended = run_step(tmp_path, **inputs)
    assert (ended.exit_code, ended.output) == (2, "")
    assert ended.log == f"::error::{error}\n"


@pytest.mark.parametrize("name", ["", "a --> b", "a\nb", "a--b", "<b>", "*"])
def test_a_name_is_one_that_a_marker_and_an_artifact_can_have(name: str, runner: Runner) -> None:
    ended = runner.job(scenario="a.yaml", name=name)
    assert ended.exit_code == 2
    assert ended.log.startswith("::error::name: must be letters, digits, spaces, '.', '_' and single '-', got ")
    assert not runner.comments and not runner.caches


def test_a_baseline_is_a_file_or_a_folder_of_files_by_name(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    run_step(tmp_path, scenario="a.yaml", baseline="one.json")
    run_step(tmp_path, scenario="a.yaml", baseline="kept/")
    run_step(tmp_path, scenario="a.yaml @chat_burst", baseline="kept")
    run_step(tmp_path, scenario="a.yaml b.yaml", baseline="missing")
    given = [call[call.index("--baseline") + 1] for call in runner.calls]
    by_name = ["kept/a.json", "kept/a.json", "kept/chat_burst.json", "missing/a.json", "missing/b.json"]
    assert given == ["one.json", *by_name]


@pytest.mark.parametrize(
    ("answers", "exit_code", "passes"),
    [
        ([passing(), passing(), passing()], 0, "true"),
        ([failing(), passing(), passing()], 1, "false"),
        ([passing(), FORBIDDEN, passing()], 2, ""),
        ([FORBIDDEN, failing(), passing()], 2, "false"),
    ],
)
def test_all_are_checked_and_the_worst_decides(
    answers: list[dict[str, Any]], exit_code: int, passes: str, runner: Runner
) -> None:
    names = ["a.yaml", "b.yaml", "c.yaml"]
    runner.answers(**dict(zip(names, answers, strict=True)))
    ended = runner.job(scenario="*.yaml", baseline="kept")
    assert [call[-1] for call in runner.calls] == names
    assert (ended.exit_code, json.loads(ended.output)["passes"]) == (exit_code, passes)
    assert ended.summary.count("### simserve check: ") == 3
    errors = [each for each in workflow_commands(ended.log) if each.startswith("::error")]
    assert len(errors) == sum(each["code"] != 0 for each in answers)


def test_the_test_report_has_a_suite_a_scenario_with_its_time(runner: Runner, tmp_path: Path) -> None:
    runner.answers(**{"a.yaml": failing(), "b.yaml": passing(), "c.yaml": FORBIDDEN})
    run_step(tmp_path, scenario="*.yaml", baseline="kept", junit="reports/check.xml")
    root = ElementTree.parse(tmp_path / "reports" / "check.xml").getroot()
    counts = {"tests": "3", "failures": "1", "errors": "1", "skipped": "0"}
    assert root.attrib.items() >= counts.items()
    assert [suite.get("name") for suite in root] == ["a.yaml", "b.yaml", "c.yaml"]
    assert [(suite.get("failures"), suite.get("errors")) for suite in root] == [("1", "0"), ("0", "0"), ("0", "1")]
    times = [float(test.get("time", "")) for test in root.iter("testcase")]
    assert all(time > 0 for time in times)
    assert times == [float(suite.get("time", "")) for suite in root]
    assert float(root.get("time", "")) >= sum(times)
    assert [test.get("classname") for test in root.iter("testcase")] == ["simserve.check"] * 3
    (failure,), (error,) = root.iter("failure"), root.iter("error")
    assert failure.get("message", "").startswith("Regression: p99 goodput fell 6.2%")
    assert error.get("message") == "none.json: there is no such baseline"
    assert "Pass: p99 goodput" in (root[1][0].findtext("system-out") or "")


# One comment.


def test_two_runs_update_one_comment(runner: Runner) -> None:
    stranger = {"id": 1, "user": {"login": "stranger"}, "body": f"{MARKER}\nmine"}
    others = {"id": 2, "user": {"login": BOT}, "body": f"of another workflow, about {MARKER}"}
    runner.comments = [stranger, others, {"id": 3, "user": None, "body": None}]
    runner.answers(any=passing(13.4))
    assert runner.job("c0ffee1", scenario="a.yaml").exit_code == 0
    runner.clean()
    runner.answers(any=failing())
    assert runner.job("c0ffee2", scenario="a.yaml", baseline="b.json").exit_code == 1
    assert runner.comments[:2] == [stranger, others] and len(runner.comments) == 4
    lines = runner.comments[3]["body"].splitlines()
    assert lines[:3] == [MARKER, "### simserve check: fails", ""]
    assert lines[3].startswith("**a&#46;yaml**: Regression: p99 goodput fell 6.2% (95% CI 5.1–7.3%), above the 2%")
    assert lines[5] == "`█▁` 13.4 → 12.1 req/s, last 2 commits"
    assert lines[-3] == "<pre>simserve check a.yaml --tolerance 0.02 --baseline b.json --update</pre>"
    assert lines[-1] == "Commit c0ffee2. [Job summary and pages](https://github.example/o/r/actions/runs/42)"


def test_a_second_use_with_a_name_of_its_own_has_its_own_comment_and_artifact(runner: Runner) -> None:
    for name in ("simserve check", "simserve check nightly"):
        runner.job(scenario="a.yaml", name=name)
        runner.clean()
    assert [each["body"].partition("\n")[0] for each in runner.comments] == [
        MARKER,
        "<!-- simserve check nightly -->",
    ]
    assert runner.artifacts.keys() == {"simserve check", "simserve check nightly"}
    assert len({key for key in runner.caches if ":history:" in key}) == 2


def test_all_errors_of_a_scenario_are_in_the_comment(runner: Runner) -> None:
    runner.answers(any={"code": 2, "err": "simserve: error: slo: x\nsimserve: error: goal: y\n"})
    runner.job(scenario="a.yaml", baseline="b.json")
    assert "\n**a&#46;yaml**: slo: x; goal: y\n" in runner.comments[0]["body"]


def test_the_comment_has_what_passes_least_first(runner: Runner) -> None:
    runner.answers(**{"a.yaml": passing(), "b.yaml": failing(), "c.yaml": FORBIDDEN})
    runner.job(scenario="*.yaml", baseline="kept")
    body = runner.comments[0]["body"]
    assert "### simserve check: of 3, 1 failed, 1 without an answer, 1 passed\n" in body
    assert re.findall(r"^\*\*(\w)", body, re.M) == ["c", "b", "a"]


def test_a_comment_that_is_too_long_leaves_the_rest_to_the_summary(runner: Runner, tmp_path: Path) -> None:
    for n in range(12):
        (tmp_path / f"many{n:02}.yaml").touch()
    runner.answers(any={"code": 2, "err": "<" * 5000})
    runner.job(scenario="many*.yaml", baseline="kept")
    body = runner.comments[0]["body"]
    assert 40_000 < len(body) < 65_536
    n_left = 12 - body.count("**many")
    assert f"\n{n_left} more: see the job summary.\n" in body


@pytest.mark.parametrize("given", [{"comment": "false"}, {"pull": ""}])
def test_no_comment_where_none_is_wanted_or_there_is_no_pull_request(given: dict[str, str], runner: Runner) -> None:
    assert runner.job(scenario="a.yaml", **given).exit_code == 0
    assert runner.comments == []


@pytest.mark.parametrize(("made", "exit_code"), [(passing(), 0), (failing(), 1)])
def test_without_permission_the_log_says_so_and_the_summary_stays(
    made: dict[str, Any], exit_code: int, runner: Runner
) -> None:
    runner.comments = ["403"]
    runner.answers(any=made)
    ended = runner.job(scenario="a.yaml")
    assert ended.exit_code == exit_code
    assert ended.summary.startswith("### simserve check: chat ")
    notice = workflow_commands(ended.log)[-1]
    assert notice.startswith("::notice::No comment on the pull request: gh: Resource not accessible by integration")
    assert "%0A::error::from the API%0A" in notice
    assert "`permissions: pull-requests: write`" in notice


def test_without_gh_or_with_an_answer_of_another_form_nothing_fails(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "comment.md").write_text(f"{MARKER}\n")
    names = {"GITHUB_REPOSITORY": "o/r", "PULL": "7", "REPORT": str(tmp_path), "GITHUB_SERVER_URL": "https://x"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("gh")

    monkeypatch.setattr(subprocess, "run", missing)
    assert script.comment() == 0
    assert capsys.readouterr().out.startswith("::notice::No comment on the pull request: gh%0A")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, '{"message": 1}'))
    assert script.comment() == 0
    assert capsys.readouterr().out.startswith("::notice::No comment on the pull request: ")


# The history.


@pytest.mark.parametrize(
    ("n", "shown"), [(1, "13.1 req/s, first commit"), (2, "last 2 commits"), (40, "last 40 commits"), (57, "last 40")]
)
def test_the_history_grows_by_a_line_a_commit(n: int, shown: str, runner: Runner, tmp_path: Path) -> None:
    file = tmp_path / ".simserve-history.jsonl"
    rows = [row(commit=str(k), goodput_per_s=10 + k % 3) for k in range(n - 1)]
    file.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    runner.answers(any=passing(13.1))
    ended = runner.job("new", scenario="a.yaml")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[:-1] == rows
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", lines[-1].pop("date"))
    new = {"commit": "new", "scenario": "a.yaml", "goal_frac": 0.99, "goodput_per_s": 13.1}
    assert lines[-1] == new | {"low_per_s": 11.958, "high_per_s": 12.242}  # of the double: 5.1 to 7.3% below 12.9
    (bars,) = re.findall(r"^`([▁▂▃▄▅▆▇█]+)` ", runner.comments[0]["body"], re.M)
    assert len(bars) == min(n, 40)
    assert shown in runner.comments[0]["body"] and shown in ended.summary


def row(**changes: object) -> dict[str, object]:
    known = {"commit": "0", "date": "2026-01-01T00:00:00Z", "scenario": "a.yaml", "goal_frac": 0.99}
    return known | {"goodput_per_s": 13.4, "low_per_s": 13.2, "high_per_s": 13.6} | changes


def test_the_history_is_cached_by_base_branch(runner: Runner, tmp_path: Path) -> None:
    others: dict[str, dict[str, str]] = {
        "3": {"base": "release, $(x)/2"},
        "a": {"base": "main:2"},
        "b": {"base": "main-2"},
    }
    for commit, given in (("1", {"pull": ""}), ("2", {}), *others.items(), ("4", {}), ("4", {})):
        runner.job(commit, scenario="a.yaml", **given)
        runner.clean()
    branches = [key.removeprefix("simserve check:history:") for key in runner.caches if ":history:" in key]
    assert branches == [
        *("main:1-1", "main:2-1", "release____x_/2:3-1", "main_2:4-1", "main-2:5-1", "main:6-1", "main:7-1")
    ]
    (kept,) = list(runner.caches.values())[-1].values()
    assert [json.loads(line)["commit"] for line in kept.splitlines()] == ["1", "2", "4"]


def test_a_history_of_the_checkout_is_neither_restored_nor_cached(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(f"{json.dumps(row())}\n")
    runner.job("new", scenario="a.yaml", history="mine.jsonl")
    assert not [key for key in runner.caches if ":history:" in key]
    assert len((tmp_path / "mine.jsonl").read_text().splitlines()) == 2
    runner.job("new", scenario="a.yaml", history="")
    assert not (tmp_path / ".simserve-history.jsonl").exists()
    assert not [key for key in runner.caches if ":history:" in key]


def test_a_failed_check_is_part_of_the_history_and_bad_input_is_not(runner: Runner) -> None:
    runner.answers(**{"a.yaml": failing(), "b.yaml": FORBIDDEN})
    runner.job("new", scenario="a.yaml b.yaml", baseline="kept")
    (kept,) = list(runner.caches.values())[-1].values()
    assert [json.loads(line)["scenario"] for line in kept.splitlines()] == ["a.yaml"]


def test_what_is_no_row_stays_and_is_not_drawn(runner: Runner, tmp_path: Path) -> None:
    file = tmp_path / ".simserve-history.jsonl"
    odd = [
        *("<<<<<<< HEAD", "{}", "[1]", "nonsense \u202e"),
        *(json.dumps(row(goodput_per_s=value)) for value in (-1, True, "13", float("nan"), float("inf"))),
        *(json.dumps(row(**{key: 1})) for key in ("commit", "date", "scenario")),
    ]
    others = [row(scenario="b.yaml"), row(goal_frac=0.9, goodput_per_s=20), row(goodput_per_s=None)]
    file.write_text("\n".join([*odd, *map(json.dumps, others)]), encoding="utf-8")
    ended = runner.job("new", scenario="a.yaml")
    assert file.read_text(encoding="utf-8").splitlines()[: len(odd)] == odd
    assert "`·▅` 13.4 req/s, last 2 commits" in runner.comments[0]["body"]
    assert f"::warning::history: {len(odd)} of {len(odd) + 3} lines of " in ended.log


def test_the_history_keeps_the_last_thousand_commits_of_a_scenario(runner: Runner, tmp_path: Path) -> None:
    file = tmp_path / ".simserve-history.jsonl"
    rows = [row(scenario=name, commit=str(n)) for n in range(1000) for name in ("a.yaml", "b.yaml")]
    file.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    runner.job("new", scenario="a.yaml")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    of_each = {name: [each["commit"] for each in lines if each["scenario"] == name] for name in ("a.yaml", "b.yaml")}
    assert of_each["a.yaml"] == [*map(str, range(1, 1000)), "new"]
    assert of_each["b.yaml"] == [*map(str, range(1000))]


def test_a_link_in_place_of_the_history_is_replaced_and_not_followed(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine\n")
    for name in (".simserve-history.jsonl", "simserve-check.xml"):
        (tmp_path / name).symlink_to(tmp_path / "precious")
    assert runner.job(scenario="a.yaml").exit_code == 0
    assert (tmp_path / "precious").read_text() == "mine\n"
    assert not (tmp_path / ".simserve-history.jsonl").is_symlink()


def test_a_history_that_cannot_be_written_fails_nothing(runner: Runner) -> None:
    ended = runner.job(scenario="a.yaml", history="a.yaml/history.jsonl")
    assert ended.exit_code == 0
    assert any(line.startswith("::warning::history: a.yaml/history") for line in workflow_commands(ended.log))


def test_a_sparkline_shows_the_tolerance_as_two_bars(script: ModuleType) -> None:
    assert script.sparkline([13.4], 0.02) == script.sparkline([13.4], 0) == "▅"
    assert script.sparkline([100, 98, 100.1], 0.02) == "▅▃▆"
    assert script.sparkline([1, 2, 3, None, 8], 0.02) == "▁▂▃·█"
    assert script.sparkline([None, None], 0.02) == "··"


# Strangers' texts.


def test_a_text_is_inert_and_an_answer_stays_as_it_is(script: ModuleType) -> None:
    plain = 'Pass: p99 goodput rose 6.2% (95% CI 5.1–7.3%): 13.4 req/s, as before. TPOT ≤ 50 ms; +9%, "a" → 0.8.'
    assert script.inert(plain) == plain
    for text in ("www.1x.com", "http://1.2", "a@b.c", "#1", ":tada:", "a_b_c", "&amp;", "~x~", "[^1]"):
        assert script.inert(text)[: len(text)] != text
        assert Shown(script.inert(text)).text == f"{text}\n"


EVIL = [
    "**bold** _x_ ~~y~~ `z` [a](b) ![i](j).yaml",
    "<img src=x onerror=alert(1)> <!-- & &lt;.yaml",
    "@everyone #1 GH-2 www.evil.com $x$ a|b.yaml",
    "$(touch hacked) `touch hacked` \"; touch hacked; ' \\.yaml",
    "two\nlines\r\n::error::hacked\n::set-output name=passes::true\n##[error]x.yaml",
    "--help",
    "\u202eright to left\x1b[31m.yaml",
    "a%0Ab%.yaml",
]


def evil_files(folder: Path) -> list[str]:
    (folder / "evil").mkdir()
    for name in EVIL:
        (folder / "evil" / name).touch()
    return sorted(f"evil/{name}" for name in EVIL)


@pytest.mark.parametrize(
    "made",
    [
        failing(),
        {"code": 2, "err": "\n".join([*EVIL, "- x", "1. y", "# z"])},
        answer(
            1,
            changes=[{"key": EVIL[0], "baseline": EVIL[1], "candidate": EVIL[4]}],
            baseline={"name": EVIL[2], "simserve": EVIL[3], "goodput_per_s": 1, "fails_first": "tpot_s"},
        ),
    ],
)
def test_nothing_of_a_stranger_is_markup_or_a_command(made: dict[str, Any], runner: Runner, tmp_path: Path) -> None:
    files = evil_files(tmp_path)
    runner.answers(any=made)
    ended = runner.job("<b>c0ffee</b>\n::error::x", scenario="evil/*", baseline="kept")
    assert [call[-1] for call in runner.calls] == files
    assert not list(tmp_path.rglob("hacked"))
    body = runner.comments[0]["body"]
    assert body.startswith(f"{MARKER}\n### simserve check: of 8, 8 ")
    tags = {"h3", "p", "strong", "code", "pre", "a", "href=https://github.example/o/r/actions/runs/42"}
    shown = Shown(body)
    assert set(shown.tags) <= tags
    assert len(re.findall("^\\*\\*evil/", body, re.M)) == 8
    for name in EVIL[:4]:
        assert f"evil/{name}: " in shown.text
    assert "evil/two lines ::error::hacked ::set-output name=passes::true ##[error]x.yaml: " in shown.text
    assert "\u202e" not in body and "\x1b" not in body
    assert not re.search(r"[@#]\w", re.sub(r"&#\d+;|<!-- -->", "", re.sub("<pre>.*</pre>", "", body)))
    assert "@everyone" not in re.sub("<pre>.*</pre>", "", body.replace("&#64;", "@"))  # split, so that none is called
    summary = Shown(ended.summary)
    table = {"table", "thead", "tbody", "tr", "th", "td", "ul", "li", "style=text-align:right"}
    assert set(summary.tags) <= {"h3", "p", "code", *table}
    errors = workflow_commands(ended.log)
    assert len(errors) == 8 and all(line.startswith("::error::evil/") for line in errors)
    names = [suite.get("name") for suite in ElementTree.parse(tmp_path / "simserve-check.xml").getroot()]
    assert len(names) == 8 and f"evil/{EVIL[0]}" in names


@pytest.mark.parametrize("key", ["baseline", "against", "arguments", "junit", "history"])
def test_an_input_is_never_code(key: str, runner: Runner, tmp_path: Path) -> None:
    for text in ("$(touch hacked)", "`touch hacked`", "x; touch hacked", "'x' \"$(touch hacked)\"", "a\ntouch hacked"):
        ended = runner.job(**{"scenario": "a.yaml", key: text})
        assert ended.exit_code == 0, ended.log
        assert not list(tmp_path.rglob("hacked"))
        if key in ("baseline", "against"):
            (call,) = [call for call in runner.calls if f"--{key}" in call][-1:]
            assert call[call.index(f"--{key}") + 1] == text


def test_outputs_are_lines_that_no_input_can_add_to(runner: Runner, tmp_path: Path) -> None:
    ended = runner.job(scenario="a.yaml", baseline="x\npasses=false")
    assert json.loads(ended.output)["passes"] == "true"
    evil_files(tmp_path)
    ended = run_step(tmp_path, scenario="evil/two*")
    assert [line.partition("=")[0] for line in ended.output.splitlines()] == ["passes", "report"]


# What it installs.


def test_what_it_installs_is_pinned() -> None:
    assert '--constraint "$GITHUB_ACTION_PATH/.ci/constraints.txt"' in step("Build simserve")["run"]
    assert "--no-index" in step("Install simserve")["run"]
    pinned = {line.partition("==")[0].lower() for line in (ROOT / ".ci" / "constraints.txt").read_text().splitlines()}
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split("[<>=]", each)[0].replace("_", "-") for each in needed} <= pinned
    assert all(re.search("@[0-9a-f]{40}$", each["uses"]) for each in action()["runs"]["steps"] if "uses" in each)


def test_other_actions_are_those_of_the_workflows() -> None:
    lines = (ROOT / ".github" / "workflows" / "wheels.yml").read_text() + (ROOT / "action.yml").read_text()
    used = {tuple(each.rsplit("@", 1)) for each in re.findall(r"uses: (actions/\w[\w-]*[@/].*)", lines)}
    versions: dict[str, set[str]] = {}
    for name, version in used:
        versions.setdefault("/".join(name.split("/")[:2]), set()).add(version)
    assert versions.keys() == {"actions/checkout", "actions/setup-python", "actions/cache", "actions/upload-artifact"}
    assert all(len(each) == 1 for each in versions.values())


def test_the_wheel_is_built_once_and_installed_each_time(runner: Runner, tmp_path: Path) -> None:
    for _ in range(2):
        assert runner.job(scenario="a.yaml").exit_code == 0
        runner.clean()
    log = (tmp_path / "pip.log").read_text()
    (wheel,) = re.findall(r"^wheel\n--quiet\n--wheel-dir\n(.*)\n(.*)\n--constraint\n", log, re.M)
    assert wheel == (str(tmp_path / "temp" / "simserve-wheels"), str(ROOT))
    assert re.findall(r"^install\n(?:--.*\n)*(.*)$", log, re.M) == [f"{wheel[0]}/simserve-0-py3-none-any.whl"] * 2
    assert step("Build simserve")["env"]["SIMSERVE_PURE"] == "1"


def test_a_version_is_installed_as_published(runner: Runner, tmp_path: Path) -> None:
    for version in ("", "1.2", "1.3; $(touch hacked)"):
        assert runner.job(scenario="a.yaml", version=version).exit_code == 0
    wanted = re.findall(r"^--wheel-dir\n.*\n(.*)$", (tmp_path / "pip.log").read_text(), re.M)
    assert wanted == [str(ROOT), "simserve==1.2", "simserve==1.3; $(touch hacked)"]
    assert len([key for key in runner.caches if ":history:" not in key]) == 3
    assert not list(tmp_path.rglob("hacked"))


def test_another_source_or_constraint_is_another_wheel(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".ci/constraints.txt", "simserve/a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    output = tmp_path / "output"
    given = {"NAME": "n", "HISTORY": "", "BASE": "main", "RUNNER_TEMP": "/t", "GITHUB_OUTPUT": str(output)}

    def key(version: str = "") -> str:
        for name, value in (given | {"VERSION": version}).items():
            monkeypatch.setenv(name, value)
        output.write_text("")
        assert script.names() == 0
        return dict(line.split("=", 1) for line in output.read_text().splitlines())["wheels-key"]

    monkeypatch.setattr(script, "ACTION", tmp_path)
    keys = [key(), key("1.0")]
    (tmp_path / "simserve" / "__pycache__").mkdir()
    (tmp_path / "simserve" / "__pycache__" / "a.pyc").write_text("x")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.py").write_text("x")
    assert [key(), key("1.0")] == keys
    (tmp_path / "simserve" / "a.py").write_text("y")
    assert key() not in keys and key("1.0") == keys[1]
    (tmp_path / ".ci" / "constraints.txt").write_text("y")
    assert key("1.0") != keys[1]
    assert set(script.SOURCES) <= {each.name for each in ROOT.iterdir()}


def test_no_step_that_reports_can_fail_the_job_and_all_run_after_a_failed_check() -> None:
    steps = action()["runs"]["steps"]
    after = steps[steps.index(step()) + 1 :]
    assert len(after) == 3
    assert all("!cancelled()" in each["if"] and "steps.check.outputs.report != ''" in each["if"] for each in after)
    assert all(each.get("continue-on-error") or each["name"] == "Comment on the pull request" for each in after)


def test_only_the_comment_has_the_token() -> None:
    having = [each["name"] for each in action()["runs"]["steps"] if "github.token" in json.dumps(each)]
    assert having == ["Comment on the pull request"]


# The examples.


@pytest.mark.parametrize("block", re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S))
def test_the_examples_are_valid_and_say_what_there_is(block: str) -> None:
    content = yaml.safe_load(block)
    if "jobs" in content:
        used = content["jobs"]["check"]["steps"][-1]
        assert re.fullmatch(r"OWNER/simserve@\w+", used["uses"])
        assert used["with"].keys() <= action()["inputs"].keys()
        assert content["permissions"] == {"contents": "read", "pull-requests": "write"}
    else:
        script = content["p99-goodput"]["script"]
        checks = [line for line in script if line.startswith("simserve check ")]
        assert len(checks) == 1
        names = re.findall(r"--[a-z]+", checks[0])
        sentence = invoke("check", "--help").out
        assert names and all(name in sentence for name in names)


def test_the_example_for_github_finds_its_scenarios_and_baselines(script: ModuleType) -> None:
    (used,) = [
        content["jobs"]["check"]["steps"][-1]["with"]
        for content in map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S))
        if "jobs" in content
    ]
    here = Path.cwd()
    try:
        os.chdir(ROOT)
        files = list(script.scenarios(used["scenario"]))
    finally:
        os.chdir(here)
    assert files
    for file in files:
        assert file.startswith("@") or (ROOT / file).is_file()
        assert (ROOT / used["baseline"] / f"{Path(file.removeprefix('@')).stem}.json").is_file()
    assert shlex.split(used["arguments"]) == ["--set", 'engine.version="0.12"']


def test_the_page_names_every_input_and_output_and_the_commands_that_were_timed() -> None:
    section = PAGE[PAGE.index("## GitHub") : PAGE.index("## What is compared")]
    names = action()["inputs"].keys() | action()["outputs"].keys()
    assert [name for name in names if not re.search(rf"`{name}`|^ +{name}: ", section, re.M)] == []
    (block,) = re.findall(r"^```sh\n(.*?)^```", section, re.M | re.S)
    build, install = (line.partition("#")[0].split() for line in block.splitlines())
    assert build == ["SIMSERVE_PURE=1", "pip", "wheel", "--wheel-dir", "wheels", ".", "--constraint", *build[-1:]]
    used = step("Install simserve")["run"].replace("python -I -m pip install --quiet", "time pip install").split()
    assert install == [*used[:-1], "wheels/*.whl"]


def test_the_project_gates_itself() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert "simserve check scenarios/chat_burst.yaml" in ci
    assert (ROOT / "scenarios" / "baselines" / "chat_burst.json").is_file()
