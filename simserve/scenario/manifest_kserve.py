"""Manifests of KServe's InferenceService, and its keys in our words."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, model_validator

from simserve.plugins.validation import Path, shown
from simserve.scenario.manifest import ManifestPart, ManifestPolicy, Plain, Quantity, Shape
from simserve.scenario.manifest_hpa import SCALER, ScalingBehavior
from simserve.scenario.manifest_knative import KnativeAnnotations, annotation, kpa_arguments

KSERVE_KEYS: Mapping[str, str] = MappingProxyType(
    {"scaletarget": f"{SCALER}.target", "scalemetric": f"{SCALER}: {{kind: kpa}}, for concurrency"}
)
"""A key of KServe, in lower case -> ours."""

PREDICTOR = ("spec", "predictor")


class KserveMetricName(Shape):
    """Where a metric is from: its backend, and its query there."""

    NOTED = "operationOverTime"

    backend: str = "prometheus"
    query: str


class KserveTarget(Plain):
    """Value to keep a replica: KServe leaves KEDA's type of the metric as it is."""

    value: Quantity | None = None
    average_value: Quantity | None = None

    @model_validator(mode="after")
    def _has_value(self) -> "KserveTarget":
        if self.value is None and self.average_value is None:
            raise ValueError("must have value or averageValue")
        return self


class KserveSource(Plain):
    """A metric and its target."""

    metric: KserveMetricName
    target: KserveTarget

    @property
    def threshold(self) -> float | None:
        """The target's value."""
        return self.target.average_value if self.target.value is None else self.target.value


class KserveMetric(Plain):
    """A metric of `autoScaling`."""

    external: KserveSource | None = None
    podmetric: Annotated[KserveSource | None, Field(alias="podmetric")] = None

    @model_validator(mode="before")
    @classmethod
    def _is_simulated(cls, data: Any) -> Any:
        """Refuse metrics of resources, and of servers without PromQL."""
        match data:
            case {"type": "External", "external": {"metric": {"backend": str(backend)}}} if backend != "prometheus":
                raise ValueError(f"backend {backend} is not simulated; use prometheus with a query")
            case {"type": "External", "external": _} | {"type": "PodMetric", "podmetric": _}:
                return data
            case {"type": str(kind)} if kind not in ("External", "PodMetric"):
                raise ValueError(f"{kind} metrics are not simulated; use type: External, with a query")
        raise ValueError("must have a type, External or PodMetric, and a key of its name")

    @property
    def trigger(self) -> dict[str, Any]:
        """The trigger that KServe writes for KEDA: it sums a metric of pods."""
        if self.external is not None:
            return {"query": self.external.metric.query, "threshold": self.external.threshold}
        assert self.podmetric is not None, "validated"
        return {"query": f"sum({self.podmetric.metric.query})", "threshold": self.podmetric.threshold}


class KserveScaling(Shape):
    """Metrics, and how fast replicas change."""

    metrics: Annotated[list[KserveMetric], Field(min_length=1)]
    behavior: ScalingBehavior | None = None


class KservePredictor(Shape):
    """What an InferenceService says of its replicas."""

    NOTED = "canaryTrafficPercent|batcher|scaleMetricType"

    min_replicas: int = 1
    max_replicas: int = 0
    scale_target: float | None = None
    scale_metric: str | None = None
    container_concurrency: int | None = None
    auto_scaling: KserveScaling | None = None
    annotations: KnativeAnnotations = KnativeAnnotations()


class KserveSpec(Shape):
    """The spec of an InferenceService."""

    NOTED = "transformer|explainer"

    predictor: KservePredictor


class KserveAnnotations(KnativeAnnotations):
    """Annotations of an InferenceService: those of its revisions, and which autoscaler it has."""

    mode: Annotated[str, Field(alias="serving.kserve.io/deploymentMode")] = "Knative"
    scaler: Annotated[str | None, Field(alias="serving.kserve.io/autoscalerClass")] = None


class KserveMetadata(Plain):
    """Metadata of an InferenceService."""

    annotations: KserveAnnotations = KserveAnnotations()


class KserveManifest(Plain):
    """An InferenceService."""

    metadata: KserveMetadata = KserveMetadata()
    spec: KserveSpec


def kserve_policy(part: ManifestPart) -> ManifestPolicy:
    """Return the policy of an InferenceService: KEDA's if its class says so, else Knative's. Raises ManifestError."""
    manifest = part.parsed(KserveManifest)
    annotations, predictor = manifest.metadata.annotations, manifest.spec.predictor
    if annotations.scaler == "keda":
        return _kserve_keda(part, manifest)
    if annotations.scaler == "hpa" or annotations.mode not in ("Knative", "Serverless"):
        rule = "must be serverless or have autoscalerClass: keda, as the others scale by CPU or memory"
        remedy = "annotate serving.kserve.io/autoscalerClass: keda, and give spec.predictor.autoScaling"
        raise part.refused(("metadata", "annotations"), rule, shown(annotations.mode), remedy)
    if predictor.scale_metric not in (None, "concurrency"):
        rule, value = "only concurrency is simulated", shown(predictor.scale_metric)
        raise part.refused((*PREDICTOR, "scaleMetric"), rule, value, "write concurrency, and its scaleTarget")
    arguments: dict[str, Any] = {"min_replicas": predictor.min_replicas}
    arguments |= {"max_replicas": predictor.max_replicas} if predictor.max_replicas else {}
    arguments |= {"target": predictor.scale_target} if predictor.scale_target else {}
    places: dict[Path, Path] = {(): PREDICTOR, ("target",): (*PREDICTOR, "scaleTarget")}
    for at, given in ((("metadata",), annotations.arguments), (PREDICTOR, predictor.annotations.arguments)):
        arguments |= given
        places |= {(key,): (*at, "annotations", annotation(key)) for key in given}
    limit = predictor.container_concurrency
    notes = ["spec.predictor.containerConcurrency as a limit"] if limit else []
    return ManifestPolicy.of(part, manifest, kpa_arguments(arguments, limit), places, *notes)


def _kserve_keda(part: ManifestPart, manifest: KserveManifest) -> ManifestPolicy:
    """Return the policy of the ScaledObject that KServe writes."""
    predictor = manifest.spec.predictor
    scaling = predictor.auto_scaling
    if scaling is None:
        raise part.refused(PREDICTOR, "must have autoScaling with metrics for KEDA", None, "add it")
    policy = {
        "kind": "keda",
        "triggers": [each.trigger for each in scaling.metrics],
        "min_replicas": predictor.min_replicas,
        "max_replicas": max(predictor.min_replicas, predictor.max_replicas, 1),
        "behavior": scaling.behavior and scaling.behavior.behavior,
    }
    places: dict[Path, Path] = {
        (): PREDICTOR,
        ("triggers",): (*PREDICTOR, "autoScaling", "metrics"),
        ("behavior",): (*PREDICTOR, "autoScaling", "behavior"),
    }
    return ManifestPolicy.of(part, manifest, policy, places)
