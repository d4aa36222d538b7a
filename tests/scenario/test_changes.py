"""Scenarios from Python: any form of one, and what keyword arguments change in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve import Scenario, load_scenario, simulate
from simserve.errors import ScenarioError
from simserve.scenario.loader import scenario_from
from tests.cli.scenarios import write_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
CHAT_BURST = SCENARIOS / "chat_burst.yaml"


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"gpu": "h200-sxm"}, ["gpu=h200-sxm"]),
        (
            {"replicas": 3, "parallel": {"tensor": 2}},
            ["cluster.pools.0.replicas=3", "cluster.pools.0.parallel={tensor: 2}"],
        ),
        ({"workload.duration_s": 120, "seed": 4}, ["workload.duration_s=120", "seed=4"]),
        ({"scheduler": "static"}, ["cluster.pools.0.scheduler=static"]),
        ({"replicas": np.int64(3)}, ["cluster.pools.0.replicas=3"]),
    ],
)
def test_replacing_a_value_is_setting_it_in_the_file(changes: dict[str, Any], options: list[str]) -> None:
    scenario, expected = load_scenario(CHAT_BURST).replace(**changes), load_scenario(CHAT_BURST, options)
    assert scenario == expected
    assert scenario.origins == expected.origins


def test_defaults_are_filled_in_again_and_replaced_values_stay() -> None:
    scenario = Scenario.from_dict({**load_scenario(SCENARIOS / "poisson.yaml").to_dict()})
    own = load_scenario(SCENARIOS / "poisson.yaml")
    engine = own.replace(engine="sglang").replace(seed=3)
    assert engine == load_scenario(SCENARIOS / "poisson.yaml", ["engine=sglang"], seed=3)
    assert scenario.replace(seed=3).seed == 3


def test_a_copy_with_other_values_keeps_them() -> None:
    copied = load_scenario(CHAT_BURST).model_copy(update={"seed": 7})
    assert copied.replace(gpu="h200-sxm").seed == 7


def test_a_section_of_another_scenario_can_be_given() -> None:
    other = load_scenario(SCENARIOS / "poisson.yaml")
    assert load_scenario(CHAT_BURST).replace(workload=other.workload, measure=other.measure).workload == other.workload


def test_a_key_that_the_only_pool_states_is_changed_there(tmp_path: Path) -> None:
    cluster = {"pools": [{"name": "serve", "gpu": "h100-sxm"}]}
    scenario = load_scenario(write_scenario(tmp_path, cluster=cluster)).replace(gpu="h200-sxm")
    assert scenario.cluster.pools[0].gpu == "h200-sxm"
    assert scenario.cluster.pools[0].name == "serve"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gpu": "h99"}, "argument gpu='h99': no such GPU in the catalog, got 'h99'; choose from"),
        ({"replica": 3}, "argument replica=3: unknown key; did you mean replicas?"),
        (
            {"tensor_parallel_size": 2},
            "argument tensor_parallel_size=2: unknown key; use cluster.pools.0.parallel",
        ),
        ({"replicas": "3"}, "argument replicas='3': must be a whole number, got '3'; write 3, without quotes"),
        ({"cluster.pools.1.replicas": 3}, "argument cluster.pools.1.replicas=3: there is no such item, got 1"),
        (
            {"parallel": {"tensor": "x"}},
            "argument parallel=a mapping: cluster.pools.0.parallel.tensor: must be",
        ),
    ],
)
def test_a_wrong_argument_is_named_with_rule_value_and_remedy(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(CHAT_BURST).replace(**changes)
    assert str(caught.value).startswith(sentence)


def test_of_several_pools_the_argument_must_say_which() -> None:
    scenario = load_scenario(SCENARIOS / "disaggregated.yaml")
    rule = "argument replicas: is a key of each pool, and the scenario has 2 of them"
    with pytest.raises(ScenarioError) as caught:
        scenario.replace(replicas=3)
    assert str(caught.value) == rule + '; give **{"cluster.pools.0.replicas": 3}'
    assert scenario.replace(**{"cluster.pools.0.replicas": 3}).cluster.pools[0].replicas == 3


def test_any_form_of_a_scenario_is_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scenario = load_scenario(CHAT_BURST)
    monkeypatch.chdir(tmp_path)  # names do not depend on the folder
    for form in ("chat_burst", "chat-burst", str(CHAT_BURST), CHAT_BURST, scenario.to_dict(), scenario):
        assert scenario_from(form) == scenario
    assert scenario_from("chat_burst").file == CHAT_BURST
    assert scenario_from(scenario.to_dict()).file is None


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        (
            "chatburst",
            "scenario: must be the path of a file, the name of a shipped scenario, a dict or a Scenario, got "
            "chatburst; did you mean chat_burst?",
        ),
        ("chat_burst.yml", "chat_burst.yml: there is no such file"),
        (5, "scenario: must be the path of a file, the name of a shipped scenario, a dict or a Scenario, got 5"),
    ],
)
def test_what_is_no_scenario_is_named(
    form: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        simulate(form)
    assert str(caught.value) == sentence


def test_a_package_without_scenarios_asks_for_a_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("simserve.scenario.shipped.PACKAGE", tmp_path)
    with pytest.raises(ScenarioError, match="this install ships no scenarios: give the path of a file"):
        simulate("chat_burst")


def test_relative_paths_of_a_dict_are_in_its_folder(tmp_path: Path) -> None:
    data = load_scenario(write_scenario(tmp_path)).to_dict()
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,10,2\n")
    data["workload"] = {"trace": {"path": "mine.csv"}}
    scenario = Scenario.from_dict(data, base_dir=tmp_path)
    assert len(simulate(scenario.replace(seed=2)).requests) == 2
    with pytest.raises(ScenarioError, match=r"mine\.csv"):
        Scenario.from_dict(data)


def test_a_file_runs_by_its_path(tmp_path: Path) -> None:
    file = write_scenario(tmp_path)
    assert simulate(file).requests.equals(simulate(load_scenario(file)).requests)
