"""Draws of plug-ins are checked before a run begins."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import PolicyError, TraceError
from simserve.workload.arrivals.base import Arrivals
from simserve.workload.arrivals.poisson import Poisson
from simserve.workload.arrivals.vllm_bench import VllmBench
from simserve.workload.draws import arrivals_until, draw_lengths, first_arrivals
from simserve.workload.lengths.base import Drawn, Lengths
from simserve.workload.lengths.profile import Profile
from simserve.workload.streams import Stream, streams


class Instants(Arrivals):
    """Returns a given value."""

    def __init__(self, instants: Any) -> None:
        self.instants = instants

    def first(self, n: int, stream: Stream) -> Any:
        return self.instants() if callable(self.instants) else self.instants


class Tokens(Lengths):
    """Returns a given value."""

    def __init__(self, prompts: Any, outputs: Any) -> None:
        self.drawn = Drawn(prompts, outputs)

    def draw(self, n: int, stream: Stream) -> Drawn:
        return self.drawn


@pytest.mark.parametrize(
    ("instants", "sentence"),
    [
        ([0.0, 1.0], "must return 3 instants, got 2"),
        ([0.0, -1.0, 2.0], "numbers and not negative, got -1.0 in row 1"),
        ([0.0, float("nan"), 2.0], "numbers and not negative, got nan in row 1"),
        ([0.0, 2.0, 1.0], "must never decrease, got 1.0 in row 2"),
        (["a", "b", "c"], "must return an array of instants in seconds"),
        (None, "must return an array of instants in seconds"),
        (lambda: 1 / 0, "must not raise, got ZeroDivisionError"),
    ],
)
def test_instants_that_cannot_be_are_the_plug_ins_mistake(instants: Any, sentence: str) -> None:
    with pytest.raises(PolicyError, match=r"Instants\.first") as error:
        first_arrivals(Instants(instants), 3, streams(0))
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [
        ([1, 2], "must return 3 prompt_tokens, got 2"),
        ([1, 0, 2], "prompt_tokens must be whole and in [1, 10000000], got 0 in row 1"),
        ([1, 1.5, 2], "got 1.5 in row 1"),
        ([1, 10**9, 2], "got 1000000000 in row 1"),
    ],
)
def test_lengths_that_cannot_be_are_the_plug_ins_mistake(prompts: Any, sentence: str) -> None:
    with pytest.raises(PolicyError, match=r"Tokens\.draw") as error:
        draw_lengths(Tokens(np.array(prompts), np.array([1, 1, 1])), 3, streams(0))
    assert sentence in str(error.value)


def test_a_process_that_does_not_get_on_ends() -> None:
    with pytest.raises(PolicyError, match="must come at some time"):
        arrivals_until(Instants([float("nan")]), 1.0, streams(0))


def test_an_infinite_rate_for_a_time_is_refused() -> None:
    with pytest.raises(TraceError, match="got duration_s; give n_requests instead"):
        arrivals_until(VllmBench(rate_per_s=float("inf")), 10.0, streams(0))


def test_more_requests_than_a_run_may_have_are_refused_before_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        TraceError, match=r"workload.arrivals: must bring fewer than .* in duration_s, 10 s, got 1e\+301"
    ):
        arrivals_until(VllmBench(rate_per_s=1e300), 10.0, streams(0))
    monkeypatch.setattr("simserve.workload.arrivals.base.MOST", 2**10)
    with pytest.raises(TraceError, match=r"got 1024 by .* lower the rate"):
        arrivals_until(Poisson(rate_per_s=1e6), 10.0, streams(0))


def profile(**changes: Any) -> str:
    """Return a profile of one bin as JSON."""
    tables = {"shares": [0, 1], "prompt_tokens_by_bin": [[10, 20]], "output_tokens_by_bin": [[2, 4]]}
    return json.dumps(tables | changes)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "must be a profile as JSON"),
        ("[" * 100_000, "more than 100 levels of brackets"),
        ("[]", "no mapping"),
        (json.dumps({"shares": [0, 1]}), "prompt_tokens_by_bin and output_tokens_by_bin are missing"),
        (profile(shares=[0, 0.5]), "rise"),
        (profile(shares=["0", "1"]), "shares is no table of finite numbers"),
        (profile(shares=[0, None]), "shares is no table of finite numbers"),
        (profile(shares=[True, True]), "shares is no table of finite numbers"),
        (profile(prompt_tokens_by_bin=[[1, 2], [1]]), "prompt_tokens_by_bin is no table"),
        (profile(prompt_tokens_by_bin=[[1, float("nan")]]), "prompt_tokens_by_bin is no table"),
        (profile(prompt_tokens_by_bin=[[1, 10**400]]), "prompt_tokens_by_bin is no table"),
        (profile(prompt_tokens_by_bin=[[1]]), "quantile for each share"),
        (profile(output_tokens_by_bin=[[4, 2]]), "quantiles of a bin fall"),
        (profile(output_tokens_by_bin=[[0, 1]]), "not in"),
        (profile(output_tokens_by_bin=[[1, 10**9]]), "not in"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        Profile(name=str(path))
