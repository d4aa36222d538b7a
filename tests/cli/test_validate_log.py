"""`simserve validate LOG --scenario`: what is told of a replayed log, and what is refused."""

import json
import re
from html import unescape
from pathlib import Path

import pytest

import simserve
from simserve.report.document import SENTENCE_END
from tests.cli.invoke import Outcome, invoke
from tests.cli.scenarios import write_scenario

LOG = "timestamp,isl,osl,ttft_ms,tpot_ms\n" + "".join(f"{n},{100 * n},{10 + n},30,8\n" for n in range(1, 21))


def validate(folder: Path, text: str, *more: object) -> Outcome:
    (folder / "log.csv").write_text(text)
    return invoke("validate", folder / "log.csv", "--scenario", write_scenario(folder), *more)


def test_a_log_is_told_by_distribution_and_request_by_request(tmp_path: Path) -> None:
    outcome = validate(tmp_path, LOG, "--json")
    assert outcome.exit_code == 0, outcome.err
    result = json.loads(outcome.out)
    assert (result["log"]["n_requests"], result["log"]["n_compared"]) == (20, 20)
    assert result["distributions"]["ttft_s"]["p99"]["measured"] == pytest.approx(0.03)
    assert result["requests"]["measured_e2e_s"][0] == pytest.approx(0.03 + 10 * 0.008)
    assert len(result["requests"]["predicted_tpot_s"]) == 20
    assert sum(group["n"] for group in result["errors"]["tpot_s"]["by_prompt_tokens"]) == 20
    assert len(result["worst"]["ttft_s"]) == 5
    wording = validate(tmp_path, LOG)
    decision = result["decision"]
    assert wording.out.startswith(f"Too few to tell: {decision['sentence']}")
    assert "A decision takes 100 requests." in decision["sentence"]
    assert f"20 of 20 requests of {tmp_path / 'log.csv'} compared. Assumptions:" in wording.out
    assert "  requests are sent at the times of the log\n" in wording.out
    error = result["errors"]["ttft_s"]["overall"]["mape_frac"]
    (line,) = (line for line in wording.out.splitlines() if line.split()[:3] == ["TTFT", "all", "20"])
    assert line.split()[3] == f"{error:.1%}"
    assert "warning: p99 of 20 requests is unreliable; it needs 1000" in wording.err


def test_a_page_is_drawn_on_request(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    outcome = validate(tmp_path, LOG, "--page", page)
    assert outcome.exit_code == 0, outcome.err
    decision = " ".join(outcome.out.partition("\n\n")[0].split()).removeprefix("Too few to tell: ")
    text = unescape(page.read_text().replace("\u00a0", " ").replace("\u2060", ""))
    assert all(sentence in text for sentence in SENTENCE_END.split(decision))
    assert f"wrote {page}" in outcome.err
    assert "Predicted against measured, 20 requests" in page.read_text()


def test_a_result_without_a_pairing_has_percentiles_only(tmp_path: Path) -> None:
    lists = {"input_lens": [100] * 4, "output_lens": [3] * 4, "ttfts": [0.03] * 4, "itls": [[0.01, 0.01]] * 4}
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"request_rate": 2.0, "duration": 2.0, **lists}))
    page = tmp_path / "page.html"
    outcome = invoke("validate", path, "--scenario", write_scenario(tmp_path), "--page", page, "--json")
    assert outcome.exit_code == 0, outcome.err
    result = json.loads(outcome.out)
    assert (result["errors"], result["worst"]) == ({}, {})
    assert result["requests"]["arrival_s"] is None
    assert result["makespan_s"]["measured"] == 2.0
    assert "Arrivals were drawn" in page.read_text()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--campaign", "plain"], "does not take --campaign; leave"),
        (["--leave-out", "--engine", "vllm"], "does not take --engine, --leave-out; leave"),
        (
            ["--requests-per-client", "3", "--shortest-frac", "0.5"],
            "does not take --requests-per-client, --shortest-frac",
        ),
    ],
)
def test_options_of_tables_do_not_go_with_a_log(more: list[str], sentence: str, tmp_path: Path) -> None:
    outcome = validate(tmp_path, LOG, *more)
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert sentence in " ".join(outcome.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "log.csv: must be a log, got an empty file"),
        (
            LOG.replace("timestamp", "when"),
            "log.csv: column arrival_s is missing, got when, isl, osl, ttft_ms, tpot_ms;",
        ),
        (LOG.replace(",30,8", ",-30,8"), "log.csv: line 2, 3, 4, 5, 6 and 15 more: ttft_ms must not be negative"),
    ],
)
def test_a_log_that_cannot_be_replayed_is_2_and_draws_nothing(text: str, sentence: str, tmp_path: Path) -> None:
    outcome = validate(tmp_path, text, "--page", tmp_path / "page.html")
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert sentence in outcome.err
    assert not (tmp_path / "page.html").exists()


def test_a_scenario_needs_a_log_and_both_must_be_there(tmp_path: Path) -> None:
    outcome = invoke("validate", "--scenario", write_scenario(tmp_path))
    assert outcome.exit_code == 2
    assert "give a log of requests, or a result of vllm bench serve" in outcome.err
    (tmp_path / "log.csv").write_text(LOG)
    outcome = invoke("validate", tmp_path / "log.csv", "--scenario", tmp_path / "none.yaml")
    assert outcome.exit_code == 2
    assert "none.yaml: there is no such file" in outcome.err


def test_a_log_without_a_scenario_is_pointed_to_it(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    outcome = invoke("validate", tmp_path / "log.csv")
    assert outcome.exit_code == 2
    assert "a log of single requests needs --scenario" in outcome.err


def test_the_server_of_the_documentation_replays_a_result_of_vllm_bench(tmp_path: Path) -> None:
    text = Path("docs/validation.md").read_text(encoding="utf-8")
    (server,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "server.yaml").write_text(server)
    lists = {"input_lens": [512] * 4, "output_lens": [3] * 4, "ttfts": [0.03] * 4, "itls": [[0.01, 0.01]] * 4}
    result = {"request_rate": 8.0, "max_concurrency": None, "start_times": [9.0, 9.1, 9.2, 9.4], "errors": [""] * 4}
    (tmp_path / "bench.json").write_text(json.dumps(result | lists))
    outcome = invoke(
        "validate", tmp_path / "bench.json", "--scenario", tmp_path / "server.yaml", "--page", tmp_path / "p"
    )
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.startswith("Too few to tell: ")
    assert (f"4 of 4 requests of {tmp_path / 'bench.json'} compared. Assumptions:") in outcome.out
    assert "requests are sent at the times of the log" in outcome.out


def test_python_has_what_the_command_prints_and_each_request(tmp_path: Path) -> None:
    outcome = validate(tmp_path, LOG, "--json")
    answer = simserve.validate(tmp_path / "log.csv", write_scenario(tmp_path))
    assert answer.printed == json.loads(outcome.out)
    frame = answer.to_frame()
    assert len(frame) == 20
    assert {"prompt_tokens", "measured_ttft_s", "predicted_ttft_s"} <= set(frame.columns)
    assert repr(answer).startswith("<ValidatedLog: Too few to tell: ")
    assert "Too few to tell" in answer.page(tmp_path / "answer.html").read_text()
    assert "Too few to tell" in answer._repr_html_()
    assert answer.plot() is not None
