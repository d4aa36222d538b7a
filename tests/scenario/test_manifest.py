"""An autoscaler from a manifest of Kubernetes, KEDA, Knative, KServe or Ray Serve, as if it were spelled out."""
# ruff: noqa: E501 - messages are as long as they are

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simserve.scenario import Scenario, scenario_schema
from simserve.scenario.cost_warnings import notes
from simserve.scenario.manifest import duration_s, quantity
from simserve.scenario.manifest_kinds import GROUPS, READERS
from tests.cli.invoke import invoke

Load = Callable[..., Scenario]
MessagesOf = Callable[..., list[str]]

SETTINGS = Path(__file__).resolve().parents[3] / "shared/data/fleet/settings.json"

HPA = """\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: my-hpa}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: vllm}
  minReplicas: 2
  maxReplicas: 8
  metrics:
    - type: Pods
      pods: {metric: {name: num_requests_waiting}, target: {type: AverageValue, averageValue: "20"}}
    - type: Object
      object: {describedObject: {kind: Gateway, name: g}, metric: {name: gateway_queue_size}, target: {type: Value, value: 1k}}
    - type: External
      external: {metric: {name: "vllm:kv_cache_usage_perc", selector: {matchLabels: {a: b}}}, target: {type: AverageValue, averageValue: 500m}}
  behavior:
    scaleUp:
      tolerance: 50m
    scaleDown:
      stabilizationWindowSeconds: 60
      selectPolicy: Min
      policies: [{type: Pods, value: 1, periodSeconds: 30}, {type: Percent, value: 10, periodSeconds: 60}]
"""

KEDA = """\
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: my-keda}
spec:
  scaleTargetRef: {name: vllm}
  pollingInterval: 10
  cooldownPeriod: 120
  initialCooldownPeriod: 5
  idleReplicaCount: 0
  minReplicaCount: 1
  maxReplicaCount: 6
  advanced:
    restoreToOriginalReplicaCount: true
    horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 30}}}
  triggers:
    - type: prometheus
      metricType: Value
      useCachedMetrics: true
      metadata:
        serverAddress: http://prometheus:9090
        query: sum(vllm:num_requests_waiting{model_name="m"}) or vector(0)
        threshold: "7.5"
        activationThreshold: "2"
"""

KSERVE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: my-service
  annotations: {serving.kserve.io/deploymentMode: Standard, serving.kserve.io/autoscalerClass: keda}
spec:
  predictor:
    model: {modelFormat: {name: huggingface}, storageUri: "hf://m"}
    minReplicas: 1
    maxReplicas: 5
    autoScaling:
      metrics:
        - type: External
          external:
            metric: {backend: prometheus, serverAddress: "http://p:9090", query: "vllm:num_requests_running"}
            target: {type: Value, value: "2"}
        - type: PodMetric
          podmetric:
            metric: {backend: opentelemetry, metricNames: [kv_cache_usage_perc], query: kv_cache_usage_perc}
            target: {type: AverageValue, averageValue: 800m}
      behavior: {scaleUp: {stabilizationWindowSeconds: 9}}
"""

SERVERLESS = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: my-service
  annotations: {autoscaling.knative.dev/window: 1m30s, autoscaling.knative.dev/target-burst-capacity: "0"}
spec:
  predictor:
    minReplicas: 0
    maxReplicas: 5
    scaleTarget: 16
    scaleMetric: concurrency
    containers: [{image: vllm}]
"""

KNATIVE = """\
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: my-service}
spec:
  template:
    metadata:
      annotations:
        autoscaling.knative.dev/class: kpa.autoscaling.knative.dev
        autoscaling.knative.dev/minScale: "1"
        autoscaling.knative.dev/max-scale: "9"
        autoscaling.knative.dev/target-utilization-percentage: "80"
        autoscaling.knative.dev/panic-window-percentage: "20"
        autoscaling.knative.dev/panic-threshold-percentage: "300"
    spec: {containerConcurrency: 32, containers: [{image: vllm}]}
"""

