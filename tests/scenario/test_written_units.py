"""Numbers with units, as people write them."""

from pathlib import Path

import pytest

from simserve import load_scenario
from simserve.errors import ScenarioError
from simserve.scenario.written_units import in_our_units
from tests.cli.scenarios import write_scenario


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"slo": {"ttft_s": "500ms"}}, {"slo": {"ttft_s": 0.5}}),
        ({"measure": {"warmup_s": "2 min"}}, {"measure": {"warmup_s": 120.0}}),
        ({"prefixes": {"think_s": {"mean": "1.5h"}}}, {"prefixes": {"think_s": {"mean": 5400.0}}}),
        ({"pools": [{"share": "5%"}, {"share": "57%"}]}, {"pools": [{"share": 0.05}, {"share": 0.57}]}),
        ({"warmup_s": "0s", "share": "0%"}, {"warmup_s": 0.0, "share": 0.0}),
        ({"n_requests": "1,000", "rate": "12,345,678"}, {"n_requests": 1000, "rate": 12345678}),
    ],
)
def test_they_are_read_in_the_units_of_their_keys(written: object, meant: object) -> None:
    assert in_our_units(written) == meant


@pytest.mark.parametrize(
    "text",
    [
        {"name": "5%"},
        {"n_requests": "500ms"},
        {"rate_per_s": "5min"},
        {"ttft_s": "5 lightyears"},
        {"path": "1,000.csv"},
        {"n": "1,00"},
        {"ttft_s": "-5ms"},
    ],
)
def test_what_is_not_clear_stays_as_it_is(text: object) -> None:
    assert in_our_units(text) == text


def test_a_scenario_may_have_them_in_its_file_and_on_the_command_line(tmp_path: Path) -> None:
    file = write_scenario(tmp_path, slo={"ttft_s": "500ms", "tpot_s": "40 ms"})
    scenario = load_scenario(file, ["workload.n_requests=1,000", "measure.warmup_s=1min"])
    assert (scenario.slo.default.ttft_s, scenario.slo.default.tpot_s) == (0.5, 0.04)
    assert (scenario.workload.n_requests, scenario.measure.warmup_s) == (1000, 60.0)
    with pytest.raises(ScenarioError, match="warmup_s=5 lightyears: "):
        load_scenario(file, ["measure.warmup_s=5 lightyears"])
