"""Kinds of manifests that are read as autoscalers, llm-d's here, and the policy of one with what a scenario adds."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any, ClassVar

from simserve import plugins
from simserve.errors import did_you_mean
from simserve.plugins.validation import Path, ValueProblem
from simserve.scenario.draft import Draft, leaves
from simserve.scenario.manifest import ManifestError, ManifestPart, ManifestPolicy, Shape, documents_of
from simserve.scenario.manifest_hpa import SCALER, ScalingBehavior, hpa_policy
from simserve.scenario.manifest_keda import KedaAdvanced, keda_policy
from simserve.scenario.manifest_knative import knative_policy
from simserve.scenario.manifest_kserve import kserve_policy
from simserve.scenario.manifest_ray import ray_parts, ray_policy
from simserve.scenario.yaml_lines import YamlDocument

KIND_KEYS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("autoscaling", "autoscaling_config", "hpa", "keda", "kpa", "ray_serve"), SCALER)
)
"""Names of autoscalers, and of what holds one -> ours."""

GROUPS = {
    "HorizontalPodAutoscaler": "autoscaling",
    "ScaledObject": "keda.sh",
    "InferenceService": "serving.kserve.io",
    "LLMInferenceService": "serving.kserve.io",
    "VariantAutoscaling": "llmd.ai",
    "Service": "serving.knative.dev",
}
"""Kinds that are read, with the groups of their APIs; beside them Ray Serve configs."""

READ = f"{', '.join([*GROUPS][:-1])}, Service of Knative, or a Ray Serve config"

WORKLOADS: dict[str, Path] = {"": ("spec", "scaling"), "-prefill": ("spec", "prefill", "scaling")}
"""Where an LLMInferenceService has the scaling of its replicas, and of those that only prefill."""


class WvaActuator(Shape):
    """The autoscaler that follows WVA's number: an HPA's behavior, or a ScaledObject with one."""

    behavior: ScalingBehavior | None = None
    advanced: KedaAdvanced = KedaAdvanced()


class WvaBackend(Shape):
    """What follows WVA's number: the HPA or KEDA."""

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


READERS: Mapping[str, Callable[[ManifestPart], ManifestPolicy]] = {
    "HorizontalPodAutoscaler": hpa_policy,
    "ScaledObject": keda_policy,
    "InferenceService": kserve_policy,
    "LLMInferenceService": wva_policy,
    "VariantAutoscaling": wva_policy,
    "Service": knative_policy,
    "Deployment": ray_policy,
}


def policy_of_file(draft: Draft, given: dict[str, Any]) -> dict[str, Any]:
    """Return the policy of a manifest with the keys that the scenario gives, or what it gives after its problems."""
    file, name = given["manifest"], given.get("name")
    for key, value in (("manifest", file), ("name", name)):
        if type(value) is not str and (key == "manifest" or value is not None):
            draft.problem((key,), "must be text", value, "give the path of a file" if key == "manifest" else "quote it")
            return given
    path = draft.find_file(file)
    if path is None:
        draft.problem(("manifest",), "there is no such file", file, f"looked in {draft.looked_in()}")
        return given
    try:
        manifest = read_manifest(path, file, name)
    except ManifestError as error:
        draft.problems.extend((each if each.path else each.below(("manifest",)) for each in error.problems), draft.at)
        return given
    own = {key: value for key, value in given.items() if key not in ("manifest", "name")}
    kind = manifest.spec["kind"]
    if own.get("kind", kind) != kind:
        draft.problem(("kind",), f"must be {kind}, as {file} is of that kind", own["kind"], "leave it out")
        return given
    spec = _over(manifest.spec, own)
    policy, problems = plugins.check("autoscalers", spec)
    located = (each if _has(own, each.path) else manifest.located(each).below(("manifest",)) for each in problems)
    draft.problems.extend(located, draft.at)
    for place, _ in leaves(manifest.spec, ()):
        if not _has(own, place):
            draft.set_origin(place, path.name)
    if manifest.note is not None:
        draft.notes[draft.at] = manifest.note
    return spec if policy is None else {"kind": kind, **plugins.spelled_out(policy)}


def _over(below: Any, above: Any) -> Any:
    """Return a value with what another one says over it: mappings by key, others as a whole."""
    match below, above:
        case {**lower}, {**upper}:
            return lower | {key: _over(lower.get(key), value) for key, value in upper.items()}
    return above


def _has(given: Any, path: Path) -> bool:
    """Return whether what the scenario gives reaches a path, or replaces what is there."""
    for key in path:
        match given:
            case {**keys} if key in keys:
                given = keys[key]
            case {**_keys}:
                return False
            case _:
                return True
    return bool(path)


def read_manifest(path: FilePath, file: str, name: str | None) -> ManifestPolicy:
    """Return the policy of the only autoscaler of a file, or of the one of that name. `file` is what the scenario
    calls it. Raises ManifestError."""
    others: list[str] = []
    parts = [part for document in documents_of(path, file) for part in parts_of(file, document, document.data, others)]
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


def parts_of(file: str, document: YamlDocument, data: Any, others: list[str], at: Path = ()) -> Iterator[ManifestPart]:
    """Yield the autoscalers of a document; add the kinds of other resources to `others`."""
    match data:
        case {"kind": "List", "items": [*items]}:
            for index, item in enumerate(items):
                yield from parts_of(file, document, item, others, (*at, "items", index))
        case {"kind": "RayService"} | {"applications": _}:
            yield from ray_parts(file, document)
            others.append("Ray Serve config without autoscaling_config")
        case {"metadata": {"annotations": {"serving.kserve.io/autoscalerClass": "external" | "none" as scaler}}}:
            others.append(f"{data.get('kind')} with autoscalerClass {scaler}")
        case {"apiVersion": str(version), "kind": str(kind)} if GROUPS.get(kind) == version.partition("/")[0]:
            match data:
                case {"metadata": {"name": str(name)}}:
                    part = ManifestPart(kind, name, data, at, document, file)
                case _:
                    part = ManifestPart(kind, kind, data, at, document, file)
            if READERS[kind] is not wva_policy:
                yield part
                return
            yield from wva_parts(part)
            others.append(f"{kind} without scaling")
        case {"kind": str(kind)}:
            others.append(kind)
