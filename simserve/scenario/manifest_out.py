"""Manifests out: a policy as the controller of its kind takes it."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pydantic.alias_generators import to_camel, to_pascal

from simserve import plugins
from simserve.scenario.dump import yaml_text
from simserve.scenario.manifest_kinds import READERS, parts_of
from simserve.scenario.manifest_knative import ANNOTATIONS, annotation
from simserve.scenario.yaml_lines import read_documents

NAMED = {"name": "vllm"}
"""What the manifest scales, and its own name: to be replaced."""


def manifest_text(settings: Mapping[str, Any]) -> str | None:
    """Return the manifest of a policy, below the keys that are none of it; None: its kind has no manifest."""
    policy = plugins.build("autoscalers", settings)
    if (data := _data(str(settings.get("kind")), policy)) is None:
        return None
    text = yaml_text(data, {})
    part = next(parts_of("manifest.yaml", (document := read_documents(text)[0]), document.data, []))
    back = plugins.spelled_out(plugins.build("autoscalers", READERS[part.kind](part).spec))
    differs = [(key, value) for key, value in plugins.spelled_out(policy).items() if back.get(key) != value]
    more = {key: value for key, value in differs if key != "metrics"}  # these say what `source: null` is
    above = ["To be set elsewhere, and next to `manifest` in a scenario:", *yaml_text(more, {}).splitlines()]
    return "".join(f"# {line}\n" for line in above if more) + text


def _data(kind: str, policy: Any) -> dict[str, Any] | None:
    behavior = plugins.spelled_out(policy).get("behavior")
    match kind:
        case "hpa":
            words = {"min_replicas": policy.min_replicas, "max_replicas": policy.max_replicas, "behavior": behavior}
            target = {"apiVersion": "apps/v1", "kind": "Deployment", **NAMED}
            spec = _in_words(words) | {"scaleTargetRef": target, "metrics": [*map(_metric, policy.metrics)]}
            return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": NAMED, "spec": spec}
        case "keda":
            words = {"min_replica_count": policy.min_replicas, "max_replica_count": policy.max_replicas}
            words |= {"polling_interval": policy.polling_interval_s, "cooldown_period": policy.cooldown_period_s}
            words |= {"initial_cooldown_period": policy.initial_cooldown_period_s}
            words |= {"idle_replica_count": policy.idle_replica_count}
            words |= {"advanced": {"horizontal_pod_autoscaler_config": {"behavior": behavior}}}
            spec = _in_words(words) | {"scaleTargetRef": NAMED, "triggers": [*map(_trigger, policy.triggers)]}
            return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": NAMED, "spec": spec}
        case "kpa":
            limit = policy.container_concurrency
            keys = [key for key in ANNOTATIONS if not (key == "target" and limit)]  # which replaces the limit
            notes = {annotation(key): _annotated(key, getattr(policy, key)) for key in keys}
            template = {"metadata": {"annotations": notes}, "spec": {"containerConcurrency": limit}}
            data = {"metadata": NAMED, "spec": {"template": template}}
            return {"apiVersion": "serving.knative.dev/v1", "kind": "Service", **data}
        case "ray_serve":
            config = {key: value for key, value in plugins.spelled_out(policy).items() if value is not None}
            return {"applications": [NAMED | {"deployments": [NAMED | {"autoscaling_config": config}]}]}
    return None


def _metric(target: Any) -> dict[str, Any]:
    kind, key = "Pods" if target.is_of_pods else "External", to_camel(target.target_type)
    value = {"type": to_pascal(target.target_type), key: _text(target.target)}
    return {"type": kind, kind.lower(): {"metric": {"name": target.metric}, "target": value}}


def _trigger(trigger: Any) -> dict[str, Any]:
    metadata = {"serverAddress": "http://prometheus:9090", "query": trigger.query}
    metadata |= {"threshold": _text(trigger.threshold), "activationThreshold": _text(trigger.activation_threshold)}
    how = {"metricType": to_pascal(trigger.metric_type), "useCachedMetrics": trigger.use_cached_metrics}
    return {"type": "prometheus", **how, "metadata": metadata}


def _annotated(key: str, value: float) -> str:
    """Return the text of an annotation: shares are percentages, seconds a duration."""
    percent = float(Decimal(repr(value)) * 100) if key.endswith("_frac") else value
    return f"{_text(percent)}s" if key.endswith("_s") else _text(percent)


def _text(value: float) -> str:
    return str(_in_words(value))


def _in_words(value: Any) -> Any:
    """Return a value in Kubernetes' words: camel case, choices with a capital, whole numbers as such, no nulls."""
    match value:
        case dict():
            words = {key: inner for key, inner in value.items() if inner is not None}
            return {to_camel(key + "econds" * key.endswith("_s")): _in_words(inner) for key, inner in words.items()}
        case [*items]:
            return [_in_words(item) for item in items]
        case str():
            return to_pascal(value)
    return int(value) if float(value).is_integer() else value
