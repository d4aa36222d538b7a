"""The sheets of costs: inputs in marked cells with formulas that follow them, and what growth costs month by month."""

from collections.abc import Callable
from dataclasses import dataclass

from simserve.report.spreadsheet.cost import Basis, CostAtLoad, Known, grown
from simserve.report.spreadsheet.formulas import CAPACITY_NAME, Formulas, gpus_name, price_name
from simserve.report.spreadsheet.sheets import (
    Cell,
    Chart,
    ChartSeries,
    Form,
    Row,
    Sheet,
    SheetColumn,
    SheetGroup,
    form_and_unit,
)

NOTE = (
    "Type into the yellow cells; all else are formulas that follow. Prices on demand are the catalog's unless given; "
    "yours will differ. Owned is the purchase over its years, and power at TDP; staff, space and interest are left out."
)

SIZED = "By the sheet Simulated fleets, and spare ones."
LINEAR = (
    "Linear estimate: the demand by what one holds, pooling gains left out; fewer than were simulated may miss the SLO."
)

SIMULATED = "The fleet that was simulated."

MONTHS = 12

GROWTH_NOTE = (
    "Month 0 is today; what is paid is summed from month 1 on. Everything follows the inputs of the sheet Cost: change "
    "growth, price or headroom there."
)

SIMULATED_NOTE = " The last column is what the plan found by simulation, at its own growth: it follows no input."


def cost(basis: Basis) -> Sheet:
    """Return the sheet of inputs and outputs."""
    numbers = (SheetColumn("Value", "rate"), SheetColumn("After growth", "rate"))
    words = (SheetColumn("Unit", "text"), SheetColumn("Where it comes from", "tall"))
    columns = (SheetColumn("Item", "text"), *numbers, *words)
    paid = basis.prices.items()
    prices = [_input(gpu, price_name(gpu), price, "usd USD a GPU-hour", (0, 1e4)) for gpu, price in paid]
    parts = {"Inputs": _inputs(basis), "Prices": prices, "Outputs": _outputs(basis)}
    groups = tuple(SheetGroup(title, rows) for title, rows in parts.items())
    return Sheet("Cost", "What it costs", NOTE, "Part", columns, groups)


def _inputs(basis: Basis) -> list[Row]:
    unit, scaled = basis.unit, [_input("Scaled by", "scaled_frac", basis.scaled_frac, "share of GPU-hours", (0.01, 2))]
    return [
        _input("Demand", "demand_per_s", basis.demand_per_s, "rate requests/s", (0, 1e9)),
        _holds(basis),
        *(
            _input(f"{gpu} in a {unit}", gpus_name(gpu), Known(float(n), SIMULATED), "count GPUs", (0, 1e5))
            for gpu, n in basis.gpus.items()
        ),
        _input("Of that to be used", "target_frac", basis.target_frac, "share share", (0.05, 1)),
        _input(f"Spare {unit}s", "spare_units", basis.spare_units, f"count {unit}s", (0, 1e4)),
        _input("Mean load by demand", "mean_frac", basis.mean_frac, "share share", (0.01, 1)),
        *(scaled if basis.is_scaled else []),
        _input("Prompt tokens", "prompt_tokens", basis.prompt_tokens, "rate tokens a request", (0, 1e9)),
        _input("Output tokens", "output_tokens", basis.output_tokens, "rate tokens a request", (0, 1e9)),
        _input("Good requests", "good_frac", basis.good_frac, "share share", (0, 1)),
        _input("Growth", "growth_per_month", basis.growth_frac, "share share a month", (-0.5, 2)),
        _input("Months ahead", "months_ahead", basis.months_ahead, "count months", (0, 120)),
        _input("Hours a month", "hours_per_month", basis.hours_per_month, "count h", (1, 744)),
        _input("Discount of reserved", "reserved_discount", basis.reserved_discount, "share share", (0, 1)),
        _input("Purchase of a GPU", "usd_per_gpu", basis.usd_per_gpu, "dollars USD", (0, 1e7)),
        _input("Years owned", "years_owned", basis.years_owned, "rate years", (0.5, 20)),
        _input("Power of a GPU", "watts_per_gpu", basis.watts_per_gpu, "count W", (0, 1e5)),
        _input("Power of all by that of GPUs", "pue", basis.pue, "rate", (1, 5)),
        _input("Price of energy", "usd_per_kwh", basis.usd_per_kwh, "usd USD/kWh", (0, 10)),
    ]


def _holds(basis: Basis) -> Row:
    """Return what one unit holds: an input, or the most that a simulated fleet holds."""
    label, known = f"One {basis.unit} holds", basis.holds_per_s
    if basis.met:
        held = Cell(known.value, formula="=SUMPRODUCT(MAX(met_loads/met_replicas))", name="holds_per_s")
        return (label, held, None, "requests/s", known.origin)
    formula = None if basis.capacity is None else f"={CAPACITY_NAME}"
    return _input(label, "holds_per_s", known, "rate requests/s", (0, 1e9), formula)


def _input(
    label: str, name: str, known: Known, reads: str, limits: tuple[float, float], formula: str | None = None
) -> Row:
    """Return the row of an input; `reads` is its form and unit, `formula` refers to where its number stands."""
    form, unit = form_and_unit(reads)
    return (label, Cell(known.value, form, formula=formula, name=name, limits=limits), None, unit, known.origin)


@dataclass(frozen=True)
class _Output:
    """A row of formulas."""

    label: str
    name: str
    reads: str
    """Form and unit of the values."""
    formula: Callable[[Formulas], str]
    of: Callable[[CostAtLoad], float | None]
    text: str = ""


