"""The warm-up that is found is where a run begins to be like the rest of it."""

import numpy as np
import pytest

from simserve import Scenario, simulate
from simserve.metrics.window import settled_after


def generator() -> np.random.Generator:
    return np.random.default_rng(4)


def test_a_ramp_is_left_out_up_to_the_batch_in_which_it_ends() -> None:
    ramp, level = np.linspace(0.0, 10.0, 200), np.full(2000, 10.0)
    noisy = np.concatenate([ramp, level]) + generator().normal(0.0, 0.5, 2200)
    result = settled_after(noisy)
    assert result is not None
    assert 150 <= result <= 215
    assert result % 5 == 0


def test_nothing_is_left_out_of_what_is_alike_from_the_beginning() -> None:
    assert settled_after(np.full(400, 3.0)) == 0
    draws = generator().normal(0.0, 1.0, (50, 4000))
    cut = [settled_after(row) for row in draws]
    assert np.median([result for result in cut if result is not None]) < 400  # by chance a little is


def test_what_rises_all_along_never_settles() -> None:
    assert settled_after(np.arange(4000.0)) is None


def test_a_short_run_says_nothing() -> None:
    assert settled_after(np.zeros(199)) is None
    assert settled_after(np.zeros(200)) == 0


def run(rate_per_s: float, n_requests: int = 3000, **workload: object) -> dict[str, object]:
    lengths = {"kind": "fixed", "prompt_tokens": 512, "output_tokens": 200}
    data = {
        "schema": "simserve/1",
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": rate_per_s},
            "lengths": lengths,
            "n_requests": n_requests,
        }
        | workload,
        "measure": {"warmup_s": "auto", "replays": 0},
    }
    return simulate(Scenario.from_dict(data)).summary


def test_a_steady_server_settles_soon_after_it_has_filled() -> None:
    result = run(15.0)
    window, requests = result["window"], result["requests"]
    assert isinstance(window, dict)
    assert isinstance(requests, dict)
    assert window["settled"] is True
    assert 0 < window["start_s"] < 40  # answers take 2 s, so the batch is full after some
    assert requests["arrived"] < requests["offered"] == 3000


def test_clients_that_all_come_at_once_are_left_out() -> None:
    result = run(1.0, 2000, arrivals=None, client={"kind": "closed_loop", "concurrency": 64})
    window = result["window"]
    assert isinstance(window, dict)
    assert window["settled"] is True
    assert window["start_s"] > 0  # the first 64 prompts wait for each other


def test_a_queue_that_only_grows_is_said_not_to_settle() -> None:
    result = run(60.0)
    window, warnings = result["window"], result["warnings"]
    assert isinstance(window, dict)
    assert isinstance(warnings, list)
    assert (window["settled"], window["start_s"]) == (False, 0.0)
    assert any("no end of the warm-up was found" in each for each in warnings)


def test_a_warm_up_that_is_given_says_nothing_of_settling() -> None:
    data = {
        "schema": "simserve/1",
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": 8},
            "lengths": {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8},
            "n_requests": 40,
        },
        "measure": {"warmup_s": 1.0, "replays": 0},
    }
    assert simulate(Scenario.from_dict(data)).summary["window"]["settled"] is None


@pytest.mark.parametrize("n", [200, 1003])
def test_the_best_cut_is_the_one_with_the_smallest_standard_error(n: int) -> None:
    draws = generator().exponential(1.0, n + n // 10)
    series = np.concatenate([3 * draws[: n // 10], draws[n // 10 :]])
    means = [series[5 * i : 5 * i + 5].mean() for i in range(len(series) // 5)]
    errors = [np.var(means[d:]) / len(means[d:]) for d in range(len(means) - 5)]
    best = int(np.argmin(errors))
    assert settled_after(series) == (5 * best if best <= len(means) // 2 else None)
