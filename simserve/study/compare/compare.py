"""Compare: read the two sides of `simserve compare A B`, and compare them as far as they allow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from simserve.errors import SimserveError
from simserve.metrics.answers.comparison import ComparisonAnswer, SideDecisions
from simserve.metrics.decision import DEFAULT_EFFORT, Decision, Effort
from simserve.metrics.figures import Summary
from simserve.metrics.goal import GOAL_FRAC, LOOKS
from simserve.metrics.kv_json import reservation_warnings
from simserve.metrics.results import Results
from simserve.metrics.summary_schema import DecisionJson
from simserve.metrics.tails import Sample
from simserve.scenario import Scenario
from simserve.scenario.cost_warnings import warnings
from simserve.scenario.loader import load_scenario
from simserve.simulation import simulate
from simserve.study.capacity.point import LoadPoint
from simserve.study.compare.carried_load import LEAST_SEEDS, carried_load, why_not
from simserve.study.compare.comparison import compare_benchmarks, compare_replications, compare_results
from simserve.study.drawn_costs import DrawnCosts
from simserve.study.fleet import NOTE, is_deterministic
from simserve.study.run_seeds import STUDIED, Run, each_run
from simserve.tables.files import read_json
from simserve.workload.readers.logs.bench import is_result

REPLICATIONS = 10
"""Pairs of runs: enough for an interval half as wide again as that of many."""

NOTHING = Sample({}, 1.0, None, None)


@dataclass(frozen=True)
class ComparedSide:
    """One of the two sides."""

    name: str
    what: Scenario | Results | Mapping[str, Any]
    """A scenario to run, a run, or the result of a benchmark."""


def read_side(path: Path) -> ComparedSide:
    """Read a scenario file, a folder of results, or the JSON of a benchmark. Raises SimserveError."""
    if path.is_dir():
        from simserve.metrics.result_folder import load_results  # late: only folders that are read back need it

        return ComparedSide(path.name, load_results(path))
    if path.suffix != ".json":
        scenario = load_scenario(path)
        return ComparedSide(scenario.name, scenario)
    result = read_json(path)
    if not is_result(result):
        rule = "must be a scenario, a folder of results, or the JSON of `vllm bench serve --save-result`"
        raise SimserveError(f"{path}: {rule}, got JSON with other keys; name one of these")
    return ComparedSide(path.name, result)


def compare(
    a: ComparedSide, b: ComparedSide, n_replications: int = REPLICATIONS, effort: Effort = DEFAULT_EFFORT
) -> ComparisonAnswer:
    """Return which side carries more load, and by how much B differs from A in each measure. Scenarios are run, both
    with the same seeds: at loads about where each stops meeting its SLO, then at their own. Raises SimserveError."""
    names = (a.name, b.name)
    if isinstance(a.what, Scenario) and isinstance(b.what, Scenario):
        is_drawn = not (is_deterministic(a.what) and is_deterministic(b.what))
        n_seeds = max(n_replications, LEAST_SEEDS) if is_drawn else 1
        decision = why_not(a.what, b.what) or carried_load(a.what, b.what, n_seeds, effort)
        seeds = range(a.what.seed, a.what.seed + (n_replications if is_drawn else 1))
        sides = each_run(partial(_kept, seeds[: LOOKS[0]]), (a.what, b.what), seeds)
        summaries = [[run.summary for run in side] for side in sides]
        result = compare_replications(names, *summaries)
        seed = a.what.seed
        judged = SideDecisions(a=_judged(a.what, seed, sides[0], effort), b=_judged(b.what, seed, sides[1], effort))
        own = _of_sides(names, (warnings(a.what.setups), warnings(b.what.setups)), summaries)
        pairs = ((key, getattr(a.what, key), getattr(b.what, key)) for key in ("slo", "workload", "measure"))
        differing = (text for pair in pairs for text in _differing(*pair))
        texts = (*own, *differing, *_off_nominal(result), *(() if is_drawn else (NOTE,)))
        known = {"warnings": texts, "decision": decision, "judged": judged}
        return result.model_copy(update=known)
    runs = [_run(side.what, other.what) for side, other in ((a, b), (b, a))]
    if isinstance(runs[0], Results) and isinstance(runs[1], Results):
        result = compare_results(names, runs[0], runs[1])
        facts = runs[0].facts, runs[1].facts
        first, second = ((each.slo, each.slo_classes) for each in facts)
        own = _of_sides(names, (facts[0].warnings, facts[1].warnings), ([runs[0].figures], [runs[1].figures]))
        texts = (*own, *_differing("slo", first, second), *_off_nominal(result))
        judged = SideDecisions(a=runs[0].decision, b=runs[1].decision)
        return result.model_copy(update={"warnings": texts, "judged": judged})
    return compare_benchmarks(names, *(run.vllm_bench if isinstance(run, Results) else run for run in runs))


def _kept(seeds: range, results: Results) -> Run:
    """Return what is kept of a run: how close its requests come to their limits only where a decision needs it."""
    return Run(results.part(STUDIED), results.sample if results.facts.seed in seeds else NOTHING)


def _judged(scenario: Scenario, first: int, runs: Sequence[Run], effort: Effort) -> DecisionJson | None:
    """Return the decision of `run` about a side at its own load, with the seeds from the first; None without an SLO."""

    def more(places: range) -> list[Run]:
        return each_run(Run.of, [seeded], range(first + places.start, first + places.stop))[0]

    seeded = scenario.model_copy(update={"seed": first})
    n_seeds = 1 if is_deterministic(seeded) else LOOKS[0]
    point = LoadPoint.of(1.0, runs[:n_seeds])
    if n_seeds > len(point.runs):
        point = point.with_more(more(range(len(point.runs), n_seeds)))
    samples = [sample for sample in point.samples if sample.n]
    if not samples:
        return None
    costs = None if effort.by == "noise" else DrawnCosts.of(seeded, lambda _: seeded, n_seeds)
    _, decision = (point, None) if costs is None else costs.settled(point, GOAL_FRAC, effort, more)
    return (decision or Decision(samples, GOAL_FRAC, confidence=effort.confidence)).facts()


def _run(what: Scenario | Results | Mapping[str, Any], other: Any) -> Results | Mapping[str, Any]:
    """Run a scenario with the seed of the run that it is compared with; return anything else as it is."""
    if not isinstance(what, Scenario):
        return what
    return simulate(what.model_copy(update={"seed": other.facts.seed}) if isinstance(other, Results) else what)


def _of_sides(
    names: tuple[str, str], costs: Sequence[tuple[str, ...]], runs: Sequence[Sequence[Summary]]
) -> tuple[str, ...]:
    """Return the warnings of each side's costs and reservations; of one side alone with its name."""
    a, b = ((*texts, *reservation_warnings(run.kv for run in side)) for texts, side in zip(costs, runs, strict=True))
    own = ((name, text) for name, texts in zip(names, (a, b), strict=True) for text in texts)
    return tuple(dict.fromkeys(text if text in a and text in b else f"{name}: {text}" for name, text in own))


def _differing(key: str, a: object, b: object) -> tuple[str, ...]:
    """Return a warning where both sides do not ask for the same."""
    return () if a == b else (f"the two differ in their {key}, so not only the servers are compared",)


def _off_nominal(answer: ComparisonAnswer) -> tuple[str, ...]:
    """Return a warning where the drawn load of the measures is far from the nominal load."""
    loads = answer.loads
    texts = {
        f"{load.off_text}: the measures{'' if loads[0] == loads[1] else f' of {name}'} are those of the drawn load; "
        "add --replications to come nearer": None
        for name, load in zip(answer.names, loads, strict=True)
        if load is not None and load.off_text is not None
    }
    return tuple(texts)