def _outputs(basis: Basis) -> list[Row]:
    now, then = grown(basis, 0), grown(basis, basis.months_ahead.value or 0.0)
    rows: list[Row] = []
    for each in _rows(basis):
        form, unit = form_and_unit(each.reads)
        cells = (_cell(each, form, "today", now), _cell(each, form, "then", then))
        rows.append((each.label, *cells, unit, each.text))
    return rows


def _cell(each: _Output, form: Form, when: str, result: CostAtLoad) -> Cell:
    names = Formulas(result.basis, f"demand_{when}", f"units_{when}", f"usd_per_month_{when}")
    return Cell(each.of(result), form, formula=each.formula(names), name=f"{each.name}_{when}")


def _rows(basis: Basis) -> list[_Output]:
    units = f"{basis.unit}s"
    use = "At the demand; the rest is headroom, spare ones and what rounding up adds."
    return [
        _Output(
            "Demand",
            "demand",
            "rate requests/s",
            lambda names: names.demand_after("0" if names.units == "units_today" else "months_ahead"),
            lambda cost: cost.demand_per_s,
        ),
        _Output(
            f"{units.capitalize()} needed",
            "units",
            f"count {units}",
            Formulas.needed_units,
            lambda cost: cost.units,
            SIZED if basis.met else LINEAR,
        ),
        _Output("GPUs needed", "gpus", "count GPUs", Formulas.gpus, lambda cost: cost.gpus),
        _Output("Used of what they hold", "used", "share share", Formulas.used_frac, lambda cost: cost.used_frac, use),
        *PAID,
        _Output(
            "Requests a month",
            "requests_per_month",
            "whole requests",
            Formulas.requests_a_month,
            lambda cost: cost.requests_per_month,
        ),
        _per_million("requests", "1", 1.0),
        _per_million("good requests", "good_frac", basis.good_frac.value),
        _per_million(
            "tokens",
            "(prompt_tokens+output_tokens)*(prompt_tokens*output_tokens>0)",
            basis.all_tokens,
            "Prompts and answers.",
        ),
        _per_million("output tokens", "output_tokens", basis.output_tokens.value),
        _per_million("good output tokens", "output_tokens*good_frac", basis.good_tokens),
    ]


PAID = (
    _Output("Cost a month", "usd_per_month", "dollars USD", Formulas.cost_a_month, lambda cost: cost.usd_per_month),
    _Output(
        "Reserved a month", "usd_reserved", "dollars USD", Formulas.reserved_a_month, lambda cost: cost.usd_reserved
    ),
    _Output("Owned a month", "usd_owned", "dollars USD", Formulas.owned_a_month, lambda cost: cost.usd_owned),
)
"""The three ways to pay: on demand, reserved, owned."""


def _per_million(what: str, each: str, value: float | None, text: str = "") -> _Output:
    """Return the cost of a million of something that a request has, as a formula and as a number."""
    return _Output(
        f"Per million {what}",
        f"usd_per_million_{what.replace(' ', '_')}",
        "usd USD",
        lambda names: names.usd_per_million(each),
        lambda cost: cost.usd_per_million(value),
        text or ("Of requests that met every SLO." if what.startswith("good") else ""),
    )


def growth(basis: Basis) -> Sheet:
    """Return a row a month."""
    columns = (
        SheetColumn("Month", "count"),
        SheetColumn("Demand", "rate", "requests/s"),
        SheetColumn("Units", "count", f"{basis.unit}s"),
        SheetColumn("GPUs", "count"),
        SheetColumn("Cost a month", "dollars", "USD"),
        SheetColumn("Reserved a month", "dollars", "USD"),
        SheetColumn("Owned a month", "dollars", "USD"),
        SheetColumn("Cost so far", "dollars", "USD"),
        SheetColumn("Per million requests", "usd", "USD"),
        SheetColumn("Per million good output tokens", "usd", "USD"),
        *([SheetColumn("GPUs by simulation", "count", "at the plan's growth")] if basis.simulated_gpus else []),
    )
    charts = (
        Chart("GPUs needed", "bars", 0, "Month", (ChartSeries("GPUs"),), "GPUs"),
        Chart("Cost a month", "bars", 0, "Month", (ChartSeries("Cost a month"),), "USD"),
    )
    rows, paid = [], 0.0
    for month in range(MONTHS + 1):
        cost = grown(basis, month)
        paid += (cost.usd_per_month or 0.0) if month else 0.0
        rows.append(_month(basis, month, cost, paid))
    group = SheetGroup(" and ".join(basis.gpus), rows)
    note = GROWTH_NOTE + (SIMULATED_NOTE if basis.simulated_gpus else "")
    return Sheet("Growth", "Twelve months of growth", note, "Fleet", columns, (group,), charts)


def _month(basis: Basis, month: int, cost: CostAtLoad, paid: float) -> Row:
    here = Formulas(basis, "[Demand]", "[Units]", "[Cost a month]")
    return (
        month,
        Cell(cost.demand_per_s, formula=here.demand_after("[Month]")),
        Cell(cost.units, formula=here.needed_units()),
        Cell(cost.gpus, formula=here.gpus()),
        Cell(cost.usd_per_month, formula=here.cost_a_month()),
        Cell(cost.usd_reserved, formula=here.reserved_a_month()),
        Cell(cost.usd_owned, formula=here.owned_a_month()),
        Cell(paid, formula="=N([^Cost so far])+N([Cost a month])" if month else "=0*[Month]"),
        Cell(cost.usd_per_million(1.0), formula=here.usd_per_million("1")),
        Cell(cost.usd_per_million(basis.good_tokens), formula=here.usd_per_million("output_tokens*good_frac")),
        *([basis.simulated_gpus.get(month)] if basis.simulated_gpus else []),
    )
