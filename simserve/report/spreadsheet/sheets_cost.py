"""The sheets of costs: inputs in marked cells with formulas that follow them, and what growth costs month by month."""

from collections.abc import Callable
from dataclasses import dataclass

from simserve.report.spreadsheet.cost import (
    CAPACITY_NAME,
    Basis,
    CostAtLoad,
    Formulas,
    Known,
    gpus_name,
    grown,
    price_name,
)
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
    "Type into the yellow cells; all else are formulas that follow. The demand by what a unit holds, at the share of it"
    " that is to be used, is rounded up to whole units. Capacity is taken to grow in proportion to them, which errs on "
    "the careful side: larger fleets even out bursts. Prices are the catalog's unless given; yours will differ."
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
    columns = (
        SheetColumn("Item", "text"),
        SheetColumn("Value", "rate"),
        SheetColumn("After growth", "rate"),
        SheetColumn("Unit", "text"),
        SheetColumn("Where it comes from", "tall"),
    )
    paid = basis.prices.items()
    prices = [_input(gpu, price_name(gpu), price, "usd USD a GPU-hour", (0, 1e4)) for gpu, price in paid]
    groups = (
        SheetGroup("Inputs", _inputs(basis)),
        SheetGroup("Prices", prices),
        SheetGroup("Outputs", _outputs(basis)),
    )
    return Sheet("Cost", "What it costs", NOTE, "Part", columns, groups)


def _inputs(basis: Basis) -> list[Row]:
    unit = basis.unit
    return [
        _input("Demand", "demand_per_s", basis.demand_per_s, "rate requests/s", (0, 1e9)),
        _input(
            f"One {unit} holds",
            "holds_per_s",
            basis.holds_per_s,
            "rate requests/s",
            (0, 1e9),
            None if basis.capacity is None else f"={CAPACITY_NAME}",
        ),
        *(
            _input(f"{gpu} in a {unit}", gpus_name(gpu), Known(float(n), SIMULATED), "count GPUs", (0, 1e5))
            for gpu, n in basis.gpus.items()
        ),
        _input("Of that to be used", "target_frac", basis.target_frac, "share share", (0.05, 1)),
        _input(f"Spare {unit}s", "spare_units", basis.spare_units, f"count {unit}s", (0, 1e4)),
        _input("Mean load by demand", "mean_frac", basis.mean_frac, "share share", (0.01, 1)),
        _input("Prompt tokens", "prompt_tokens", basis.prompt_tokens, "rate tokens a request", (0, 1e9)),
        _input("Output tokens", "output_tokens", basis.output_tokens, "rate tokens a request", (0, 1e9)),
        _input("Good requests", "good_frac", basis.good_frac, "share share", (0, 1)),
        _input("Growth", "growth_per_month", basis.growth_frac, "share share a month", (-0.5, 2)),
        _input("Months ahead", "months_ahead", basis.months_ahead, "count months", (0, 120)),
        _input("Hours a month", "hours_per_month", basis.hours_per_month, "count h", (1, 744)),
    ]


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
            f"{units.capitalize()} needed", "units", f"count {units}", Formulas.needed_units, lambda cost: cost.units
        ),
        _Output("GPUs needed", "gpus", "count GPUs", Formulas.gpus, lambda cost: cost.gpus),
        _Output("Used of what they hold", "used", "share share", Formulas.used_frac, lambda cost: cost.used_frac, use),
        _Output("Cost a month", "usd_per_month", "dollars USD", Formulas.cost_a_month, lambda cost: cost.usd_per_month),
        _Output(
            "Requests a month",
            "requests_per_month",
            "dollars requests",
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
        Cell(paid, formula="=N([^Cost so far])+N([Cost a month])" if month else "=0*[Month]"),
        Cell(cost.usd_per_million(1.0), formula=here.usd_per_million("1")),
        Cell(cost.usd_per_million(basis.good_tokens), formula=here.usd_per_million("output_tokens*good_frac")),
        *([basis.simulated_gpus.get(month)] if basis.simulated_gpus else []),
    )
