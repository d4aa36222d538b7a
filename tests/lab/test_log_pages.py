"""The page of a replayed log: dots by rank and request by request, thinned out, and no name that becomes markup."""

from typing import Any

from simserve.lab.log_pages import MAX_DOTS, tell
from simserve.lab.trust import trust_in
from simserve.report.html import page as html
from tests.lab.test_validation_page import HOSTILE, body, dots

ERRORS = {"n": 3, "mape_frac": 0.2, "median_frac": 0.1, "p90_frac": 0.3, "bias_frac": -0.05}


def render_replay(facts: dict[str, Any]) -> str:
    return html(tell(facts, trust_in([], "requests", 0, "")))


def result(measured: list[Any], predicted: list[Any], *, is_paired: bool = True, text: str = "a log") -> dict[str, Any]:
    n = len(measured)
    sides = {"measured": 0.2, "predicted": 0.25, "error_frac": 0.25}
    worst = {"request": text, "arrival_s": 0.0, "prompt_tokens": 1, "output_tokens": 2} | sides | {"ratio": 1.25}
    groups = {"by_load": [{"lowest": 0.0, "highest": 12.0} | ERRORS], "by_prompt_tokens": []}
    return {
        "log": {"path": text, "n_requests": n, "n_compared": n},
        "scenario": {"name": text},
        "assumed": [text],
        "warnings": [text],
        "distributions": {"ttft_s": {"n": n, **dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), sides)}},
        "errors": {"ttft_s": {"overall": ERRORS, **groups}} if is_paired else {},
        "makespan_s": sides,
        "output_tokens_per_s": sides,
        "worst": {"ttft_s": [worst]} if is_paired else {},
        "requests": {
            "prompt_tokens": [10] * n,
            "output_tokens": [5] * n,
            "measured_ttft_s": measured,
            "predicted_ttft_s": predicted,
        },
    }


def test_ranks_are_sorted_apart_and_requests_stay_together() -> None:
    page = render_replay(result([0.3, 0.1, 0.2, None], [0.1, 0.3, 0.25, 0.9]))
    (ranks,), (each,) = dots(page, "rank-ttft_s"), dots(page, "each-ttft_s")
    assert (ranks["x"], ranks["y"]) == ([0.1, 0.2, 0.3], [0.1, 0.25, 0.3])
    assert (each["x"], each["y"]) == ([0.3, 0.1, 0.2], [0.1, 0.3, 0.25])
    assert each["text"][0] == "10 in, 5 out<br>measured 300 ms, predicted 100 ms"
    assert "0 to 12 in flight on arrival" in body(page)


def test_many_requests_are_thinned_out_evenly_and_always_alike() -> None:
    many = [0.001 * (1 + row) for row in range(3 * MAX_DOTS)]
    page = render_replay(result(many, many))
    for name in ("rank-ttft_s", "each-ttft_s"):
        (drawn,) = dots(page, name)
        assert len(drawn["x"]) == MAX_DOTS
        assert (drawn["x"][0], drawn["x"][-1]) == (0.001, 6.0)
    assert "an even sample of 2,000 of 6,000" in body(page)
    assert page == render_replay(result(many, many))


def test_without_a_pairing_there_are_ranks_only() -> None:
    page = render_replay(result([0.1, 0.2], [0.1, 0.2], is_paired=False))
    assert "no request of the log matches one of the run" in body(page)
    assert 'id="each-ttft_s"' not in page
    assert 'id="errors"' not in page


def test_times_of_zero_can_be_drawn() -> None:
    (drawn,) = dots(render_replay(result([0.0], [0.0])), "rank-ttft_s")
    assert drawn["x"] == [0.0]


def test_no_name_becomes_markup() -> None:
    sound, hostile = render_replay(result([0.1], [0.1])), render_replay(result([0.1], [0.1], text=HOSTILE))
    assert hostile.count("<script") == sound.count("<script")
    assert "<img" not in body(hostile)
