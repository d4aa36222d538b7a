"""A card with known kernels, which warms up, trembles and is interrupted now and then."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from simserve.cost.forms.collective import COLLECTIVES
from simserve.lab.kernels.measure import NotTimed, TimedKernel
from tests.cost.specs import H100
from tests.lab.kernels.timings import DECODE, GEMM, PREFILL

COLLECTIVE = (8e-6, 0.75, 1e-5, 2e-5)
HOST_BYTES_PER_S = {"to_host": 5e10, "to_device": 5.5e10}
NOISE = 0.01


class FakeCard:
    """An H100 with the kernels of tests/lab/kernels/timings.py."""

    name = "a fake H100"
    n_sms = H100.n_sms
    memory_bytes = 0.99 * H100.hbm_bytes
    dtypes: Collection[str] = ("bf16", "fp8")

    def __init__(self, n_gpus: int = 1, fails_after: int | None = None, lacks: tuple[str, ...] = ()) -> None:
        self.n_gpus = n_gpus
        self.prepared: list[Mapping[str, Any]] = []
        self.n_repeats = 0
        self.is_closed = False
        self._fails_after, self._lacks = fails_after, lacks
        self._random = np.random.default_rng(1)

    def prepare(self, shape: Mapping[str, Any]) -> TimedKernel:
        if len(self.prepared) == self._fails_after:
            raise KeyboardInterrupt
        if shape["op"] in self._lacks:
            raise NotTimed("no such kernel")
        self.prepared.append(shape)
        true_s, n_repeats = seconds(shape), 0

        def repeat() -> float:
            nonlocal n_repeats
            n_repeats += 1
            self.n_repeats += 1
            slow = 10.0 if n_repeats == 1 else 3.0 if n_repeats % 10 == 0 else 1.0
            return true_s * slow * float(np.exp(NOISE * self._random.standard_normal()))

        return TimedKernel("fake", repeat)

    def close(self) -> None:
        self.is_closed = True


def seconds(shape: Mapping[str, Any]) -> float:
    """The time of a shape on the card when nothing disturbs it."""
    op = shape["op"]
    if op == "gemm":
        return float(GEMM.seconds(H100, shape["dtype"], shape["m"], shape["n"], shape["k"]))
    if op in COLLECTIVES:
        return float(COLLECTIVES[op](*COLLECTIVE).seconds(H100, shape["n_gpus"], shape["bytes"]))
    if op == "host_copy":
        return 1e-5 + float(shape["bytes"] / HOST_BYTES_PER_S[shape["direction"]])
    n, each = shape["batch"], shape["tokens"]
    heads = (shape["n_heads"], shape["n_kv_heads"], shape["head_dim"])
    if op == "prefill_attention":
        return float(PREFILL.at(H100, *heads, "bf16").seconds(n * each, n * each * (each + 1) / 2, n * each))
    intercept_s, slope_s = DECODE.line(H100, *heads, "bf16", n)
    return float(intercept_s + slope_s * n * each)
