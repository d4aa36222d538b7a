"""Collectives inside a node: an all-reduce, and operations that cross the links once (gather, scatter, all-to-all)."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import log2
from typing import Annotated, Any, ClassVar

from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.base import Form, PeakShare, WorkTime


@dataclass(frozen=True)
class Collective(Form):
    """latency + wire + switching: all-gather, reduce-scatter, all-to-all of one number of GPUs.

    wire is the time of a GPU's share of the bytes, (G - 1) / G of them, on its links. Libraries change protocol as
    messages grow: one round for small ones, rounds with more latency and better link use for large ones. The
    extra `switch_latency_s` sets in smoothly, half of it at a wire time of `switch_wire_s`.
    """

    PASSES: ClassVar[float] = 1.0
    """How often the bytes cross the links."""

    latency_s: Annotated[float, WorkTime(5e-6, 1e-7, 1e-3)]
    link_share: Annotated[float, PeakShare(0.7, 0.01, 1.2)]
    """Share of the data sheet's link, one direction. In-network reduction halves the bytes, so it may exceed 1."""
    switch_latency_s: Annotated[float, WorkTime(1e-5, 1e-8, 2e-3)]
    switch_wire_s: Annotated[float, WorkTime(1e-5, 1e-7, 2e-3)]

    def seconds(self, gpu: GpuSpec, n_gpus: int, n_bytes: Any) -> Any:
        """Return the seconds of a message of n_bytes (see SHAPES), a scalar or `(n,)`; monotone; 0 for one GPU."""
        if n_gpus == 1:
            return 0.0 * n_bytes
        wire = self.PASSES * (n_gpus - 1) / n_gpus * n_bytes / (gpu.link_bytes_per_s * self.link_share)
        return self.latency_s + wire + self.switch_latency_s * wire / (wire + self.switch_wire_s)


@dataclass(frozen=True)
class AllReduce(Collective):
    """A collective with twice the bytes: a scatter, then a gather (Thakur, Rabenseifner and Gropp 2005)."""

    PASSES: ClassVar[float] = 2.0


COLLECTIVES: Mapping[str, type[Collective]] = {
    "all_reduce": AllReduce,
    "all_gather": Collective,
    "reduce_scatter": Collective,
    "all_to_all": Collective,
}
"""The form of every operation."""


def for_group(forms: Mapping[int, Collective], n_gpus: int) -> Collective:
    """Return the form of n_gpus from those of measured sizes: coefficients are interpolated in log2(n_gpus), and the
    nearest size holds beyond the ends, for links inside a node."""
    if n_gpus in forms:
        return forms[n_gpus]
    below = [n for n in forms if n < n_gpus]
    above = [n for n in forms if n > n_gpus]
    if not below or not above:
        return forms[max(below) if below else min(above)]
    low, high = forms[max(below)], forms[min(above)]
    share = log2(n_gpus / max(below)) / log2(min(above) / max(below))
    mixed = {f.name: (1 - share) * getattr(low, f.name) + share * getattr(high, f.name) for f in fields(low)}
    return type(low)(**mixed)
