"""The scenario of a twin: what flags set, what was assumed where they say nothing, and the load, as commented YAML."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simserve import catalog
from simserve.errors import Problem, ScenarioError
from simserve.scenario import Scenario, load_scenario
from simserve.scenario.dump import yaml_text
from simserve.tables.files import replace_text
from simserve.twin.command_line import ServerCommand
from simserve.twin.load import LoggedLoad
from simserve.twin.server_metrics import add_metrics
from simserve.twin.server_settings import POOL, ServerSettings

SCENARIO_FILE = "scenario.yaml"
TITLES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


@dataclass(frozen=True)
class TwinQuestion:
    """The server, and what is known of it beside its command."""

    server: ServerCommand
    gpu: str
    logs: Sequence[Path] = ()
    slo: Mapping[str, float] = field(default_factory=dict)
    replicas: int | None = None
    version: str | None = None
    metrics: Path | None = None


def complete(settings: ServerSettings, question: TwinQuestion) -> None:
    """Set what no flag says: version, GPU and replicas."""
    server, default = question.server, catalog.default_version(settings.engine)
    version = question.version or server.version
    settings.keys["gpu"] = catalog.gpu_name(question.gpu)
    settings.keys["engine.name"] = settings.engine
    if version is None:
        why = "the newest that the catalog has; give --engine-version"
        settings.assume("engine.version", default, why)
    else:
        settings.keys["engine.version"] = version
        name = "--engine-version" if question.version else "the image"
        settings.note(name, version, "simulated", "", "engine.version")
    n = question.replicas or server.replicas
    settings.keys[f"{POOL}.replicas"] = (n or 1) * settings.replicas
    why = "the command says nothing of others; give --replicas" if n is None else ""
    settings.note("replicas", n or 1, "assumed" if n is None else "simulated", why, f"{POOL}.replicas")
    used = 1
    for axis in ("tensor", "pipeline", "data"):
        used *= int(settings.keys.get(f"{POOL}.parallel.{axis}", 1))
    if server.n_gpus not in (None, used * settings.replicas):
        settings.note("GPUs of the container", server.n_gpus, "not simulated", f"its flags use {used}")
    if question.metrics is not None:
        add_metrics(settings, question.metrics)


def write_scenario(folder: Path, settings: ServerSettings, question: TwinQuestion, load: LoggedLoad) -> Scenario:
    """Write the scenario and load it. Raises ScenarioError that names the flags."""
    assert settings.model is not None, "its flags were read"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", settings.model.name).strip("-._") or "server"
    data: dict[str, Any] = {"schema": "simserve/1", "name": name, "model": None, "gpu": None, "engine": {}}
    pool: dict[str, Any] = {"name": "serve"}
    for key, value in settings.keys.items():
        *above, last = key.removeprefix(f"{POOL}.").split(".")
        if value is None and above != ["scheduler"]:
            continue  # the engine's own
        place = pool if key.startswith(POOL) else data
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    data["cluster"] = {"router": "least_outstanding", "pools": [pool]}
    data["workload"] = dict(load.workload)
    data |= {"slo": dict(question.slo)} if question.slo else {}
    origins = {note.key: _origin(note.name, note.value, note.how) for note in settings.notes if note.key is not None}
    kept = [note.name for note in settings.notes if note.how in ("not simulated", "unknown")]
    head = [f"# The twin of a server: {TITLES[settings.engine]} as its command says.", *_wrapped("Not simulated", kept)]
    path = folder / SCENARIO_FILE
    replace_text(path, "\n".join([*head, yaml_text(data, origins)]))
    try:
        return load_scenario(path)
    except ScenarioError as error:
        places = {note.key: note.name for note in settings.notes if note.key is not None}
        raise ScenarioError([_of_flag(each, places, question.server.place) for each in error.problems]) from None


def _origin(name: str, value: str | None, how: str) -> str:
    text = " ".join(filter(None, (name, value)))
    return "assumed" if how == "assumed" else text if len(text) < 60 else name


def _wrapped(head: str, names: Sequence[str]) -> list[str]:
    return [f"# {head}: {', '.join(names)}."] if names else []


def _of_flag(problem: Problem, flags: Mapping[str, str], place: str) -> Problem:
    """Return a problem of the scenario at the flag that set its value; one of the whole pool at the command."""
    key = problem.place.rpartition(": ")[2]
    flag = next((flag for own, flag in flags.items() if own == key or key.startswith(f"{own}.")), key)
    place = place if flag == POOL else f"{place}: {flag}"
    return Problem(place, problem.rule, problem.value, problem.remedy)
