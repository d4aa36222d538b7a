"""Compare: what the two paths of `simserve compare A B` are, and which comparison they allow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simserve.errors import SimserveError
from simserve.metrics.results import Results, load_results
from simserve.scenario import Scenario
from simserve.scenario.loader import load_scenario
from simserve.simulate import simulate
from simserve.study.compare.comparison import Comparison, compare_benchmarks, compare_replications, compare_results
from simserve.study.deterministic_load import NOTE, is_deterministic
from simserve.study.run_seeds import replicate
from simserve.study.validate.logs.bench import is_result
from simserve.tables.files import read_json
from simserve.tables.kinds import KINDS, RUN

REPLICATIONS = 10
"""Enough for an interval half as wide again as that of many."""

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class ComparedSide:
    """One of the two."""

    name: str
    what: Scenario | Results | Mapping[str, Any]
    """To be run, or a run, or what a benchmark measured."""


def read_side(path: Path) -> ComparedSide:
    """A scenario file, a folder of results, or the JSON of a benchmark. Raises SimserveError."""
    if path.is_dir():
        _check_run(path)
        return ComparedSide(path.name, load_results(path))
    if path.suffix != ".json":
        scenario = load_scenario(path)
        return ComparedSide(scenario.name, scenario)
    result = read_json(path)
    if not is_result(result):
        rule = "must be a scenario, a folder of results, or the JSON of `vllm bench serve --save-result`"
        raise SimserveError(f"{path}: {rule}, got JSON with other keys; name one of these")
    return ComparedSide(path.name, result)


def _check_run(folder: Path) -> None:
    """Raises SimserveError where the folder holds the answer of another command."""
    names = {entry.name for entry in folder.iterdir()}
    for kind in KINDS:
        if kind is not RUN and names >= kind.required_files:
            rule = "must be the folder of a run"
            raise SimserveError(f"{folder}: {rule}, got that of `simserve {kind.name}`; name what `simserve run` wrote")


def compare(
    a: ComparedSide, b: ComparedSide, n_replications: int = REPLICATIONS, progress: OnProgress | None = None
) -> Comparison:
    """By how much B differs from A. Scenarios are run, both with the same seeds; `told` hears of each run done.

    Raises SimserveError.
    """
    names = (a.name, b.name)
    if isinstance(a.what, Scenario) and isinstance(b.what, Scenario):
        has_sampling_noise = not (is_deterministic(a.what) and is_deterministic(b.what))
        seeds = range(a.what.seed, a.what.seed + (n_replications if has_sampling_noise else 1))
        result = compare_replications(names, *replicate((a.what, b.what), seeds, progress))
        differing = (*_differing("slo", a.what.slo, b.what.slo), *_loads(a.what, b.what))
        return replace(result, warnings=differing if has_sampling_noise else (*differing, NOTE))
    runs = [_run(side.what, other.what) for side, other in ((a, b), (b, a))]
    if isinstance(runs[0], Results) and isinstance(runs[1], Results):
        result = compare_results(names, runs[0], runs[1])
        first, second = ((run.facts.slo, run.facts.slo_classes) for run in (runs[0], runs[1]))
        return replace(result, warnings=_differing("slo", first, second))
    return compare_benchmarks(names, *(run.vllm_bench if isinstance(run, Results) else run for run in runs))


def _run(what: Scenario | Results | Mapping[str, Any], other: Any) -> Results | Mapping[str, Any]:
    """A scenario's run, with the seed of the run that it is held against."""
    if not isinstance(what, Scenario):
        return what
    return simulate(what.model_copy(update={"seed": other.facts.seed}) if isinstance(other, Results) else what)


def _loads(a: Scenario, b: Scenario) -> tuple[str, ...]:
    return (*_differing("workload", a.workload, b.workload), *_differing("measure", a.measure, b.measure))


def _differing(key: str, a: object, b: object) -> tuple[str, ...]:
    """Said where the two do not ask for the same."""
    return () if a == b else (f"the two differ in their {key}, so not only the servers are compared",)
