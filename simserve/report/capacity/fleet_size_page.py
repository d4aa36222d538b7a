"""Page of a fleet size: the replicas that a load needs, and attainment against replicas."""

from collections.abc import Mapping
from typing import Any

from simserve.report.capacity.fleet_size import sentence, table_rows
from simserve.report.capacity.load_charts import LoadAxis, attainment_chart, below_chart
from simserve.report.capacity.load_curve import REPLICAS
from simserve.report.capacity.tail_tiles import tail_tiles
from simserve.report.cards import card
from simserve.report.formats import interval, listed, plural, rate, share
from simserve.report.sections import pool_words, prose, section, table, text, tile
from simserve.report.study_page import Headline, study_page
from simserve.report.study_warnings import made_from, warning_section

Facts = Mapping[str, Any]


def render(result: Facts) -> str:
    """Return the page as HTML, from what `simserve capacity --replicas --json` prints."""
    answer = result["answer"]
    at = None if answer is None else {"value": answer["replicas"], "low": None, "high": None}
    loads = LoadAxis(REPLICAS, at)
    figures = {"attainment": attainment_chart(result["points"], result["goal_frac"], loads)}
    figures["attainment"]["layout"]["xaxis"]["tickvals"] = [point["replicas"] for point in result["points"]]
    note = "Share of requests that met every SLO, with its 95% CI." + below_chart(result["points"], result["goal_frac"])
    keys = [("k1", "attained"), ("dash k2", "goal"), ("k0", "answer")]
    chart = card("attainment", figures, "", note, keys, "")
    head, *rows = table_rows(result)
    body = table(["Replicas", *head[1:]], [(text(row[0]), row[1:]) for row in rows])
    parts = (
        section("curve", "Attainment against replicas", "", chart),
        section("tried", "All numbers of replicas", "Means over runs; all use the same seeds.", body),
        warning_section(result),
    )
    return study_page(_headline(result), parts, figures, made_from(result))


def _headline(result: Facts) -> Headline:
    answer, name = result["answer"], result["scenario"]["name"]
    setup = f"{listed([pool_words(pool) for pool in result['pools']])}."
    if answer is None:
        state = "edge" if result.get("tied") else "missed"
        title = f"More than {plural(result['points'][-1]['replicas'], 'replica')}"
        return Headline("capacity", name, state, title, sentence(result), setup)
    fleet = answer["fleet"]
    title = f"{plural(answer['replicas'], 'replica')} of {result['pool']}, {plural(fleet['n_gpus'], 'GPU')} in all"
    point = next(each for each in result["points"] if each["replicas"] == answer["replicas"])
    ci = f"95% CI {interval(answer['low_frac'], answer['high_frac'])}"
    tiles = [
        tile("SLO attainment", share(point["attained_frac"]), [prose(ci)]),
        tile(
            "Load",
            f"{rate(point['offered_per_s'])}/s",
            [prose(f"{rate(point['offered_per_s'] / fleet['n_gpus'])}/s per GPU")],
        ),
    ]
    if fleet["usd_per_hour"]:
        tiles.append(tile("Price", f"{fleet['usd_per_hour']:,.2f} $", [prose("per hour, at catalog prices")]))
    tiles.append(tile("Power", f"{fleet['kw']:.3g} kW", [prose("rated, from data sheets")]))
    return Headline("capacity", name, answer["decision"], title, sentence(result), setup, (*tiles, *tail_tiles(point)))
