"""Manifests of KEDA's ScaledObject, and its keys in our words."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simserve.plugins.validation import Path
from simserve.scenario.manifest import ManifestPart, ManifestPolicy, Number, Plain, Shape, given
from simserve.scenario.manifest_hpa import SCALER, TARGET_TYPES, ScalingBehavior

KEDA_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "minreplicacount": f"{SCALER}.min_replicas",
        "maxreplicacount": f"{SCALER}.max_replicas",
        "idlereplicacount": f"{SCALER}.idle_replica_count",
        "pollinginterval": f"{SCALER}.polling_interval_s",
        "cooldownperiod": f"{SCALER}.cooldown_period_s",
        "initialcooldownperiod": f"{SCALER}.initial_cooldown_period_s",
        "activationthreshold": f"{SCALER}.triggers.0.activation_threshold",
        "usecachedmetrics": f"{SCALER}.triggers.0.use_cached_metrics",
        "metrictype": f"{SCALER}.triggers.0.metric_type",
    }
)
"""A key of KEDA, in lower case -> ours."""


class PrometheusMetadata(Shape):
    """A query and its threshold; the rest says where Prometheus is and what it asks for."""

    NOTED = "ignoreNullValues"

    query: str
    threshold: Number
    activation_threshold: Number | None = None


class KedaTrigger(Shape):
    """One trigger of a ScaledObject."""

    NOTED = "(?!(name|authenticationRef)$).*"

    type: Literal["prometheus"]
    metadata: PrometheusMetadata
    metric_type: Literal["AverageValue", "Value"] | None = None
    use_cached_metrics: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_simulated(cls, data: Any) -> Any:
        """Refuse triggers of other types."""
        match data:
            case {"type": str(kind)} if kind != "prometheus":
                remedy = "use kind: schedule" if kind == "cron" else "use a prometheus trigger"
                raise ValueError(f"{kind} triggers are not simulated; {remedy}, or leave it out")
        return data

    @property
    def trigger(self) -> dict[str, Any]:
        """The trigger in our words."""
        return given(
            query=self.metadata.query,
            threshold=self.metadata.threshold,
            activation_threshold=self.metadata.activation_threshold,
            metric_type=self.metric_type and TARGET_TYPES[self.metric_type],
            use_cached_metrics=self.use_cached_metrics,
        )


class KedaHpaConfig(Shape):
    """What KEDA hands to the Kubernetes autoscaler."""

    NOTED = "(?!name$).*"

    behavior: ScalingBehavior | None = None


class KedaAdvanced(Shape):
    """Further settings of a ScaledObject."""

    NOTED = "(?!restoreToOriginalReplicaCount$).*"

    horizontal_pod_autoscaler_config: KedaHpaConfig = KedaHpaConfig()

    @model_validator(mode="before")
    @classmethod
    def _is_simulated(cls, data: Any) -> Any:
        """Refuse a formula in place of the triggers."""
        match data:
            case {"scalingModifiers": formula} if formula:
                raise ValueError("scalingModifiers are not simulated; write the formula as one query")
        return data


class KedaSpec(Shape):
    """The spec of a ScaledObject."""

    NOTED = "(?!scaleTargetRef$).*"

    polling_interval: float | None = None
    cooldown_period: float | None = None
    initial_cooldown_period: float | None = None
    idle_replica_count: int | None = None
    min_replica_count: int | None = None
    max_replica_count: int | None = None
    advanced: KedaAdvanced = KedaAdvanced()
    triggers: Annotated[list[KedaTrigger], Field(min_length=1)]


class KedaMetadata(Plain):
    """Name and labels of a ScaledObject, and annotations that can pause it."""

    annotations: dict[str, Any] | None = None

    def unused(self, path: Path) -> Iterator[Path]:
        """Yield the annotations that KEDA reads."""
        yield from ((*path, "annotations", key) for key in self.annotations or {} if key.startswith("autoscaling.keda"))


class KedaManifest(Plain):
    """A ScaledObject."""

    metadata: KedaMetadata = KedaMetadata()
    spec: KedaSpec


def keda_policy(part: ManifestPart) -> ManifestPolicy:
    """Return the policy of a ScaledObject. Raises ManifestError."""
    manifest = part.parsed(KedaManifest)
    spec = manifest.spec
    behavior = spec.advanced.horizontal_pod_autoscaler_config.behavior
    policy = {
        "kind": "keda",
        "triggers": [each.trigger for each in spec.triggers],
        "polling_interval_s": spec.polling_interval,
        "cooldown_period_s": spec.cooldown_period,
        "initial_cooldown_period_s": spec.initial_cooldown_period,
        "idle_replica_count": spec.idle_replica_count,
        "min_replicas": spec.min_replica_count,
        "max_replicas": spec.max_replica_count,
        "behavior": behavior and behavior.behavior,
    }
    places: dict[Path, Path] = {
        (): ("spec",),
        ("min_replicas",): ("spec", "minReplicaCount"),
        ("max_replicas",): ("spec", "maxReplicaCount"),
        ("behavior",): ("spec", "advanced", "horizontalPodAutoscalerConfig", "behavior"),
    }
    return ManifestPolicy.of(part, manifest, policy, places)
