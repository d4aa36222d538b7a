"""Every scenario that comes with simserve loads, and says what it is for."""

import re
from pathlib import Path

import pytest

from simserve import plugins
from simserve.errors import ScenarioError
from simserve.scenario import load_scenario

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
SHARED = ROOT.parent / "shared"
AZURE = SHARED / "data" / "traces" / "azure_llm_2023_conv.csv"


def _overrides(file: Path) -> list[str]:
    """Those that replay a trace we do not ship get it from beside the checkout."""
    if "azure_llm_2023_conv.csv" not in file.read_text(encoding="utf-8"):
        return []
    if not AZURE.exists():
        pytest.skip(f"no {AZURE.name} beside the checkout")
    return [f"workload.trace.path={AZURE}"]


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: str(file.stem))
def test_a_shipped_scenario_loads_and_its_resolved_form_loads_to_the_same(file: Path, tmp_path: Path) -> None:
    scenario = load_scenario(file, _overrides(file))
    resolved = tmp_path / "scenario.yaml"
    resolved.write_text(scenario.to_yaml(), encoding="utf-8")
    assert load_scenario(resolved) == scenario
    assert all(setup.ledger.n_blocks > 0 for setup in scenario.setups)


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: str(file.stem))
def test_a_shipped_scenario_begins_with_a_sentence_and_is_named_as_its_file(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert f"name: {file.stem.replace('_', '-')}" in text


def test_there_is_a_scenario_to_start_from_for_each_policy() -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in SCENARIOS)
    for family in ("schedulers", "workload.arrivals"):
        missing = [name for name in plugins.names(family) if not re.search(rf"kind: {name}\b", text)]
        assert not missing, f"{family} without a scenario: {missing}"


def test_the_first_scenario_is_the_contracts() -> None:
    contract = SHARED / "contract.md"
    if not contract.exists():
        pytest.skip("no contract beside the checkout")
    block = re.search(
        r"```yaml\n(# scenarios/chat_burst\.yaml\n.*?)```", contract.read_text(encoding="utf-8"), re.DOTALL
    )
    assert block is not None
    assert (ROOT / "scenarios" / "chat_burst.yaml").read_text(encoding="utf-8") == block[1]


def test_a_shipped_scenario_without_its_trace_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "azure.yaml"
    copy.write_text((ROOT / "scenarios" / "azure_conv_8b_x4.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"workload\.trace\.path: there is no such file, got 'traces/azure_llm"):
        load_scenario(copy)
