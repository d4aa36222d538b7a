"""Pools as answers have them: of a scenario that was studied, and of a run."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from simserve.metrics.answers.parts import Given
from simserve.metrics.answers.struct import Figures
from simserve.metrics.summary_schema import Count, Measured, Number, Size


class StudiedPool(Figures):
    """A pool of the scenario that was studied, with the keys of a run's summary."""

    name: str
    role: str | None = None
    model: str | None = None
    gpu: str
    engine: str | None = None
    engine_version: str | None = None
    scheduler: str | None = None
    n_replicas: Size
    gpus_per_replica: Size
    ranks_per_replica: Size | None = None
    calibrated: bool | None = None
    calibration: str | None = None
    kv_verified: bool | None = None

    @property
    def has_changed(self) -> bool:
        """Whether replicas joined or left during the window."""
        return False

    @property
    def n_gpus(self) -> float:
        """Its GPUs; if it changed, the mean over the window."""
        return self.n_replicas * self.gpus_per_replica


class SpeculatingJson(Figures):
    """How a pool speculates."""

    kind: str
    tokens: Count
    acceptance: Sequence[Number] = ()
    model: str | None = None


class PoolJson(StudiedPool):
    """A pool of a run."""

    role: str = "both"
    n_replicas: Annotated[int, Field(ge=0, le=10**9)]
    ranks_per_replica: Size = 1
    model: str
    engine: str
    scheduler: str
    slots_argument: str | None = None
    budget_argument: str | None = None
    calibrated: bool = False
    kv_verified: bool = False
    n_blocks: Count = 0
    block_size: Count = 0
    streamed: bool = True
    price_per_gpu_hour_usd: Given | None = None
    tdp_w: Given | None = None
    blocks_per_tokens: Given = 1.0
    speculation: SpeculatingJson | None = None
    mean_gpus: Measured = None
    busy_frac: Measured = None
    mfu: Measured = None
    mbu: Measured = None

    @property
    def has_changed(self) -> bool:
        """Whether replicas joined or left during the window."""
        return self.mean_gpus not in (None, self.n_replicas * self.gpus_per_replica)

    @property
    def n_gpus(self) -> float:
        """Its GPUs; if it changed, the mean over the window."""
        return super().n_gpus if self.mean_gpus is None or not self.has_changed else self.mean_gpus
