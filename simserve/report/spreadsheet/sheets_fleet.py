"""The sheet of fleets that were compared, with costs that follow the prices of the cost sheet."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simserve.metrics.result_folder import ResultFolder
from simserve.report.spreadsheet.cost import Basis, price_name
from simserve.report.spreadsheet.cost_sources import sweep_gpu, sweep_price
from simserve.report.spreadsheet.sheets import Cell, Chart, ChartSeries, Sheet, SheetColumn, Value, at, ms, tabulated

COLUMNS = (
    SheetColumn("Option", "text"),
    SheetColumn("Rank", "count"),
    SheetColumn("State", "text"),
    SheetColumn("Close call", "text"),
    SheetColumn("GPU", "text"),
    SheetColumn("TP", "count"),
    SheetColumn("How", "text"),
    SheetColumn("Needed", "count", "replicas"),
    SheetColumn("Replicas", "count"),
    SheetColumn("Prefill", "count", "replicas"),
    SheetColumn("Decode", "count", "replicas"),
    SheetColumn("GPUs", "count"),
    SheetColumn("Price", "usd", "USD a GPU-hour"),
    SheetColumn("Cost a month", "dollars", "USD"),
    SheetColumn("Per million good requests", "usd", "USD"),
    SheetColumn("Per million output tokens", "usd", "USD"),
    SheetColumn("Per million tokens", "usd", "USD"),
    SheetColumn("Per million good tokens", "usd", "USD"),
    SheetColumn("Energy a month", "dollars", "kWh"),
    SheetColumn("Offered", "rate", "requests/s"),
    SheetColumn("Goodput", "rate", "requests/s"),
    SheetColumn("Attained", "share", "share"),
    SheetColumn("Attained, low", "share", "share"),
    SheetColumn("Attained, high", "share", "share"),
    SheetColumn("Spare ones up", "share", "share attained"),
    SheetColumn("One fewer", "share", "share attained"),
    SheetColumn("Queue only grows", "text"),
    SheetColumn("Meets the goal", "text"),
    SheetColumn("On the front", "text"),
    SheetColumn("TTFT p99", "ms", "ms"),
    SheetColumn("TPOT p99", "ms", "ms"),
    SheetColumn("E2E p99", "ms", "ms"),
    SheetColumn("Busy", "share", "share"),
    SheetColumn("Outgrown in month", "count"),
    SheetColumn("Reason", "tall"),
)

PLAN = {
    "Rank": "rank",
    "State": "state",
    "GPU": "gpu",
    "TP": "tensor",
    "How": "how",
    "Needed": "needed_replicas",
    "Replicas": "replicas",
    "Prefill": "prefill_replicas",
    "Decode": "decode_replicas",
    "GPUs": "gpus",
    "Energy a month": "kwh_per_month",
    "Offered": "offered_per_s",
    "Attained": "attained_frac",
    "Attained, low": "attained_low_frac",
    "Attained, high": "attained_high_frac",
    "Spare ones up": "all_up_attained_frac",
    "One fewer": "fewer_attained_frac",
    "Busy": "busy_frac",
    "Outgrown in month": "outgrown_month",
    "Reason": "reason",
}
"""Keys of a plan's option by head."""

SAME_PRICE = 1e-6
"""Relative difference of prices that divisions leave."""

LATENCIES = ("TTFT", "TPOT", "E2E")

NOTE = (
    "Costs are formulas: they follow the prices and the hours a month of the sheet Cost, and what is yellow here. "
    "Needed is the fewest replicas that hold the SLO, replicas has the spare ones, too. A close call may by chance "
    "alone be ranked behind the first. Attained is the share of requests that met every SLO. Options on the front are "
    "beaten by no other in both cost and goodput."
)

Cells = dict[str, Value | Cell]


def fleet_options(studies: Sequence[ResultFolder], basis: Basis | None) -> Sheet:
    """Return a row an option of a plan, a point of a sweep, or a number of replicas."""
    rows = {"plan": _plan, "sweep": _sweep, "capacity": _replicas}
    tables = [(study.title, rows[study.command](study.answer, basis)) for study in studies]
    columns, groups = tabulated(COLUMNS, tables)
    charts = [
        _chart(study, number)
        for number, (study, (_, table)) in enumerate(zip(studies, tables, strict=True))
        if any("Cost a month" in row for row in table)
    ]
    return Sheet("Fleet options", "Fleets that were weighed", NOTE, "Study", columns, groups, tuple(charts))


def _chart(study: ResultFolder, number: int) -> Chart:
    """Return a chart of cost against goodput of a sweep, else of the cost of each option."""
    if study.command == "sweep":
        return Chart(
            f"Goodput by cost: {study.label}", "points", number, "Cost a month", (ChartSeries("Goodput"),), "requests/s"
        )
    return Chart(f"Cost a month: {study.label}", "bars", number, "Option", (ChartSeries("Cost a month"),), "USD")


