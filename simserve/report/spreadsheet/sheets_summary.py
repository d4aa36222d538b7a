"""The first sheet: the answers with their numbers and a chart, what to trust, and what the other sheets hold."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simserve.metrics.answers.capacity import CapacityAnswer
from simserve.metrics.answers.capacity_loads import CriterionLoad
from simserve.metrics.answers.check import CheckAnswer
from simserve.metrics.answers.comparison import ComparisonAnswer
from simserve.metrics.answers.parts import Bounded, FoundLoad
from simserve.metrics.answers.plan import PlanAnswer
from simserve.metrics.answers.sweep import SweepAnswer
from simserve.metrics.figures import Summary
from simserve.metrics.result_folder import ResultFolder
from simserve.metrics.summary_schema import DecisionJson
from simserve.report.capacity.page import paragraphs
from simserve.report.cautions import cautions
from simserve.report.check import words as check
from simserve.report.comparison import words as comparison
from simserve.report.formats import SHORT, interval, plural, slo_terms
from simserve.report.headline import headline, level_of
from simserve.report.percentiles import prediction
from simserve.report.pools import engine_words
from simserve.report.run_view import RunView
from simserve.report.spreadsheet.cost import Basis
from simserve.report.spreadsheet.formulas import CAPACITY_NAME
from simserve.report.spreadsheet.sheets import Cell, Chart, Row, Sheet, SheetColumn, SheetGroup, form_and_unit
from simserve.report.sweep import words as sweep

DECISIVE = ("Fleet options", "Capacity curve", "Percentiles")
"""Sheets with a chart that the first sheet shows too."""


def summary(sources: Sequence[ResultFolder], others: Sequence[Sheet], basis: Basis | None) -> Sheet:
    """Return the sheet: a group a folder, then the other sheets."""
    groups = [SheetGroup(source.title, [*_text(source), *_unit(source, basis)]) for source in sources]
    groups.append(SheetGroup("Sheets", [(sheet.name, Cell(sheet.title, "tall")) for sheet in others]))
    return Sheet(
        "Summary",
        "What was found",
        "The answers, what they stand on, and what the other sheets hold. Units stand in brackets.",
        "About",
        (SheetColumn("Item", "text"), SheetColumn("Value", "tall")),
        tuple(groups),
        borrowed=tuple((sheet, chart) for sheet in others for chart in _decisive(sheet)),
    )


def _decisive(sheet: Sheet) -> list[Chart]:
    """Return the chart of a sheet that shows its answer: costs of fleets, attainment against load, percentiles."""
    if sheet.name not in DECISIVE:
        return []
    return [chart for chart in sheet.charts if chart.y_title == "share" or sheet.name != "Capacity curve"][:1]


def _text(source: ResultFolder) -> list[Row]:
    lines: Mapping[str, Callable[[Any], list[Row]]] = {
        "run": _run,
        "capacity": _capacity,
        "check": _check,
        "compare": _comparison,
        "sweep": _sweep,
        "plan": _plan,
    }
    return [row for row in lines[source.command](source.answer) if row[1] is not None and row[1] != ""]


def _unit(source: ResultFolder, basis: Basis | None) -> list[Row]:
    """Return the row of what one unit holds, which the sheet Cost refers to; none unless it is from this folder."""
    if basis is None or basis.capacity is not source:
        return []
    holds = Cell(basis.holds_per_s.value, "rate", name=CAPACITY_NAME)
    return [(f"One {basis.unit} holds (requests/s)", holds)]


def _run(result: Summary) -> list[Row]:
    reader = RunView(result)
    rows: list[Row] = [("Answer", headline(result)), *_margin(reader.decision)]
    rows += [("Prediction", prediction(reader)), *(("What to trust", text) for text in cautions(reader))]
    for pool in reader.pools:
        replicas = f"{plural(pool.n_replicas, 'replica')} of {pool.model} on {pool.gpus_per_replica} × {pool.gpu}"
        rows.append((f"Pool {pool.name}", f"{replicas} ({engine_words(pool)})"))
    ends = reader.attainment_interval
    rows += [
        ("SLO", slo_terms(reader.slo)),
        _figure("Requests in the window", reader.number("requests.arrived"), "count"),
        _figure("Window", reader.number("window.duration_s"), "rate s"),
        _figure("Offered", reader.number("offered_per_s"), "rate requests/s"),
        _figure("Served", reader.number("served_per_s"), "rate requests/s"),
        _figure("SLO attainment", reader.attainment, "share share"),
        ("SLO attainment, 95% interval", interval(*ends) if ends else None),
        _figure("Goodput", reader.number("goodput.per_s"), "rate requests/s"),
        _figure("Goodput per GPU", reader.number("goodput.per_gpu_s"), "rate requests/s"),
        _figure("Good requests per dollar", reader.number("goodput.per_usd"), "rate requests/USD"),
        _figure("Prompt tokens", reader.number("input_tokens_per_s"), "rate tokens/s"),
        _figure("Output tokens", reader.number("output_tokens_per_s"), "rate tokens/s"),
        _figure("GPUs", reader.n_gpus, "rate" if any(pool.has_changed for pool in reader.pools) else "count"),
        _figure("Busy", reader.number("busy_frac"), "share share"),
        _figure("KV memory, peak of the fullest replica", reader.number("kv.peak_frac"), "share share"),
        _figure("Preemptions", reader.number("preemptions.n"), "count"),
    ]
    return rows + _made(result.version, result.digest, result.seed)


def _margin(decision: DecisionJson | None) -> list[Row]:
    """Return r with its intervals, and the probability that the SLO is met."""
    if decision is None or decision.r is None or decision.r_noise is None or decision.r_total is None:
        return []
    name = f"{level_of(decision)} of latency / limit"
    ends = dict(zip(("low", "high"), decision.r_noise, strict=True))
    ends |= dict(zip(("low with cost error", "high with cost error"), decision.r_total, strict=True))
    return [
        _figure(name, decision.r, "rate"),
        *(_figure(f"{name}, {end}", value, "rate") for end, value in ends.items()),
        _figure("Probability that the SLO is met", decision.probability, "share share"),
    ]


def _capacity(result: CapacityAnswer) -> list[Row]:
    rows: list[Row] = [("Answer", text) for text in paragraphs(result)]
    rows += [*_load(result), *(("What to trust", caution) for caution in result.warnings)]
    rows += [_figure("Goal", result.goal_frac, "share share"), ("SLO", slo_terms(result.slo))]
    if result.answer is not None:
        fleet = result.answer.fleet
        rows += [
            _figure("GPUs", fleet.n_gpus, "count"),
            _figure("Cost", fleet.usd_per_hour, "usd USD/h"),
            _figure("Power", fleet.kw, "rate kW"),
            _figure("Seeds", result.answer.n_seeds, "count"),
        ]
    if result.question == "rate" or result.question == "concurrency":
        rows += [row for each in result.alone for row in _alone(each)]
    return rows + _made(result.version, result.scenario.digest, result.scenario.seed)


def _load(result: CapacityAnswer) -> list[Row]:
    """Return the rows of what was found, and of what it comes to per GPU, dollar and kWh."""
    if result.answer is None:
        return []
    if result.question == "replicas":
        return [_figure("Replicas", result.answer.replicas, "count")]
    answer = result.answer
    return [
        *_loads(answer.load, "clients" if result.question == "concurrency" else "requests/s"),
        *_estimates("Per GPU", answer.per_gpu_s, "requests/s"),
        *_estimates("Per dollar", answer.per_usd, "requests/USD"),
        *_estimates("Per kWh", answer.per_kwh, "requests/kWh"),
    ]


def _alone(each: CriterionLoad) -> list[Row]:
    """Return the highest load if only this SLO, or this class, had to hold."""
    what = " of ".join(filter(None, (SHORT.get(each.slo or ""), each.slo_class))) or "all"
    label = f"Capacity if only {what} counted"
    rate, clients = (None if load is None else load.value for load in (each.offered_per_s, each.concurrency))
    return [_figure(label, rate, "rate requests/s"), _figure(label, clients, "count clients")]


def _check(answer: CheckAnswer) -> list[Row]:
    rows: list[Row] = [("Answer", check.sentence(answer)), *(("What to trust", text) for text in answer.warnings)]
    goodput = check.goodput_name(answer)
    rows += [
        _figure("Goal", answer.goal_frac, "share share"),
        ("SLO", slo_terms(answer.slo)),
        _figure("Tolerance", answer.tolerance_frac, "share share"),
        _figure(f"{goodput} of the baseline", answer.baseline.goodput_per_s, "rate requests/s"),
        _figure(f"{goodput} now", answer.candidate.goodput_per_s, "rate requests/s"),
    ]
    return rows + _made(answer.candidate.simserve, answer.scenario.digest, answer.scenario.seed)


def _comparison(answer: ComparisonAnswer) -> list[Row]:
    rows: list[Row] = [("Answer", text) for text in comparison.paragraphs(answer)]
    if (load := answer.load_decision) is not None:
        ends = {"": load.more_frac, ", low": load.low_frac, ", high": load.high_frac}
        rows += [_figure(f"B carries more load by{end}", value, "share share") for end, value in ends.items()]
    rows += [("What to trust", text) for text in answer.warnings]
    return [*rows, ("A", answer.a), ("B", answer.b), ("Intervals", answer.how)]


def _plan(answer: PlanAnswer) -> list[Row]:
    rows: list[Row] = [("Answer", answer.sentence)]
    if (best := answer.best) is not None:
        rows += [
            _figure("Cost a month", best.usd_per_month, "dollars USD"),
            _figure("GPUs", best.gpus, "count"),
            _figure("Probability that the SLO is met", best.probability, "share share"),
        ]
    rows += [("What to trust", text) for text in answer.warnings]
    rows += [
        _figure("Goal", answer.goal_frac, "share share"),
        ("SLO", slo_terms(answer.slo)),
        _figure("Demand that fleets are sized for", answer.demand.sized_for_per_s, "rate requests/s"),
        _figure("Demand, mean", answer.demand.mean_per_s, "rate requests/s"),
    ]
    return rows + _made(answer.version, answer.scenario.digest, answer.scenario.seed)


def _sweep(answer: SweepAnswer) -> list[Row]:
    rows: list[Row] = [("Answer", sweep.sentence(answer))]
    if (cheapest := answer.best.cheapest) is not None:
        best = answer.points[cheapest.point]
        rows += [
            _figure("Cost of the cheapest that meets the SLO", best.usd_per_hour, "usd USD/h"),
            _figure("Its goodput", best.goodput_per_s, "rate requests/s"),
            _figure("Its SLO attainment", best.attained.value, "share share"),
        ]
    if answer.slo is not None:
        rows += [_figure("Goal", answer.goal_frac, "share share"), ("SLO", slo_terms(answer.slo))]
    return rows + _made(answer.version, None, answer.scenario.seed)


def _loads(load: FoundLoad, unit: str) -> list[Row]:
    """Return rows of the capacity: its interval by noise and with cost error, and what to count on."""
    low, high = load.total or (None, None)
    known = {"low with cost error": low, "high with cost error": high, "to count on": load.count_on}
    more = [_figure(f"Capacity, {name}", end, f"rate {unit}") for name, end in known.items() if end is not None]
    return [*_estimates("Capacity", load, unit), *more]


def _estimates(label: str, number: Bounded | None, unit: str) -> list[Row]:
    """Return rows of a value and the ends of its interval; none where it is unknown."""
    if number is None:
        return []
    ends = {label: number.value, f"{label}, low": number.low, f"{label}, high": number.high}
    return [_figure(name, end, f"rate {unit}") for name, end in ends.items()]


def _figure(label: str, value: float | None, reads: str) -> Row:
    form, unit = form_and_unit(reads)
    return (f"{label} ({unit})" if unit else label, None if value is None else Cell(value, form))


def _made(version: Any, digest: Any, seed: Any) -> list[Row]:
    """Return the rows of version, scenario and seed."""
    return [("simserve", version and str(version)), ("Scenario digest", digest and str(digest)), ("Seed", seed)]
