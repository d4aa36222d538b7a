"""The sheet of fleets that were compared, with costs that follow the prices of the cost sheet."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simserve.metrics.answers.capacity import ReplicasCapacity
from simserve.metrics.answers.capacity_loads import ProbedLoad
from simserve.metrics.answers.parts import PricedFleet
from simserve.metrics.answers.plan import PlanAnswer
from simserve.metrics.answers.plan_option import PlanOption
from simserve.metrics.answers.sweep import PointOfSweep, SweepAnswer
from simserve.metrics.result_folder import ResultFolder
from simserve.report.spreadsheet.cost import Basis
from simserve.report.spreadsheet.formulas import price_name
from simserve.report.spreadsheet.sheets import (
    Cell,
    Cells,
    Chart,
    ChartSeries,
    Sheet,
    SheetColumn,
    cells_of,
    columns_of,
    ms,
    tabulated,
)

MEAN_GPU = "mean of its GPUs"
"""Name of the GPU of a fleet that mixes several, or does not say which it has."""

OF_OPTION = list(columns_of(PlanOption).values())

PER_MILLION = ("Per million output tokens", "Per million tokens", "Per million good tokens")
BOUGHT = {head: f"{head.removeprefix('Per million ').capitalize()} an hour" for head in PER_MILLION}
"""Columns of what an hour buys, by that of what a million costs."""

MORE = {
    "Cost a month": (SheetColumn("Per million good requests", "usd", "USD"),),
    "GPU-hours a month": tuple(SheetColumn(head, "whole") for head in BOUGHT.values()),
    "Offered": (SheetColumn("Goodput", "rate", "requests/s"),),
    "One fewer": (
        *(column for column in columns_of(PointOfSweep).values() if column not in OF_OPTION),
        SheetColumn("On the front", "text"),
    ),
}
"""Columns that no option of a plan has, by the head that they follow."""

COLUMNS = [each for own in OF_OPTION for each in (own, *MORE.get(own.head, ()))]

PRICED = ("Price", "Cost a month", *PER_MILLION)
"""Columns of formulas, empty where a number of theirs is unknown."""

SAME_PRICE = 1e-6
"""Relative difference of prices that divisions leave."""

LATENCIES = ("TTFT", "TPOT", "E2E")

NOTE = (
    "Costs are formulas: they follow the prices and the hours a month of the sheet Cost, and what is yellow here. "
    "Needed is the fewest replicas that hold the SLO, replicas has the spare ones, too. A close call may by chance "
    "alone be ranked behind the first. Attained is the share of requests that met every SLO. Options on the front are "
    "beaten by no other in both cost and goodput."
)


def fleet_options(studies: Sequence[ResultFolder], basis: Basis | None) -> Sheet:
    """Return a row an option of a plan, a point of a sweep, or a number of replicas."""
    rows: Mapping[str, Callable[[Any, Basis | None], list[Cells]]]
    rows = {"plan": _plan, "sweep": _sweep, "capacity": _replicas}
    tables = [(study.title, rows[study.command](study.answer, basis)) for study in studies]
    columns, groups = tabulated(COLUMNS, tables)
    charts = [
        _chart(study, number)
        for number, (study, (_, table)) in enumerate(zip(studies, tables, strict=True))
        if any(row.get("Cost a month") is not None for row in table)
    ]
    return Sheet("Fleet options", "Fleets that were weighed", NOTE, "Study", columns, groups, tuple(charts))


def _chart(study: ResultFolder, number: int) -> Chart:
    """Return a chart of cost against goodput of a sweep, else of the cost of each option."""
    if study.command == "sweep":
        return Chart(
            f"Goodput by cost: {study.label}", "points", number, "Cost a month", (ChartSeries("Goodput"),), "requests/s"
        )
    return Chart(f"Cost a month: {study.label}", "bars", number, "Option", (ChartSeries("Cost a month"),), "USD")


def _plan(answer: PlanAnswer, basis: Basis | None) -> list[Cells]:
    return [_option(option, answer.assumed.hours_per_month, basis) for option in answer.options]


def _option(option: PlanOption, hours: float | None, basis: Basis | None) -> Cells:
    """Return an option with formulas of what it costs, where that is known."""
    cells: Cells = cells_of(option) | dict.fromkeys(PRICED)
    if option.gpus and option.usd_per_gpu_hour and hours and basis is not None:
        usd_per_hour = option.gpus * option.usd_per_gpu_hour
        cells |= _costs(option.gpu, option.gpus, option.usd_per_gpu_hour, basis)
        cells |= _per_million(option, usd_per_hour, hours)
    return cells


def _per_million(option: PlanOption, usd_per_hour: float, hours: float) -> Cells:
    """Return costs per million tokens of the load."""
    totals = (option.output_tokens_per_month, option.tokens_per_month, option.good_tokens_per_month)
    bought = {head: total / hours for head, total in zip(PER_MILLION, totals, strict=True) if total}
    costs = {head: _of_hourly(usd_per_hour, an_hour, f"[{BOUGHT[head]}]") for head, an_hour in bought.items()}
    return {**costs, **{BOUGHT[head]: an_hour for head, an_hour in bought.items()}}


def _of_hourly(usd_per_hour: float, bought: float, at: str) -> Cell:
    """Return the cost of a million, of which an hour buys `bought`; `at` is that as a formula."""
    return Cell(usd_per_hour / bought * 1e6, formula=f"=[GPUs]*[Price]/({at})*10^6")


def _sweep(answer: SweepAnswer, basis: Basis | None) -> list[Cells]:
    return [_point(point, point.point in answer.fronts.cost_goodput, basis) for point in answer.points]


def _point(point: PointOfSweep, is_on_front: bool, basis: Basis | None) -> Cells:
    means, fleet = point.means, point.fleet
    varied = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in point.values.items())
    cells: Cells = cells_of(point) | {
        "Option": f"{point.point}: {varied}",
        "Goodput": point.goodput_per_s,
        "Attained": means.slo_attainment_frac.value,
        "Attained, low": means.slo_attainment_frac.low,
        "Attained, high": means.slo_attainment_frac.high,
        "On the front": "yes" if is_on_front else "no",
        "TTFT p99": ms(means.ttft_p99_s.value),
        "TPOT p99": ms(means.tpot_p99_s.value),
        "E2E p99": ms(means.e2e_p99_s.value),
    }
    if fleet is None:
        return cells
    gpu, price = sweep_gpu(fleet), sweep_price(fleet)
    cells |= {"GPU": gpu, "GPUs": fleet.n_gpus, **_costs(gpu, fleet.n_gpus, price, basis)}
    if point.goodput_per_s and "Price" in cells:
        cells["Per million good requests"] = _of_hourly(
            fleet.n_gpus * price, point.goodput_per_s * 3600, "[Goodput]*3600"
        )
    return cells


def _replicas(result: ReplicasCapacity, basis: Basis | None) -> list[Cells]:
    """Return rows of numbers of replicas of one pool."""
    return [_number(result, point, point.replicas or 0, basis) for point in result.points]


def _number(result: ReplicasCapacity, point: ProbedLoad, replicas: int, basis: Basis | None) -> Cells:
    cells = cells_of(point) | {
        "Option": f"{replicas} × {result.pool}",
        **{f"{name} p99": ms(point.latency_s(f"{name.lower()}_s", "p99")) for name in LATENCIES},
    }
    if len(result.pools) == 1 and result.answer is not None:
        pool, fleet = result.pools[0], result.answer.fleet
        n_gpus = replicas * pool.gpus_per_replica
        cells |= {"GPU": pool.gpu, "GPUs": n_gpus}
        cells |= _costs(pool.gpu, n_gpus, fleet.usd_per_hour / fleet.n_gpus, basis)
    return cells


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


def sweep_gpu(fleet: PricedFleet) -> str:
    """Return the GPU of a point, if all of its pools have the same."""
    return fleet.gpus[0] if len(fleet.gpus) == 1 else MEAN_GPU


def sweep_price(fleet: PricedFleet) -> float:
    """Return the price of a GPU-hour, a mean over the fleet."""
    return fleet.usd_per_hour / fleet.n_gpus
