"""Manifests out: a policy as the controller of its kind takes it."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pydantic.alias_generators import to_camel, to_pascal

from simserve import plugins
from simserve.autoscalers.base import Autoscaler
from simserve.autoscalers.hpa import Hpa, MetricTarget
from simserve.autoscalers.keda import Keda, Trigger
from simserve.autoscalers.kpa import Kpa
from simserve.autoscalers.ray_serve import RayServe
from simserve.scenario.dump import yaml_text
from simserve.scenario.manifest_kinds import READERS, parts_of
from simserve.scenario.manifest_knative import ANNOTATIONS, annotation
from simserve.scenario.yaml_lines import read_documents

NAMED = {"name": "vllm"}
"""What the manifest scales, and its own name: to be replaced."""


def manifest_text(settings: Mapping[str, Any]) -> str | None:
    """Return the manifest of a policy, below the keys that are none of it; None: its kind has no manifest."""
    policy = plugins.build("autoscalers", settings)
    if (data := _data(policy)) is None:
        return None
    text = yaml_text(data, {})
    part = next(parts_of("manifest.yaml", (document := read_documents(text)[0]), document.data, []))
    said = plugins.spelled_out(plugins.build("autoscalers", READERS[part.kind](part).spec))
    differs = [(key, value) for key, value in plugins.spelled_out(policy).items() if said.get(key) != value]
    more = {key: value for key, value in differs if key != "metrics"}  # these say what `source: null` is
    above = ["To be set elsewhere, and next to `manifest` in a scenario:", *yaml_text(more, {}).splitlines()]
    return "".join(f"# {line}\n" for line in above if more) + text


def _data(policy: Autoscaler) -> dict[str, Any] | None:
    match policy:
        case Hpa():
            target = {"apiVersion": "apps/v1", "kind": "Deployment", **NAMED}
            spec = _camel(policy, "min_replicas", "max_replicas", "behavior")
            spec |= {"scaleTargetRef": target, "metrics": [*map(_metric, policy.metrics)]}
            return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": NAMED, "spec": spec}
        case Keda():
            keys = ("polling_interval", "cooldown_period", "initial_cooldown_period")
            spec = {to_camel(key): _plain(getattr(policy, f"{key}_s")) for key in keys} | _camel(
                policy, "idle_replica_count"
            )
            spec |= {"minReplicaCount": policy.min_replicas, "maxReplicaCount": policy.max_replicas}
            spec |= {"advanced": {"horizontalPodAutoscalerConfig": _camel(policy, "behavior")}}
            spec |= {"scaleTargetRef": NAMED, "triggers": [*map(_trigger, policy.triggers)]}
            return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": NAMED, "spec": spec}
        case Kpa():
            limit = {"spec": {"containerConcurrency": policy.container_concurrency}}
            keys = [key for key in ANNOTATIONS if key != "target" or not policy.container_concurrency]
            notes = {annotation(key): _annotated(key, getattr(policy, key)) for key in keys}
            spec = {"template": {"metadata": {"annotations": notes}} | limit}
            return {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": NAMED, "spec": spec}
        case RayServe():
            config = {key: value for key, value in plugins.spelled_out(policy).items() if value is not None}
            return {"applications": [NAMED | {"deployments": [NAMED | {"autoscaling_config": config}]}]}
    return None


def _metric(target: MetricTarget) -> dict[str, Any]:
    kind, key = "Pods" if target.is_of_pods else "External", to_camel(target.target_type)
    value = {"type": to_pascal(target.target_type), key: str(_plain(target.target))}
    return {"type": kind, kind.lower(): {"metric": {"name": target.metric}, "target": value}}


def _trigger(trigger: Trigger) -> dict[str, Any]:
    thresholds = {"threshold": trigger.threshold, "activationThreshold": trigger.activation_threshold}
    metadata = {"serverAddress": "http://prometheus:9090", "query": trigger.query}
    metadata |= {key: str(_plain(value)) for key, value in thresholds.items()}
    how = {"metricType": to_pascal(trigger.metric_type), "useCachedMetrics": trigger.use_cached_metrics}
    return {"type": "prometheus", **how, "metadata": metadata}


def _annotated(key: str, value: float) -> str:
    """Return the text of an annotation: shares are percentages, seconds a duration."""
    percent = float(Decimal(repr(value)) * 100) if key.endswith("_frac") else value
    return f"{_plain(percent)}s" if key.endswith("_s") else f"{_plain(percent)}"


def _camel(policy: Autoscaler, *keys: str) -> dict[str, Any]:
    """Return some keys of a policy in Kubernetes' words."""
    values: dict[str, Any] = _in_words({key: plugins.spelled_out(policy).get(key) for key in keys})
    return values


def _in_words(value: Any) -> Any:
    """Return a value in Kubernetes' words: keys in camel case, choices with a capital, no nulls."""
    match value:
        case {**keys}:
            names = {key: to_camel(f"{key}econds" if key.endswith("_s") else key) for key in keys}
            return {names[key]: _in_words(inner) for key, inner in keys.items() if inner is not None}
        case [*items]:
            return [_in_words(item) for item in items]
        case str():
            return to_pascal(value)
    return _plain(value)


def _plain(value: float) -> float:
    """Return a whole number without a decimal point."""
    return int(value) if float(value).is_integer() else value