RAY = """\
applications:
  - name: llm
    deployments:
      - name: Router
        num_replicas: 2
      - name: Llama
        max_ongoing_requests: 64
        autoscaling_config: {min_replicas: 1, initial_replicas: 1, max_replicas: 7, target_ongoing_requests: 20, upscale_delay_s: 5, smoothing_factor: 0.5}
"""


VARIANT = """\
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: my-variant}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: vllm}
  modelID: meta/llama-3.1-8b
  variantCost: "40.0"
  minReplicas: 2
  maxReplicas: 6
  scalingBackend:
    type: hpa
    hpa: {behavior: {scaleUp: {stabilizationWindowSeconds: 120}}}
"""

LLM_SERVICE = """\
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: my-llm}
spec:
  model: {uri: "hf://m", name: m}
  scaling:
    maxReplicas: 4
    wva:
      keda:
        pollingInterval: 10
        advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {selectPolicy: Disabled}}}}
  prefill:
    scaling: {minReplicas: 1, maxReplicas: 3, wva: {variantCost: "5", hpa: {}}}
"""


@pytest.fixture
def policy(load: Load, small: str) -> Callable[..., dict[str, Any]]:
    """The spelled-out policy of a manifest."""

    def policy_of(text: str, *overrides: str) -> dict[str, Any]:
        policy = scaled(load, small, text, *overrides).cluster.pools[0].autoscaler
        assert policy is not None
        return policy

    return policy_of


def scaled(load: Load, small: str, text: str, *overrides: str, file: str = "my.yaml") -> Scenario:
    """Return the scenario with a manifest in a file."""
    Path(file).write_text(text, encoding="utf-8")
    return load(small, f"cluster.pools.0.autoscaler.manifest={file}", *overrides)


@pytest.fixture
def problems(messages_of: MessagesOf, small: str) -> Callable[..., list[str]]:
    """The messages about a manifest, below the scenario's autoscaler, without the place that all of them have."""

    def problems_of(text: str, more: str = "") -> list[str]:
        Path("my.yaml").write_text(text, encoding="utf-8")
        pools = f"cluster:\n  pools:\n    - autoscaler:\n        manifest: my.yaml\n{more}"
        return [each.replace("cluster.pools.0.autoscaler", "*") for each in messages_of(f"{small}{pools}")]

    return problems_of


def test_a_kubernetes_autoscaler_is_read(policy: Callable[..., dict[str, Any]]) -> None:
    read = policy(HPA)
    assert (read["kind"], read["min_replicas"], read["max_replicas"]) == ("hpa", 2, 8)
    assert [tuple(each.values()) for each in read["metrics"]] == [
        ("num_requests_waiting", 20, "average_value", "pods"),
        ("gateway_queue_size", 1000, "value", "external"),
        ("vllm:kv_cache_usage_perc", 0.5, "average_value", "external"),
    ]
    up, down = read["behavior"]["scale_up"], read["behavior"]["scale_down"]
    assert (up["tolerance"], up["stabilization_window_s"], len(up["policies"])) == (0.05, 0, 2)
    assert (down["stabilization_window_s"], down["select_policy"]) == (60, "min")
    assert [tuple(each.values()) for each in down["policies"]] == [("pods", 1, 30), ("percent", 10, 60)]


def test_it_is_the_same_as_the_policy_spelled_out(load: Load, small: str) -> None:
    read = scaled(load, small, HPA)
    again = load(read.to_yaml())
    assert (again, again.digest) == (read, read.digest)


def test_a_scaled_object_is_read(policy: Callable[..., dict[str, Any]]) -> None:
    read = policy(KEDA)
    query = 'sum(vllm:num_requests_waiting{model_name="m"}) or vector(0)'
    assert [tuple(each.values()) for each in read["triggers"]] == [(query, 7.5, 2, "value", True)]
    times = ("polling_interval_s", "cooldown_period_s", "initial_cooldown_period_s")
    assert [read["kind"], *(read[key] for key in times)] == ["keda", 10, 120, 5]
    assert [read[key] for key in ("idle_replica_count", "min_replicas", "max_replicas")] == [0, 1, 6]
    assert read["behavior"]["scale_down"]["stabilization_window_s"] == 30


