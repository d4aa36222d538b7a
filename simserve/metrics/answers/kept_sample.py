"""Kept samples: how close the requests of a run come to their limits, as a row of a journal holds it, to the bit."""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from simserve.metrics.answers.struct import Struct
from simserve.metrics.summary_schema import Count, Queue, Signed, Size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simserve.metrics.tails import Sample, Tail

RATIO, PLACE = "<f4", "<i8"
"""Types of the numbers of a tail."""


class KeptTail(Struct):
    """Latencies over limits of a class of requests, or of all, in order of arrival."""

    slo_class: str | None
    limits: Sequence[str]
    n: Size
    n_missed: Count
    n_kept: Size
    ratios: str
    """Latency / limit of each kept request, row by row: their bytes, compressed, as base64."""
    places: str | None
    """Place of each among all requests, likewise; None where all are kept."""

    @model_validator(mode="after")
    def _is_whole(self) -> "KeptTail":
        if (self.places is None) != (self.n_kept == self.n):
            raise ValueError("must have the place of each request where not all are kept")
        self.tail()
        return self

    def tail(self) -> "Tail":
        """Return the tail. Raises ValueError where it has another number of requests."""
        import numpy as np  # late: as all that reads answers

        from simserve.metrics.tails import Tail

        ratios = _unpacked(self.ratios, RATIO, self.n_kept * len(self.limits)).reshape(self.n_kept, -1)
        places = np.arange(self.n) if self.places is None else _unpacked(self.places, PLACE, self.n_kept)
        return Tail(tuple(self.limits), self.n, ratios, places, self.n_missed)


class KeptSample(Struct):
    """One run, as a decision sees it."""

    tails: Sequence[KeptTail]
    n_effective: Annotated[float, Field(gt=0, le=1e18)]
    queue: Queue | None
    off_frac: Signed

    @classmethod
    def of(cls, sample: "Sample") -> "KeptSample":
        """Return what a row keeps of a run."""
        tails = [
            KeptTail(
                slo_class=name,
                limits=list(tail.limits),
                n=tail.n,
                n_missed=tail.n_missed,
                n_kept=len(tail.ratios),
                ratios=_packed(tail.ratios, RATIO),
                places=None if len(tail.ratios) == tail.n else _packed(tail.places, PLACE),
            )
            for name, tail in sample.tails.items()
        ]
        return cls(tails=tails, n_effective=sample.n_effective, queue=sample.queue, off_frac=sample.off_frac)

    def sample(self) -> "Sample":
        """Return the run."""
        from simserve.metrics.tails import Sample  # late: numpy

        tails = {each.slo_class: each.tail() for each in self.tails}
        return Sample(tails, self.n_effective, self.queue, self.off_frac)


def _packed(values: "NDArray[Any]", kind: str) -> str:
    """Return numbers as text: their first bytes together, then their second ones, as these compress better."""
    given = values.astype(kind)
    return b64encode(zlib.compress(given.view("u1").reshape(given.size, given.itemsize).T.tobytes())).decode()


def _unpacked(text: str, kind: str, n: int) -> "NDArray[Any]":
    """Return n numbers. Raises ValueError where there are more or less of them."""
    import numpy as np  # late: as all that reads answers

    size = np.dtype(kind).itemsize
    try:
        given = zlib.decompressobj().decompress(b64decode(text, validate=True), n * size + 1)
    except zlib.error as error:
        raise ValueError(f"must be compressed numbers, got {error}") from None
    return np.frombuffer(given, "u1").reshape(size, n).T.copy().view(kind).ravel()
