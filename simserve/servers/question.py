"""Question of a twin: the server, and what is known of it beside its command; a saved text of its /metrics tells of
the KV cache, prefixes and proposals."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from simserve import catalog
from simserve.errors import Problem, ScenarioError
from simserve.input_files import SCENARIO_BYTES, read_file
from simserve.servers.command_line import ServerCommand
from simserve.servers.forms import with_acceptance
from simserve.servers.load import LoggedLoad
from simserve.servers.server_settings import POOL, ServerSettings

SAMPLE = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+\d+)?")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

SOURCE = "/metrics"


@dataclass(frozen=True)
class TwinQuestion:
    """The server, and what is known of it beside its command."""

    server: ServerCommand
    gpu: str
    load: LoggedLoad
    """The load of its logs, or an assumed one."""
    precision_frac: float
    """Largest half-width of the interval of the capacity, as a share of it."""
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
        settings.assume("engine.version", default, "the engine's default; give --engine-version")
    else:
        settings.keys["engine.version"] = version
        name = "--engine-version" if question.version else "the image"
        settings.note(name, version, "simulated", "", "engine.version")
    n = question.replicas or server.replicas
    settings.keys[f"{POOL}.replicas"] = (n or 1) * settings.replicas
    why = "the command says nothing of others; give --replicas" if n is None else ""
    settings.note("replicas", n or 1, "assumed" if n is None else "simulated", why, f"{POOL}.replicas")
    if settings.keys[f"{POOL}.replicas"] > 1:
        settings.assume("cluster.router", "least_outstanding", "the command does not say; change it there")
    axes = ("tensor", "pipeline", "data", "prefill_context")
    used = math.prod(int(settings.keys.get(f"{POOL}.parallel.{axis}", 1)) for axis in axes)
    if server.n_gpus not in (None, used * settings.replicas):
        settings.note("GPUs of the container", server.n_gpus, "not simulated", f"its flags use {used}")
    if question.metrics is not None:
        add_metrics(settings, question.metrics)


@dataclass(frozen=True)
class MetricSample:
    """A line of the text."""

    name: str
    labels: Mapping[str, str]
    value: float


def add_metrics(settings: ServerSettings, path: Path) -> None:
    """Set what a saved text of /metrics says over what was assumed. Raises ScenarioError for another text, or for one
    of another model."""
    samples = list(_samples(path))
    _check_model(settings, samples, path)
    for sample in samples:
        if sample.name.endswith("cache_config_info"):  # vLLM: CacheConfig, of which no flag says as much
            for label in ("num_gpu_blocks", "block_size"):
                if sample.labels.get(label, "").isdecimal() and int(sample.labels[label]):
                    _take(settings, f"{POOL}.{label}", int(sample.labels[label]))
            if (caches := sample.labels.get("enable_prefix_caching")) in ("True", "False"):
                _take(settings, f"{POOL}.enable_prefix_caching", caches == "True")
        elif sample.name.endswith("max_total_num_tokens") and f"{POOL}.num_gpu_blocks" not in settings.keys:
            page = settings.keys.get(f"{POOL}.block_size", 1)
            _take(settings, f"{POOL}.num_gpu_blocks", int(sample.value) // int(page))
    total = _totals(samples)
    queries, hits = total.get("prefix_cache_queries", 0.0), total.get("prefix_cache_hits", 0.0)
    if queries:
        why = "since the server started; the scenario's load shares only what its log says"
        settings.note("prefix cache hits", f"{hits / queries:.1%} of prompt tokens", "not simulated", why)
    _take_acceptance(settings, samples, total)


def _samples(path: Path) -> Iterator[MetricSample]:
    try:
        text = read_file(path, SCENARIO_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ScenarioError([Problem(f"--metrics: {path}", f"cannot be read ({reason})")]) from None
    n = 0
    for line in text.splitlines():
        match = None if line.startswith("#") else SAMPLE.fullmatch(line.strip())
        if match is not None and re.match(r"(vllm|sglang|trtllm)[:_]", match["name"]):
            n += 1
            labels = dict(LABEL.findall(match["labels"] or ""))
            yield MetricSample(re.split(r"[:_]", match["name"], maxsplit=1)[1], labels, _value(match["value"]))
    if not n:
        remedy = "save it with: curl http://HOST:PORT/metrics > metrics.txt"
        raise ScenarioError(
            [Problem(f"--metrics: {path}", "must have lines of vllm: or sglang:, got none", None, remedy)]
        )


def _value(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _check_model(settings: ServerSettings, samples: list[MetricSample], path: Path) -> None:
    named = {name for sample in samples if (name := sample.labels.get("model_name"))}
    flag = next((settings.flags[name] for name in ("served-model-name",) if name in settings.flags), None)
    own = {str(settings.keys["model"]), *(flag.values if flag else ())}
    ends = {name.rstrip("/").rpartition("/")[2].lower() for name in own}
    if named and not {name.rstrip("/").rpartition("/")[2].lower() for name in named} & ends:
        rule = f"must be of the server's model, {' or '.join(sorted(own))}"
        raise ScenarioError(
            [Problem(f"--metrics: {path}", rule, ", ".join(sorted(named)), "give the text of this server")]
        )


def _take(settings: ServerSettings, key: str, value: object) -> None:
    settings.keys[key] = value
    settings.note(SOURCE, value, "simulated", "as the server says", key)


def _totals(samples: list[MetricSample]) -> Mapping[str, float]:
    """Return the counters by name, over all engines of the server."""
    totals: dict[str, float] = {}
    for sample in samples:
        name = sample.name.removesuffix("_total")
        totals[name] = totals.get(name, 0.0) + sample.value
    return totals


def _take_acceptance(settings: ServerSettings, samples: list[MetricSample], total: Mapping[str, float]) -> None:
    """Set the share of accepted proposals of each position, given those before it."""
    key, drafts = f"{POOL}.speculation", total.get("spec_decode_num_drafts", 0.0)
    if key not in settings.keys or not drafts:
        return
    n = settings.keys[key]["tokens"]
    accepted = [drafts] + [0.0] * n
    for sample in samples:
        place = sample.labels.get("position", "")
        if sample.name.startswith("spec_decode_num_accepted_tokens_per_pos") and place.isdecimal() and int(place) < n:
            accepted[int(place) + 1] += sample.value
    rates = [min(1.0, round(own / before, 4)) if before else 0.0 for before, own in pairwise(accepted)]
    with_acceptance(settings, key, rates, SOURCE)
