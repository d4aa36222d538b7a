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
    """Its name, as in the scenario."""
    role: str | None = None
    """`both`, `prefill` or `decode`."""
    model: str | None = None
    """Name of the model."""
    gpu: str
    """Name of the GPU."""
    engine: str | None = None
    """Name of the engine."""
    engine_version: str | None = None
    """The version in the scenario, else the engine's default."""
    scheduler: str | None = None
    """Name of the scheduler."""
    n_replicas: Size
    """Replicas, as in the scenario."""
    gpus_per_replica: Size
    """GPUs of a replica: tensor × pipeline × data × prefill_context."""
    ranks_per_replica: Size | None = None
    """Data-parallel ranks times lanes of a pipeline: schedulers with their own KV blocks, which all tables count as
    replicas."""
    calibrated: bool | None = None
    """Whether the kernels of this GPU were timed under this engine."""
    calibration: str | None = None
    """Card and engine version of its kernels, such as `h100-sxm/vllm 0.24.0`; null for a plain roofline. The file and
    its SHA-256 are in scenario.yaml."""
    kv_verified: bool | None = None
    """Whether `num_gpu_blocks` was given, so that the number of KV blocks is not an estimate."""

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
    """Kind of speculation."""
    tokens: Count
    """[tokens] Tokens proposed for each request in a step."""
    acceptance: Sequence[Number] = ()
    """[share] Acceptance rate of each position."""
    model: str | None = None
    """Model of the draft; null without one."""


class PoolJson(StudiedPool):
    """A pool of a run."""

    role: str = "both"
    n_replicas: Annotated[int, Field(ge=0, le=10**9)]
    ranks_per_replica: Size = 1
    model: str
    engine: str
    scheduler: str
    slots_argument: str | None = None
    """The scheduler's argument for the most running requests; null if it has none."""
    budget_argument: str | None = None
    """The scheduler's argument for the most tokens of a step; null if it has none."""
    calibrated: bool = False
    kv_verified: bool = False
    n_blocks: Count = 0
    """KV blocks of one rank."""
    block_size: Count = 0
    """[tokens] Size of one block."""
    streamed: bool = True
    """Whether tokens leave as they are generated, rather than whole answers."""
    price_per_gpu_hour_usd: Given | None = None
    """[USD/h] Price of one GPU, from the catalog."""
    tdp_w: Given | None = None
    """[W] Power of one GPU, from the catalog."""
    blocks_per_tokens: Given = 1.0
    """Blocks that all layers take for the same `block_size` tokens: more than 1 if layers keep different tokens, and
    not a whole number if blocks of a draft hold more."""
    speculation: SpeculatingJson | None = None
    """How it speculates; null if it does not."""
    mean_gpus: Measured = None
    """GPUs over the window: `n_replicas` times `gpus_per_replica` unless replicas joined or left."""
    busy_frac: Measured = None
    """[share] Time with a step in progress."""
    mfu: Measured = None
    """[share] FLOP/s of all computation over the data-sheet peak."""
    mbu: Measured = None
    """[share] Bytes/s of all computation over the data-sheet bandwidth."""

    @property
    def has_changed(self) -> bool:
        """Whether replicas joined or left during the window."""
        return self.mean_gpus not in (None, self.n_replicas * self.gpus_per_replica)

    @property
    def n_gpus(self) -> float:
        """Its GPUs; if it changed, the mean over the window."""
        return super().n_gpus if self.mean_gpus is None or not self.has_changed else self.mean_gpus
