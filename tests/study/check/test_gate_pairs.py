"""The gate's rule on recorded runs of chat_burst: no false alarms, real losses found. docs/check.md has more draws."""

from pathlib import Path

import pytest

from tests.test_studies import STUDIES, study

FIRST_SEED_OF_THE_STUDY = 1000


@pytest.mark.parametrize(("side", "is_paired"), [("unchanged", False), ("lost", True), ("lost", False)])
def test_unchanged_pairs_pass_and_a_loss_of_5_per_cent_fails(
    side: str, is_paired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = study(monkeypatch, "gate")
    result = module.shares(module.recorded(), side, is_paired=is_paired, n_draws=150)
    if side == "unchanged":
        assert result["fail"] == 0
    else:
        assert result["fail"] >= 0.95
    assert result["seeds"] <= 128


def test_the_pairs_share_no_seed_with_each_other_nor_with_the_committed_baseline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = study(monkeypatch, "gate")
    assert module.FIRST_SEED == FIRST_SEED_OF_THE_STUDY > 128
    for curves, _ in module.drawn(module.recorded(), "lost", is_paired=False, n_draws=20):
        assert not set(curves[0].seeds) & set(curves[1].seeds)
        assert len(set(curves[0].seeds)) == len(set(curves[1].seeds)) == 128


def test_the_page_shows_a_table_of_the_study() -> None:
    page = (Path(STUDIES).parent / "check.md").read_text()
    assert "python docs/studies/gate.py" in page
    assert "| unchanged, other seeds | 2% | 0.00% |" in page
