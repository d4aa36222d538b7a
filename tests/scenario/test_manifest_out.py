"""A manifest that is written and read again is the same autoscaler."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from simserve import plugins
from simserve.plugins.find import find
from simserve.scenario import Scenario
from simserve.scenario.manifest_kinds import read_manifest
from simserve.scenario.manifest_out import manifest_text

ELSEWHERE = {
    "hpa": {"interval_s", "tolerance"},
    "keda": {"hpa_interval_s", "tolerance"},
    "kpa": {
        *("max_scale_up_rate", "max_scale_down_rate", "scale_to_zero_grace_period_s", "interval_s"),
        "target",  # without effect beside container_concurrency
    },
    "ray_serve": set[str](),
}
"""Keys that flags and config maps of the controllers have."""

METRICS = ("num_requests_waiting", "gateway_queue_size", "sum(rate(prompt_tokens_total[1m]))", "kv_cache_usage_perc")
SHARES = st.integers(1, 100).map(lambda n: n / 100)
TARGETS = st.integers(1, 10**6).map(float) | st.floats(1e-9, 1e12) | SHARES
WHOLE = st.integers(1, 1800).map(float)

rates = st.fixed_dictionaries(
    {"type": st.sampled_from(("pods", "percent")), "value": st.integers(1, 99), "period_s": WHOLE}
)
rules = st.fixed_dictionaries(
    {},
    optional={
        "stabilization_window_s": WHOLE,
        "select_policy": st.sampled_from(("max", "min", "disabled")),
        "policies": st.lists(rates, min_size=1, max_size=3),
        "tolerance": SHARES,
    },
)
behaviors = st.fixed_dictionaries({}, optional={"scale_up": rules, "scale_down": rules})
types = st.sampled_from(("average_value", "value"))
targets = st.fixed_dictionaries(
    {"metric": st.sampled_from(METRICS), "target": TARGETS, "target_type": types},
    optional={"source": st.sampled_from((None, "external"))},
)
triggers = st.fixed_dictionaries(
    {"query": st.sampled_from(METRICS), "threshold": TARGETS},
    optional={"activation_threshold": TARGETS, "metric_type": types, "use_cached_metrics": st.booleans()},
)


def some(**fields: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return fields


FIELDS = {
    "hpa": some(behavior=behaviors, interval_s=WHOLE, tolerance=SHARES),
    "keda": some(
        polling_interval_s=WHOLE,
        cooldown_period_s=WHOLE,
        initial_cooldown_period_s=WHOLE,
        idle_replica_count=st.none() | st.just(0),
        behavior=behaviors,
        hpa_interval_s=WHOLE,
        tolerance=SHARES,
    ),
    "kpa": some(
        container_concurrency=st.integers(0, 50),
        target=TARGETS,
        target_utilization_frac=SHARES,
        stable_window_s=st.integers(6, 3600).map(float) | st.floats(6, 3600),
        panic_window_frac=SHARES,
        panic_threshold_frac=st.integers(101, 1000).map(lambda n: n / 100),
        max_scale_up_rate=st.floats(2, 1e6),
        max_scale_down_rate=st.floats(2, 1e6),
        scale_to_zero_grace_period_s=WHOLE,
        interval_s=WHOLE,
    ),
    "ray_serve": some(
        target_ongoing_requests=TARGETS,
        look_back_period_s=st.floats(0.1, 3600),
        upscale_delay_s=st.floats(0, 86_400),
        downscale_delay_s=st.floats(0, 86_400),
        downscale_to_zero_delay_s=st.none() | WHOLE,
        upscaling_factor=st.floats(1e-3, 1e6),
        downscaling_factor=st.floats(1e-3, 1e6),
        metrics_interval_s=st.floats(0.1, 86_400),
    ),
}


@st.composite
def policies(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    least = draw(st.integers(1, 50))
    bounds = {"min_replicas": least, "max_replicas": draw(st.integers(least, 100))}
    needed = {"hpa": {"metrics": st.lists(targets, min_size=1, max_size=3)}}
    needed["keda"] = {"triggers": st.lists(triggers, min_size=1, max_size=3)}
    return {"kind": kind} | bounds | draw(st.fixed_dictionaries(needed.get(kind, {}), optional=FIELDS[kind]))


def without_source(policy: Any) -> Any:
    """Return the arguments of a policy, with what `source: null` says."""
    for target in getattr(policy, "metrics", ()):
        target.source = "pods" if target.is_of_pods else "external"
    return plugins.spelled_out(policy)


@pytest.mark.parametrize("kind", FIELDS)
@given(data=st.data())
def test_a_manifest_that_was_written_is_read_as_the_same_autoscaler(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = data.draw(policies(kind))
    path = tmp_path_factory.mktemp("manifest") / "manifest.yaml"
    path.write_text(manifest_text(settings) or "")
    above = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
    more = yaml.safe_load("\n".join(above[1:])) or {}
    assert more.keys() <= ELSEWHERE[kind]
    read = read_manifest(path, "manifest.yaml", None)
    assert read.note is None or kind == "kpa"  # its limit of requests is a note
    assert without_source(plugins.build("autoscalers", read.spec | more)) == without_source(
        plugins.build("autoscalers", settings)
    )


def test_every_argument_of_these_kinds_is_drawn() -> None:
    for kind, fields in FIELDS.items():
        names = {field.name for field in dataclasses.fields(find("autoscalers", kind))}
        assert names - {"min_replicas", "max_replicas", "metrics", "triggers"} == fields.keys()


@pytest.mark.parametrize("kind", ["target", "schedule", "wva", "dynamo_planner"])
def test_other_kinds_have_no_manifest(kind: str) -> None:
    needed: dict[str, dict[str, Any]] = {
        "target": {"metric": "kv_cache_usage_perc", "target": 0.5, "max_replicas": 3},
        "schedule": {"steps": [{"at_s": 5, "replicas": 3}]},
        "wva": {"max_replicas": 3},
    }
    assert manifest_text({"kind": kind, **needed.get(kind, {})}) is None


def test_a_scenario_reads_what_was_written(tmp_path: Path) -> None:
    hpa = {"kind": "hpa", "max_replicas": 4, "metrics": [{"metric": "num_requests_waiting", "target": 20}]}
    text = manifest_text(hpa)
    (tmp_path / "manifest.yaml").write_text(text or "")
    scenario = {
        "schema": "simserve/1",
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "engine": "vllm",
        "cluster": {"pools": [{"autoscaler": {"manifest": str(tmp_path / "manifest.yaml")}}]},
        "workload": {
            "arrivals": {"kind": "constant", "rate_per_s": 1},
            "lengths": {"kind": "fixed", "prompt_tokens": 9, "output_tokens": 9},
            "n_requests": 9,
        },
    }
    read = Scenario.from_dict(scenario).cluster.pools[0].autoscaler
    assert read is not None and manifest_text(read) == text
