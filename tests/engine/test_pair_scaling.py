"""A planner of a prefill and a decode pool, end to end; and the counters that it reads, against the tables of a run."""

from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest

from simserve import Scenario, simulate
from simserve.metrics.results import Results
from tests.engine import odd_autoscalers
from tests.engine.test_scaling import FAST

PLANNER = {"kind": "dynamo_planner", "pools": {"prefill": "p", "decode": "d"}}


def pair(tmp_path: Path, rates_per_s: list[int], pools: dict[str, Any] | None = None, **cluster: Any) -> Results:
    """Run a minute at each rate of requests of 3,000 and 150 tokens, on 1P1D at the start."""
    rows = ["arrival_s,prompt_tokens,output_tokens"]
    for minute, rate_per_s in enumerate(rates_per_s):
        rows += [f"{60 * minute + place / rate_per_s},3000,150" for place in range(60 * rate_per_s)]
    (tmp_path / "load.csv").write_text("\n".join(rows))
    each = {"startup": FAST, **(pools or {})}
    roles = [{"name": "p", "role": "prefill", **each}, {"name": "d", "role": "decode", **each}]
    return simulate(
        Scenario.from_dict(
            {
                "schema": "simserve/1",
                "model": "llama-3.1-8b",
                "gpu": "h100-sxm",
                "engine": "vllm",
                "cluster": {"pools": roles, "scrape": {"interval_s": 1, "delay_s": 0}, **cluster},
                "workload": {"trace": {"path": str(tmp_path / "load.csv")}},
                "measure": {"replays": 0},
            }
        )
    )


def test_one_prefill_replica_becomes_two_when_the_rate_doubles(tmp_path: Path) -> None:
    """1P1D → 2P1D at 10 → 20 requests/s, of which one replica computes 13 and decodes 33."""
    full = {"prefill_tokens_per_s": 40_000, "decode_tokens_per_s": 5_000, "load_predictor": "constant"}
    planner = PLANNER | full | {"throughput_adjustment_interval_s": 30, "enable_load_scaling": False}
    results = pair(tmp_path, [10, 10, 20, 20, 20], autoscaler=planner)
    table = results.members
    assert table["pool"].tolist() == ["p", "d", "p"]
    assert table["why"][2] == "dynamoplanner: 1 -> 2"
    assert 150 < table["ordered_s"][2] < 160  # the forecast after 30 s of 20 requests/s
    assert table["ready_s"][2] == pytest.approx(table["ordered_s"][2] + 6, abs=1e-3)
    assert results.summary["requests"]["finished"] == 4800
    assert results.summary["scaling"]["n_scalings"] == 1
    late = results.requests.query("arrival_s > 250")
    assert late["ttft_s"].max() < 0.5


def test_a_start_that_goes_on_keeps_the_planner_from_another(tmp_path: Path) -> None:
    slow = {"startup": FAST | {"provision_s": 60}}
    table = pair(tmp_path, [24, 24], slow, autoscaler=PLANNER | {"optimization_target": "latency"}).members
    ordered_s, ready_s = table["ordered_s"][2:].tolist(), table["ready_s"][2:].tolist()
    assert len(ordered_s) >= 2
    assert all(later > earlier for later, earlier in zip(ordered_s[1:], ready_s, strict=False))


def test_both_pools_stay_within_their_budget(tmp_path: Path) -> None:
    planner = PLANNER | {"optimization_target": "latency", "max_gpu_budget": 3}
    table = pair(tmp_path, [40], autoscaler=planner).members
    changes = [*((at_s, 1) for at_s in table["ordered_s"]), *((at_s, -1) for at_s in table["draining_s"].dropna())]
    n_wanted = list(accumulate(change for _, change in sorted(changes)))
    assert (max(n_wanted), n_wanted[-1]) == (3, 3)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_counters_of_tokens_are_those_of_the_tables(tmp_path: Path, role: str) -> None:
    odd_autoscalers.COUNTED.clear()
    counts = {"autoscaler": "tests.engine.odd_autoscalers:Counts"}
    steps = pair(tmp_path, [14], counts | {"num_gpu_blocks": 2500}).steps
    seen = [counters for of_role, counters in odd_autoscalers.COUNTED if of_role == role]
    assert len(seen) > 50
    for before, after in pairwise(seen):
        assert all(after[name] >= before[name] for name in before if name.endswith("_total"))
    of_role = steps[steps["replica"] == ("prefill", "decode").index(role)]
    n_prompt, n_decode = of_role["prefill_tokens"].sum(), (of_role["decode_requests"] * of_role["n_steps"]).sum()
    last = seen[-1]
    assert last["prompt_tokens_total"] == pytest.approx(n_prompt, rel=0.05)
    assert last["generation_tokens_total"] == pytest.approx(n_decode, rel=0.05)
    assert all(each["request_prompt_tokens_total"] == 3000 * each["request_arrival_total"] for each in seen)
    assert all(each["prompt_tokens_waiting"] == 3000 * each["num_requests_waiting"] for each in seen)
    assert max(each["prompt_tokens_waiting"] for each in seen) > 0
