"""How many clients a closed loop may have."""

from pathlib import Path
from typing import Any

import pytest

from simserve import load_scenario
from simserve.errors import SimserveError
from simserve.scenario import Scenario
from simserve.study.capacity.boundary import SearchAxis
from simserve.study.capacity.concurrency import peaks_of, study, study_concurrency, with_clients
from simserve.study.capacity.question import CapacityQuestion
from tests.cli.scenarios import write_scenario
from tests.study.served import runs_at


def loop(folder: Path, concurrency: int = 4, n_requests: int = 60) -> Scenario:
    client = {"client": {"kind": "closed_loop", "concurrency": concurrency}, "n_requests": n_requests}
    lengths = {"lengths": {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}}
    return load_scenario(write_scenario(folder, workload=client | lengths))


def result(folder: Path, most: float, own: int, limit: int = 1000) -> dict[str, Any]:
    question = CapacityQuestion(loop(folder), 0.99, 0.03)
    runs = runs_at({"ttft_s": lambda n: 0.0 if n <= most else min(0.5, 0.02 * n / most)})
    facts: dict[str, Any] = study(question, runs, SearchAxis(own, 1, limit, is_whole=True)).answer.facts()
    return facts


@pytest.mark.parametrize("own", [1, 3, 64])
@pytest.mark.parametrize("most", [1, 2, 7, 33, 49])
def test_it_finds_the_highest_whole_number_that_holds(tmp_path: Path, own: int, most: int) -> None:
    answer = result(tmp_path, most, own)["answer"]
    assert answer["concurrency"]["value"] == most
    assert answer["requests_per_s"] == 9.0 * most
    assert answer["output_tokens_per_s"] == 900.0 * most
    assert answer["per_gpu_s"]["value"] == 9.0 * most
    assert answer["clients_per_gpu"] == most


def test_a_peak_that_fails_below_a_number_that_holds_is_the_answer(tmp_path: Path) -> None:
    """9 to 11 clients fail, as where kernels leave most of a tile empty; 12 to 16 do not. Doubling passes them by."""
    question = CapacityQuestion(loop(tmp_path), 0.99, 0.03)
    runs = runs_at({"ttft_s": lambda n: 0.0 if n <= 8 or 12 <= n <= 16 else 0.5})
    axis = SearchAxis(4, 1, 1000, is_whole=True)
    found = [study(question, runs, axis, None, peaks).answer.facts()["answer"] for peaks in ((), (3, 9, 17))]
    assert [answer["concurrency"]["value"] for answer in found] == [16, 8]


def test_peaks_are_where_kernels_leave_tiles_empty(tmp_path: Path) -> None:
    """vLLM's fp8 products on an H200, in tiles of 128 and pairs of them; bf16 chooses the best tile at every number."""
    large = loop(tmp_path).to_dict() | {"model": "llama-3.1-70b", "gpu": "h200-sxm", "kv_dtype": "fp8"}
    by_dtype = {dtype: peaks_of(Scenario.from_dict(large | {"weight_dtype": dtype})) for dtype in ("fp8", "int4")}
    assert set(by_dtype["fp8"]) >= {136, 272} and by_dtype["int4"] == []  # CUDA graphs pad 129 and 257


def test_a_large_number_is_found_to_a_fiftieth(tmp_path: Path) -> None:
    facts = result(tmp_path, 700, 4)
    assert facts["answer"]["concurrency"]["value"] == pytest.approx(700, rel=0.02)
    assert all(point["concurrency"] == point["scale"] for point in facts["points"])


def test_where_every_number_holds_it_says_where_it_stopped(tmp_path: Path) -> None:
    facts = result(tmp_path, 10**9, 4, limit=300)
    assert (facts["answer"], facts["state"], facts["stopped_at"]["scale"]) == (None, "every load", 300)


def test_where_not_even_one_client_is_served_well_it_says_so(tmp_path: Path) -> None:
    facts = result(tmp_path, 0.5, 4)
    assert (facts["answer"], facts["state"], facts["stopped_at"]["scale"]) == (None, "no load", 1)


def test_a_real_loop_has_an_answer(tmp_path: Path) -> None:
    scenario = load_scenario(
        write_scenario(tmp_path, workload=loop(tmp_path).to_dict()["workload"], slo={"tpot_s": 0.0095})
    )
    facts = study_concurrency(CapacityQuestion(scenario, 0.9, 0.5)).answer.facts()
    n = facts["answer"]["concurrency"]["value"]
    by_n = {point["concurrency"]: point["attained_frac"] for point in facts["points"]}
    assert by_n[n] >= 0.9 > by_n[n + 1]
    assert facts["asked"] == "concurrency"


def test_each_client_should_ask_often(tmp_path: Path) -> None:
    assert result(tmp_path, 6, 4)["answer"]["enough_turns"]  # 60 requests
    assert not result(tmp_path, 7, 4)["answer"]["enough_turns"]


def test_requests_that_come_by_themselves_have_no_concurrency(tmp_path: Path) -> None:
    with pytest.raises(SimserveError, match="tiny: workload: needs a closed loop to search over"):
        study_concurrency(CapacityQuestion(load_scenario(write_scenario(tmp_path)), 0.99, 0.03))


def test_only_the_clients_change(tmp_path: Path) -> None:
    before, after = loop(tmp_path).to_dict(), with_clients(loop(tmp_path), 9).to_dict()
    assert after["workload"]["client"].pop("concurrency") == 9
    before["workload"]["client"].pop("concurrency")
    assert after == before