def test_an_inference_service_is_what_its_class_and_mode_say(policy: Callable[..., dict[str, Any]]) -> None:
    keda = policy(KSERVE)
    assert (keda["kind"], keda["min_replicas"], keda["max_replicas"]) == ("keda", 1, 5)
    assert [(each["query"], each["threshold"]) for each in keda["triggers"]] == [
        ("vllm:num_requests_running", 2),
        ("sum(kv_cache_usage_perc)", 0.8),
    ]
    assert keda["behavior"]["scale_up"]["stabilization_window_s"] == 9
    kpa = policy(SERVERLESS)
    values = [kpa[key] for key in ("kind", "min_replicas", "max_replicas", "target", "stable_window_s")]
    assert values == ["kpa", 0, 5, 16, 90]


def test_a_knative_service_is_read(policy: Callable[..., dict[str, Any]]) -> None:
    read = policy(KNATIVE)
    assert [read[key] for key in ("kind", "min_replicas", "max_replicas", "container_concurrency")] == ["kpa", 1, 9, 32]
    shares = [read[key] for key in ("target_utilization_frac", "panic_window_frac", "panic_threshold_frac")]
    assert shares == [0.8, 0.2, 3.0]


def test_the_smaller_of_target_and_limit_is_knatives_target(policy: Callable[..., dict[str, Any]]) -> None:
    target = '        autoscaling.knative.dev/target: "{}"\n    spec:'
    for given, meant in ((20, 20), (50, 32)):
        read = policy(KNATIVE.replace("    spec:", target.format(given)))
        assert (read["target"], read["container_concurrency"]) == (meant, 0)


def test_a_variant_and_the_workloads_of_an_llm_service_are_read(policy: Callable[..., dict[str, Any]]) -> None:
    """What follows WVA has Kubernetes' defaults, where the manifest says that there is one."""
    name = "cluster.pools.0.autoscaler.name"
    variant, both, prefill = (
        policy(VARIANT),
        policy(LLM_SERVICE, f"{name}=my-llm"),
        policy(f"{HPA}---\n{LLM_SERVICE}", f"{name}=my-llm-prefill"),
    )
    for each, bounds in ((variant, (2, 6)), (both, (1, 4)), (prefill, (1, 3))):
        assert (each["kind"], each["version"]) == ("wva", "v1")
        assert (each["min_replicas"], each["max_replicas"]) == bounds
    windows = [
        [each["behavior"][way]["stabilization_window_s"] for way in ("scale_up", "scale_down")]
        for each in (variant, both, prefill)
    ]
    assert windows == [[120, 300], [0, 300], [0, 300]]
    assert both["behavior"]["scale_down"]["select_policy"] == "disabled"
    backend = VARIANT.index("  scalingBackend")
    assert policy(VARIANT[:backend])["behavior"]["scale_up"]["stabilization_window_s"] == 240


def test_a_ray_serve_config_is_read(policy: Callable[..., dict[str, Any]]) -> None:
    read = policy(RAY)
    keys = (
        "kind",
        "max_replicas",
        "target_ongoing_requests",
        "upscale_delay_s",
        "upscaling_factor",
        "downscaling_factor",
    )
    assert [read[key] for key in keys] == ["ray_serve", 7, 20, 5, 0.5, 0.5]


def test_ray_serve_has_at_most_one_replica_without_auto(policy: Callable[..., dict[str, Any]]) -> None:
    deployment = "applications: [{deployments: [{name: a, NUMBER autoscaling_config: {target_ongoing_requests: 3}}]}]"
    assert policy(deployment.replace("NUMBER", ""))["max_replicas"] == 1
    assert policy(deployment.replace("NUMBER", "num_replicas: auto,"))["max_replicas"] == 100


def test_models_of_ray_serve_and_the_config_of_a_ray_service_are_read(policy: Callable[..., dict[str, Any]]) -> None:
    model = "model_loading_config: {model_id: qwen}, deployment_config: {autoscaling_config: {max_replicas: 3}}"
    config = f"applications: [{{args: {{llm_configs: [{{{model}}}]}}}}]"
    assert policy(config)["max_replicas"] == 3
    service = (
        f"apiVersion: ray.io/v1\nkind: RayService\nmetadata: {{name: a}}\nspec:\n  serveConfigV2: |\n    {config}\n"
    )
    assert policy(service) == policy(config)


