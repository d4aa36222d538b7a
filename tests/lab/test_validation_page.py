"""The page of a validation: every run as measured and as predicted, and no name that becomes markup."""

import re
from typing import Any

import pytest

from simserve.lab.trust import trust_in
from simserve.lab.validation_page import tell
from simserve.report.html import page as html
from tests.report.figures import figures

HOSTILE = '</script><script>alert("x")</script><img src=x onerror=alert(1)>'


def point(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "engine": "vllm",
        "model": "llama-3.1-8b",
        "weight_dtype": "bf16",
        "tp": 2,
        "isl": 1024,
        "osl": 128,
        "concurrency": 8,
        "ttft_s": 0.1,
        "tpot_s": 0.010,
        "predicted_ttft_s": 0.12,
        "predicted_tpot_s": 0.009,
    }
    return given | changes


def page(*points: dict[str, Any], left_out: tuple[dict[str, Any], ...] = (), source: str = "a client") -> str:
    campaign = {"requests_per_client": 10, "source": source}
    given = {"campaign": campaign, "points": list(points), "left_out": list(left_out)}
    return html(tell(given, trust_in([], "runs", 0, "")))


def dots(text: str, metric: str) -> list[dict[str, Any]]:
    return [trace for trace in figures(text)[metric]["data"] if trace.get("mode") == "markers"]


def body(text: str) -> str:
    """What is read, without scripts."""
    return text[text.index("<main>") : text.index("</main>")].replace("\u00a0", " ")


def test_a_dot_is_measured_to_the_right_and_predicted_up() -> None:
    drawn = page(point(), point(engine="sglang", ttft_s=0.2, predicted_ttft_s=0.3))
    sglang, vllm = dots(drawn, "ttft")
    assert (sglang["x"], sglang["y"]) == ([0.2], [0.3])
    assert (vllm["x"], vllm["y"]) == ([0.1], [0.12])
    assert sglang["marker"]["symbol"] != vllm["marker"]["symbol"]
    assert (dots(drawn, "tpot")[1]["x"], dots(drawn, "tpot")[1]["y"]) == ([0.01], [0.009])
    sentence = vllm["text"][0].replace("\u00a0", " ")
    assert "measured 100 ms, predicted 120 ms" in sentence
    assert sentence.count("<br>") == 2
    axes = [figures(drawn)["ttft"]["layout"][name]["title"]["text"] for name in ("xaxis", "yaxis")]
    assert axes == ["Measured", "Predicted"]


def test_errors_are_those_of_the_points() -> None:
    read = body(page(point(predicted_ttft_s=0.13), point(predicted_ttft_s=0.09)))
    row = read[read.index("Time to first token</small>") :]
    row = row[: row.index("</tr>")]
    assert re.findall(r"<td[^>]*>(.*?)</td>", row) == ["2", "20.0%", "20.0%", "28.0%", "+10.0%"]
    assert "Predicted against measured, 2 runs" in read
    assert "Predicted by the shipped constants." in read


def test_points_that_were_left_out_are_drawn_instead() -> None:
    drawn = page(point(), left_out=(point(predicted_ttft_s=0.15),))
    assert dots(drawn, "ttft")[0]["y"] == [0.15]
    assert "constants fitted to the other groups" in body(drawn)


@pytest.mark.parametrize("name", ["engine", "model", "weight_dtype"])
def test_no_name_becomes_markup(name: str) -> None:
    sound, hostile = page(point()), page(point(**{name: HOSTILE}), source=HOSTILE)
    assert hostile.count("<script") == sound.count("<script")
    assert "<img" not in body(hostile)
    assert "&lt;img src=x onerror=alert(1)&gt;" in body(hostile)
    (sentence,) = dots(hostile, "ttft")[0]["text"]
    assert "<script" not in sentence
    assert "&lt;script&gt;alert" in sentence
