"""Resolve plain data into an Experiment with every default filled in, or raise all problems at once."""

from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

from simserve.plugins.validation import Path, dotted
from simserve.scenario.draft import Draft
from simserve.scenario.dump import scenario_data
from simserve.scenario.models import Experiment
from simserve.scenario.parse import ExperimentT, parse
from simserve.scenario.pools import absolute_model, resolve_cluster, with_version
from simserve.scenario.problems import Problems
from simserve.scenario.routing import check_sessions
from simserve.scenario.traffic import check_slo_classes
from simserve.scenario.weights import resolve_weight_dtype
from simserve.scenario.workload_rules import resolve_workload


def resolve(kind: type[ExperimentT], data: Any, problems: Problems, folders: tuple[FilePath, ...]) -> ExperimentT:
    """Parse, check and fill in defaults. Raises ScenarioError with all problems, including earlier ones."""
    parsed = parse(kind, data, problems)
    draft = Draft(parsed, problems, folders)
    resolve_weight_dtype(draft)
    measure = draft.scenario.measure
    filled_in = {
        "weight_dtype": draft.scenario.weight_dtype,
        "model": absolute_model(draft, draft.scenario.model),
        "gpu": draft.absolute_gpu(draft.scenario.gpu),
        "engine": with_version(draft, draft.scenario.engine, ("engine",)),
        "cluster": resolve_cluster(draft),
        "workload": resolve_workload(draft),
        "measure": measure.model_copy(update={"warmup_s": 0.0}) if measure.counts_all else measure,
    }
    check_sessions(draft)
    check_slo_classes(draft)
    problems.raise_if_any()
    scenario = parsed.model_copy(update=filled_in)
    scenario.set_origins(_origins(scenario, data, draft), folders[0])
    return scenario


def _origins(scenario: Experiment, data: Any, draft: Draft) -> dict[str, str]:
    """Return the origin of each value of the resolved scenario."""
    origins = {}
    for path, value in _leaves(scenario_data(scenario), ()):
        origin = "explicit" if _is_written(data, path, value) else draft.origins.get(path, "default")
        origins[dotted(path)] = draft.replaced.get(path, origin)
    return origins


def _leaves(data: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield every value that is not a mapping, with its path; a list of plain values is one value."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(data, list) and any(isinstance(item, Mapping) for item in data):
        for index, item in enumerate(data):
            yield from _leaves(item, (*path, index))
    else:
        yield path, data


def _is_written(data: Any, path: Path, value: Any) -> bool:
    """Tell whether the user gave this value, perhaps in a short form."""
    for depth, item in enumerate(path):
        if isinstance(data, str):  # a bare name is short for its kind
            return depth == len(path) - 1 and item in ("kind", "name")
        if isinstance(data, Mapping) and item not in data and path[0] == "slo":
            data = data.get("default")
        try:
            data = data[item]
        except (KeyError, IndexError, TypeError):
            return False
    return data is not None or value is None
