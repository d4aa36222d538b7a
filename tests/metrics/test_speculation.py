"""Tokens that come together: what is counted by tokens, what by steps, and what proposing them took."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simserve.metrics.result_folder import load_results
from simserve.metrics.results import Results
from simserve.metrics.utilization import DraftedWork, drafted, speculation
from simserve.metrics.window import Window
from simserve.report.mechanisms import mechanisms
from simserve.report.run_view import RunView
from simserve.scenario import Scenario
from simserve.simulation import simulate
from simserve.tables.columns import Categorical
from simserve.tables.facts import RunFacts, SpeculationFacts, WorkFacts, facts_from_dict, facts_to_dict
from tests.metrics.stories import STATUS, Life, Teller, pool_facts, run_facts, tables

DRAFT = {"kind": "draft_model", "model": "llama-3.2-1b", "tokens": 3, "acceptance": [0.9, 0.8, 0.7]}


def run(speculation: dict[str, object] | None = None, rate_per_s: float = 4, n_requests: int = 150) -> Results:
    pool = {} if speculation is None else {"speculation": speculation}
    data = {
        "schema": "simserve/1",
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "cluster": {"pools": [pool]},
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": rate_per_s},
            "lengths": {"kind": "uniform", "prompt_tokens": [20, 600], "output_tokens": [1, 300]},
            "n_requests": n_requests,
        },
        "measure": {"replays": 0},
    }
    return simulate(Scenario.from_dict(data))


def facts_of(*tokens: int | None) -> RunFacts:
    """Facts of pools of one replica each that propose so many tokens; None: that do not speculate."""
    hows = [None if n is None else SpeculationFacts("ngram", n, (0.5,) * n, None, None) for n in tokens]
    pools = tuple(pool_facts(str(i), speculation=how) for i, how in enumerate(hows))
    story = tables([Life(0, 1)], [Teller([Life(0, 1)])])
    return run_facts(story, pools=pools, drafting_s=tuple(0.0 if n is None else 1.5 for n in tokens))


def test_what_a_request_step_proposes_and_gives_by_hand() -> None:
    """Of requests 0 to 4 the first is preempted once; 2 is on a replica that does not speculate, 3 came before the
    window and 4 does not finish.
    """
    status = [STATUS.index("finished")] * 4 + [STATUS.index("unfinished")]
    requests = {
        "status": Categorical(np.array(status, np.int32), STATUS),
        "replica": np.array([0, 2, 1, 0, 0]),
        "output_tokens": np.array([9, 5, 100, 100, 100]),
    }
    spans = {
        "request_id": np.array([0, 0, 1, 2, 3, 4]),
        "replica": np.array([0, 0, 2, 1, 0, 0]),
        "first_step": np.array([0, 6, 3, 0, 0, 0]),
        "last_step": np.array([1, 6, 4, 50, 50, 50]),  # 2 + 1 and 2 steps
    }
    steps = {
        "replica": np.array([0, 1, 2]),
        "start_s": np.array([1.0, 2.0, 3.0]),
        "end_s": np.array([5.0, 99.0, 9.0]),
    }
    window = Window(0.0, 9.0, 9.0, "last arrival", np.array([True, True, True, False, True]))
    result = speculation(requests, spans, steps, window, facts_of(3, None, 1))
    assert result is not None
    assert result.facts() == {
        "request_steps": 5,
        "tokens_per_step": (7 + 4) / 5,  # the first token of each span comes from its prefill
        "proposed_tokens": 3 * 3 + 2 * 1,
        "accepted_tokens": 6,
        "accepted_frac": 6 / 11,
        "drafting_frac": 3.0 / (4 + 6),
    }
    everyone = Window(0.0, 9.0, 9.0, "last arrival", np.zeros(5, np.bool_))
    nothing = {name: column[:0] for name, column in steps.items()}
    empty = speculation(requests, spans, nothing, everyone, facts_of(3, None, 1))
    assert empty is not None
    assert (empty.request_steps, empty.proposed_tokens) == (0, 0)
    assert empty.tokens_per_step is empty.accepted_frac is empty.drafting_frac is None
    assert speculation(requests, spans, steps, window, facts_of(None)) is None


@pytest.fixture(scope="module")
def result() -> Results:
    return run(DRAFT)


def test_every_token_is_in_steps_and_time_series_once(result: Results) -> None:
    tokens = int(result.requests["output_tokens"].sum())
    steps, series = result.columns["steps"], result.columns["timeseries"]
    n_first = len(result.columns["spans"]["request_id"])  # a token of each prefill
    assert n_first + int((steps["decode_requests"] * steps["n_steps"] + steps["accepted_tokens"]).sum()) == tokens
    per_interval = series["output_tokens_per_s"] * (series["end_s"] - series["start_s"])
    assert per_interval.sum() == pytest.approx(tokens)


def test_the_summary_says_what_a_step_gave(result: Results) -> None:
    text = result.summary["speculation"]
    steps, spans = result.columns["steps"], result.columns["spans"]
    n_steps = int((spans["last_step"] - spans["first_step"] + 1).sum())
    assert text["request_steps"] == n_steps
    assert text["accepted_tokens"] == steps["accepted_tokens"].sum()
    assert text["proposed_tokens"] == 3 * n_steps
    assert text["tokens_per_step"] == pytest.approx(1 + 0.9 + 0.72 + 0.504, rel=0.03)  # less where answers are cut
    assert 0.05 < text["drafting_frac"] < 0.5
    assert result.summary["pools"][0]["speculation"] == {
        "kind": "draft_model",
        "tokens": 3,
        "acceptance": [0.9, 0.8, 0.7],
        "model": "llama-3.2-1b",
    }


def test_gaps_are_those_between_steps_and_tpot_is_by_tokens(result: Results) -> None:
    """As vLLM's client has it: a gap a chunk, whatever the tokens in it; TPOT divides by tokens."""
    spans, requests = result.columns["spans"], result.requests
    assert result.summary["itl_s"]["n"] == int((spans["last_step"] - spans["first_step"] + 1).sum())
    several = requests[requests["output_tokens"] > 1]
    tpot_s = (several["finish_s"] - several["first_token_s"]) / (several["output_tokens"] - 1)
    assert np.allclose(several["tpot_s"], tpot_s)
    assert result.vllm_bench["mean_itl_ms"] > 2 * result.vllm_bench["mean_tpot_ms"]
    assert result.vllm_bench["total_output_tokens"] == requests["output_tokens"].sum()


