"""Our own timings of an H100 are what the command writes, and what docs/calibration.md says of them holds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.context_spread import SM_SHARE, SMS, TILE, TIMED, decode_rows, makespan
from simserve import catalog
from simserve.cost.calibration import calibration_path, read_calibration
from simserve.cost.forms.attention import DecodeAttention
from simserve.cost.forms.gemm import Gemm
from simserve.lab.kernels import Residuals, gemm
from simserve.lab.kernels.shapes import MODELS, shapes_to_time
from simserve.lab.kernels.table import SHAPES, read_timings, rows_of

H100 = catalog.load_gpu("h100-sxm")
HEADS = {"8b": (32, 8), "64 heads": (64, 8), "70b tp 4": (16, 2), "70b tp 8": (8, 1)}


def test_all_shapes_of_one_card_are_timed_and_the_shipped_fit_predicts_those_that_an_engine_multiplies_alike() -> None:
    table = read_timings(TIMED.with_name("kernels.csv.gz"))
    shapes = shapes_to_time([catalog.load_model(name) for name in MODELS], H100, ("bf16", "fp8"), 1)
    products = rows_of(table, "gemm")
    whole = products.astype(dict.fromkeys(("m", "n", "k"), int))
    timed = set(zip(*(whole[name] for name in SHAPES["gemm"]), strict=True))
    assert len(table) == len(shapes)
    assert timed == {tuple(shape[name] for name in SHAPES["gemm"]) for shape in shapes if shape["op"] == "gemm"}
    rows, _ = gemm._usable(products[products["dtype"] == "bf16"], H100, "bf16")
    form = read_calibration(calibration_path("h100-sxm/vllm")).form("gemm", "bf16")
    assert isinstance(form, Gemm)
    errors = Residuals.of(gemm._seconds(form, rows, H100, "bf16"), rows["latency_s"].to_numpy())
    assert errors.mape_frac < 0.06


@pytest.mark.parametrize(("dtype", "most"), [("bf16", 0.06), ("fp8", 0.09)])
def test_the_shipped_fit_predicts_unequal_contexts_which_it_is_not_of(dtype: str, most: float) -> None:
    """Lengths deviate by 0.2 to 1 of their mean, as on servers; without the wait for the last SM, fp8 is 18% off, most
    of it too short. Equal contexts, of which the rest of the fit is, take less than it says."""
    rows = decode_rows()
    rows = rows[(rows["kv_dtype"] == dtype) & (rows["splits"] == "graph") & (rows["pages"] == "ordered")]
    form = read_calibration(calibration_path("h100-sxm/vllm")).form("decode_attention", dtype)
    assert isinstance(form, DecodeAttention)
    n_heads, n_kv_heads = np.array([HEADS[model] for model in rows["model"]]).T

    def ratio(form: DecodeAttention) -> Any:
        intercept_s, slope_s = form.line(H100, n_heads, n_kv_heads, 128, dtype, rows["batch"].to_numpy())
        return rows["seconds"] / (intercept_s + slope_s * rows["batch"] * rows["tokens"])

    bare, unequal = replace(form, sm_bytes_per_s=0.0), rows["lengths"].str.match(r"cv (0\.2|0\.5|1) ")
    errors = [float(np.abs(np.log(ratio(each)[unequal])).mean()) for each in (form, bare)]
    assert errors[0] < most and 1.2 * errors[0] < errors[1]
    assert 0.9 < ratio(bare)[rows["lengths"] == "equal"].mean() < 1


def test_pieces_that_fill_the_sms_take_their_bytes_at_the_full_bandwidth_and_a_lone_one_that_of_an_sm() -> None:
    keys = 40 * TILE["bf16"]
    assert makespan(np.full(SMS, keys), 1, "bf16") == pytest.approx(SMS * 41)
    assert makespan(np.array([TILE["fp8"]]), 1, "fp8") == pytest.approx(2 * SMS / SM_SHARE["fp8"])
