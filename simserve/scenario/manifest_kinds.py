"""Kinds of manifests that are read as autoscalers, KServe's with its keys in our words: read_manifest() -> policy."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, model_validator

from simserve.errors import did_you_mean
from simserve.plugins.validation import Path, ValueProblem, shown
from simserve.scenario.manifest import ManifestError, ManifestPart, ManifestPolicy, Quantity, Shape, documents_of
from simserve.scenario.manifest_hpa import SCALER, ScalingBehavior, hpa_policy
from simserve.scenario.manifest_keda import keda_policy
from simserve.scenario.manifest_knative import KnativeAnnotations, annotation, knative_policy, kpa_arguments
from simserve.scenario.manifest_ray import ray_parts, ray_policy
from simserve.scenario.yaml_lines import YamlDocument

KSERVE_KEYS: Mapping[str, str] = MappingProxyType(
    {"scaletarget": f"{SCALER}.target", "scalemetric": f"{SCALER}: {{kind: kpa}}, for concurrency"}
)
"""A key of KServe, in lower case -> ours."""

GROUPS = {
    "autoscaling": "HorizontalPodAutoscaler",
    "keda.sh": "ScaledObject",
    "serving.kserve.io": "InferenceService",
    "serving.knative.dev": "Service",
}
"""Kinds that are read, by the groups of their APIs; beside them Ray Serve configs."""

READ = "HorizontalPodAutoscaler, ScaledObject, InferenceService, Service of Knative, or a Ray Serve config"

PREDICTOR = ("spec", "predictor")


class KserveMetricName(Shape):
    """Where a metric is from: its backend, and its query there."""

    NOTED = "operationOverTime"

    backend: str = "prometheus"
    query: str


class KserveTarget(Shape):
    """Value to keep a replica: KServe leaves KEDA's type of the metric as it is."""

    NOTED = ""

    value: Quantity | None = None
    average_value: Quantity | None = None

    @model_validator(mode="after")
    def _has_value(self) -> "KserveTarget":
        if self.value is None and self.average_value is None:
            raise ValueError("must have value or averageValue")
        return self


class KserveSource(Shape):
    """A metric and its target."""

    NOTED = ""

    metric: KserveMetricName
    target: KserveTarget

    @property
    def threshold(self) -> float | None:
        """The target's value."""
        return self.target.average_value if self.target.value is None else self.target.value


class KserveMetric(Shape):
    """A metric of `autoScaling`."""

    NOTED = ""

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


class KserveMetadata(Shape):
    """Metadata of an InferenceService."""

    NOTED = ""

    annotations: KserveAnnotations = KserveAnnotations()


class KserveManifest(Shape):
    """An InferenceService."""

    NOTED = ""

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


READERS: Mapping[str, Callable[[ManifestPart], ManifestPolicy]] = {
    "HorizontalPodAutoscaler": hpa_policy,
    "ScaledObject": keda_policy,
    "InferenceService": kserve_policy,
    "Service": knative_policy,
    "Deployment": ray_policy,
}


def read_manifest(path: FilePath, file: str, name: str | None) -> ManifestPolicy:
    """Return the policy of the only autoscaler of a file, or of the one of that name. `file` is what the scenario
    calls it. Raises ManifestError."""
    others: list[str] = []
    parts = [part for document in documents_of(path, file) for part in _parts(file, document, document.data, others)]
    n_of = Counter(part.name for part in parts)
    by_name = {part.name if n_of[part.name] == 1 else f"{part.kind}/{part.name}": part for part in parts}
    if not by_name:
        value = ", ".join(dict.fromkeys(others)) or "no resource"
        raise ManifestError([ValueProblem((), f"{file}: has no autoscaler", value, f"give a {READ}")])
    if name is None and len(by_name) > 1:
        rule, remedy = f"{file}: has {len(by_name)} autoscalers", f"choose one by name: {next(iter(by_name))}"
        raise ManifestError([ValueProblem((), rule, ", ".join(by_name), remedy)])
    if name is not None and name not in by_name:
        raise ManifestError([ValueProblem(("name",), f"is in {file} no autoscaler", name, did_you_mean(name, by_name))])
    part = by_name[name or next(iter(by_name))]
    return READERS[part.kind](part)


def _parts(file: str, document: YamlDocument, data: Any, others: list[str], at: Path = ()) -> Iterator[ManifestPart]:
    """Yield the autoscalers of a document; add the kinds of other resources to `others`."""
    match data:
        case {"kind": "List", "items": [*items]}:
            for index, item in enumerate(items):
                yield from _parts(file, document, item, others, (*at, "items", index))
        case {"kind": "RayService"} | {"applications": _}:
            yield from ray_parts(file, document)
            others.append("Ray Serve config without autoscaling_config")
        case {"metadata": {"annotations": {"serving.kserve.io/autoscalerClass": "external" | "none" as scaler}}}:
            others.append(f"{data.get('kind')} with autoscalerClass {scaler}")
        case {"apiVersion": str(version), "kind": str(kind)} if GROUPS.get(version.partition("/")[0]) == kind:
            match data:
                case {"metadata": {"name": str(name)}}:
                    yield ManifestPart(kind, name, data, at, document, file)
                case _:
                    yield ManifestPart(kind, kind, data, at, document, file)
        case {"kind": str(kind)}:
            others.append(kind)
