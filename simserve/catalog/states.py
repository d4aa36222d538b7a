"""States: the mixers of layers that keep a state of fixed size per request instead of keys and values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from simserve.catalog.layers import SHARED_HEADS_ROUTING

Matrices = Mapping[str, tuple[int, int]]
"""(rows in, columns out) by name."""


@dataclass(frozen=True)
class LinearAttention:
    """The layers with a state: a gated delta net (Yang et al. 2025, section 3), as Qwen3-Next has it.

    Invariant: n_value_heads is a multiple of n_key_heads.
    """

    ROUTING: ClassVar[str] = "lognormal_0.5"
    """How tokens choose experts in models with such layers; SHARED_HEADS_ROUTING has the source."""

    n_key_heads: int
    key_head_dim: int
    n_value_heads: int
    value_head_dim: int
    conv_size: int
    """Width of the convolution over queries, keys and values; its last inputs belong to the state."""
    state_value_bytes: int = 2
    """Bytes of a value of the state's matrices; inputs of the convolution take 16 bits."""

    @property
    def key_size(self) -> int:
        """Width of all keys; queries have the same."""
        return self.n_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        """Width of all values; gates have the same."""
        return self.n_value_heads * self.value_head_dim

    @property
    def state_bytes(self) -> int:
        """Bytes of a request's state in one layer: a matrix per value head, and inputs of the convolution."""
        inputs = (self.conv_size - 1) * (2 * self.key_size + self.value_size)
        return self.n_value_heads * self.key_head_dim * self.value_head_dim * self.state_value_bytes + 2 * inputs

    def mixed_size(self, tensor: int) -> int:
        """Return the values of a token that are convolved and gated, on one of `tensor` GPUs."""
        return 2 * (self.key_size + self.value_size) // tensor

    def matrices(self, hidden_size: int, tensor: int) -> Matrices:
        """Return the projections on one of `tensor` GPUs: queries, keys, values and output gates; two gates of the
        state per value head; output."""
        return {
            "qkvz": (hidden_size, self.mixed_size(tensor)),
            "gates": (hidden_size, 2 * self.n_value_heads // tensor),
            "output": (self.value_size // tensor, hidden_size),
        }


@dataclass(frozen=True)
class _OfHeads:
    """The size of all heads."""

    n_heads: int
    head_dim: int

    @property
    def inner_size(self) -> int:
        """Width of all heads."""
        return self.n_heads * self.head_dim


@dataclass(frozen=True)
class Mamba2(_OfHeads):
    """The layers with a state: selective state spaces (Dao and Gu, ICML '24, section 7), as in Nemotron-H.

    Invariant: n_heads is a multiple of n_groups.
    """

    ROUTING: ClassVar[str] = "lognormal_0.3"
    """How tokens choose experts in models with such layers; SHARED_HEADS_ROUTING has the source."""

    state_dim: int
    """Values of the state for each value of a head."""
    n_groups: int
    """Groups of heads with inputs and outputs of the state in common."""
    conv_size: int
    """Width of the convolution over inputs; its last inputs belong to the state."""
    state_value_bytes: int = 2
    """Bytes of a value of the state's matrices; inputs of the convolution take 16 bits."""

    @property
    def state_bytes(self) -> int:
        """Bytes of a request's state in one layer: a matrix per head, and inputs of the convolution."""
        inputs = (self.conv_size - 1) * (self.inner_size + 2 * self.n_groups * self.state_dim)
        return self.inner_size * self.state_dim * self.state_value_bytes + 2 * inputs

    def mixed_size(self, tensor: int) -> int:
        """Return the values of a token that are convolved and gated, on one of `tensor` GPUs, which have whole groups
        (vLLM, mamba_mixer2.py)."""
        return 2 * self.inner_size // tensor + 2 * max(1, self.n_groups // tensor) * self.state_dim

    def matrices(self, hidden_size: int, tensor: int) -> Matrices:
        """Return the projections on one of `tensor` GPUs: gates, inputs, and a step size per head; output."""
        return {
            "input": (hidden_size, self.mixed_size(tensor) + self.n_heads // tensor),
            "output": (self.inner_size // tensor, hidden_size),
        }


@dataclass(frozen=True)
class Mamba1:
    """The layers with a state: selective state spaces with a step size per channel (Gu and Dao 2023, section 3)."""

    ROUTING: ClassVar[str] = Mamba2.ROUTING

    hidden_size: int
    expand: int
    """Channels of a layer for each of the hidden size."""
    state_dim: int
    dt_rank: int
    """Width of what step sizes are projected from."""
    conv_size: int
    state_value_bytes: int = 2

    @property
    def inner_size(self) -> int:
        """Channels of a layer."""
        return self.expand * self.hidden_size

    @property
    def state_bytes(self) -> int:
        """Bytes of a request's state in one layer: a vector per channel, and inputs of the convolution."""
        return self.inner_size * (self.state_dim * self.state_value_bytes + 2 * (self.conv_size - 1))

    def mixed_size(self, tensor: int) -> int:
        """Return the values of a token that are convolved and gated, on one of `tensor` GPUs."""
        return 2 * self.inner_size // tensor

    def matrices(self, hidden_size: int, tensor: int) -> Matrices:
        """Return the projections on one of `tensor` GPUs: inputs and gates; step sizes, inputs and outputs of the
        state; output."""
        inner = self.inner_size // tensor
        return {
            "input": (hidden_size, 2 * inner),
            "state": (inner, self.dt_rank + 2 * self.state_dim),
            "steps": (self.dt_rank, inner),
            "output": (inner, hidden_size),
        }


@dataclass(frozen=True)
class ShortConvolution:
    """The layers with a state: a gated convolution over the last tokens (LFM2 technical report, section 2)."""

    ROUTING: ClassVar[str] = SHARED_HEADS_ROUTING

    width: int
    conv_size: int
    state_value_bytes: int = 2

    @property
    def state_bytes(self) -> int:
        """Bytes of a request's state in one layer: inputs of the convolution."""
        return (self.conv_size - 1) * self.width * self.state_value_bytes

    def mixed_size(self, tensor: int) -> int:
        """Return the values of a token that are convolved and gated, on one of `tensor` GPUs."""
        return 3 * self.width // tensor

    def matrices(self, hidden_size: int, tensor: int) -> Matrices:
        """Return the projections on one of `tensor` GPUs: inputs and both gates; output."""
        return {"input": (hidden_size, self.mixed_size(tensor)), "output": (self.width // tensor, hidden_size)}


@dataclass(frozen=True)
class Kda(_OfHeads):
    """The layers with a state: a delta net with a gate per channel (Kimi Linear technical report, section 4)."""

    ROUTING: ClassVar[str] = LinearAttention.ROUTING

    conv_size: int
    state_value_bytes: int = 4
    """In 32 bits, whatever the model is in (vLLM, kda_state_dtype)."""

    @property
    def state_bytes(self) -> int:
        """Bytes of a request's state in one layer: a matrix per head, and inputs of the convolutions."""
        inputs = 3 * (self.conv_size - 1) * self.inner_size
        return self.inner_size * self.head_dim * self.state_value_bytes + 2 * inputs

    def mixed_size(self, tensor: int) -> int:
        """Return the values of a token that are convolved and gated, on one of `tensor` GPUs: queries, keys, values and
        two gates."""
        return 5 * self.inner_size // tensor

    def matrices(self, hidden_size: int, tensor: int) -> Matrices:
        """Return the projections on one of `tensor` GPUs: queries, keys and values; gates of the state and of the
        output, each by way of one head's width; a step size per head; output."""
        inner = self.inner_size // tensor
        return {
            "qkv": (hidden_size, 3 * inner),
            "gates_a": (hidden_size, 2 * self.head_dim + self.n_heads // tensor),
            "gate_b": (self.head_dim, 2 * inner),
            "output": (inner, hidden_size),
        }


@dataclass(frozen=True)
class LightningAttention(_OfHeads):
    """The layers with a state: linear attention with a decay per head (MiniMax-01, section 2.2)."""

    ROUTING: ClassVar[str] = LinearAttention.ROUTING

    state_value_bytes: int = 2

    @property
    def state_bytes(self) -> int:
        """Bytes of a request's state in one layer: a matrix per head."""
        return self.inner_size * self.head_dim * self.state_value_bytes

    def mixed_size(self, tensor: int) -> int:
        """Return the values of a token that are mixed and gated, on one of `tensor` GPUs."""
        return 4 * self.inner_size // tensor

    def matrices(self, hidden_size: int, tensor: int) -> Matrices:
        """Return the projections on one of `tensor` GPUs: queries, keys, values and output gates; output."""
        inner = self.inner_size // tensor
        return {"qkvz": (hidden_size, 4 * inner), "output": (inner, hidden_size)}


StateMixer = Literal["gated_delta_net", "kda", "lightning", "mamba", "mamba2", "short_convolution"]

MIXERS: Mapping[StateMixer, Any] = {
    "gated_delta_net": LinearAttention,
    "kda": Kda,
    "lightning": LightningAttention,
    "mamba": Mamba1,
    "mamba2": Mamba2,
    "short_convolution": ShortConvolution,
}
"""The mixers by the names that files of families have for them."""

State = LinearAttention | Kda | LightningAttention | Mamba1 | Mamba2 | ShortConvolution
