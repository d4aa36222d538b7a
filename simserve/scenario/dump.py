"""Write a scenario as plain data, as YAML with origins, and as a short hash."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import PurePath
from typing import Any

import yaml
from pydantic import BaseModel

from simserve import catalog
from simserve.plugins.validation import Path, dotted
from simserve.scenario.experiment import Experiment
from simserve.scenario.setup import PoolSetup
from simserve.scenario.yaml_lines import scalar

DIGEST_CHARACTERS = 12


def scenario_data(scenario: Experiment) -> dict[str, Any]:
    """Return plain data in the order of the models' fields, without values of None."""
    data: dict[str, Any] = plain(scenario)
    if "slo" in data and "classes" not in data["slo"]:
        data["slo"] = data["slo"].get("default", {})
    return {key: value for key, value in data.items() if value != {}}


def scenario_yaml(scenario: Experiment) -> str:
    """Return YAML 1.2 with a comment after each value that the user did not give."""
    return yaml_text(scenario_data(scenario), scenario.origins)


def yaml_text(data: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """Return the YAML of a scenario's data with the origins of values as comments, by their dotted paths."""
    return "".join(f"{line}\n" for line in _lines(data, (), origins))


def digest(scenario: Experiment, setups: Iterable[PoolSetup]) -> str:
    """Return the start of a SHA-256 over the content, without names that change no result."""
    data = scenario_data(scenario)
    del data["name"]
    trace = data["workload"].get("trace")
    if trace is not None and "sha256" in trace:
        del trace["path"]
    named = [(pool, key) for pool in (data, *data["cluster"]["pools"]) for key in ("model", "gpu")]
    named += [(pool.get("calibration"), "file") for pool in data["cluster"]["pools"]]
    for place, key in (*named, (data["workload"].get("lengths"), "path")):
        if type(place) is dict and key in place and PurePath(place[key]).is_absolute():
            place[key] = PurePath(place[key]).name
    pools = list(setups)
    data["models"] = [repr(pool.model) for pool in pools]
    cards = [repr(pool.gpu) for pool in pools if pool.gpu.name not in catalog.names("gpus")]
    data |= {"cards": cards} if cards else {}
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]


def plain(value: Any) -> Any:
    """Convert models to mappings without None; plug-ins keep None, which is an argument there."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        items = ((field.alias or key, plain(getattr(value, key))) for key, field in fields)
        data = {key: inner for key, inner in items if inner is not None and inner != {}}
        return data["name"] if type(value).__name__ == "Engine" and len(data) == 1 else data
    if is_dataclass(value):
        return {key: inner for key, inner in vars(value).items() if inner is not None}
    if isinstance(value, tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, dict):
        if value.keys() == {"kind"}:
            return value["kind"]
        return {key: plain(inner) for key, inner in value.items()}
    return value


def given(value: Any) -> Any:
    """Return a value from Python as plain data: models, paths, and numbers and arrays of numpy."""
    match value:
        case BaseModel():
            return plain(value)
        case PurePath():
            return str(value)
        case Mapping():
            return {key: given(inner) for key, inner in value.items()}
        case list() | tuple() | range():
            return [given(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _lines(data: Mapping[str, Any], path: Path, origins: Mapping[str, str], indent: str = "") -> Iterator[str]:
    for key, value in data.items():
        here = (*path, key)
        head = f"{indent}{_text(key)}:"
        if isinstance(value, dict) and value:
            yield head
            yield from _lines(value, here, origins, indent + "  ")
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield head
            for index, item in enumerate(value):
                first, *rest = _lines(item, (*here, index), origins, indent + "    ")
                yield f"{indent}  - {first.lstrip()}"
                yield from rest
        else:
            origin = origins.get(dotted(here), "explicit")
            yield f"{head} {flow(value)}" + ("" if origin == "explicit" else f"  # {origin}")


def flow(value: Any) -> str:
    """Format a value on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return repr(value).replace("inf", ".inf")
    return json.dumps(value)


def _text(value: str) -> str:
    """Return the text plain where YAML reads it back unchanged, else quoted."""
    if re.fullmatch(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*", value) and scalar(value) == value:
        return value
    quoted: str = yaml.dump(value, default_style='"', allow_unicode=True, width=10**9)
    return quoted.strip()
