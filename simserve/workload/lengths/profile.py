"""Lengths like those of a real trace, drawn from figures fitted to it."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from simserve.workload.lengths.base import STRICT, Drawn, Lengths
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class Profile(Lengths):
    """Joint quantiles of prompts and answers, so that the two stay correlated."""

    name: str
    """azure-conv-2023, azure-code-2023, mooncake-conversation, mooncake-synthetic; or the path of a fitted .json."""

    def __post_init__(self) -> None:
        if not self.name.endswith(".json") and self.name not in profile_names():
            raise ValueError(f"unknown profile, got '{self.name}'; choose from {', '.join(profile_names())}")
        if self.name.endswith(".json") and not Path(self.name).is_file():
            raise ValueError(f"no such file, got '{self.name}'; make one with `simserve trace fit`")

    def draw(self, n: int, stream: Stream) -> Drawn:
        """A bin of prompts and a place in it, then a place among that bin's answers."""
        profile = load_profile(self.name)
        prompts, outputs = (np.array(profile[f"{side}_tokens_by_bin"]) for side in ("prompt", "output"))
        at = stream("lengths/prompt").random(n) * len(prompts)
        in_bin = at.astype(np.int64)
        shares = np.array(profile["shares"])
        prompt = _inverse(prompts, shares, in_bin, at - in_bin)
        return Drawn(prompt, _inverse(outputs, shares, in_bin, stream("lengths/output").random(n)))


def profile_names() -> list[str]:
    """The profiles that are shipped."""
    files = (resources.files("simserve.workload") / "profiles").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def load_profile(name: str) -> dict[str, Any]:
    """A shipped profile by name, or one from a file."""
    is_file = name.endswith(".json")
    place = Path(name) if is_file else resources.files("simserve.workload") / "profiles" / f"{name}.json"
    profile: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return profile


def _inverse(
    quantiles: NDArray[np.float64], shares: NDArray[np.float64], in_bin: NDArray[np.int64], share: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Lengths at a share of the way through each request's bin, linear between quantiles, `(n,)`."""
    right = np.clip(np.searchsorted(shares, share, side="right"), 1, len(shares) - 1)
    left = right - 1
    part = (share - shares[left]) / (shares[right] - shares[left])
    low, high = quantiles[in_bin, left], quantiles[in_bin, right]
    return np.maximum(1, np.rint(low + (high - low) * part)).astype(np.int64)
