"""What handing over took, and what it says holds requests up, by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simserve.metrics.result_folder import load_results
from simserve.metrics.results import Results
from simserve.metrics.routing import transfer
from simserve.metrics.utilization import Shares, Utilization
from simserve.metrics.window import Window
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.tables.columns import Columns
from simserve.tables.facts import KvSizes, LinkFacts, MemberFacts, RunFacts
from tests.metrics.stories import Life, Teller, run_facts, tables

LINK = LinkFacts(bytes_per_s=1000.0, latency_s=0.0, shared=False, kv_bytes_per_token=10.0)
WHOLE = Window(0.0, 10.0, 10.0, "last arrival", np.ones(4, np.bool_))


def facts(link: LinkFacts | None = LINK) -> RunFacts:
    run = tables([Life(0, 1)], [Teller([Life(0, 1)])])
    return replace(run_facts(run, end_s=20.0), link=link, replica_pool=(0,) * 5, peak_kv_blocks=(10,) * 5)


def use(busy_frac: float = 0.5) -> Utilization:
    shares = Shares(busy_frac, 0.1, 0.1)
    return Utilization(shares, (shares,))


def handed(queue_s: float, room_s: float, link_s: float) -> Columns:
    """Three requests of 100, 200 and 300 tokens that were handed over, and one that was not."""
    return {
        "prefill_replica": np.array([0, 0, 1, -1], np.int32),
        "replica": np.array([2, 2, 2, 0], np.int32),
        "prompt_tokens": np.array([100, 200, 300, 400]),
        "decode_cached_tokens": np.array([0, 50, 100, 0]),
        "output_tokens": np.array([5, 5, 5, 1]),
        "first_token_s": np.full(4, 1.0),
        "queue_s": np.full(4, queue_s),
        "transfer_wait_s": np.array([room_s] * 3 + [0.0]),
        "transfer_s": np.array([room_s + link_s] * 3 + [0.0]),
        "tpot_s": np.full(4, 0.02),
    }


def test_bytes_waits_and_the_busiest_port() -> None:
    result = transfer(handed(0.5, 0.1, 0.2), WHOLE, facts(), use())
    assert result is not None
    assert (result.n, result.bytes, result.found_tokens) == (3, 4500.0, 150)
    assert result.mean == pytest.approx(0.3)
    assert result.mean_wait_s.facts() == pytest.approx({"prefill": 0.5, "link": 0.2, "decode": 0.1})
    assert result.link_busy_frac == pytest.approx(4.5 / 20.0)  # all three came in through the port of replica 2


def test_ports_of_their_own_are_busy_for_what_passes_them() -> None:
    spread = handed(0.0, 0.0, 1.0) | {"replica": np.array([2, 3, 4, 0], np.int32)}
    result, shared = (
        transfer(spread, WHOLE, facts(replace(LINK, shared=is_shared)), use()) for is_shared in (False, True)
    )
    assert result is not None
    assert shared is not None
    assert result.link_busy_frac == pytest.approx(2.5 / 20.0)  # 100 and 150 tokens from 0, 200 from 1
    assert shared.link_busy_frac == pytest.approx(4.5 / 20.0)


def test_lanes_of_a_pipeline_have_one_port() -> None:
    spread = handed(0.0, 0.0, 1.0) | {"replica": np.array([2, 3, 4, 0], np.int32)}
    lanes = tuple(MemberFacts(first_lane=2 if i in (3, 4) else None) for i in range(5))
    result = transfer(spread, WHOLE, replace(facts(LINK), members=lanes), use())
    assert result is not None
    assert result.link_busy_frac == pytest.approx(4.5 / 20.0)


@pytest.mark.parametrize(
    ("queue_s", "room_s", "link_s", "peak_blocks", "busy_frac", "binds"),
    [
        (0.5, 0.01, 0.2, 500, 0.5, "prefill"),  # the longest, and blocks are not short
        (0.1, 0.01, 0.2, 500, 0.5, "link"),
        (0.1, 0.3, 0.01, 500, 0.5, "decode"),
        (90.0, 1.5, 0.01, 1000, 0.2, "decode"),  # idle, as prompts that nobody fetches hold all blocks
        (90.0, 0.01, 1.5, 1000, 0.2, "link"),
        (90.0, 1.5, 0.01, 1000, 0.97, "prefill"),  # full, but not for want of time to compute
        (0.0, 0.02, 0.0005, 500, 0.5, None),  # a wait for the next step, as long as one, is nobody's fault
    ],
)
def test_what_binds_is_where_requests_wait(
    queue_s: float, room_s: float, link_s: float, peak_blocks: int, busy_frac: float, binds: str | None
) -> None:
    given = facts()
    pool = replace(given.pools[0], role="prefill", n_blocks=1000)
    given = replace(given, pools=(pool,), peak_kv_blocks=(peak_blocks,) * 5)
    result = transfer(handed(queue_s, room_s, link_s), WHOLE, given, use(busy_frac))
    assert result is not None
    assert result.binds == binds


def test_where_room_comes_first_waiting_for_it_is_part_of_the_queue() -> None:
    pushed = handed(0.5, 0.1, 0.2) | {"transfer_s": np.array([0.2] * 3 + [0.0])}
    result = transfer(pushed, WHOLE, facts(replace(LINK, how="push")), use())
    assert result is not None
    waits_s = {
        "prefill": (3 * 0.4 + 0.5) / 4,
        "link": 0.2,
        "decode": 0.1,
    }  # who was not handed over queued too
    assert result.mean_wait_s.facts() == pytest.approx(waits_s)


def test_the_share_that_is_prefilled_apart_counts_answers_of_one_token() -> None:
    given = facts()
    pools = tuple(replace(given.pools[0], role=role) for role in ("prefill", "both"))
    given = replace(given, pools=pools, replica_pool=(0, 0, 1, 1, 1))
    ended = handed(0.5, 0.1, 0.2)
    moved = ended | {"replica": np.array([2, 2, 2, 3], np.int32)}
    fracs = [(of := transfer(each, WHOLE, given, use())) and of.apart_frac for each in (ended, moved)]
    assert fracs == [1.0, 0.75]  # the last one ended on prefill replica 0; or was computed whole by replica 3


def test_who_goes_on_after_a_first_token_where_its_prompt_was_computed_was_kept() -> None:
    given = facts()
    pools = tuple(replace(given.pools[0], role=role) for role in ("prefill", "decode"))
    given = replace(given, pools=pools, replica_pool=(0, 0, 1, 1, 1))
    longer = handed(0.5, 0.1, 0.2) | {"output_tokens": np.full(4, 2)}
    unknown = longer | {"first_token_s": np.array([1.0, 1.0, 1.0, np.nan])}
    elsewhere = longer | {"replica": np.array([2, 2, 2, 3], np.int32)}
    result = [transfer(each, WHOLE, given, use()) for each in (longer, unknown, elsewhere)]
    shares = [(each.apart_frac, each.kept_frac) for each in result if each is not None]
    assert shares == [(0.75, 0.25), (1.0, 0.0), (0.75, 0.0)]


def test_where_nothing_is_handed_over_nothing_binds() -> None:
    nobody = handed(0.5, 0.0, 0.0) | {"prefill_replica": np.full(4, -1, np.int32)}
    result = transfer(nobody, WHOLE, facts(), use())
    assert result is not None
    assert (result.n, result.binds) == (0, None)


def test_pools_of_both_roles_hand_nothing_over() -> None:
    assert transfer(handed(0.1, 0.1, 0.1), WHOLE, facts(None), use()) is None


@pytest.fixture(scope="module")
def results() -> Results:
    """200 requests over one prefill and one decode replica."""
    pools = [{"name": name, "role": name} for name in ("prefill", "decode")]
    return simulate(
        Scenario.from_dict(
            {
                "schema": "simserve/1",
                "model": "llama-3.1-8b",
                "gpu": "h100-sxm",
                "cluster": {"pools": pools, "kv_link": {"bytes_per_s": 10e9, "latency_s": 1e-3}},
                "workload": {
                    "arrivals": {"kind": "poisson", "rate_per_s": 6},
                    "lengths": {"kind": "uniform", "prompt_tokens": [200, 2000], "output_tokens": [1, 200]},
                    "n_requests": 200,
                },
                "slo": {"ttft_s": 1},
            }
        )
    )


def test_a_real_run_moves_every_prompt_once_and_in_the_first_gap(results: Results) -> None:
    requests = results.columns["requests"]
    handed = requests["output_tokens"] > 1
    assert (requests["prefill_replica"] == np.where(handed, 0, -1)).all()
    assert (requests["replica"] == np.where(handed, 1, 0)).all()
    wire_s = requests["prompt_tokens"] * (32 * 2 * 8 * 128 * 2) / 10e9 + 1e-3  # layers, K and V, heads, width, bytes
    on_the_wire_s = requests["transfer_s"] - requests["transfer_wait_s"]
    assert (on_the_wire_s[handed] >= wire_s[handed] - 1e-9).all()
    assert (requests["transfer_s"][~handed] == 0).all()
    assert (requests["max_itl_s"][handed] >= requests["transfer_s"][handed]).all()
    assert results.summary["transfer"]["bytes"] == pytest.approx(requests["prompt_tokens"][handed].sum() * 131_072)


def test_each_side_computes_its_own_part(results: Results) -> None:
    series, requests = results.columns["timeseries"], results.columns["requests"]
    lasts_s = series["end_s"] - series["start_s"]
    by_side = [series["replica"] == side for side in (0, 1)]
    prompts = [float((series["prefill_tokens_per_s"] * lasts_s)[side].sum()) for side in by_side]
    answers = [float((series["output_tokens_per_s"] * lasts_s)[side].sum()) for side in by_side]
    assert prompts == [pytest.approx(requests["prompt_tokens"].sum()), 0]
    assert answers == [pytest.approx(200), pytest.approx(requests["output_tokens"].sum() - 200)]
    prefill, decode = results.summary["pools"]
    assert 0 < prefill["busy_frac"] < decode["busy_frac"] <= 1


def test_written_and_read_again_it_says_the_same(results: Results, tmp_path: Path) -> None:
    results.write(tmp_path / "run")
    again = load_results(tmp_path / "run")
    assert again.summary["transfer"] == results.summary["transfer"]
    assert again.facts.link == results.facts.link


def test_bytes_of_a_prompt_are_those_that_each_kind_of_layer_keeps() -> None:
    """Of a prompt of 100 tokens, a window of 16 keeps 15, a chunk of 30 ten; states come with the last token."""
    sizes = KvSizes(n_layers=4, windows=((1, 16, False), (2, 30, True)), state_tokens=6)
    assert sizes.sent_tokens(0, 100, 100) == (100 + 15 + 2 * 10 + 6) / 4
    assert [sizes.sent_tokens(*part, 100) for part in ((0, 60), (60, 95), (95, 100))] == [60 / 4, 55 / 4, 26 / 4]
    assert sizes.sent_tokens(np.array([0, 40]), np.array([10, 41]), np.array([10, 41])).tolist() == [46 / 4, 10 / 4]