def test_flop_count_all_that_is_verified_and_drafted() -> None:
    plain, ngram, draft = (
        run(),
        run({"kind": "ngram", "tokens": 3, "acceptance": 0.0}),
        run({**DRAFT, "acceptance": 0.0}),
    )
    work = plain.facts.pools[0].work
    n_decoded = int(plain.columns["steps"]["decode_requests"] @ plain.columns["steps"]["n_steps"])

    def flop(results: Results) -> float:
        series = results.columns["timeseries"]
        return float((series["mfu"] * (series["end_s"] - series["start_s"])).sum() * work.peak_flop_per_s)

    verified = flop(ngram) - flop(plain)  # nothing is accepted, so as many steps, of three tokens more each
    least = 3 * n_decoded * (work.flop_per_token + work.flop_per_sampled)
    assert least < verified < 1.1 * least  # and their keys
    small = draft.facts.pools[0].speculation
    assert small is not None and small.draft is not None
    prefilled = int(plain.requests["prompt_tokens"].sum())
    least = (3 * n_decoded + prefilled) * small.draft.flop_per_token + 3 * n_decoded * small.draft.flop_per_sampled
    assert least < flop(draft) - flop(ngram) < 1.1 * least


@pytest.mark.parametrize(
    ("work", "flop", "n_bytes"),
    [
        (WorkFacts(1, 0, 0, 0, 0, 1, 1), 40 + 15, 0),  # tokens: of prompts, and three a request
        (WorkFacts(0, 1, 0, 0, 0, 1, 1), 1_000 + 100 + 105 + 110, 0),  # pairs: each pass one key a request more
        (WorkFacts(0, 0, 1, 0, 0, 1, 1), 15, 0),  # sampled tokens
        (WorkFacts(0, 0, 0, 1, 0, 1, 1), 0, 3 * 7),  # weights, in each pass of a step
        (WorkFacts(0, 0, 0, 0, 1, 1, 1), 0, 100 + 105 + 110 + 40 + 15),  # KV: read by keys, written by tokens
    ],
)
def test_work_of_three_passes_by_hand(work: WorkFacts, flop: float, n_bytes: float) -> None:
    """Five requests decode, with 100 keys together, in seven steps, and a prompt of 40 tokens has 1,000 pairs."""
    facts = facts_of(3, None)
    how = SpeculationFacts("draft_model", 3, (0.5,) * 3, "small", work)
    facts = replace(facts, pools=(replace(facts.pools[0], speculation=how), facts.pools[1]))
    amounts = (np.full((2, 1), each) for each in (40.0, 1_000.0, 5.0, 100.0, 7.0))
    computed, moved = drafted(facts, DraftedWork(*amounts))
    assert (computed.tolist(), moved.tolist()) == ([[flop], [0]], [[n_bytes], [0]])