def test_the_only_autoscaler_of_several_documents_and_lists_is_read(policy: Callable[..., dict[str, Any]]) -> None:
    others = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n---\n"
    assert policy(f"{others}{HPA}---\n") == policy(HPA)
    items = "".join(f"    {line}\n" for line in HPA.splitlines())
    assert policy(f"apiVersion: v1\nkind: List\nitems:\n  -\n{items}") == policy(HPA)


def test_several_autoscalers_need_a_name(
    policy: Callable[..., dict[str, Any]], problems: Callable[..., list[str]]
) -> None:
    both = f"{HPA}---\n{KEDA}"
    assert policy(both, "cluster.pools.0.autoscaler.name=my-keda") == policy(KEDA)
    assert problems(both) == [
        "a.yaml:12: *.manifest: my.yaml: has 2 autoscalers, got my-hpa, my-keda; choose one by name: my-hpa"
    ]
    assert problems(both, "        name: my-kedda\n") == [
        "a.yaml:13: *.name: is in my.yaml no autoscaler, got my-kedda; did you mean my-keda?"
    ]
    same = f"{HPA}---\n{KEDA.replace('my-keda', 'my-hpa')}"
    assert policy(same, "cluster.pools.0.autoscaler.name=ScaledObject/my-hpa") == policy(KEDA)


def test_keys_of_the_scenario_replace_those_of_the_manifest(load: Load, small: str) -> None:
    here = "cluster.pools.0.autoscaler"
    changes = (
        "max_replicas=4",
        "behavior.scale_down.stabilization_window_s=7",
        "metrics=[{metric: num_requests_running, target: 9}]",
    )
    scenario = scaled(load, small, HPA, *(f"{here}.{change}" for change in changes))
    policy = scenario.cluster.pools[0].autoscaler
    assert policy is not None
    assert (policy["max_replicas"], policy["min_replicas"], len(policy["metrics"])) == (4, 2, 1)
    assert policy["behavior"]["scale_down"]["select_policy"] == "min"
    keys = ["max_replicas", "min_replicas", "metrics.0.target", "metrics.0.source", "tolerance"]
    keys += ["behavior.scale_down.stabilization_window_s", "behavior.scale_down.select_policy"]
    origins = [scenario.origins[f"{here}.{key}"] for key in keys]
    assert origins == ["explicit", "my.yaml", "explicit", "default", "default", "explicit", "my.yaml"]


def test_the_digest_is_of_the_content_and_not_of_the_path(load: Load, small: str) -> None:
    Path("below").mkdir()
    digests = [scaled(load, small, HPA, file=file).digest for file in ("my.yaml", "below/other.yaml")]
    assert digests[0] == digests[1] != scaled(load, small, HPA.replace("maxReplicas: 8", "maxReplicas: 7")).digest


def test_keys_that_are_not_simulated_are_notes_of_the_run(load: Load, small: str) -> None:
    paused = KEDA.replace("{name: my-keda}", '{name: a, annotations: {autoscaling.keda.sh/paused: "true", b: c}}')
    texts = {
        HPA: (),
        paused.replace("  triggers:", "  fallback: {failureThreshold: 3, replicas: 6}\n  triggers:"): (
            "my.yaml: spec.fallback, metadata.annotations.autoscaling.keda.sh/paused are not simulated",
        ),
        SERVERLESS: ("my.yaml: metadata.annotations.autoscaling.knative.dev/target-burst-capacity is not simulated",),
        VARIANT: ("my.yaml: spec.variantCost is not simulated",),
        LLM_SERVICE.partition("  prefill:")[0]: ("my.yaml: spec.scaling.wva.keda.pollingInterval is not simulated",),
        KNATIVE: ("my.yaml: spec.template.spec.containerConcurrency as a limit is not simulated",),
        RAY: (
            "my.yaml: applications.0.deployments.1.max_ongoing_requests, applications.0.deployments.1.autoscaling_config.initial_replicas are not simulated",
        ),
    }
    for text, expected in texts.items():
        of_run = [note for note in notes(scaled(load, small, text).setups) if note.startswith("my.yaml")]
        assert tuple(map(sorted_keys, of_run)) == tuple(map(sorted_keys, expected))


