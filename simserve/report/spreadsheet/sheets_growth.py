"""The sheet of growth: month by month, what a load that grows needs and costs."""

from simserve.report.spreadsheet.cost import CostAtLoad, Formulas, grown
from simserve.report.spreadsheet.cost_basis import Basis
from simserve.report.spreadsheet.sheets import Cell, Chart, ChartSeries, Row, Sheet, SheetColumn, SheetGroup

MONTHS = 12

SIMULATED = SheetColumn("GPUs by simulation", "count", "at the plan's growth")

SIMULATED_NOTE = " The last column is what the plan found by simulation, at its own growth: it follows no input."

NOTE = (
    "Month 0 is today; what is paid is summed from month 1 on. Everything follows the inputs of the sheet Cost: change "
    "growth, price or headroom there."
)


def growth(basis: Basis) -> Sheet:
    """Return a row a month."""
    columns = (
        SheetColumn("Month", "count"),
        SheetColumn("Demand", "rate", "requests/s"),
        SheetColumn("Units", "count", f"{basis.unit}s"),
        SheetColumn("GPUs", "count"),
        SheetColumn("Cost a month", "dollars", "USD"),
        SheetColumn("Cost so far", "dollars", "USD"),
        SheetColumn("Per million requests", "usd", "USD"),
        SheetColumn("Per million good output tokens", "usd", "USD"),
        *([SIMULATED] if basis.simulated_gpus else []),
    )
    charts = (
        Chart("GPUs needed", "bars", 0, "Month", (ChartSeries("GPUs"),), "GPUs"),
        Chart("Cost a month", "bars", 0, "Month", (ChartSeries("Cost a month"),), "USD"),
    )
    group = SheetGroup(" and ".join(basis.gpus), _rows(basis))
    note = NOTE + (SIMULATED_NOTE if basis.simulated_gpus else "")
    return Sheet("Growth", "Twelve months of growth", note, "Fleet", columns, (group,), charts)


def _rows(basis: Basis) -> list[Row]:
    rows, paid = [], 0.0
    for month in range(MONTHS + 1):
        cost = grown(basis, month)
        paid += (cost.usd_per_month or 0.0) if month else 0.0
        rows.append(_row(basis, month, cost, paid))
    return rows


def _row(basis: Basis, month: int, cost: CostAtLoad, paid: float) -> Row:
    here = Formulas(basis, "[Demand]", "[Units]", "[Cost a month]")
    return (
        month,
        Cell(cost.demand_per_s, formula=here.demand_after("[Month]")),
        Cell(cost.units, formula=here.needed_units()),
        Cell(cost.gpus, formula=here.gpus()),
        Cell(cost.usd_per_month, formula=here.cost_a_month()),
        Cell(paid, formula="=N([^Cost so far])+N([Cost a month])" if month else "=0*[Month]"),
        Cell(cost.usd_per_million(1.0), formula=here.usd_per_million("1")),
        Cell(cost.usd_per_million(basis.good_tokens), formula=here.usd_per_million("output_tokens*good_frac")),
        *([basis.simulated_gpus.get(month)] if basis.simulated_gpus else []),
    )
