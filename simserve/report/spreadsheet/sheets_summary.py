"""The first sheet: the answers, what was run, what to trust, and what the other sheets hold."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.metrics.result_folder import Written
from simserve.report.capacity.words import paragraphs
from simserve.report.comparison import words as comparison
from simserve.report.formats import SHORT, interval, plural, slo_terms
from simserve.report.headline import prediction, verdict
from simserve.report.run_warnings import cautions
from simserve.report.spreadsheet.sheets import Cell, Column, Form, Group, Row, Sheet, at
from simserve.report.summary_reader import Answers
from simserve.report.sweep import words as sweep


def summary(sources: Sequence[Written], others: Sequence[Sheet]) -> Sheet:
    """A group a folder, then the other sheets."""
    groups = [Group(source.title, _told(source)) for source in sources]
    groups.append(Group("Sheets", [(sheet.name, Cell(sheet.title, "tall")) for sheet in others]))
    return Sheet(
        "Summary",
        "What was found",
        "The answers, what they stand on, and what the other sheets hold. Units stand in brackets.",
        "About",
        (Column("Item", "text"), Column("Value", "tall")),
        tuple(groups),
    )


def _told(source: Written) -> list[Row]:
    told = {"run": _run, "capacity": _capacity, "compare": _comparison, "sweep": _sweep, "plan": _plan}[source.command]
    return [row for row in told(source.answer) if row[1] is not None and row[1] != ""]


def _run(found: Mapping[str, Any]) -> list[Row]:
    answers = Answers(found)
    rows: list[Row] = [("Answer", verdict(found)), ("Prediction", prediction(found))]
    rows += [("What to trust", said) for said in cautions(answers)]
    rows += [_pool(pool) for pool in answers.pools]
    ends = answers.attainment_interval
    rows += [
        ("SLO", slo_terms(answers.slo)),
        _figure("Requests in the window", at(found, "requests", "arrived"), "count"),
        _figure("Window", at(found, "window", "duration_s"), "rate s"),
        _figure("Offered", at(found, "offered_per_s"), "rate requests/s"),
        _figure("Served", at(found, "served_per_s"), "rate requests/s"),
        _figure("SLO attainment", answers.attainment, "share share"),
        ("SLO attainment, 95 % interval", interval(*ends) if ends else None),
        _figure("Goodput", at(found, "goodput", "per_s"), "rate requests/s"),
        _figure("Goodput per GPU", at(found, "goodput", "per_gpu_s"), "rate requests/s"),
        _figure("Good requests per dollar", at(found, "goodput", "per_usd"), "rate requests/USD"),
        _figure("Prompt tokens", at(found, "input_tokens_per_s"), "rate tokens/s"),
        _figure("Output tokens", at(found, "output_tokens_per_s"), "rate tokens/s"),
        _figure("GPUs", answers.n_gpus, "count"),
        _figure("Busy", at(found, "busy_frac"), "share share"),
        _figure("KV memory, peak of the fullest replica", at(found, "kv", "peak_frac"), "share share"),
        _figure("Preemptions", at(found, "preemptions", "n"), "count"),
    ]
    return rows + _made(found.get("version"), found.get("digest"), found.get("seed"))


def _pool(pool: Mapping[str, Any]) -> Row:
    n, gpus = int(pool["n_replicas"]), int(pool["gpus_per_replica"])
    engine = f"{pool['engine']}, {pool['scheduler']}; costs of {pool.get('calibration') or 'the data sheet'}"
    said = f"{plural(n, 'replica')} of {pool['model']} on {gpus} × {pool['gpu']} ({engine})"
    return (f"Pool {pool['name']}", said)


def _capacity(found: Mapping[str, Any]) -> list[Row]:
    answer = found["answer"]
    rows: list[Row] = [("Answer", said) for said in paragraphs(found)]
    rows += [("What to trust", str(caution)) for caution in found.get("warnings") or []]
    rows += [
        _figure("Goal", at(found, "goal_frac"), "share share"),
        ("SLO", slo_terms(found["slo"])),
        *_estimates("Capacity", answer, "offered_per_s", "requests/s"),
        *_estimates("Capacity", answer, "concurrency", "clients"),
        *_estimates("Per GPU", answer, "per_gpu_s", "requests/s"),
        *_estimates("Per dollar", answer, "per_usd", "requests/USD"),
        *_estimates("Per kWh", answer, "per_kwh", "requests/kWh"),
        _figure("Replicas", at(answer, "replicas"), "count"),
        _figure("GPUs", at(answer, "fleet", "n_gpus"), "count"),
        _figure("Cost", at(answer, "fleet", "usd_per_hour"), "usd USD/h"),
        _figure("Power", at(answer, "fleet", "kw"), "rate kW"),
        _figure("Seeds", at(answer, "n_seeds"), "count"),
    ]
    rows += [row for each in found.get("alone") or [] for row in _alone(each)]
    scenario = found["scenario"]
    return rows + _made(found.get("version"), scenario.get("digest"), scenario.get("seed"))


def _alone(each: Mapping[str, Any]) -> list[Row]:
    """The highest load if only this SLO, or this class, had to hold."""
    what = " of ".join(filter(None, (SHORT.get(each.get("slo") or ""), each.get("slo_class")))) or "all"
    label = f"Capacity if only {what} counted"
    rate, clients = at(each, "offered_per_s", "value"), at(each, "concurrency", "value")
    return [_figure(label, rate, "rate requests/s"), _figure(label, clients, "count clients")]


def _comparison(found: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = [("Answer", comparison.sentence(found))]
    rows += [("What to trust", str(said)) for said in found.get("warnings") or []]
    return [*rows, ("A", str(found["a"])), ("B", str(found["b"])), ("Intervals", str(found["how"]))]


def _plan(found: Mapping[str, Any]) -> list[Row]:
    return [("Answer", found["sentence"]), *_study(found)]


def _sweep(found: Mapping[str, Any]) -> list[Row]:
    return [("Answer", sweep.sentence(found)), *_study(found)]


def _study(found: Mapping[str, Any]) -> list[Row]:
    """What plans and sweeps tell alike."""
    rows: list[Row] = [("What to trust", str(said)) for said in found.get("warnings") or []]
    if isinstance(found.get("slo"), Mapping):
        rows += [_figure("Goal", at(found, "goal_frac"), "share share"), ("SLO", slo_terms(found["slo"]))]
    demand = {"Demand that fleets are sized for": "sized_for_per_s", "Demand, mean": "mean_per_s"}
    rows += [_figure(label, at(found, "demand", key), "rate requests/s") for label, key in demand.items()]
    scenario = found.get("scenario")
    scenario = scenario if isinstance(scenario, Mapping) else {}
    return rows + _made(found.get("version"), scenario.get("digest"), scenario.get("seed"))


def _estimates(label: str, answer: Any, key: str, unit: str) -> list[Row]:
    """A value and the ends of its interval."""
    ends = {label: "value", f"{label}, low": "low", f"{label}, high": "high"}
    return [_figure(name, at(answer, key, end), f"rate {unit}") for name, end in ends.items()]


def _figure(label: str, value: float | None, reads: str) -> Row:
    form, _, unit = reads.partition(" ")
    kind: Form = form  # type: ignore[assignment]
    return (f"{label} ({unit})" if unit else label, None if value is None else Cell(value, kind))


def _made(version: Any, digest: Any, seed: Any) -> list[Row]:
    """What it comes from."""
    return [
        ("simserve", version and str(version)),
        ("Scenario digest", digest and str(digest)),
        ("Seed", seed),
    ]