def sorted_keys(note: str) -> list[str]:
    """Return the words of a note, in any order of its keys."""
    return sorted(note.replace(",", "").split())


WRONG = {
    "a resource": (
        HPA.replace(
            "type: Pods\n      pods: {metric: {name: num_requests_waiting}",
            "type: Resource\n      resource: {name: cpu",
        ),
        "my.yaml:9: spec.metrics.0: Resource metrics, such as cpu, are not simulated: a simulated server has none; use a metric of type Pods, such as num_requests_waiting",
    ),
    "an earlier version": (
        HPA.replace("autoscaling/v2", "autoscaling/v1"),
        "my.yaml:1: apiVersion: must be autoscaling/v2, got 'autoscaling/v1'; `kubectl get hpa my-hpa -o yaml` writes it so",
    ),
    "a missing key": (HPA.replace("  maxReplicas: 8\n", ""), "my.yaml:4: spec.maxReplicas: is missing; add it"),
    "no value of the type": (
        HPA.replace("averageValue: 500m", "value: 500m"),
        "my.yaml:14: spec.metrics.2.external.target: must have averageValue with type: AverageValue; correct it",
    ),
    "no source of the type": (
        HPA.replace("      pods:", "      pod:"),
        "my.yaml:9: spec.metrics.0: must have the key pods with type: Pods; correct it",
    ),
    "no quantity": (
        HPA.replace("500m", "half"),
        "my.yaml:14: spec.metrics.2.external.target.averageValue: must be a quantity such as 20 or 500m, got 'half'; correct it",
    ),
    "bounds": (
        HPA.replace("minReplicas: 2", "minReplicas: 0"),
        "my.yaml:6: spec.minReplicas: must be at least 1, got 0; correct it, or give min_replicas in the scenario, next to `manifest`",
    ),
    "a long window": (
        HPA.replace("Seconds: 60\n", "Seconds: 9999\n"),
        "my.yaml:19: spec.behavior.scaleDown.stabilizationWindowSeconds: must be at most 3600, got 9999; correct it, or give behavior in the scenario, next to `manifest`",
    ),
    "a rule of the policy": (
        HPA.replace("maxReplicas: 8", "maxReplicas: 1"),
        "my.yaml:4: spec: min_replicas must be at most max_replicas, got 2 > 1; swap them",
    ),
    "a trigger": (
        KEDA.replace("type: prometheus", "type: cron"),
        "my.yaml:16: spec.triggers.0: cron triggers are not simulated; use kind: schedule, or leave it out",
    ),
    "another trigger": (
        KEDA.replace("type: prometheus", "type: kafka"),
        "my.yaml:16: spec.triggers.0: kafka triggers are not simulated; use a prometheus trigger, or leave it out",
    ),
    "a threshold": (
        KEDA.replace('"7.5"', "500m"),
        "my.yaml:22: spec.triggers.0.metadata.threshold: must be a number, got '500m'; correct it",
    ),
    "a formula": (
        KEDA.replace("    restoreTo", "    scalingModifiers: {formula: a + b}\n    restoreTo"),
        "my.yaml:12: spec.advanced: scalingModifiers are not simulated; write the formula as one query",
    ),
    "an idle count": (
        KEDA.replace("minReplicaCount: 1", "minReplicaCount: 0"),
        "my.yaml:4: spec: idle_replica_count must be below min_replicas, got 0 for both; leave it out",
    ),
    "CPU of KServe": (
        KSERVE.replace(", serving.kserve.io/autoscalerClass: keda", ""),
        "my.yaml:5: metadata.annotations: must be serverless or have autoscalerClass: keda, as the others scale by CPU or memory, got 'Standard'; annotate serving.kserve.io/autoscalerClass: keda, and give spec.predictor.autoScaling",
    ),
    "no metrics of KServe": (
        SERVERLESS.replace("{autoscaling", "{serving.kserve.io/autoscalerClass: keda, autoscaling"),
        "my.yaml:7: spec.predictor: must have autoScaling with metrics for KEDA; add it",
    ),
    "a backend of KServe": (
        KSERVE.replace("backend: prometheus", "backend: graphite"),
        "my.yaml:13: spec.predictor.autoScaling.metrics.0: backend graphite is not simulated; use prometheus with a query",
    ),
    "requests per second": (
        SERVERLESS.replace("concurrency", "rps"),
        "my.yaml:11: spec.predictor.scaleMetric: only concurrency is simulated, got 'rps'; write concurrency, and its scaleTarget",
    ),
    "no upper bound": (
        SERVERLESS.replace("    maxReplicas: 5\n", ""),
        "my.yaml:7: spec.predictor: max_replicas is missing; give max_replicas in the scenario, next to `manifest`",
    ),
    "a class of Knative": (
        KNATIVE.replace("kpa.auto", "hpa.auto"),
        "my.yaml:8: spec.template.metadata.annotations.autoscaling.knative.dev/class: must be 'kpa.autoscaling.knative.dev', got 'hpa.autoscaling.knative.dev'; did you mean kpa.autoscaling.knative.dev?",
    ),
    "a duration": (
        SERVERLESS.replace("1m30s", "90"),
        "my.yaml:5: metadata.annotations.autoscaling.knative.dev/window: must be a duration such as 60s, got 90; correct it",
    ),
    "another kind": (
        "apiVersion: apps/v1\nkind: Deployment\n",
        "my.yaml: has no autoscaler, got Deployment; give a HorizontalPodAutoscaler, ScaledObject, InferenceService, LLMInferenceService, VariantAutoscaling, Service of Knative, or a Ray Serve config",
    ),
    "an external autoscaler": (
        SERVERLESS.replace("{autoscaling", "{serving.kserve.io/autoscalerClass: external, autoscaling"),
        "my.yaml: has no autoscaler, got InferenceService with autoscalerClass external; give a HorizontalPodAutoscaler, ScaledObject, InferenceService, LLMInferenceService, VariantAutoscaling, Service of Knative, or a Ray Serve config",
    ),
    "a service with fixed replicas": (
        LLM_SERVICE[: LLM_SERVICE.index("  scaling:")] + "  replicas: 3\n  prefill: {replicas: 1}\n",
        "my.yaml: has no autoscaler, got LLMInferenceService without scaling; give a HorizontalPodAutoscaler, ScaledObject, InferenceService, LLMInferenceService, VariantAutoscaling, Service of Knative, or a Ray Serve config",
    ),
    "an LLM service without WVA": (
        LLM_SERVICE[: LLM_SERVICE.index("    wva:")],
        "my.yaml:6: spec.scaling: has no wva, and so no autoscaler; add it, or give the pool replicas instead",
    ),
    "a variant without bounds": (
        VARIANT.replace("  maxReplicas: 6\n", ""),
        "my.yaml:4: spec: max_replicas is missing; give max_replicas in the scenario, next to `manifest`",
    ),
    "a variant that may have none": (
        VARIANT.replace("minReplicas: 2", "minReplicas: 0"),
        "my.yaml:8: spec.minReplicas: must be at least 1, got 0; correct it, or give min_replicas in the scenario, next to `manifest`",
    ),
    "two workloads": (
        LLM_SERVICE,
        "my.yaml: has 2 autoscalers, got my-llm, my-llm-prefill; choose one by name: my-llm",
    ),
    "a template": (
        HPA.replace("maxReplicas: 8", "maxReplicas: {{ .Values.max }}"),
        "my.yaml:7: is a template of Helm; render it first: helm template CHART > rendered.yaml",
    ),
    "no YAML": ("a: [", "my.yaml:2: is not YAML: did not find expected node content; correct it, or name another file"),
    "a key given twice": (
        HPA.replace("  maxReplicas: 8\n", "  maxReplicas: 8\n  maxReplicas: 9\n"),
        "my.yaml:7: spec.maxReplicas: is given twice, first on line 7; keep one of them",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_simulated_is_refused_at_its_place(problems: Callable[..., list[str]], case: str) -> None:
    text, message = WRONG[case]
    assert problems(text) == [f"a.yaml:12: *.manifest: {message}"]


def test_an_unknown_metric_is_a_problem_of_the_manifest(problems: Callable[..., list[str]]) -> None:
    (message,) = problems(HPA.replace("num_requests_waiting", "num_requests_waitin"))
    assert message.startswith(
        "a.yaml:12: *.manifest: my.yaml:9: spec.metrics.0: unknown metric 'num_requests_waitin'; did you mean num_requests_waiting?"
    )


def test_keys_next_to_the_manifest_are_problems_of_the_scenario(problems: Callable[..., list[str]]) -> None:
    assert problems(HPA, "        max_replicas: 0\n") == ["a.yaml:13: *.max_replicas: must be at least 1, got 0"]
    assert problems(HPA, "        maxReplicas: 3\n") == [
        "a.yaml:13: *.maxReplicas: unknown argument; use *.max_replicas"
    ]
    assert problems(HPA, "        kind: keda\n") == [
        "a.yaml:13: *.kind: must be hpa, as my.yaml is of that kind, got 'keda'; leave it out"
    ]
    assert problems(HPA, "        name: 5\n") == ["a.yaml:13: *.name: must be text, got 5; quote it"]


def test_the_file_must_be_there(messages_of: MessagesOf, small: str, tmp_path: Path) -> None:
    here = "cluster.pools.0.autoscaler.manifest"
    assert messages_of(small, f"{here}=none.yaml") == [
        f"command line --set {here}=none.yaml: there is no such file, got 'none.yaml'; looked in {tmp_path}"
    ]
    assert messages_of(small, f"{here}=5") == [
        f"command line --set {here}=5: must be text, got 5; give the path of a file"
    ]
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    assert messages_of(small, f"{here}=bytes.yaml") == [
        f"command line --set {here}=bytes.yaml: bytes.yaml: is not UTF-8 text (byte 0); name a file of YAML"
    ]


@pytest.mark.parametrize("text", [HPA, KEDA, KSERVE, SERVERLESS, KNATIVE, RAY])
def test_no_value_of_another_type_ends_in_a_traceback(
    problems: Callable[..., list[str]], policy: Callable[..., dict[str, Any]], text: str
) -> None:
    """Each line of a manifest in turn has a list, a number or nothing as its value."""
    lines = text.splitlines()
    for index, line in enumerate(lines):
        key, colon, _ = line.partition(": ")
        for value in ("[1]", "7", "null", "{a: b}") if colon else ():
            Path("my.yaml").write_text("\n".join([*lines[:index], f"{key}: {value}", *lines[index + 1 :]]))
            try:
                policy(Path("my.yaml").read_text())
            except Exception as error:
                assert type(error).__name__ == "ScenarioError", (line, value, error)


def test_quantities_and_durations_are_those_of_kubernetes_and_go() -> None:
    texts = {
        "20": 20,
        "1.5": 1.5,
        "500m": 0.5,
        "700m": 0.7,
        "1k": 1000,
        "2Ki": 2048,
        "1e3": 1000,
        "3M": 3e6,
        "1u": 1e-6,
    }
    assert {text: quantity(text) for text in texts} == texts
    assert quantity(7) == 7
    for wrong in ("", "m", "1 k", "1K", "0x1", "1mi", True, None, [1]):
        with pytest.raises(ValueError, match="must be a quantity"):
            quantity(wrong)
    assert [duration_s(text) for text in ("60s", "1m30s", "1.5h", "250ms")] == [60, 90, 5400, 0.25]


def test_every_kind_that_is_read_has_a_reader() -> None:
    assert {*GROUPS, "Deployment"} == READERS.keys()


KEYS = {
    "minReplicas": "autoscaler.min_replicas",
    "maxReplicas": "autoscaler.max_replicas",
    "minReplicaCount": "autoscaler.min_replicas",
    "maxReplicaCount": "autoscaler.max_replicas",
    "pollingInterval": "autoscaler.polling_interval_s",
    "cooldownPeriod": "autoscaler.cooldown_period_s",
    "targetAverageValue": "autoscaler.metrics.0.target",
    "averageValue": "autoscaler.metrics.0.target",
    "scaleDown": "autoscaler.behavior.scale_down",
    "scaleUp": "autoscaler.behavior.scale_up",
    "selectPolicy": "autoscaler.behavior.scale_down.select_policy",
    "stabilizationWindowSeconds": "autoscaler.behavior.scale_down.stabilization_window_s",
    "periodSeconds": "autoscaler.behavior.scale_down.policies.0.period_s",
    "min-scale": "autoscaler.min_replicas",
    "autoscaling.knative.dev/max-scale": "autoscaler.max_replicas",
    "target_ongoing_requests": "autoscaler: {kind: ray_serve, target_ongoing_requests: 2}",
    "terminationGracePeriodSeconds": "shutdown.grace_s",
    "preStop": "shutdown.pre_stop_s",
    "minAvailable": "shutdown.min_available",
    "maxUnavailable": "shutdown.max_unavailable",
}


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_controllers_have_a_remedy(messages_of: MessagesOf, small: str, key: str) -> None:
    text = f"{small}cluster:\n  pools:\n    - {key}: 1\n"
    assert messages_of(text) == [f"a.yaml:11: cluster.pools.0.{key}: unknown key; use cluster.pools.0.{KEYS[key]}"]


def test_a_key_of_one_direction_has_its_remedy_there(messages_of: MessagesOf, small: str) -> None:
    scaler = "{kind: hpa, max_replicas: 2, metrics: [{metric: num_requests_waiting, target: 1}], behavior: {scale_up: {periodSeconds: 5}}}"
    (message,) = messages_of(f"{small}cluster: {{pools: [{{autoscaler: {scaler}}}]}}")
    assert message.endswith("use cluster.pools.0.autoscaler.behavior.scale_up.policies.0.period_s")


def test_the_schema_has_manifests() -> None:
    choices = scenario_schema()["$defs"]["Pool"]["properties"]["autoscaler"]["anyOf"]
    assert any("manifest" in choice.get("properties", {}) for choice in choices)


def test_the_command_line_takes_a_manifest_and_refuses_a_wrong_one(load: Load, small: str) -> None:
    load(small)
    Path("my.yaml").write_text(HPA)
    run = ("run", "a.yaml", "--set", "cluster.pools.0.autoscaler.manifest=my.yaml", "--out", "out")
    assert invoke(*run).exit_code == 0
    assert "max_replicas: 8  # my.yaml" in Path("out/scenario.yaml").read_text()
    Path("my.yaml").write_text("kind: Deployment")
    assert invoke(*run).exit_code == 2


@pytest.mark.skipif(not SETTINGS.exists(), reason="needs the data next to the repository")
def test_the_manifests_of_a_real_fleet_are_read(policy: Callable[..., dict[str, Any]]) -> None:
    texts = json.loads(SETTINGS.read_text())["hpa_manifests"]
    waiting, kv = ("num_requests_waiting", "kv_cache_usage_perc")
    up, slow_up = [("percent", 100, 15), ("pods", 4, 15)], [("pods", 4, 15)]
    expected = {
        "hpa-vllm-combined.yaml": ([(waiting, 20), (kv, 0.5)], up, 0, "min", [("pods", 1, 15)]),
        "hpa-vllm-kvcache.yaml": ([(kv, 0.8)], slow_up, 0, "max", [("pods", 1, 60)]),
        "hpa-vllm-waiting.yaml": ([(waiting, 5)], slow_up, 60, "max", [("pods", 1, 30)]),
    }
    assert texts.keys() == expected.keys()
    for name, text in texts.items():
        read = policy(text)
        rise, fall = read["behavior"]["scale_up"], read["behavior"]["scale_down"]
        assert (read["kind"], read["min_replicas"], read["max_replicas"]) == ("hpa", 1, 10)
        assert {each["source"] for each in read["metrics"]} == {"pods"}
        assert expected[name] == (
            [(each["metric"], each["target"]) for each in read["metrics"]],
            [tuple(each.values()) for each in rise["policies"]],
            fall["stabilization_window_s"],
            fall["select_policy"],
            [tuple(each.values()) for each in fall["policies"]],
        )
