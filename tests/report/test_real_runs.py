"""The page and the verdict of real runs: what they say is what the run's tables hold."""

import re
from typing import Any

import numpy as np
import pytest

from simserve import simulate
from simserve.metrics.results import Results
from simserve.report.headline import headline
from simserve.report.page import render
from simserve.scenario import Scenario
from tests.report.figures import figures

CHAT = {"kind": "lognormal", "prompt_tokens": {"median": 512, "sigma": 0.6, "max": 4096}}


def run(rate_per_s: float = 8.0, **changes: Any) -> Results:
    given = {
        "schema": "simserve/1",
        "name": "real",
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "cluster": {"pools": [{"replicas": 2}]},
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": rate_per_s},
            "lengths": CHAT | {"output_tokens": {"median": 60, "sigma": 0.6, "max": 512}},
            "n_requests": 600,
        },
        "slo": {"ttft_s": 0.1, "tpot_s": 0.012, "itl_s": 0.05},
    }
    return simulate(Scenario.from_dict(given | changes))


@pytest.mark.parametrize(("chart", "key"), [("ttft", "ttft_s"), ("tpot", "tpot_s")])
def test_a_curve_at_the_slo_is_the_attainment_that_the_summary_gives(chart: str, key: str) -> None:
    results = run(slo={"ttft_s": 0.03, "tpot_s": 0.0066})
    goal_s, by_slo = results.summary["slo"][key], results.summary["slo_attainment"]["by_slo"][key]
    line = figures(render(results))[chart]["data"][0]
    assert 0.05 < by_slo < 0.95
    assert line["y"][line["x"].index(goal_s)] == pytest.approx(by_slo, abs=1e-6)


def test_the_timelines_tokens_add_up_to_those_of_the_run() -> None:
    results = run()
    traces = figures(render(results))["time"]["data"]
    mean = next(trace for trace in traces if trace["yaxis"] == "y6")
    series = results.columns["timeseries"]
    width_s = series["end_s"][0] - series["start_s"][0]
    assert sum(mean["y"]) * width_s * 2 == pytest.approx(results.columns["requests"]["output_tokens"].sum(), rel=0.01)


def test_a_page_of_whole_answers_says_that_there_is_no_time_per_token() -> None:
    pool = {"scheduler": {"kind": "static", "batch_size": 8}, "max_model_len": 8192}
    results = run(2.0, cluster={"pools": [pool]}, slo={"ttft_s": 0.5})
    page = render(results)
    assert "tpot" not in figures(page)
    assert "Answers come whole" in page
    assert "answers leave whole with their batch" in headline(results.figures)


def test_more_than_the_cluster_serves_is_called_saturated() -> None:
    workload = {
        "arrivals": {"kind": "constant", "rate_per_s": 60},
        "lengths": {"kind": "fixed", "prompt_tokens": 2048, "output_tokens": 64},
        "n_requests": 1500,
    }
    results = run(workload=workload, cluster={"pools": [{"replicas": 1}]})
    assert re.match(r"Saturated: 60\.\d requests/s arrived and [\d.]+ were served", headline(results.figures))
    assert re.search(r"use about \d+ replicas instead of 1", headline(results.figures))
    assert "All prompts have 2,048 tokens" in render(results).replace("\u00a0", " ")


def test_requests_that_never_fit_are_counted_against_the_curve() -> None:
    workload = {
        "arrivals": {"kind": "poisson", "rate_per_s": 4},
        "lengths": CHAT | {"output_tokens": {"median": 60, "sigma": 0.6, "max": 512}},
        "n_requests": 400,
    }
    results = run(workload=workload, cluster={"pools": [{"max_model_len": 700}]})
    finished = results.columns["requests"]["status"].is_("finished")
    line = figures(render(results))["ttft"]["data"][0]
    assert 0.1 < finished.mean() < 0.9
    assert line["y"][-1] == pytest.approx(finished.mean())
    n_missing = np.count_nonzero(~finished)
    assert f"{n_missing:,} requests without a full answer count as longer than any time" in render(results)


def test_when_all_are_refused_the_page_still_tells_why_it_has_no_curves() -> None:
    workload = {
        "arrivals": {"kind": "poisson", "rate_per_s": 4},
        "lengths": {"kind": "fixed", "prompt_tokens": 900, "output_tokens": 10},
        "n_requests": 80,
    }
    results = run(workload=workload, cluster={"pools": [{"max_model_len": 700}]})
    assert headline(results.figures).startswith("Nothing finished: none of 80 requests in the window was answered")
    page = render(results)
    assert set(figures(page)) == {"time"}
    assert page.count("No request had a first token.") == 2


def test_a_page_reads_only_columns_and_imports_no_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Results, "_frame", None)
    assert "<h1>" in render(run())


def test_the_uncalibrated_engine_is_named_on_the_page() -> None:
    assert "Step costs of engine vllm are uncalibrated" in render(run(engine={"name": "vllm", "launch_s": 1e-6}))
    assert "uncalibrated" not in render(run())


def test_the_page_of_prefill_and_decode_pools_tells_each_sides_part() -> None:
    pools = [{"name": "front", "role": "prefill"}, {"name": "back", "role": "decode"}]
    results = run(cluster={"pools": pools})
    page = render(results)
    shown = re.sub(r"<[^>]+>", "|", page.split('id="mechanisms"')[1].split("</section>")[0])
    for words in ("Busy, front", "Busy, back", "Busy, busiest port of the link", "Hand-off, p99", "Bottleneck"):
        assert f"|{words}|" in shown
    table = page.split('id="replicas"')[1].split("</table>")[0]
    front, back = (re.sub(r"<[^>]+>", "|", row).replace("||", "|").split("|") for row in table.split("<tr>")[2:])
    n_answered_in_front = int((results.requests["output_tokens"] == 1).sum())
    assert [cell for cell in front if cell][2] == "600"
    assert [cell for cell in back if cell][2] == str(600 - n_answered_in_front)
    assert [cell for cell in back if cell][3].strip("\u2060") == "–"  # first tokens come from the other side
