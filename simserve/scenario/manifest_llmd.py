"""Manifests of llm-d's VariantAutoscaling and of KServe's LLMInferenceService, which has one behind it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from simserve.plugins.validation import Path
from simserve.scenario.manifest import ManifestPart, ManifestPolicy, Shape
from simserve.scenario.manifest_hpa import ScalingBehavior
from simserve.scenario.manifest_keda import KedaAdvanced

WORKLOADS: dict[str, Path] = {"": ("spec", "scaling"), "-prefill": ("spec", "prefill", "scaling")}
"""Where an LLMInferenceService has the scaling of its replicas, and of those that only prefill."""


class WvaActuator(Shape):
    """The autoscaler that follows WVA's number: an HPA's behavior, or a ScaledObject with one."""

    behavior: ScalingBehavior | None = None
    advanced: KedaAdvanced = KedaAdvanced()


class WvaBackend(Shape):
    """Which one it is."""

    NOTED: ClassVar[str] = "(?!type$).*"

    hpa: WvaActuator | None = None
    keda: WvaActuator | None = None


class WvaScaling(Shape):
    """Bounds of the replicas, and what follows WVA; both kinds have the same keys but one."""

    NOTED: ClassVar[str] = "(?!(scaleTargetRef|modelID|variantID|accelerator|acceleratorCount)$).*"

    min_replicas: int | None = None
    max_replicas: int | None = None
    wva: WvaBackend | None = None
    scaling_backend: WvaBackend | None = None


def wva_policy(part: ManifestPart) -> ManifestPolicy:
    """Return the policy of a VariantAutoscaling, or of a workload of an LLMInferenceService. Raises ManifestError."""
    scaling = part.parsed(WvaScaling)
    backend, key = scaling.scaling_backend or scaling.wva, "scalingBackend" if scaling.scaling_backend else "wva"
    if part.kind == "LLMInferenceService" and scaling.wva is None:
        raise part.refused((), "has no wva, and so no autoscaler", None, "add it, or give the pool replicas instead")
    policy: dict[str, Any] = {"min_replicas": scaling.min_replicas, "max_replicas": scaling.max_replicas}
    places: dict[Path, Path] = {(): ()}
    if backend is not None:
        own, at = (backend.hpa, "hpa") if backend.hpa is not None else (backend.keda or WvaActuator(), "keda")
        behavior = own.behavior or own.advanced.horizontal_pod_autoscaler_config.behavior
        policy |= {"behavior": (behavior and behavior.behavior) or {}}  # Kubernetes' defaults, which are not WVA's
        places |= {("behavior",): (key, at)}
    return ManifestPolicy.of(part, scaling, {"kind": "wva", **policy}, places)


def wva_parts(part: ManifestPart) -> Iterator[ManifestPart]:
    """Yield the workloads of a resource that scale, each by its spec or scaling."""
    for suffix, path in WORKLOADS.items() if part.kind == "LLMInferenceService" else [("", ("spec",))]:
        data = part.data
        for key in path:
            data = data.get(key) if type(data) is dict else None
        if data is not None:
            yield replace(part, name=f"{part.name}{suffix}", data=data, at=(*part.at, *path))
