"""The keys of a scenario and their places, read off the models."""

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from simserve.catalog.types import Section
from simserve.plugins.validation import Path
from simserve.scenario.loads import TraceFile, Workload
from simserve.scenario.models import Experiment, MeasureSection, Slo, Targets
from simserve.scenario.servers import ClusterSection, Parallel, Pool, Views


def known_keys(path: Path, data: Mapping[str, Any]) -> list[str]:
    """List the keys of the mapping at a path; `data` distinguishes the short form of the SLO from the full one."""
    part: type[Section] = Experiment
    for item in path:
        field = part.model_fields.get(str(item))
        part = (_section_in(field.annotation) if field else None) or part
    slo = data.get("slo")
    if part is Slo and isinstance(slo, Mapping) and not slo.keys() & Slo.model_fields.keys():
        part = Targets
    return [field.alias or key for key, field in part.model_fields.items()]


@cache
def places_of_keys() -> Mapping[str, str]:
    """Map each key with a single place to that place: `replicas` -> `cluster.pools[].replicas`."""
    parts: dict[str, type[Section]] = {
        "": Experiment,
        "cluster.": ClusterSection,
        "cluster.views.": Views,
        "cluster.pools[].": Pool,
        "cluster.pools[].parallel.": Parallel,
        "workload.": Workload,
        "workload.trace.": TraceFile,
        "measure.": MeasureSection,
        "slo.": Targets,
    }
    places: dict[str, list[str]] = {}
    for prefix, part in parts.items():
        for key, field in part.model_fields.items():
            places.setdefault(key, []).append(prefix + (field.alias or key))
    return {key: homes[0] for key, homes in places.items() if len(homes) == 1}


def _section_in(annotation: Any) -> type[Section] | None:
    """Return the model inside `Engine | None`, `tuple[Pool, ...]` or `dict[str, Targets]`."""
    if inspect.isclass(annotation) and issubclass(annotation, Section):
        return annotation
    return next((section for inner in get_args(annotation) if (section := _section_in(inner))), None)
