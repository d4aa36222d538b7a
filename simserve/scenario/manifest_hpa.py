"""Manifests of Kubernetes' HorizontalPodAutoscaler, and its keys in our words."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simserve.plugins.validation import shown
from simserve.scenario.manifest import ManifestPart, ManifestPolicy, Plain, Quantity, Shape, given

POOL = "cluster.pools.0"
SCALER = f"{POOL}.autoscaler"
RULES = f"{SCALER}.behavior.scale_down"

HPA_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "min_replicas": f"{SCALER}.min_replicas",
        "max_replicas": f"{SCALER}.max_replicas",
        "minreplicas": f"{SCALER}.min_replicas",
        "maxreplicas": f"{SCALER}.max_replicas",
        "averagevalue": f"{SCALER}.metrics.0.target",
        "targetaveragevalue": f"{SCALER}.metrics.0.target",
        "scaleup": f"{SCALER}.behavior.scale_up",
        "scaledown": RULES,
        "stabilizationwindowseconds": f"{RULES}.stabilization_window_s",
        "selectpolicy": f"{RULES}.select_policy",
        "periodseconds": f"{RULES}.policies.0.period_s",
        "scrapeinterval": "cluster.scrape.interval_s",
        "scrape_interval": "cluster.scrape.interval_s",
        "terminationgraceperiodseconds": f"{POOL}.shutdown.grace_s",
        "prestop": f"{POOL}.shutdown.pre_stop_s",
        "minavailable": f"{POOL}.shutdown.min_available",
        "maxunavailable": f"{POOL}.shutdown.max_unavailable",
    }
)
"""A key of Kubernetes, in lower case -> ours."""

V2 = ("autoscaling/v2", "autoscaling/v2beta2")
"""Versions of the API with several metrics; their shapes are the same."""

TARGET_TYPES = {"AverageValue": "average_value", "Value": "value"}


class ScalingPolicy(Shape):
    """A limit on the rate."""

    type: Literal["Pods", "Percent"]
    value: int
    period_seconds: float


class ScalingRules(Shape):
    """Limits and window of one direction."""

    stabilization_window_seconds: float | None = None
    select_policy: Literal["Max", "Min", "Disabled"] | None = None
    policies: list[ScalingPolicy] | None = None
    tolerance: Quantity | None = None

    @property
    def rules(self) -> dict[str, Any]:
        """The direction in our words, without what Kubernetes fills in."""
        policies = [
            {"type": each.type.lower(), "value": each.value, "period_s": each.period_seconds}
            for each in self.policies or ()
        ]
        return given(
            stabilization_window_s=self.stabilization_window_seconds,
            select_policy=self.select_policy and self.select_policy.lower(),
            policies=policies or None,
            tolerance=self.tolerance,
        )


class ScalingBehavior(Shape):
    """How fast replicas change."""

    scale_up: ScalingRules | None = None
    scale_down: ScalingRules | None = None

    @property
    def behavior(self) -> dict[str, Any] | None:
        """Both directions in our words; None: those of Kubernetes."""
        up, down = self.scale_up, self.scale_down
        return given(scale_up=(up and up.rules) or None, scale_down=(down and down.rules) or None) or None


class MetricIdentifier(Shape):
    """Name of a metric; a selector chooses the pool's own series."""

    NOTED = "(?!selector$).*"

    name: str


class KubernetesTarget(Shape):
    """Value to keep."""

    type: Literal["AverageValue", "Value"]
    average_value: Quantity | None = None
    value: Quantity | None = None

    @model_validator(mode="after")
    def _has_value(self) -> "KubernetesTarget":
        if self.target is None:
            key = "averageValue" if self.type == "AverageValue" else "value"
            raise ValueError(f"must have {key} with type: {self.type}")
        return self

    @property
    def target(self) -> float | None:
        """The value of its type."""
        return self.average_value if self.type == "AverageValue" else self.value


class MetricSource(Shape):
    """A metric and its target; the described object is the pool or its gateway."""

    NOTED = "(?!describedObject$).*"

    metric: MetricIdentifier
    target: KubernetesTarget


class KubernetesMetric(Shape):
    """One metric of a HorizontalPodAutoscaler."""

    type: Literal["Pods", "Object", "External"]
    pods: MetricSource | None = None
    object: MetricSource | None = None
    external: MetricSource | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_simulated(cls, data: Any) -> Any:
        """Refuse metrics of resources, and a metric without what its type names."""
        match data:
            case {"type": ("Resource" | "ContainerResource") as kind}:
                rule = f"{kind} metrics, such as cpu, are not simulated: a simulated server has none"
                raise ValueError(f"{rule}; use a metric of type Pods, such as num_requests_waiting")
            case {"type": ("Pods" | "Object" | "External") as kind} if not data.get(kind.lower()):
                raise ValueError(f"must have the key {kind.lower()} with type: {kind}")
        return data

    @property
    def metric(self) -> dict[str, Any]:
        """The metric in our words."""
        source = self.pods or self.object or self.external
        assert source is not None, "validated"
        return {
            "metric": source.metric.name,
            "target": source.target.target,
            "target_type": TARGET_TYPES[source.target.type],
            "source": "pods" if self.type == "Pods" else "external",
        }


class HpaSpec(Shape):
    """The spec of a HorizontalPodAutoscaler."""

    NOTED = "(?!scaleTargetRef$).*"

    min_replicas: int | None = None
    max_replicas: int
    metrics: Annotated[list[KubernetesMetric], Field(min_length=1)]
    behavior: ScalingBehavior | None = None


class HpaManifest(Plain):
    """A HorizontalPodAutoscaler."""

    spec: HpaSpec


def hpa_policy(part: ManifestPart) -> ManifestPolicy:
    """Return the policy of a HorizontalPodAutoscaler. Raises ManifestError."""
    version = part.data["apiVersion"]
    if version not in V2:
        remedy = f"`kubectl get hpa {part.name} -o yaml` writes it so"
        raise part.refused(("apiVersion",), "must be autoscaling/v2", shown(version), remedy)
    manifest = part.parsed(HpaManifest)
    spec = manifest.spec
    policy = {
        "kind": "hpa",
        "metrics": [each.metric for each in spec.metrics],
        "min_replicas": spec.min_replicas,
        "max_replicas": spec.max_replicas,
        "behavior": spec.behavior and spec.behavior.behavior,
    }
    return ManifestPolicy.of(part, manifest, policy, {(): ("spec",)})
