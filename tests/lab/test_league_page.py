"""The page of the league: errors as numbers, peers beside them, and no name that becomes markup."""

from typing import Any

import pytest

from simserve.lab.league_page import lead, peer_rows, render, set_rows
from tests.report.figures import figures

HOSTILE = '</script><script>alert("x")</script><img src=x onerror=alert(1)>'


def errors(mape_frac: float) -> dict[str, Any]:
    return {"n": 2, "mape_frac": mape_frac, "median_frac": 0.1, "p90_frac": 0.2, "bias_frac": 0.0, "interval": None}


def figured(n_runs: int = 2, n_refused: int = 0) -> dict[str, Any]:
    return {
        "n_runs": n_runs,
        "n_refused": n_refused,
        "errors": {"tpot": errors(0.034), "ttft": errors(0.12), "e2e": None},
        "within_frac": {"tpot": 0.5, "ttft": 1.0, "e2e": None},
        "width_frac": {"tpot": 0.071, "ttft": 0.3, "e2e": None},
    }


def facts(name: str = "vllm", **changes: Any) -> dict[str, Any]:
    """One set with two peers and one run."""
    published = [
        {
            "name": "far",
            "runs": "some",
            "source": "a page",
            "errors_frac": {"tpot": [0.045, 2.19], "ttft": [14.14] * 2},
        },
        {"name": "near", "runs": "some", "source": "a page", "errors_frac": {"tpot": [0.051] * 2}},
    ]
    data_set = {"file": "a.csv", "engine": name, "gpu": "h100-sxm", "model": "m", "versions": ["0.1", "0.2", "0.3"]}
    known = {"n_in_folder": 9, "in_sample": "partly", "why": "a constant was chosen", "published": published}
    one = {"measured_s": 0.1, "predicted_s": 0.2, "interval_s": [0.05, 0.3]}
    return {
        "confidence": 0.9,
        "not_fitted": figured(n_runs=3),
        "partly_fitted": figured(),
        "sets": [{**data_set, **known, **figured(2, 1)}],
        "peers": [{"runs": "a.csv vllm", "in_sample": "partly", **figured(), "published": published}],
        "skipped": ["b.csv is not there"],
        "runs": [{**data_set, "label": name, "in_sample": "partly", "refused": None, "tpot": one}],
    } | changes


def test_rows_have_errors_coverage_and_the_nearest_peer() -> None:
    (row,) = set_rows(facts())
    assert row == (
        *("a", "vllm 0.1 to 0.3", "h100-sxm", "m", "1 of 2"),
        *("3.4%", "12.0%", "–", "50.0%", "100%", "–", "7.1%"),
        *("partly", "near: 5.1% / – / –"),
    )
    ours, far, near = peer_rows(facts())
    assert ours == ("a.csv vllm", "simserve", "3.4%", "12.0%", "–", "2 runs of the folder, partly in-sample")
    assert far[1:5] == ("far", "4.5–219%", "1,414%", "–")
    assert near[1:5] == ("near", "5.1%", "–", "–")


def test_the_answer_is_about_runs_outside_the_fits() -> None:
    figures = "errors TPOT 3.4%, TTFT 12.0%, E2E –. Intervals hold: TPOT 50.0%, TTFT 100%, E2E –."
    assert lead(facts()) == f"Not in-sample (3 runs): {figures} Partly in-sample (2 runs): {figures}"
    assert lead(facts(not_fitted=figured(0))) == f"Partly in-sample (2 runs): {figures}"
    none = facts(not_fitted=figured(0), partly_fitted=figured(0))
    assert lead(none).startswith("1 run; constants were fitted to all")


def test_the_page_draws_runs_and_names_sources() -> None:
    page = render(facts())
    drawn = figures(page)
    assert drawn.keys() == {"tpot"}
    (dots,) = (trace for trace in drawn["tpot"]["data"] if trace.get("mode") == "markers" and trace["x"])
    assert (dots["x"], dots["y"]) == ([0.1], [0.2])
    for sentence in ("a constant was chosen", "a page", "Skipped: b.csv is not there", "near"):
        assert sentence in page


def test_no_name_becomes_markup() -> None:
    page = render(facts(HOSTILE, skipped=[HOSTILE]))
    assert "<img src=x" not in page
    assert "alert" in page


@pytest.mark.parametrize("changes", [{"peers": []}, {"runs": [], "skipped": []}])
def test_a_league_without_peers_or_runs_is_a_page(changes: dict[str, Any]) -> None:
    assert render(facts(**changes)).startswith("<!doctype html>")
