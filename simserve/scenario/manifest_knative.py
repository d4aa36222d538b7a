"""Manifests of Knative's Service, and its keys in our words."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from simserve.plugins.validation import Path
from simserve.scenario.manifest import Duration, ManifestPart, ManifestPolicy, Number, Plain, Shape, given, number
from simserve.scenario.manifest_hpa import SCALER

KNATIVE_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "min_scale": f"{SCALER}.min_replicas",
        "max_scale": f"{SCALER}.max_replicas",
        "minscale": f"{SCALER}.min_replicas",
        "maxscale": f"{SCALER}.max_replicas",
        "containerconcurrency": f"{SCALER}.container_concurrency",
        "stable_window": f"{SCALER}.stable_window_s",
        "tick_interval": f"{SCALER}.interval_s",
        "target_utilization_percentage": f"{SCALER}.target_utilization_frac, as a share",
        "container_concurrency_target_percentage": f"{SCALER}.target_utilization_frac, as a share",
        "panic_window_percentage": f"{SCALER}.panic_window_frac, as a share",
        "panic_threshold_percentage": f"{SCALER}.panic_threshold_frac, as a share",
        "scale_to_zero_grace_period": f"{SCALER}.scale_to_zero_grace_period_s",
    }
)
"""A key of Knative, in lower case -> ours."""

KNATIVE = "autoscaling.knative.dev"

ANNOTATIONS = {
    "min_replicas": "min-scale",
    "max_replicas": "max-scale",
    "target": "target",
    "target_utilization_frac": "target-utilization-percentage",
    "stable_window_s": "window",
    "panic_window_frac": "panic-window-percentage",
    "panic_threshold_frac": "panic-threshold-percentage",
}
"""Our keys -> Knative's annotations (knative/serving, pkg/apis/autoscaling/register.go)."""

Percent = Annotated[float, BeforeValidator(lambda value: number(value) / 100)]


def annotation(key: str) -> str:
    """Return Knative's annotation of one of our keys."""
    return f"{KNATIVE}/{ANNOTATIONS.get(key, key)}"


ANNOTATED = ConfigDict(alias_generator=annotation)


class KnativeAnnotations(Shape):
    """What annotations say of the autoscaler."""

    model_config = ANNOTATED

    NOTED = r"autoscaling\.knative\.dev/.*"

    min_replicas: Number | None = None
    max_replicas: Number | None = None
    target: Number | None = None
    target_utilization_frac: Percent | None = None
    stable_window_s: Duration | None = None
    panic_window_frac: Percent | None = None
    panic_threshold_frac: Percent | None = None
    metric: Literal["concurrency"] | None = None
    scaler_class: Annotated[Literal["kpa.autoscaling.knative.dev"] | None, Field(alias=f"{KNATIVE}/class")] = None

    @model_validator(mode="before")
    @classmethod
    def _with_new_names(cls, data: Any) -> Any:
        """Return the annotations with minScale and maxScale under their present names."""
        old = {f"{KNATIVE}/{way}Scale": f"{KNATIVE}/{way}-scale" for way in ("min", "max")}
        match data:
            case {**texts}:
                return {old.get(str(key), key): value for key, value in texts.items()}
        return data

    @property
    def arguments(self) -> dict[str, Any]:
        """The annotations as arguments of the policy; Knative's 0 is no limit."""
        values = {key: getattr(self, key) for key in ANNOTATIONS}
        return given(**values | {"max_replicas": self.max_replicas or None})


class KnativeMetadata(Plain):
    """Metadata of a revision."""

    annotations: KnativeAnnotations = KnativeAnnotations()


class KnativeRevision(Plain):
    """Spec of a revision."""

    container_concurrency: int | None = None


class KnativeTemplate(Plain):
    """Template of revisions."""

    metadata: KnativeMetadata = KnativeMetadata()
    spec: KnativeRevision = KnativeRevision()


class KnativeSpec(Plain):
    """Spec of a Knative Service."""

    template: KnativeTemplate


class KnativeManifest(Plain):
    """A Knative Service."""

    spec: KnativeSpec


def knative_policy(part: ManifestPart) -> ManifestPolicy:
    """Return the policy of a Knative Service. Raises ManifestError."""
    manifest = part.parsed(KnativeManifest)
    template, here = manifest.spec.template, ("spec", "template")
    arguments, limit = template.metadata.annotations.arguments, template.spec.container_concurrency
    annotations = (*here, "metadata", "annotations")
    places: dict[Path, Path] = {(): annotations, ("container_concurrency",): (*here, "spec", "containerConcurrency")}
    places |= {(key,): (*annotations, annotation(key)) for key in arguments}
    notes = ["spec.template.spec.containerConcurrency as a limit"] if limit else []
    return ManifestPolicy.of(part, manifest, kpa_arguments(arguments, limit), places, *notes)


def kpa_arguments(arguments: Mapping[str, Any], limit: int | None) -> dict[str, Any]:
    """Return the policy; with both a target and a limit of requests, the smaller one is the target."""
    policy = {"kind": "kpa", **arguments}
    if limit and "target" in arguments:
        return policy | {"target": min(limit, arguments["target"])}
    return policy | {"container_concurrency": limit or None}