def _plan(result: Mapping[str, Any], basis: Basis | None) -> list[Cells]:
    rows = []
    for option in result["options"]:
        cells: Cells = {"Option": str(option["option"]), **{head: option.get(key) for head, key in PLAN.items()}}
        cells |= {f"{name} p99": ms(at(option, f"{name.lower()}_p99_s")) for name in LATENCIES}
        cells["Close call"] = _text(option.get("close_call"))
        gpus, price, hours = (
            at(option, "gpus"),
            at(option, "usd_per_gpu_hour"),
            at(result, "assumed", "hours_per_month"),
        )
        if gpus and price and hours and basis is not None:
            cells |= _costs(str(option["gpu"]), gpus, price, basis) | _per_million(option, gpus * price, hours)
        rows.append(cells)
    return rows


def _per_million(option: Mapping[str, Any], usd_per_hour: float, hours: float) -> Cells:
    """Return costs per million tokens of the load."""
    totals = {
        f"Per million {what}": at(option, f"{what.replace(' ', '_')}_per_month")
        for what in ("output tokens", "tokens", "good tokens")
    }
    bought = {head: total / hours for head, total in totals.items() if total}
    return {head: _of_hourly(usd_per_hour, an_hour) for head, an_hour in bought.items()}


def _of_hourly(usd_per_hour: float, bought: float) -> Cell:
    """Return the cost of a million, of which an hour buys `bought`."""
    return Cell(usd_per_hour / bought * 1e6, formula=f"=[GPUs]*[Price]/{bought!r}*10^6")


def _sweep(result: Mapping[str, Any], basis: Basis | None) -> list[Cells]:
    front = set(result["fronts"]["cost_goodput"])
    return [_point(result, point, point["point"] in front, basis) for point in result["points"]]


def _point(result: Mapping[str, Any], point: Mapping[str, Any], is_on_front: bool, basis: Basis | None) -> Cells:
    measures, fleet = point["measures"], point["fleet"]
    good = at(measures, "goodput.per_s", "value")
    cells: Cells = {
        "Option": _name(point),
        "State": str(point["status"]),
        "Goodput": good,
        "Attained": at(measures, "slo_attainment.frac", "value"),
        "Attained, low": at(measures, "slo_attainment.frac", "low"),
        "Attained, high": at(measures, "slo_attainment.frac", "high"),
        "Queue only grows": _text(point["saturated"]),
        "Meets the goal": _text(point["meets_goal"]),
        "On the front": _text(is_on_front),
        "Reason": point["reason"],
        **{f"{name} p99": ms(at(measures, f"{name.lower()}_s.p99", "value")) for name in LATENCIES},
    }
    if fleet is None:
        return cells
    gpu, price = sweep_gpu(point), sweep_price(point)
    cells |= {"GPU": gpu, "GPUs": fleet["n_gpus"], **_costs(gpu, fleet["n_gpus"], price, basis)}
    if good and "Price" in cells:
        cells["Per million good requests"] = _of_hourly(fleet["n_gpus"] * price, good * 3600)
    return cells


def _name(point: Mapping[str, Any]) -> str:
    """Return `1: gpu h200-sxm, tensor 2`."""
    values = [f"{key.rpartition('.')[2]} {value}" for key, value in point["values"].items()]
    return f"{point['point']}: {', '.join(values)}"


def _replicas(result: Mapping[str, Any], basis: Basis | None) -> list[Cells]:
    """Return rows of numbers of replicas of one pool."""
    pools = result.get("pools") or []
    rows = []
    for point in result["points"]:
        replicas = int(point["replicas"])
        cells: Cells = {
            "Option": f"{replicas} × {result['pool']}",
            "Replicas": replicas,
            "Offered": at(point, "offered_per_s"),
            "Attained": at(point, "attained_frac"),
            "Attained, low": at(point, "low_frac"),
            "Attained, high": at(point, "high_frac"),
            "Queue only grows": _text(point.get("saturated")),
            **{f"{name} p99": ms(at(point, f"{name.lower()}_s", "p99")) for name in LATENCIES},
        }
        n_gpus, hourly = at(result, "answer", "fleet", "n_gpus"), at(result, "answer", "fleet", "usd_per_hour")
        if len(pools) == 1 and n_gpus and hourly is not None:
            gpu, gpus = str(pools[0]["gpu"]), replicas * int(pools[0]["gpus_per_replica"])
            cells |= {"GPU": gpu, "GPUs": gpus, **_costs(gpu, gpus, hourly / n_gpus, basis)}
        rows.append(cells)
    return rows


def _costs(gpu: str, gpus: float, price: float, basis: Basis | None) -> Cells:
    """Return costs at the price of the cost sheet, where that has the same; else at an input of their own."""
    if basis is None:
        return {}
    known = basis.prices.get(gpu)
    # a price of 2.40 / 3 and the catalog's 0.8 are one
    is_named = known is not None and known.value is not None and math.isclose(known.value, price, rel_tol=SAME_PRICE)
    hours = basis.hours_per_month.value or 0.0
    own = Cell(price, formula=f"={price_name(gpu)}") if is_named else Cell(price, limits=(0, 1e4))
    return {"Price": own, "Cost a month": Cell(gpus * price * hours, formula="=[GPUs]*[Price]*hours_per_month")}


def _text(claim: Any) -> str | None:
    return None if claim is None else "yes" if claim else "no"
