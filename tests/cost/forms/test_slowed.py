"""Slowed forms: work and launches take as many times as long, and nothing beats the data sheet."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from simserve import catalog
from simserve.cost.calibration import FORMS, calibration_path, read_calibration, shipped_names
from simserve.cost.forms.base import Coefficient, LaunchTime, PeakShare
from simserve.cost.forms.collective import AllReduce
from simserve.cost.forms.gemm import Gemm
from simserve.cost.forms.mla import MlaDecode
from simserve.cost.forms.moe import MoeLayer

H100 = catalog.load_gpu("h100-sxm")
FITTED = [read_calibration(calibration_path(name)).forms for name in shipped_names()]


def times(form: Any) -> np.ndarray[Any, Any]:
    """The times of kernels of some shapes."""
    if isinstance(form, Gemm):
        return np.array([form.seconds(H100, "bf16", m, 4096, 7168) for m in (1, 100, 5000)])
    if isinstance(form, MoeLayer):
        shape: dict[str, Any] = {"hidden": 7168, "inter": 2048, "top_k": 8, "n_experts": 256, "tensor": 8}
        return np.asarray(form.seconds(H100, "fp8_block", np.array([1, 64, 4000]), **shape))
    if isinstance(form, MlaDecode):
        intercept, slope = form.line(H100, 16, "bf16", np.array([1, 64]))
        return np.asarray(intercept + slope * 1e5)
    assert isinstance(form, AllReduce)
    return np.array([form.seconds(H100, 8, n) for n in (1e4, 1e7)])


@pytest.mark.parametrize(
    ("op", "dtype"), [("gemm", "bf16"), ("moe", "fp8_block"), ("mla_decode", "bf16"), ("all_reduce", "8")]
)
def test_work_and_launches_take_as_many_times_as_long(op: str, dtype: str) -> None:
    form = read_calibration(calibration_path("h100-sxm/sglang")).forms[op, dtype]
    launch_s = sum(getattr(form, name) for name, bounds in form.BOUNDS.items() if isinstance(bounds, LaunchTime))
    assert times(form.slowed(2.0, 3.0)) == pytest.approx(
        2 * (times(form) - launch_s) + 3 * launch_s, rel=1e-4
    )  # partial sums stay
    assert form.slowed(1.0) == form


@pytest.mark.parametrize("op", FORMS)
def test_every_share_and_time_of_a_form_is_known(op: str) -> None:
    """A coefficient is a launch, a time or share of work, or a shape, which work of any speed keeps."""
    shapes = {"sharpness", "wave_share", "chooses", "width", "wide", "tile_pairs", "tail_rows", "compute_bits"}
    shapes |= {"few_rows", "empty_share"}
    shapes |= {"key_width", "lone", "tile_rows", "remote_frac", "pad_keys", "lone_requests"}
    shapes |= {"pad_heads", "lone_scores", "dense"}
    form = FORMS[op]
    assert {name for name, bounds in form.BOUNDS.items() if type(bounds) is Coefficient} <= shapes
    assert list(form.BOUNDS) == [each.name for each in fields(form)]


def test_no_share_rises_above_the_data_sheet() -> None:
    for forms in FITTED:
        for form in forms.values():
            quick = form.slowed(0.01)
            shares = [name for name, bounds in form.BOUNDS.items() if isinstance(bounds, PeakShare)]
            assert all(getattr(quick, name) <= max(1.0, getattr(form, name)) for name in shares)
    gemm = next(form for form in FITTED[0].values() if isinstance(form, Gemm))
    assert replace(gemm, flop_share=0.5).slowed(0.8).flop_share == pytest.approx(0.625)
