"""Layers with a state, a gated delta net: what a step does to the states of its requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.base import Coefficient, Form, LaunchTime, PeakShare, WorkTime, smooth_max
from simserve.cost.kernels import prompt_tokens

CHUNK = 64
"""Tokens of a prompt that kernels multiply together between two versions of a state (FLA, chunk_gated_delta_rule)."""

VALUE_BYTES = 4
"""Bytes of a value of a state between two chunks."""


@dataclass(frozen=True)
class StateDecode(Form):
    """launch + bytes: convolution and update of decoding requests read and write their states."""

    launch_s: Annotated[float, LaunchTime(5e-6, 1e-6, 1e-4)]
    byte_share: Annotated[float, PeakShare(0.7, 0.05, 1.0)]

    def seconds(self, gpu: GpuSpec, state_bytes: Any, n: Any) -> Any:
        """Return the seconds of one layer for n requests with states of so many bytes."""
        return self.launch_s + 2 * n * state_bytes / (gpu.hbm_bytes_per_s * self.byte_share)


@dataclass(frozen=True)
class StatePrefill(Form):
    """launch + max(bytes of the states after each chunk, chunks of a prompt one after another)."""

    launch_s: Annotated[float, LaunchTime(3e-5, 1e-6, 5e-4)]
    byte_share: Annotated[float, PeakShare(0.2, 0.005, 1.0)]
    chunk_s: Annotated[float, WorkTime(2e-6, 1e-8, 1e-4)]
    """Least time of a chunk, which needs the state of the one before."""
    sharpness: Annotated[float, Coefficient(2.0, 1.0, 10.0)]

    def seconds(self, gpu: GpuSpec, n_values: Any, n_tokens: Any, prompt: Any) -> Any:
        """Return the seconds of one layer for n_tokens in prompts of so many, with states of n_values."""
        n_bytes = (n_tokens / CHUNK + n_tokens / prompt) * 2 * VALUE_BYTES * n_values
        memory = n_bytes / (gpu.hbm_bytes_per_s * self.byte_share)
        return self.launch_s + smooth_max(memory, prompt / CHUNK * self.chunk_s, self.sharpness)


@dataclass(frozen=True)
class PromptStates:
    """Updates of the states of one layer by prompts."""

    form: StatePrefill
    gpu: GpuSpec
    n_values: float
    """Values of a request's state on this GPU."""

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """Return the seconds of one layer."""
        prompt = prompt_tokens(n_tokens, n_pairs, n_context_tokens)
        return self.form.seconds(self.gpu, self.n_values, n_tokens, prompt)


STATES: Mapping[str, type[Form]] = {"gdn_prefill": StatePrefill, "gdn_decode": StateDecode}
"""The form of each operation."""
