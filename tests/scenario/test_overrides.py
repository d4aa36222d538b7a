"""`--set key.path=value`: one value of a scenario, changed from the command line."""

import copy
from collections.abc import Callable

import pytest

from simserve.scenario import Scenario
from simserve.scenario.template import BadOverride, apply_override, parse_override

Load = Callable[..., Scenario]
MessagesOf = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("text", "keys", "value"),
    [
        ("seed=3", ("seed",), 3),
        ("a.0.b=1e-6", ("a", "0", "b"), 1e-6),
        ("a=[1, 2]", ("a",), [1, 2]),
        ("a={kind: static, batch_size: 4}", ("a",), {"kind": "static", "batch_size": 4}),
        ("a=", ("a",), None),
        ("a=b=c", ("a",), "b=c"),
        (" a . b = on", ("a", "b"), "on"),
    ],
)
def test_the_value_is_read_as_yaml(text: str, keys: tuple[str, ...], value: object) -> None:
    override = parse_override(text)
    assert (override.keys, override.value) == (keys, value)


@pytest.mark.parametrize("text", ["seed", "=3", "a..b=3", ".a=3", ""])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(BadOverride, match=r"must be key\.path=value"):
        parse_override(text)


@pytest.mark.parametrize(
    ("data", "override", "changed", "path"),
    [
        ({"a": {"b": 1}}, "a.b=2", {"a": {"b": 2}}, ("a", "b")),
        ({"a": [{"b": 1}, {"b": 2}]}, "a.1.b=3", {"a": [{"b": 1}, {"b": 3}]}, ("a", 1, "b")),
        ({}, "a.b.c=1", {"a": {"b": {"c": 1}}}, ("a", "b", "c")),
        (
            {},
            "cluster.pools.0.replicas=4",
            {"cluster": {"pools": [{"replicas": 4}]}},
            ("cluster", "pools", 0, "replicas"),
        ),
        ({"a": None}, "a.b=1", {"a": {"b": 1}}, ("a", "b")),
        ({"router": "random"}, "router.seed=1", {"router": {"kind": "random", "seed": 1}}, ("router", "seed")),
        ({"engine": "vllm"}, "engine.launch_s=0", {"engine": {"name": "vllm", "launch_s": 0}}, ("engine", "launch_s")),
        ({"r": [8, 40]}, "r.1=50", {"r": [8, 50]}, ("r", 1)),
    ],
)
def test_an_override_changes_one_value_and_nothing_of_what_it_was_given(
    data: dict[str, object], override: str, changed: object, path: object
) -> None:
    before = copy.deepcopy(data)
    assert apply_override(data, parse_override(override)) == (changed, path)
    assert data == before


@pytest.mark.parametrize(
    ("data", "override", "message"),
    [
        ({"a": 1}, "a.b=2", "a is not a mapping, so it has no key b, got 1"),
        ({"a": "x"}, "a.b=2", "a is not a mapping, so it has no key b, got 'x'"),
        ({"a": [1]}, "a.1=2", "there is no such item, got 1; a has 1 item, counted from 0"),
        ({"a": [1, 2]}, "a.-1=2", "must be the index of a list item, got '-1'; a has 2 items"),
        ({"a": [1]}, "a.serve=2", "must be the index of a list item, got 'serve'; a has 1 item"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(data: object, override: str, message: str) -> None:
    with pytest.raises(BadOverride) as caught:
        apply_override(data, parse_override(override))
    assert message in str(caught.value)


def test_overrides_are_applied_in_order_and_the_seed_last(load: Load, small: str) -> None:
    scenario = load(small, "cluster.pools.0.replicas=2", "cluster.pools.0.replicas=4", "seed=1", seed=7)
    assert scenario.cluster.pools[0].replicas == 4
    assert scenario.seed == 7


def test_an_override_of_a_scheduler_that_was_left_out_keeps_the_engines_policy(load: Load, small: str) -> None:
    spec = load(small, "cluster.pools.0.scheduler.max_num_seqs=64").cluster.pools[0].scheduler
    assert spec is not None
    assert (spec["kind"], spec["max_num_seqs"]) == ("chunked", 64)


def test_one_kind_of_workload_can_replace_another(load: Load, small: str) -> None:
    changed = load(small, "workload.arrivals=", "workload.client={kind: closed_loop, concurrency: 4}")
    assert changed.workload.arrivals is None
    assert changed.workload.client == {"kind": "closed_loop", "concurrency": 4}


def test_a_mistake_of_an_override_is_told_with_the_option(messages_of: MessagesOf, small: str) -> None:
    assert messages_of(small, "cluster.pools.0.parallel.tensor=6") == [
        "command line --set cluster.pools.0.parallel.tensor=6: must divide the model's 32 attention heads, got 6; "
        "try 1, 2, 4 or 8"
    ]


def test_a_wrong_path_gets_a_did_you_mean(messages_of: MessagesOf, small: str) -> None:
    messages = messages_of(
        small, "clustr.pools.0.replicas=4", "cluster.pools.0.replica=4", "workload.arrivals.rat_per_s=4"
    )
    assert messages == [
        "command line --set clustr.pools.0.replicas=4: clustr: unknown key; did you mean cluster?",
        "command line --set cluster.pools.0.replica=4: unknown key; did you mean replicas?",
        "command line --set workload.arrivals.rat_per_s=4: unknown argument; did you mean rate_per_s?",
    ]


def test_an_option_that_cannot_be_read_is_told_beside_the_files_mistakes(messages_of: MessagesOf, small: str) -> None:
    messages = messages_of(small.replace("gpu: h100-sxm", "gpu: h100-sxn"), "seed", "a=[", "workload.n_requests.x=1")
    assert messages[0].startswith("a.yaml:4: gpu: ")
    assert sorted(message.split(": ")[0] for message in messages[1:]) == [
        "command line --set a=[",
        "command line --set seed",
        "command line --set workload.n_requests.x=1",
    ]


def test_a_wrong_seed_option_names_the_option(messages_of: MessagesOf, small: str) -> None:
    assert messages_of(small, seed=-1) == ["command line --seed -1: must be at least 0, got -1"]


def test_setting_a_file_right_silences_its_mistake(load: Load, small: str) -> None:
    assert load(small.replace("h100-sxm", "nonsense"), "gpu=h100-sxm").gpu == "h100-sxm"
