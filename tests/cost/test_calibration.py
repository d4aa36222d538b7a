"""Calibration files: what is shipped can be used, and what is not one is refused."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve import catalog
from simserve.cost.calibrated import Calibrated
from simserve.cost.calibration import NO_CALIBRATION, calibration_path, nearest, read_calibration, shipped_names
from simserve.cost.forms.gemm import Gemm
from simserve.cost.roofline import Roofline
from simserve.errors import CalibrationError
from tests.cost.specs import step_cost

SHIPPED = shipped_names()
H100 = catalog.load_gpu("h100-sxm")


def test_the_files_that_were_promised_are_shipped() -> None:
    cards = ["a100-sxm", "b200-sxm", "h100-sxm", "h200-sxm", "l40s", "rtx-pro-6000"]
    more = [f"{card}/{engine}" for card in ("h100-sxm", "h200-sxm") for engine in ("sglang", "trtllm")]
    assert set(SHIPPED) >= {*(f"{card}/vllm" for card in cards), *more}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_calibration_says_whose_it_is_and_where_it_is_from(name: str) -> None:
    data = json.loads(calibration_path(name).read_text())
    result = read_calibration(calibration_path(name))
    assert f"{result.gpu}/{result.engine}" == name
    assert data["made"]["package"] == "aiconfigurator-core"
    assert all(len(source["sha256"]) == 64 and source["n_rows"] > 0 for source in data["made"]["from"])
    assert len(data["made"]["date"]) == 10
    for kernel in data["kernels"]:
        assert kernel["n_rows"] > 0
        assert kernel["held_out"]["n_rows"] > 0
        assert 0 < kernel["held_out"]["p05"] <= 1.2
    for constant in data.get("host", {}).values():
        assert constant["source"]


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("weight_dtype", ["bf16", "fp8", "int4"])
def test_no_step_is_faster_than_the_data_sheet(name: str, weight_dtype: str) -> None:
    result = read_calibration(calibration_path(name))
    gpu, model, ideal = catalog.load_gpu(result.gpu), catalog.load_model("llama-3.1-8b"), catalog.load_engine("ideal")
    real = step_cost(model, gpu, ideal, kernels=Calibrated(gpu, result, ideal), weight_dtype=weight_dtype)
    bare = step_cost(model, gpu, ideal, kernels=Roofline(gpu, ideal), weight_dtype=weight_dtype)
    for n in (1, 16, 300, 5000):
        assert real.tokens_ps(n) > bare.tokens_ps(n)
        assert real.prefill_ps(n, n * (n + 1) // 2, n) > bare.prefill_ps(n, n * (n + 1) // 2, n)
        assert real.decode_line(n)[1] >= bare.decode_line(n)[1]
    steps = [sum(real.decode_line(n)) for n in range(1, 600)]
    assert (np.diff(steps) >= 0).all()


def test_a_card_without_a_calibration_takes_the_nearest_one() -> None:
    assert nearest("h100-sxm", "sglang", None) == "h100-sxm/sglang"
    assert nearest("rtx-pro-6000", "sglang", None) == "rtx-pro-6000/vllm"  # this card's kernels say more than another's
    assert nearest("rtx-4090", "vllm", "l40s") == "l40s/vllm"
    assert nearest("mi300x", "vllm", None) == "h100-sxm/vllm"


def test_a_card_reaches_its_own_shares_of_peak_and_bandwidth_with_the_kernels_of_another() -> None:
    gpu, ideal = catalog.load_gpu("rtx-4090"), catalog.load_engine("ideal")
    timed = read_calibration(calibration_path("l40s/vllm"))
    own, alike = (Calibrated(each, timed, ideal) for each in (gpu, replace(gpu, flop_share=None, byte_share=None)))
    flop_share, byte_share = timed.forms["gemm", "bf16"].flop_share, timed.forms["gemm", "bf16"].byte_share  # type: ignore[attr-defined]
    assert alike.matmul_s("bf16", 8192, 8192, 8192) / own.matmul_s("bf16", 8192, 8192, 8192) == pytest.approx(
        0.96 / flop_share, rel=0.01
    )
    assert alike.matmul_s("bf16", 1, 28672, 8192) / own.matmul_s("bf16", 1, 28672, 8192) == pytest.approx(
        0.914 / byte_share, rel=0.01
    )
    assert 2 * 8192**3 / own.matmul_s("bf16", 8192, 8192, 8192) == pytest.approx(158e12, rel=0.06)
    same = replace(gpu, name="l40s")
    assert Calibrated(same, timed, ideal).gpu.hbm_bytes_per_s == gpu.hbm_bytes_per_s


def test_activations_that_arrive_quantized_cost_no_kernel_and_no_pass() -> None:
    timed = read_calibration(calibration_path("h200-sxm/trtllm"))
    gpu, plain, fp8 = catalog.load_gpu("h200-sxm"), timed.forms["gemm", "bf16"], timed.forms["gemm", "fp8"]
    first, fused = (
        Calibrated(gpu, timed, catalog.load_engine("trtllm", version=version)) for version in ("1.0", "1.1")
    )
    m, n, k = 64, 10240, 8192
    passed_s = fp8.input_bytes * m * k / gpu.hbm_bytes_per_s  # type: ignore[attr-defined]
    saved_s = fp8.launch_s - plain.launch_s + passed_s  # type: ignore[attr-defined]
    assert first.matmul_s("fp8", m, n, k) - fused.matmul_s("fp8", m, n, k) == pytest.approx(saved_s)
    for dtype in ("bf16", "fp8_block"):  # with a scale for each block, which depends on the activations
        assert first.matmul_s(dtype, m, n, k) == fused.matmul_s(dtype, m, n, k)


@pytest.mark.parametrize("weight_dtype", ["bf16", "fp8", "int4"])
def test_no_step_of_a_scaled_card_is_faster_than_its_data_sheet(weight_dtype: str) -> None:
    gpu, model, ideal = catalog.load_gpu("rtx-4090"), catalog.load_model("llama-3.1-8b"), catalog.load_engine("ideal")
    kernels = Calibrated(gpu, read_calibration(calibration_path("l40s/vllm")), ideal)
    real = step_cost(model, gpu, ideal, kernels=kernels, weight_dtype=weight_dtype)
    bare = step_cost(model, gpu, ideal, kernels=Roofline(gpu, ideal), weight_dtype=weight_dtype)
    for n in (1, 16, 300, 5000):
        assert real.tokens_ps(n) > bare.tokens_ps(n)
        assert real.prefill_ps(n, n * (n + 1) // 2, n) > bare.prefill_ps(n, n * (n + 1) // 2, n)
        assert real.decode_line(n)[1] >= bare.decode_line(n)[1]


def test_between_measured_groups_an_all_reduce_is_interpolated() -> None:
    kernels = Calibrated(H100, read_calibration(calibration_path("h100-sxm/vllm")), catalog.load_engine("vllm"))
    two, three, four = (kernels.all_reduce_s(n, 1e6) for n in (2, 3, 4))
    assert min(two, four) <= three <= max(two, four)
    assert kernels.all_reduce_s(1, 1e6) == 0


def whole() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(calibration_path("h100-sxm/vllm").read_text())
    return data


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": "simserve.calibration/0"}, "must have schema simserve.calibration/1, got simserve.calibration/0"),
        ({"kernels": [{"op": "gemm"}]}, "is not a whole calibration"),
        ({"gpu": None, "kernels": 5}, "is not a whole calibration"),
    ],
)
def test_a_file_that_is_no_calibration_is_refused(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(whole() | change))
    with pytest.raises(CalibrationError) as error:
        read_calibration(path)
    assert text in str(error.value)
    assert str(path) in str(error.value)


def test_a_coefficient_that_is_missing_is_named(tmp_path: Path) -> None:
    data = whole()
    del data["kernels"][0]["coefficients"]["launch_s"]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    with pytest.raises(
        CalibrationError, match=r"gemm must have the coefficients of this version, differs in .*launch_s"
    ):
        read_calibration(path)


def test_a_file_from_before_a_coefficient_keeps_its_costs(tmp_path: Path) -> None:
    data = whole()
    coefficients = data["kernels"][0]["coefficients"]
    coefficients.pop("few_rows", None)
    coefficients.pop("empty_share", None)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    form = next(iter(read_calibration(path).forms.values()))
    assert isinstance(form, Gemm)
    assert form.empty_share == 0
    coefficients["more"] = 1.0
    path.write_text(json.dumps(data))
    with pytest.raises(CalibrationError, match=r"of this version, differs in \['more'\]"):
        read_calibration(path)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e9])
def test_a_coefficient_that_no_kernel_has_is_refused(value: float, tmp_path: Path) -> None:
    data = whole()
    data["kernels"][0]["coefficients"]["byte_share"] = value
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    with pytest.raises(CalibrationError) as error:
        read_calibration(path)
    assert f"gemm.byte_share must be between 0.001 and 100, got {value:g}; run" in str(error.value)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (
            {"host": {"busy_compute_frac": {"value": -0.841}}},
            "host.busy_compute_frac must be between 0.01 and 1, got -0",
        ),
        ({"host": {"busy_compute_frac": {"value": 0}}}, "host.busy_compute_frac must be between 0.01 and 1, got 0"),
        ({"host": {"step_host_s": {"value": -1e-3}}}, "host.step_host_s must be between 0 and 3600, got -0.001"),
        ({"host": {"gap_s": {"value": float("nan")}}}, "host.gap_s must be between 0 and 3600, got nan"),
        ({"launches": {"0.5.5": -5.0}}, "launches.0.5.5 must be between 0.01 and 100, got -5"),
    ],
)
def test_a_time_that_no_server_has_is_refused(change: dict[str, Any], rule: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(whole() | change))
    with pytest.raises(
        CalibrationError, match=rf"^{re.escape(str(path))}: {rule}[0-9.]*; run simserve calibrate again$"
    ):
        read_calibration(path)


@pytest.mark.parametrize("name", ["gap_ss", "block_size"])
def test_a_constant_that_no_host_has_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(whole() | {"host": {name: {"value": 1e-6}}}))
    with pytest.raises(CalibrationError) as error:
        read_calibration(path)
    assert str(error.value).startswith(f"{path}: host.{name}: no such constant of a host; ")
    assert ("did you mean gap_s?" in str(error.value)) == (name == "gap_ss")


def test_a_file_that_is_not_there_lists_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"there are .*h100-sxm/vllm"):
        read_calibration(tmp_path / "none.json")
    (tmp_path / "half.json").write_text("{")
    with pytest.raises(CalibrationError, match="must be a calibration as JSON"):
        read_calibration(tmp_path / "half.json")


def test_an_operation_that_was_never_timed_is_refused_by_name() -> None:
    result = read_calibration(calibration_path("a100-sxm/vllm"))
    with pytest.raises(CalibrationError, match="mla_decode was not measured for bf16, only for nothing"):
        result.form("mla_decode", "bf16")
    assert NO_CALIBRATION == "none"


def test_a_file_that_was_fitted_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    data = json.loads(calibration_path("h100-sxm/vllm").read_text())
    for at_ns, version in ((1_000_000_000, "1.0"), (2_000_000_000, "2.0")):
        path.write_text(json.dumps(data | {"engine_version": version}))
        os.utime(path, ns=(at_ns, at_ns))
        assert read_calibration(path).engine_version == version
