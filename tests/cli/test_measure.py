"""`simserve lab measure`: from a card to a simulation of it, and what is refused before any time is spent."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simserve.cost.calibration import read_calibration
from simserve.cost.forms.attention import DecodeAttention, PrefillAttention
from simserve.cost.forms.collective import AllReduce
from simserve.cost.forms.gemm import Gemm
from simserve.lab.kernels import shapes, torch_device
from tests.cli.invoke import Outcome, invoke
from tests.cli.scenarios import write_scenario
from tests.cost.specs import H100
from tests.lab.kernels.fake_card import COLLECTIVE, FakeCard
from tests.lab.kernels.timings import DECODE, GEMM, PREFILL


def measure(folder: Path, *more: object) -> Outcome:
    return invoke("lab", "measure", "h100-sxm", folder / "mine.csv", *more)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> FakeCard:
    """A machine with two fake cards, and few models to time on them."""
    card = FakeCard(n_gpus=2)
    monkeypatch.setattr(torch_device, "open_device", lambda l2_bytes: card)
    monkeypatch.setattr(shapes, "MODELS", ("gemma-2-9b", "llama-2-7b", "llama-3.1-8b"))
    return card


def test_a_card_is_measured_fitted_and_simulated(card: FakeCard, tmp_path: Path) -> None:
    outcome = measure(tmp_path)
    assert outcome.exit_code == 0, outcome.err
    table = pd.read_csv(tmp_path / "mine.csv")
    assert outcome.out.startswith(f"{len(table):,} of {len(table):,} shapes timed. Fit them: simserve calibrate h100")
    assert "warning" not in outcome.err
    assert card.is_closed

    fitted = invoke("calibrate", "h100-sxm", "--from", tmp_path / "mine.csv", "--out", tmp_path / "mine")
    assert fitted.exit_code == 0, fitted.err
    assert re.search(r"copies to the host: (49|50)\.\d GB/s; use host_tier: \{bytes_per_s: \S+e\+10\}", fitted.err)
    assert "warning" not in fitted.err
    path = tmp_path / "mine" / "h100-sxm" / "vllm.json"
    errors = {
        (row["op"], row["dtype"]): row["held_out"]["mape_frac"] for row in json.loads(path.read_text())["kernels"]
    }
    assert set(errors) == {
        *(("gemm", dtype) for dtype in ("bf16", "fp8")),
        *((f"{phase}_attention", "bf16") for phase in ("prefill", "decode")),
        *((op, "2") for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")),
    }
    assert max(errors.values()) < 0.03

    scenario = write_scenario(tmp_path)
    use = f"cluster.pools.0.calibration={path}"
    outcome = invoke("run", scenario, "--set", use, "--out", tmp_path / "run")
    assert outcome.exit_code == 0, outcome.err
    assert "uncalibrated" not in outcome.err

    forms = read_calibration(path).forms
    gemm, prefill, decode = (forms[op, "bf16"] for op in ("gemm", "prefill_attention", "decode_attention"))
    assert isinstance(gemm, Gemm)
    assert isinstance(prefill, PrefillAttention)
    assert isinstance(decode, DecodeAttention)
    for m in (1, 40, 700, 5000):  # none of them was timed
        shape = (H100, "bf16", m, 10240, 8192)
        assert gemm.seconds(*shape) == pytest.approx(GEMM.seconds(*shape), rel=0.05)
    heads = (20, 4, 128)
    tokens, pairs = 6000.0, 6000.0 * 6001 / 2
    found_s, true_s = (form.at(H100, *heads, "bf16").seconds(tokens, pairs, tokens) for form in (prefill, PREFILL))
    assert found_s == pytest.approx(true_s, rel=0.05)
    line, true = (np.array(form.line(H100, *heads, "bf16", 100)) for form in (decode, DECODE))
    assert line @ [1, 3e5] == pytest.approx(true @ [1, 3e5], rel=0.05)
    reduce = forms["all_reduce", "2"]
    assert isinstance(reduce, AllReduce)
    for n_bytes in (3e3, 3e5, 3e7):
        true_s = AllReduce(*COLLECTIVE).seconds(H100, 2, n_bytes)
        assert reduce.seconds(H100, 2, n_bytes) == pytest.approx(true_s, rel=0.03)


def test_an_interruption_says_how_to_go_on(card: FakeCard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_device, "open_device", lambda l2_bytes: FakeCard(fails_after=20))
    outcome = measure(tmp_path)
    assert outcome.exit_code == 130
    assert "mine.csv.partial has what was timed; run the same command again to go on" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv.partial"]


def test_a_measurement_whose_time_is_up_is_1(card: FakeCard, tmp_path: Path) -> None:
    outcome = measure(tmp_path, "--minutes", 0)
    assert outcome.exit_code == 1, outcome.err
    assert "shapes timed: time is up. Run the same command again to go on, or give more --minutes." in outcome.out
    assert "mine.csv.partial, which is not complete" in outcome.err
    assert not (tmp_path / "mine.csv").exists()


def test_what_the_card_cannot_run_and_what_trembles_is_a_warning(
    card: FakeCard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.lab.kernels.fake_card.NOISE", 0.8)
    monkeypatch.setattr("simserve.lab.kernels.shapes.ROWS", (1,))
    monkeypatch.setattr(torch_device, "open_device", lambda l2_bytes: FakeCard(lacks=("prefill_attention",)))
    outcome = measure(tmp_path)
    assert outcome.exit_code == 0
    assert re.search(r"warning: prefill_attention: \d+ shapes left out: no such kernel", outcome.err)
    assert "medians are uncertain by more than 5%: stop other work on the card, and lock its clocks" in outcome.err


def test_models_of_ones_own_are_timed_too(card: FakeCard, tmp_path: Path) -> None:
    def n_shapes(*more: object) -> int:
        return int(measure(tmp_path, "--minutes", 0, *more).out.split()[2].replace(",", ""))

    assert n_shapes("--models", "qwen2.5-7b, llama-3.1-8b") > n_shapes() + 500


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--models", "lama"], "no such model in the catalog, or the path of a config.json, got 'lama'"),
        (["--minutes", "-1"], "Invalid value for '--minutes'"),
    ],
)
def test_options_that_are_wrong_are_2(more: list[str], text: str, card: FakeCard, tmp_path: Path) -> None:
    outcome = measure(tmp_path, *more)
    assert outcome.exit_code == 2
    assert text in " ".join(outcome.err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Missing argument 'GPU'"),
        (["h100-sxm"], "Missing argument 'TABLE.csv'"),
        (["h100-sxm", "mine.parquet"], "must be a table .csv, got mine.parquet; rename it"),
        (
            ["a100-sxm", "mine.csv"],
            "must be a100-sxm (108 SMs, 80 GiB), got a fake H100 (132 SMs, 79 GiB)",
        ),
        (["h200-sxm", "mine.csv"], "must be h200-sxm (132 SMs, 140 GiB), got a fake H100"),
    ],
)
def test_a_table_or_card_of_another_kind_is_2(
    arguments: list[str], text: str, card: FakeCard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = invoke("lab", "measure", *arguments)
    assert outcome.exit_code == 2
    assert text in " ".join(outcome.err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


NO_CARD = SimpleNamespace(
    __version__="2.9.0",
    cuda=SimpleNamespace(is_available=lambda: False),
    version=SimpleNamespace(cuda="12.8", hip=None),
)


@pytest.mark.parametrize(
    ("torch", "text"),
    [
        (None, "PyTorch must be installed"),
        (None, "; pip install 'simserve[measure]'"),
        (NO_CARD, "PyTorch must see a CUDA device, got none (PyTorch 2.9.0, CUDA 12.8); run it on the card"),
    ],
)
def test_a_machine_without_pytorch_or_card_is_2(
    torch: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    outcome = measure(tmp_path)
    assert outcome.exit_code == 2
    assert text in outcome.err
    assert list(tmp_path.iterdir()) == []
