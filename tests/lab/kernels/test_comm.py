"""Fits of collectives: recover what made the data, count what they leave out, always give the same."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from simserve import catalog
from simserve.cost.forms.collective import AllReduce
from simserve.lab.kernels.comm import fit
from tests.lab.kernels.timings import h100_timings, needs_package

H100 = catalog.load_gpu("h100-sxm")
TRUE = AllReduce(latency_s=4e-6, link_share=0.8, switch_latency_s=2e-5, switch_wire_s=3e-5)
SIZES = 2.0 ** np.arange(8, 31)


def timings(form: AllReduce = TRUE, n_gpus: int = 4) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "op": "all_reduce",
            "dtype": "bf16",
            "n_gpus": n_gpus,
            "bytes": SIZES,
            "latency_s": form.seconds(H100, n_gpus, SIZES),
            "kernel": "ours",
        }
    )


def test_a_fit_recovers_the_coefficients_that_made_the_data() -> None:
    (result,) = fit(timings(), H100)
    assert (result.op, result.dtype, result.n_rows, result.residuals.n_rows) == ("all_reduce", "4", 12, 11)
    assert asdict(result.form) == pytest.approx(asdict(TRUE), rel=0.01)
    assert result.residuals.mape_frac < 0.001


def test_the_fastest_kernel_of_a_size_counts() -> None:
    slow = timings().assign(kernel="NCCL", latency_s=lambda rows: 2 * rows["latency_s"])
    (result,) = fit(pd.concat([timings(), slow], ignore_index=True), H100)
    assert result.form == fit(timings(), H100)[0].form
    assert result.excluded["another kernel is faster"] == len(SIZES)


def test_what_is_left_out_is_counted_by_reason() -> None:
    wrong = timings().head(1)
    odd = pd.concat(
        [
            timings(),
            wrong.assign(dtype="int8"),
            wrong.assign(bytes=1e9, latency_s=1e-3),  # 1 GB over 450 GB/s takes 2.2 ms
            wrong.assign(bytes=300, latency_s=1e-4),
        ],
        ignore_index=True,
    )
    (result,) = fit(odd, H100)
    assert result.excluded == {
        "other dtype": 1,
        "faster than the links": 1,
        "another kernel is faster": 0,
        "slower than a larger message": 1,
    }
    assert result.form == fit(timings(), H100)[0].form


def test_reduction_inside_the_switch_is_possible() -> None:
    # 469 GB/s of bus bandwidth over links of 450 GB/s, as measured on eight GPUs.
    (result,) = fit(timings(AllReduce(4e-6, 469 / 450, 1e-5, 1e-6), n_gpus=8), H100)
    assert result.excluded["faster than the links"] == 0
    assert result.form.link_share == pytest.approx(469 / 450, rel=0.01)  # type: ignore[attr-defined]


def test_too_few_rows_are_not_fitted() -> None:
    assert fit(timings().head(6), H100) == []


@needs_package
def test_an_h100_all_reduce_meets_its_bar() -> None:
    result = {one.dtype: one for one in fit(h100_timings(), H100) if one.op == "all_reduce"}
    assert set(result) == {"2", "4", "8"}
    assert all(one.residuals.mape_frac < 0.1 for one in result.values())
