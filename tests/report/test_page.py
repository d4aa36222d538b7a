"""The page stands alone, tells the truth of its numbers, and survives whatever a run hands it."""

import gzip
import re
from base64 import b64decode, b64encode
from hashlib import sha256
from html.parser import HTMLParser

import numpy as np
import pytest
from plotly.offline import get_plotlyjs

from simserve.metrics.results import Results
from simserve.report.page import render
from tests.report.figures import figures
from tests.report.synthetic import synthetic

HOSTILE = '</script><script>alert("x")</script><img src=x onerror=alert(1)>&amp;\'"'
VOID = {"meta", "br", "img", "link", "input", "hr"}

SECTIONS = ["trust", "latency", "timeline", "percentiles", "use", "replicas", "scenario"]

CHARTS = {"ttft", "ttft-tail", "tpot", "tpot-tail", "prompt", "time"}


class Outline(HTMLParser):
    """Reads a page: its elements, the text of its scripts, and whether tags balance."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)

    def ids(self, tag: str) -> list[str | None]:
        return [attrs["id"] for name, attrs in self.elements if name == tag and "id" in attrs]


def words(page: str) -> str:
    """The page without plotly and its own script."""
    return re.sub(r"<script( type=\"application/gzip\"[^>]*)?>.*?</script>", "", page, flags=re.S)


@pytest.fixture(scope="module")
def results() -> Results:
    return synthetic(20_000)


@pytest.fixture(scope="module")
def page(results: Results) -> str:
    return render(results)


def test_the_page_parses_and_every_tag_is_closed(page: str) -> None:
    assert Outline(page).open == []


def test_the_page_has_all_its_sections_and_a_place_for_each_chart(page: str) -> None:
    outline = Outline(page)
    assert outline.ids("section") == SECTIONS
    assert set(outline.ids("div")) == set(figures(page)) == CHARTS


def test_the_page_loads_nothing(page: str) -> None:
    elements = Outline(page).elements
    assert not [tag for tag, _ in elements if tag in {"link", "img", "iframe", "object", "embed", "base", "video"}]
    assert not [attrs for _, attrs in elements if {"src", "srcset", "data"} & attrs.keys()]
    assert {str(attrs["href"])[0] for _, attrs in elements if "href" in attrs} == {"#"}
    assert not re.search(r"https?:|@import|url\(", words(page))


def test_the_page_forbids_loading_and_any_script_but_its_own(page: str) -> None:
    policies = [attrs["content"] for tag, attrs in Outline(page).elements if tag == "meta" and "http-equiv" in attrs]
    assert len(policies) == 1 and policies[0] is not None
    assert policies[0].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policies[0]


def test_plotly_is_packed_in_the_page_once_as_its_package_has_it_and_named_by_its_hash(page: str) -> None:
    packed = re.findall(r'<script type="application/gzip" id="plotly">(.*?)</script>', page)
    assert len(packed) == 1
    source = gzip.decompress(b64decode(packed[0]))
    assert source.decode() == get_plotlyjs()
    assert f"'sha256-{b64encode(sha256(source).digest()).decode()}'" in page


def test_the_page_of_20_000_requests_weighs_less_than_2_2_megabytes(page: str) -> None:
    assert len(page.encode()) < 2_200_000


def test_the_contents_name_every_section_in_order(page: str) -> None:
    links = re.findall(r'<li><a href="#(.*?)">(.*?)</a></li>', page)
    assert [name for name, _ in links] == SECTIONS
    assert links == re.findall(r'<section[^>]*? id="(.*?)"><h2>(.*?)</h2>', page)


def test_a_million_requests_make_no_bigger_page(page: str) -> None:
    assert len(render(synthetic(300_000, seed=2))) < len(page) + 100_000


def test_a_hostile_name_stays_text() -> None:
    results = synthetic(50, name=HOSTILE, pools=(HOSTILE,), warnings=[HOSTILE])
    results.scenario_yaml = f"name: {HOSTILE}"
    outline = Outline(render(results))
    assert outline.open == []
    assert len(outline.scripts) == 4  # the charts, plotly, what draws them, and what sorts and copies tables
    assert not [tag for tag, _ in outline.elements if tag == "img"]
    assert not [attrs for _, attrs in outline.elements if any(name.startswith("on") for name in attrs)]


def test_plotly_gets_no_markup_from_a_pools_name() -> None:
    drawn = figures(render(synthetic(200, pools=("<b>bold</b>", "plain"))))
    names = {trace.get("name", "") for trace in drawn["time"]["data"]}
    assert not [name for name in names if "<" in name]


def test_the_ttft_curve_at_the_slo_is_the_attainment_of_that_slo(results: Results) -> None:
    inside = results.columns["requests"]["in_window"]
    for chart, key, goal_s in (("ttft", "ttft_s", 0.5), ("tpot", "tpot_s", 0.05)):
        line = figures(render(results))[chart]["data"][0]
        met = float((results.columns["requests"][key][inside] <= goal_s).mean())
        assert line["y"][line["x"].index(goal_s)] == pytest.approx(met, abs=1e-6)


def test_the_slo_is_drawn_where_it_is_and_says_how_many_are_within(results: Results) -> None:
    chart = figures(render(results))["ttft"]["layout"]
    assert [shape["x0"] for shape in chart["shapes"]] == [0.5]
    within = (results.columns["requests"]["ttft_s"][results.columns["requests"]["in_window"]] <= 0.5).mean()
    assert f"SLO 500 ms</b><br>{within * 100:.1f}% within" in chart["annotations"][0]["text"]
    assert chart["annotations"][0]["x"] == pytest.approx(np.log10(0.5))


def test_the_marks_on_a_curve_are_the_percentiles_of_the_table(results: Results) -> None:
    marks = figures(render(results))["ttft"]["data"][1]
    assert marks["x"] == pytest.approx([results.summary["ttft_s"]["p50"], results.summary["ttft_s"]["p99"]], rel=1e-4)
    assert marks["y"] == pytest.approx([0.5, 0.99], abs=2e-3)


def test_the_tail_is_one_minus_the_distribution_on_a_log_axis_with_p99_p999_and_the_slo(results: Results) -> None:
    drawn = figures(render(results))
    layout, (line, dots) = drawn["ttft-tail"]["layout"], drawn["ttft-tail"]["data"]
    ttft_s = results.columns["requests"]["ttft_s"][results.columns["requests"]["in_window"]]
    assert layout["yaxis"]["type"] == "log"
    for at in (0.05, 0.5):
        place = int(np.argmin(np.abs(np.array(line["x"]) - at)))
        assert line["y"][place] == pytest.approx((ttft_s > line["x"][place]).mean(), rel=0.01)
    assert line["y"][line["x"].index(0.5)] == pytest.approx((ttft_s > 0.5).mean(), rel=1e-5)
    assert dots["y"] == pytest.approx([0.1, 0.01, 0.001], rel=0.05)
    assert dots["x"][1:] == pytest.approx([results.summary["ttft_s"][level] for level in ("p99", "p99.9")], rel=1e-4)
    assert [shape["x0"] for shape in layout["shapes"]] == [0.5]
    assert layout["annotations"][-1]["text"].startswith("<b>SLO 500 ms</b>: ")


def test_the_tail_of_unanswered_requests_stays_where_they_are_to_the_edge_of_the_chart() -> None:
    results = synthetic(2000, share_answered=0.75)
    drawn = figures(render(results))["ttft-tail"]
    line = drawn["data"][0]
    inside = results.columns["requests"]["in_window"]
    unanswered = float(np.isnan(results.columns["requests"]["ttft_s"][inside]).mean())
    assert line["y"][-1] == line["y"][-2] == pytest.approx(unanswered, rel=1e-5)
    assert line["x"][-1] == pytest.approx(10 ** drawn["layout"]["xaxis"]["range"][1], rel=1e-4)


def test_a_p999_of_few_requests_is_not_drawn() -> None:
    texts = [each["text"] for each in figures(render(synthetic(2000)))["ttft-tail"]["layout"]["annotations"]]
    assert [text.split()[0] for text in texts] == ["p90", "p99", "<b>SLO"]


def test_captions_say_what_a_chart_leaves_out() -> None:
    page = words(render(synthetic(20_000, share_answered=0.9))).replace("\u00a0", " ")
    assert re.search(r"[12],\d{3} requests without a full answer count as longer than any time\.", page)
    assert re.search(r"Drawn through 400 of 1\d,\d{3} values, denser toward both ends\.", page)
    assert re.search(
        r"an even sample of 3,000 of 1\d,\d{3} requests; [12],\d{3} without a full answer have none\.", page
    )
    assert "Arrivals are means over 2 s, the other panels over 2 s." in page
    few = words(render(synthetic(30)))
    assert "No lines of p50 and p99: fewer than 20 requests in a group of prompt length." in few
    assert '<span class="key k0">p50' not in few


def test_six_pools_have_six_keys() -> None:
    page = render(synthetic(300, pools=tuple("abcdef"), n_replicas=1))
    keys = re.findall(r'<span class="key ([^"]*)">([a-f])</span>', page)
    assert keys == [("k1", "a"), ("k3", "b"), ("k4", "c"), ("k2", "d"), ("dash k1", "e"), ("dash k3", "f")]


def test_answers_of_one_token_count_as_within_every_tpot() -> None:
    results = synthetic(400)
    inside = np.flatnonzero(results.columns["requests"]["in_window"])
    results.columns["requests"]["tpot_s"][inside[: len(inside) // 2]] = np.nan
    results.columns["requests"]["output_tokens"][inside[: len(inside) // 2]] = 1
    line = figures(render(results))["tpot"]["data"][0]
    assert line["y"][0] > 0.5
    assert line["y"][-1] == 1


def test_requests_that_were_never_answered_keep_the_curve_from_the_top() -> None:
    results = synthetic(2000, share_answered=0.75)
    inside = results.columns["requests"]["in_window"]
    line = figures(render(results))["ttft"]["data"][0]
    assert line["y"][-1] == pytest.approx((~np.isnan(results.columns["requests"]["ttft_s"][inside])).mean())


def test_the_scatter_is_a_sample_that_says_so(page: str) -> None:
    dots = figures(page)["prompt"]["data"][0]
    assert len(dots["x"]) == len(dots["y"]) == 3000
    assert "an even sample of 3,000 of" in page


def test_the_timeline_counts_every_arrival_once(results: Results, page: str) -> None:
    missed, met = figures(page)["time"]["data"][:2]
    width_s = (met["x"][1] - met["x"][0]) * 60
    assert len(met["x"]) <= 600
    assert sum(met["y"]) * width_s == pytest.approx(results.columns["requests"]["slo_met"].sum(), rel=1e-3)
    assert sum(missed["y"]) * width_s == pytest.approx((~results.columns["requests"]["slo_met"]).sum(), rel=1e-3)


def test_the_timeline_shows_bursts_and_at_most_600_points(results: Results, page: str) -> None:
    tracks = figures(page)["time"]["data"][2:]
    assert {len(track["x"]) for track in tracks} == {450}
    peak = next(track for track in tracks if track["name"] == "serve highest")
    assert max(peak["y"]) == pytest.approx(results.columns["timeseries"]["queue_len"].max(), rel=1e-3)


def test_pools_have_lines_of_their_own() -> None:
    drawn = figures(render(synthetic(500, pools=("prefill", "decode"))))
    names = {trace["name"].removesuffix(" mean").removesuffix(" highest") for trace in drawn["time"]["data"][2:]}
    assert names == {"prefill", "decode"}


def test_prompts_of_one_length_are_not_drawn_against_it() -> None:
    page = render(synthetic(100, prompt_tokens=512))
    assert "prompt" not in figures(page)
    assert "All prompts have 512 tokens" in page


def test_there_is_a_row_for_every_replica(page: str) -> None:
    table = words(page).split('id="replicas"')[1].split("</table>")[0]
    assert table.count("<tr>") == 3


@pytest.mark.parametrize(
    "results",
    [
        synthetic(0),
        synthetic(1),
        synthetic(1, duration_s=0.4),
        synthetic(50, share_answered=0),
        synthetic(50, slo={}),
        synthetic(50, slo={"e2e_s": 3.0, "itl_s": 0.1}),
        synthetic(50, n_replicas=100),
    ],
    ids=["no request", "one request", "a short run", "nothing finished", "no SLO", "other SLOs", "many replicas"],
)
def test_whatever_the_run_the_page_has_all_sections_and_no_stray_nothing(results: Results) -> None:
    page = render(results)
    assert Outline(page).ids("section") == SECTIONS
    assert not re.search(r"\b(nan|NaN|None(?! of)|inf)\b", re.sub(r"<style>.*?</style>", "", words(page), flags=re.S))


def test_a_page_without_charts_carries_no_plotly() -> None:
    page = render(synthetic(0))
    assert "application/gzip" not in page
    assert len(page) < 50_000


def test_each_mechanism_has_a_heading_of_its_own_and_only_where_it_did_something() -> None:
    routed = {"outstanding_std": 2.0, "busiest_frac": 0.6, "session_kept_frac": None}
    speculated = {"tokens_per_step": 3.1, "accepted_frac": 0.52, "drafting_frac": 0.16}
    page = render(
        synthetic(200, routing=routed, speculation=speculated, prefix_cache={"hit_frac": 0.0}, host_tier=None)
    )
    text = page.split('id="mechanisms"')[1].split("</section>")[0]
    assert re.findall("<h3>(.*?)</h3>", text) == ["Routing", "Speculative decoding"]
    assert text.index("Requests sent to the busiest") < text.index("Tokens per request and step")
