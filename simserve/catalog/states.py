"""States: the mixers of layers that keep a state of fixed size per request instead of keys and values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from math import prod
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator

from simserve.catalog.types import Section

Matrices = Mapping[str, tuple[int, int]]
"""(rows in, columns out) by name."""

Words = Annotated[tuple[str, ...], BeforeValidator(lambda text: text.split() if type(text) is str else text)]
"""Words between spaces."""


class StateMixer(Section):
    """What mixes tokens by a state, as mixers.yaml describes it."""

    source: str
    sizes: Words
    divided: Words
    even: tuple[str, str] | None = None
    """Sizes of which the second divides the first."""
    widths: Mapping[str, str]
    value_bytes: int = 2
    """Bytes of a value of the state's matrices, unless the model says otherwise."""
    matrices: Mapping[str, tuple[str, str]]
    n_kernels: int
    """Kernels of a layer between its projections."""
    routing: str
    is_timed: bool = False
    """Whether kernels of its states were timed."""


@dataclass(frozen=True)
class StateLayers:
    """The layers with a state, whole or on one GPU: their mixer and its sizes."""

    mixer: str
    sizes: Mapping[str, int] = field(hash=False)
    state_value_bytes: int
    """Bytes of a value of the state's matrices; inputs of the convolution take 16 bits."""

    @classmethod
    def of(cls, mixer: str, state_value_bytes: int | None = None, **sizes: int) -> "StateLayers":
        """Return the layers of a mixer of these sizes."""
        return cls(mixer, sizes, state_value_bytes or MIXERS[mixer].value_bytes)

    def on(self, tensor: int) -> "StateLayers":
        """Return the part on one of `tensor` GPUs."""
        divided = {name: max(1, self.sizes[name] // tensor) for name in MIXERS[self.mixer].divided}
        return replace(self, sizes={**self.sizes, **divided})

    @cached_property
    def widths(self) -> Mapping[str, int]:
        """Its sizes, and the widths that follow from them."""
        known = dict(self.sizes)
        for name, text in MIXERS[self.mixer].widths.items():
            known[name] = _value(text, known)
        return known

    @property
    def n_values(self) -> int:
        """Values of the state's matrices in one layer."""
        return self.widths.get("state", 0)

    @property
    def state_bytes(self) -> int:
        """Bytes of a request's state in one layer: its matrices, and the last inputs of the convolution."""
        n_inputs = (self.sizes.get("conv_size", 1) - 1) * self.widths.get("convolved", 0)
        return self.n_values * self.state_value_bytes + 2 * n_inputs

    def matrices(self, hidden_size: int) -> Matrices:
        """Return the projections, of which the hidden size is not divided."""
        known = {**self.widths, "hidden": hidden_size}
        sizes = MIXERS[self.mixer].matrices.items()
        return {name: (_value(rows, known), _value(columns, known)) for name, (rows, columns) in sizes}


def _value(text: str, known: Mapping[str, int]) -> int:
    """Return a sum of products of known widths and numbers."""
    terms = [[int(name) if name.isdigit() else known[name] for name in term.split(" * ")] for term in text.split(" + ")]
    return sum(map(prod, terms))


def _mixers() -> dict[str, StateMixer]:
    data: dict[str, Any] = yaml.safe_load((resources.files("simserve.catalog") / "mixers.yaml").read_text("utf-8"))
    return {name: StateMixer.model_validate(each) for name, each in data.items()}


MIXERS: Mapping[str, StateMixer] = _mixers()
"""The mixers by the names that files of families have for them."""
