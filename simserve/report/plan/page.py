"""Page of a plan: the fleet to take, its cost, the other options, and growth."""

from collections.abc import Iterable, Mapping
from typing import Any

from simserve.report.document import Headline, page
from simserve.report.formats import interval, plural, rate, share
from simserve.report.plan.charts import costs, hours, months
from simserve.report.plan.reasons import usd
from simserve.report.plan.words import (
    best_of,
    fleet,
    grown,
    option_cells,
    option_name,
    scaled,
    supported,
    table_heads,
    terms,
)
from simserve.report.sections import card, prose, section, table, text, tile


def render(result: Mapping[str, Any]) -> str:
    """Return the page as HTML from the facts of a plan."""
    charts = {"costs": costs(result), "months": months(result), "hours": hours(result)}
    figures = {name: drawn for name, drawn in charts.items() if drawn is not None}
    parts = [
        _options(result, figures),
        _reasons(result),
        _later(result, figures),
        _assumed(result),
        _warning_section(result),
    ]
    made = {
        "simserve": result["version"],
        "scenario": result["scenario"]["digest"],
        "seeds": f"{result['scenario']['seed']} and on, {result['assumed']['n_seeds']} each",
    }
    return page(_headline(result), parts, figures, made)


def _headline(result: Mapping[str, Any]) -> Headline:
    best = best_of(result)
    assumed, name = result["assumed"], result["scenario"]["name"]
    setup = f"{plural(len(result['options']), 'option')} compared with the same requests."
    if best is None:
        return Headline("plan", name, "missed", "No option surely meets the SLO", result["sentence"], (setup,))
    title = f"Take {best['gpus']} × {best['gpu']}: {usd(best['usd_per_month'])} a month"
    spare = plural(assumed["spare_replicas"], "spare replica")
    setup += f" A month is {rate(assumed['hours_per_month'])} hours; {spare} of each kind are in it."
    return Headline("plan", name, best["decision"], title, supported(result, best), (setup,), _tiles(best))


def _tiles(best: Mapping[str, Any]) -> tuple[str, ...]:
    ends = interval(best["attained_low_frac"], best["attained_high_frac"])
    per = [
        prose(f"{usd(best['usd_per_m_output_tokens'])} good or not"),
        prose(f"{usd(best['usd_per_m_tokens'])} with prompts"),
    ]
    return (
        tile("Fleet", plural(best["gpus"], "GPU"), [prose(fleet(best))]),
        tile("Cost a month", usd(best["usd_per_month"]), [prose(f"{usd(best['usd_per_hour'])} an hour")]),
        tile("Per M good tokens", usd(best["usd_per_m_good_tokens"]), per),
        tile(
            "SLO attainment",
            share(best["attained_frac"]),
            [prose(f"95% CI {ends}"), prose(f"{best['n_seeds']} seeds")],
        ),
        tile("kWh a month", rate(best["kwh_per_month"]), [prose(f"at most {rate(best['kwh_per_month_at_tdp'])}")]),
        tile("Busy", share(best["busy_frac"]), ["of the time, with a step in progress"]),
    )


def _options(result: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    n_missed = sum(row["state"] != "holds" for row in result["options"])
    left_out = f" Not drawn, as not sure to meet it: {plural(n_missed, 'option')}." if n_missed else ""
    note = f"Options that meet the SLO. Whiskers reach to the smallest statistically tied fleet.{left_out}"
    chart = card("costs", figures, "Cost a month", note, (), "No option surely meets the SLO.")
    rows = [(text(option_name(row)), option_cells(row, best_of(result))[1:]) for row in result["options"]]
    marked = any(row["calibrated"] is False for row in result["options"])
    sentence = "Best first." + (" *: step costs are uncalibrated." if marked else "")
    return section("options", "Options", sentence, chart + table(table_heads(), rows))


def _reasons(result: Mapping[str, Any]) -> str:
    """Return a paragraph for each option."""
    pairs = [(option_name(row), row["reason"]) for row in result["options"]]
    return section("reasons", "Why this option", "", _pairs(pairs))


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names with their sentences."""
    sentence = "".join(
        f"<div><dt>{text(name)}</dt><dd>{prose(value[:1].upper() + value[1:])}</dd></div>" for name, value in pairs
    )
    return f'<dl class="said">{sentence}</dl>'


def _later(result: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """Return the growth of the fleet by month and its needs by hour."""
    cards = ""
    if result["growth"] is not None:
        cards += card("months", figures, "GPUs by month", grown(result), (), "")
    if result["autoscaling"] is not None:
        cards += card("hours", figures, "GPUs by hour, at best", scaled(result), (), "")
    return section("later", "As demand changes", "", cards) if cards else ""


def _assumed(result: Mapping[str, Any]) -> str:
    """Return the assumptions."""
    assumed, demand = result["assumed"], result["demand"]
    prices = ", ".join(f"{gpu} {usd(price)}" for gpu, price in assumed["usd_per_gpu_hour"].items())
    given = f"; given: {', '.join(assumed['given_prices'])}" if assumed["given_prices"] else ", the catalog's"
    spare = plural(assumed["spare_replicas"], "replica")
    facts = [
        ("Demand", f"{rate(demand['sized_for_per_s'])} requests/s sized for, {rate(demand['mean_per_s'])} on average"),
        ("Goal", f"{share(result['goal_frac'])} of requests meet every SLO"),
        ("SLO", terms(result)),
        (
            "Failures",
            f"the goal holds with {spare} of each kind down throughout; the moment of failover is not simulated",
        ),
        ("Prices", f"dollars per GPU-hour: {prices}{given}"),
        ("Energy", assumed["energy"]),
        ("Largest fleet", plural(assumed["max_gpus"], "GPU")),
    ]
    return section("assumed", "Assumed", "", _pairs(facts))


def _warning_section(result: Mapping[str, Any]) -> str:
    """Return the warnings of the plan and those of every plan."""
    fixed = [
        "Only GPU-hours are priced: no network, storage, staff or other fees of a provider.",
        "Check prices (--price) and the scenario's load before you buy.",
    ]
    sentence = [each[:1].upper() + each[1:] + ("" if each.endswith(".") else ".") for each in result["warnings"]]
    items = "".join(f"<li>{prose(each)}</li>" for each in sentence + fixed)
    return f'<section class="trust" id="trust"><h2>What to trust</h2><ul>{items}</ul></section>'
