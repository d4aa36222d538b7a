"""Fits of layers with a state: recover what made the data, leave out what the L2 keeps."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from simserve import catalog
from simserve.cost.forms.state import StateDecode, StatePrefill
from simserve.lab.kernels.state import fit, state_bytes, whole_layers
from tests.lab.kernels.timings import h100_timings, needs_package

H100 = catalog.load_gpu("h100-sxm")
PREFILL, DECODE = StatePrefill(3e-5, 0.2, 2e-6, 2.0), StateDecode(5e-6, 0.8)
BATCHES = [2.0**i for i in range(11)]
VALUES = [2.0**i * 16_384 for i in range(1, 7)]


def prompts() -> pd.DataFrame:
    batch, tokens, values = np.array(list(product(BATCHES[:6], [16.0, 256.0, 2048.0, 16_384.0], VALUES))).T
    seconds = PREFILL.seconds(H100, values, batch * tokens, tokens)
    return pd.DataFrame(
        {"op": "gdn_prefill", "batch": batch, "tokens": tokens, "state_values": values, "latency_s": seconds}
    )


def decodes() -> pd.DataFrame:
    batch, n_bytes = np.array(list(product(BATCHES, [4 * values for values in VALUES]))).T
    seconds = DECODE.seconds(H100, n_bytes, batch)
    return pd.DataFrame({"op": "gdn_decode", "batch": batch, "state_bytes": n_bytes, "latency_s": seconds})


def test_a_fit_recovers_the_coefficients() -> None:
    prefill, decode = fit(pd.concat([prompts(), decodes()], ignore_index=True), H100)
    assert (prefill.op, decode.op) == ("gdn_prefill", "gdn_decode")
    assert vars(prefill.form) == pytest.approx(vars(PREFILL), rel=0.02)
    assert vars(decode.form) == pytest.approx(vars(DECODE), rel=0.01)


def test_states_that_the_l2_keeps_are_left_out() -> None:
    rows = decodes()
    n_bytes = 2 * rows["batch"] * rows["state_bytes"]
    (result,) = fit(rows.assign(latency_s=rows["latency_s"].where(n_bytes > 2 * H100.l2_bytes, 6e-6)), H100)
    assert result.excluded["states stay in the L2"] > 0
    assert vars(result.form) == pytest.approx(vars(DECODE), rel=0.25)


def test_timings_that_no_form_explains_are_not_used() -> None:
    rows = prompts()
    odd = rows["latency_s"] * np.where(np.arange(len(rows)) % 2, 3.0, 1.0)
    assert fit(rows.assign(latency_s=odd), H100) == []
    assert fit(prompts().head(10), H100) == []


def test_a_layer_is_the_sum_of_its_two_kernels() -> None:
    shape = {"batch_size": 4, "seq_len": 1, "d_model": 4096, "d_conv": 4, "num_k_heads": 2, "head_k_dim": 128}
    rows = pd.DataFrame(
        {
            **shape,
            "num_v_heads": [8, 8, 16],
            "head_v_dim": 128,
            "phase": "generation",
            "framework": "vLLM",
            "latency": [0.002, 0.005, 0.01],  # the last lacks its convolution
        }
    )
    (layer,) = whole_layers("generation", rows).itertuples()
    assert layer.latency == pytest.approx(0.007)
    assert state_bytes(whole_layers("generation", rows)).tolist() == [8 * 128 * 128 * 4 + 2 * 3 * (2 + 2 + 8) * 128]
    assert state_bytes(whole_layers("generation", rows.assign(framework="TRTLLM")))[0] < 8 * 128 * 128 * 3


@needs_package
def test_h100_states_are_met_within_a_tenth() -> None:
    errors = [one.residuals.mape_frac for one in fit(h100_timings(), H100)]
    assert len(errors) == 2
    assert max(errors) < 0.1
