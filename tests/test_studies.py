"""The studies of docs/studies: the direction and the rough size of what was published, on fewer requests."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

STUDIES = Path(__file__).parents[1] / "docs" / "studies"


def study(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES))
    return import_module(name)


def test_continuous_beats_whole_batches_and_paged_blocks_beat_reserved_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    found = study(monkeypatch, "batching").rates(n_requests=500)
    static, dynamic, reserved, paged = found.values()
    assert static > 0
    assert 0.8 * static < dynamic < 1.25 * static
    assert reserved > 2 * static
    assert 2 * reserved < paged < 5 * reserved  # vLLM: two to four times


def test_chunks_bound_the_gap_between_tokens_and_raise_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    module = study(monkeypatch, "chunked_prefill")
    whole_s, chunked_s = module.gaps_s(n_requests=400).values()
    assert chunked_s < 0.6 * whole_s
    whole, chunked = module.rates(n_requests=400).values()
    assert 1.5 * whole < chunked < 5 * whole  # Sarathi-Serve: up to 2.6 times


def test_apart_wins_for_long_prompts_and_loses_for_long_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    module = study(monkeypatch, "pd_ratio")

    def rates(workload: str, *n_prefill: int) -> list[float]:
        pools = [*map(module.apart, n_prefill), [{"replicas": module.N_GPUS}]]
        given = [module.scenario(each, workload, 1500) for each in pools]
        return [module.highest_rate_per_s(each, module.MOST_PER_S, module.meets) for each in given]

    few, some, many, _ = rates("chat", 1, 3, 6)
    assert some > 1.5 * few and some > 1.5 * many  # 1:2 to 1:1
    few, many, together = rates("long prompts", 2, 5)
    assert many > 2 * few and many > 1.1 * together  # up to 3:1, and better than together
    few, many, together = rates("long outputs", 1, 4)
    assert many < few < together


def test_a_prefix_cache_brings_the_first_token_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    found = study(monkeypatch, "prefix_cache").runs(n_requests=1500)
    cached, plain = found["with the cache"], found["without"]
    assert 0.65 < cached["prefix_cache"]["hit_frac"] < 0.8
    assert 1.4 < plain["ttft_s"]["mean"] / cached["ttft_s"]["mean"] < 2.0  # SGLang: 1.7 at 74 %


def test_what_is_sent_while_it_is_computed_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    module = study(monkeypatch, "handing_over")
    pull, push, by_chunk, by_layer = (half for half, _ in module.transfer_ms(n_requests=1000).values())
    assert pull > push > by_chunk > 5 * by_layer
    always, by_length, by_load = module.attainment(n_requests=2000).values()
    assert always[0] == 1.0 > by_length[0] > by_load[0] > 0.6
    assert min(by_length[1], by_load[1]) > always[1]
