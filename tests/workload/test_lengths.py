"""Length distributions: their shape, their bounds, and that fewer draws are a prefix of more."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve import plugins
from simserve.errors import PolicyError
from simserve.workload.info import rank_correlation
from simserve.workload.lengths.base import Drawn, Lengths
from simserve.workload.lengths.profile import load_profile, profile_names
from simserve.workload.readers import read_trace
from simserve.workload.streams import streams

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
FILES = {
    "azure-conv-2023": "azure_llm_2023_conv.csv",
    "azure-code-2023": "azure_llm_2023_code.csv",
    "mooncake-conversation": "mooncake_conversation.jsonl",
    "mooncake-synthetic": "mooncake_synthetic.jsonl",
}
SIDE = {"median": 500, "sigma": 0.6, "max": 2000}
SPECS: dict[str, Any] = {
    "fixed": {"kind": "fixed", "prompt_tokens": 1024, "output_tokens": 128},
    "uniform": {"kind": "uniform", "prompt_tokens": [819, 1024], "output_tokens": [1, 4]},
    "lognormal": {"kind": "lognormal", "prompt_tokens": SIDE, "output_tokens": SIDE},
    "empirical": {"kind": "empirical", "prompt_tokens": [1, 10], "output_tokens": [2, 20]},
    "profile": {"kind": "profile", "name": "azure-conv-2023"},
}


def draw(spec: Any, n: int, seed: int = 0) -> Drawn:
    lengths: Lengths = plugins.build("workload.lengths", spec)
    return lengths.draw(n, streams(seed))


@pytest.mark.parametrize("kind", SPECS)
def test_lengths_are_whole_and_positive_and_fewer_are_the_first_of_more(kind: str) -> None:
    some, more = draw(SPECS[kind], 100), draw(SPECS[kind], 1000)
    for few, many in ((some.prompt_tokens, more.prompt_tokens), (some.output_tokens, more.output_tokens)):
        assert few.dtype == np.int64
        assert few.min() >= 1
        assert few.tolist() == many[:100].tolist()


def test_uniform_lengths_reach_both_bounds_equally_often() -> None:
    counts = np.bincount(draw(SPECS["uniform"], 40_000).output_tokens)
    assert counts[1:].tolist() == pytest.approx([10_000] * 4, rel=0.04)
    assert counts[0] == 0


def test_lognormal_lengths_have_their_median_and_say_what_was_clipped() -> None:
    drawn = draw(SPECS["lognormal"], 100_000)
    assert np.median(drawn.prompt_tokens) == pytest.approx(500, rel=0.02)
    assert drawn.prompt_tokens.max() == 2000
    # P(Z > ln(4) / 0.6) = 1.04%
    assert any("1.0" in note and "clipped" in note for note in drawn.notes)


def test_empirical_lengths_keep_their_pairs() -> None:
    drawn = draw(SPECS["empirical"], 1000)
    assert set(zip(drawn.prompt_tokens.tolist(), drawn.output_tokens.tolist(), strict=True)) == {(1, 2), (10, 20)}


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_draws_its_own_quantiles_and_rank_correlation(name: str) -> None:
    profile, drawn = load_profile(name), draw({"kind": "profile", "name": name}, 100_000)
    medians = np.array(profile["prompt_tokens_by_bin"])[:, list(profile["shares"]).index(0.5)]
    shares = (np.arange(len(medians)) + 0.5) / len(medians)
    assert np.quantile(drawn.prompt_tokens, shares).tolist() == pytest.approx(medians.tolist(), rel=0.05, abs=3)
    assert rank_correlation(drawn.prompt_tokens, drawn.output_tokens) == pytest.approx(
        profile["rank_correlation"], abs=0.02
    )


@pytest.mark.skipif(not TRACES.exists(), reason="the real traces are not beside the checkout")
@pytest.mark.parametrize("name", FILES)
def test_a_profile_is_like_the_trace_it_was_fitted_to_and_equals_a_new_fit(name: str) -> None:
    from simserve.workload.lengths.profile import fit_profile

    trace, profile = read_trace(TRACES / FILES[name]), load_profile(name)
    assert fit_profile(trace, profile["source"], profile["license"]) == profile
    drawn = draw({"kind": "profile", "name": name}, 100_000)
    for mine, real in ((drawn.prompt_tokens, trace.prompt_tokens), (drawn.output_tokens, trace.output_tokens)):
        assert mine.mean() == pytest.approx(real.mean(), rel=0.03)
        assert np.percentile(mine, [50, 90]).tolist() == pytest.approx(np.percentile(real, [50, 90]).tolist(), rel=0.08)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"kind": "fixed", "prompt_tokens": 0, "output_tokens": 1}, "prompt_tokens"),
        ({"kind": "fixed", "prompt_tokens": 1, "output_tokens": 0}, "output_tokens"),
        ({"kind": "uniform", "prompt_tokens": [9, 3], "output_tokens": [1, 2]}, "first bound"),
        ({"kind": "profile", "name": "azure"}, "azure-conv-2023"),
        ({"kind": "empirical"}, "either path"),
        ({"kind": "empirical", "path": "nowhere.csv"}, "no such file"),
        ({"kind": "empirical", "prompt_tokens": [1], "output_tokens": [1, 2]}, "equally long"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_word_on_why(spec: dict[str, object], word: str) -> None:
    with pytest.raises(PolicyError, match=word):
        draw(spec, 10)