def test_drafts_are_a_part_of_the_time(result: Results) -> None:
    (drafting_s,) = result.facts.drafting_s
    steps = result.columns["steps"]
    assert drafting_s == pytest.approx(
        result.summary["speculation"]["drafting_frac"] * float((steps["end_s"] - steps["start_s"]).sum())
    )
    assert run({"kind": "ngram", "tokens": 2, "acceptance": 0.5}).facts.drafting_s == (0.0,)


def test_the_page_says_what_it_gave_and_took(result: Results) -> None:
    text = dict(mechanisms(RunView(result.figures))["Speculative decoding"])
    assert text["Tokens per request and step"] == f"{result.summary['speculation']['tokens_per_step']:.2f}"
    assert {"Proposed tokens accepted", "Time spent drafting"} <= text.keys()
    assert any("the acceptance rate is an assumption of the scenario" in note for note in result.summary["notes"])


def test_no_tokens_give_the_tables_of_plain_decoding() -> None:
    plain, none = run(), run({"kind": "ngram", "tokens": 0, "acceptance": 0.9})
    for name, columns in plain.columns.items():
        for key, column in columns.items():
            other = none.columns[name][key]
            assert (column is None) == (other is None), (name, key)
            assert column is None or _bytes(column) == _bytes(other), (name, key)
    assert plain.summary["speculation"] is None


def test_results_are_read_back_as_they_were_written(result: Results, tmp_path: Path) -> None:
    result.write(tmp_path / "out")
    again = load_results(tmp_path / "out")
    assert again.summary["speculation"] == result.summary["speculation"]
    assert facts_from_dict(facts_to_dict(result.facts), result.facts.wall_s) == result.facts
    assert again.facts == result.facts
    assert (again.columns["steps"]["accepted_tokens"] == result.columns["steps"]["accepted_tokens"]).all()


def test_speculation_pays_at_low_load_and_costs_at_high_load() -> None:
    how = {"kind": "eagle", "tokens": 4, "acceptance": 0.6}
    calm = [run(each, rate_per_s=1).summary["tpot_s"]["p50"] for each in (None, how)]
    assert calm[1] < 0.75 * calm[0]
    rushed_s = [run(each, rate_per_s=1000, n_requests=1500).summary["simulated_s"] for each in (None, how)]
    assert rushed_s[1] > 1.1 * rushed_s[0]


def _bytes(column: object) -> bytes:
    return np.asarray(getattr(column, "codes", column)).tobytes()
