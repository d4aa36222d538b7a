"""Configs of Ray Serve, and its keys in our words."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from simserve.plugins.validation import Path
from simserve.scenario.manifest import ManifestPart, ManifestPolicy, Shape, given, parsed_documents
from simserve.scenario.manifest_hpa import POOL, SCALER
from simserve.scenario.yaml_lines import YamlDocument

RAY_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "target_ongoing_requests": f"{SCALER}: {{kind: ray_serve, target_ongoing_requests: 2}}",
        "target_num_ongoing_requests_per_replica": f"{SCALER}.target_ongoing_requests",
        "smoothing_factor": f"{SCALER}.upscaling_factor and downscaling_factor",
        "upscale_smoothing_factor": f"{SCALER}.upscaling_factor",
        "downscale_smoothing_factor": f"{SCALER}.downscaling_factor",
        "initial_replicas": f"{POOL}.replicas",
        "graceful_shutdown_timeout_s": f"{POOL}.shutdown.grace_s",
    }
)
"""A key of Ray Serve -> ours."""

AUTO_REPLICAS = 100
"""`max_replicas` with `num_replicas: auto` (ray, serve/_private/config.py)."""

TEMPLATE = ("spec", "serveConfigV2")
"""Where a RayService has the config, as text."""


class RayShape(Shape, alias_generator=None):
    """A mapping with keys in snake case."""


class RayAutoscaling(RayShape):
    """The `autoscaling_config` of a deployment; earlier versions call three of its keys otherwise."""

    min_replicas: int | None = None
    max_replicas: int | None = None
    target_ongoing_requests: float | None = None
    target_num_ongoing_requests_per_replica: float | None = None
    look_back_period_s: float | None = None
    metrics_interval_s: float | None = None
    upscale_delay_s: float | None = None
    downscale_delay_s: float | None = None
    downscale_to_zero_delay_s: float | None = None
    upscaling_factor: float | None = None
    downscaling_factor: float | None = None
    smoothing_factor: float | None = None
    upscale_smoothing_factor: float | None = None
    downscale_smoothing_factor: float | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The keys that the policy has, and its names for the others."""
        own = {key: getattr(self, key) for key in type(self).model_fields}
        up, down, both = (own.pop(f"{prefix}smoothing_factor") for prefix in ("upscale_", "downscale_", ""))
        earlier = own.pop("target_num_ongoing_requests_per_replica")
        old = {"target_ongoing_requests": earlier, "upscaling_factor": up or both, "downscaling_factor": down or both}
        return given(**old) | given(**own)


class RayDeployment(RayShape):
    """A deployment of Ray Serve."""

    NOTED = "max_ongoing_requests|max_queued_requests|graceful_shutdown_timeout_s|request_router_config"

    num_replicas: int | str | None = None
    autoscaling_config: RayAutoscaling = RayAutoscaling()


def ray_policy(part: ManifestPart) -> ManifestPolicy:
    """Return the policy of a deployment of Ray Serve. Raises ManifestError."""
    deployment = part.parsed(RayDeployment)
    scales = deployment.autoscaling_config
    most = AUTO_REPLICAS if deployment.num_replicas == "auto" else max(1, scales.min_replicas or 1)
    policy = {"kind": "ray_serve", "max_replicas": most} | scales.arguments
    return ManifestPolicy.of(part, deployment, policy, {(): ("autoscaling_config",)})


def ray_parts(file: str, document: YamlDocument) -> Iterator[ManifestPart]:
    """Yield the deployments that scale: of a Ray Serve config, and of its large language models. Raises ManifestError
    for the config of a RayService that is not YAML."""
    match document.data:
        case {"kind": "RayService", "spec": {"serveConfigV2": str(text)}}:
            first = document.lines[TEMPLATE]
            for inner in parsed_documents(text, file, first):
                lines = {path: line + first for path, line in inner.lines.items()}
                yield from ray_parts(file, replace(inner, lines=lines))
        case {"applications": [*applications]}:
            for index, application in enumerate(applications):
                for name, data, at in _deployments(application):
                    yield ManifestPart("Deployment", name, data, ("applications", index, *at), document, file)


def _deployments(application: Any) -> Iterator[tuple[str, Any, Path]]:
    """Yield the name, the settings and the place of each deployment that scales."""
    match application:
        case {"deployments": [*deployments]}:
            for index, deployment in enumerate(deployments):
                match deployment:
                    case {"name": str(name), "autoscaling_config": _} | {"name": str(name), "num_replicas": "auto"}:
                        yield name, deployment, ("deployments", index)
    match application:
        case {"args": {"llm_configs": [*configs]}}:
            for index, config in enumerate(configs):
                match config:
                    case {"deployment_config": {"autoscaling_config": _} as deployment}:
                        name = _model_of(config) or f"llm_configs.{index}"
                        yield name, deployment, ("args", "llm_configs", index, "deployment_config")


def _model_of(config: Any) -> str | None:
    match config:
        case {"model_loading_config": {"model_id": str(name)}}:
            return name
    return None
