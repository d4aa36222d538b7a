"""Profile lengths: like those of a real trace, drawn from a few hundred figures fitted to it."""

from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from pydantic.dataclasses import dataclass

from simserve.input_files import SCENARIO_BYTES, parse_json, read_json
from simserve.tables.columns import Floats, Ints
from simserve.workload.info import trace_info
from simserve.workload.lengths.base import STRICT, Drawn, Lengths
from simserve.workload.streams import Stream
from simserve.workload.trace import MOST_TOKENS, Trace

KEYS = ("shares", "prompt_tokens_by_bin", "output_tokens_by_bin")
"""Keys of a profile: shares, and per bin of prompts the quantiles of prompts and outputs at these shares."""

N_BINS = 20
"""Bins with equally many requests by prompt length; each has its own output lengths, which keeps the correlation."""

SHARES = (0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995, 1)
"""Shares of the quantiles."""

FEWEST = 200


@dataclass(config=STRICT)
class Profile(Lengths):
    """Joint quantiles of prompt and output lengths, which keep their correlation."""

    name: str
    """Trace that was fitted: azure-conv-2023, azure-code-2023, mooncake-conversation, mooncake-synthetic; or the path
    of a .json from `simserve trace fit`."""

    def __post_init__(self) -> None:
        if not self.name.endswith(".json") and self.name not in profile_names():
            raise ValueError(f"unknown profile, got '{self.name}'; choose from {', '.join(profile_names())}")
        if self.name.endswith(".json") and not Path(self.name).is_file():
            raise ValueError(f"no such file, got '{self.name}'; make one with `simserve trace fit`")
        load_profile(self.name)

    def draw(self, n: int, stream: Stream) -> Drawn:
        """Draw a bin and a quantile of the prompt, then a quantile of that bin's outputs."""
        profile = load_profile(self.name)
        prompts, outputs = (np.array(profile[f"{side}_tokens_by_bin"]) for side in ("prompt", "output"))
        at = stream("lengths/prompt").random(n) * len(prompts)
        in_bin = at.astype(np.int64)
        shares = np.array(profile["shares"])
        prompt = _inverse(prompts, shares, in_bin, at - in_bin)
        return Drawn(prompt, _inverse(outputs, shares, in_bin, stream("lengths/output").random(n)))


def fit_profile(trace: Trace, source: str, license: str) -> dict[str, Any]:
    """Return the profile of a trace as plain data. Raises ValueError for fewer than 200 requests."""
    if len(trace) < FEWEST:
        raise ValueError(f"a profile needs at least {FEWEST} requests, got {len(trace)}")
    info = trace_info(trace)
    order = np.argsort(trace.prompt_tokens, kind="stable")
    bins = np.array_split(order, N_BINS)
    return {
        "schema": "simserve-profile/1",
        "source": source,
        "license": license,
        "n_requests": len(trace),
        "rate_per_s": _figure(info["rate_per_s"]),
        "gap_cv": _figure(info["gap_cv"]),
        "index_of_dispersion": {name: _figure(value) for name, value in info["index_of_dispersion"].items()},
        "rank_correlation": _figure(info["rank_correlation"]),
        "shares": list(SHARES),
        "prompt_tokens_by_bin": [_quantiles(trace.prompt_tokens[rows]) for rows in bins],
        "output_tokens_by_bin": [_quantiles(trace.output_tokens[rows]) for rows in bins],
    }


def profile_names() -> list[str]:
    """Return the names of the shipped profiles."""
    files = (resources.files("simserve.workload") / "profiles").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def load_profile(name: str) -> dict[str, Any]:
    """Load a shipped profile by name, or one from a file. Raises ValueError for a file that is no profile."""
    if not name.endswith(".json"):
        shipped = resources.files("simserve.workload") / "profiles" / f"{name}.json"
        return dict(parse_json(shipped.read_bytes()))
    try:
        profile = read_json(Path(name), SCENARIO_BYTES)
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or error
        raise ValueError(
            f"must be a profile as JSON ({text}), got '{name}'; make one with `simserve trace fit`"
        ) from None
    wrong = _why_invalid(profile)
    if wrong is not None:
        raise ValueError(f"must be a profile, got '{name}', where {wrong}; make one with `simserve trace fit`")
    return dict(profile)


def _why_invalid(profile: Any) -> str | None:
    """Return why a file is not a profile, or None."""
    if not isinstance(profile, dict):
        return "there is no mapping of keys"
    missing = [key for key in KEYS if key not in profile]
    if missing:
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    tables = {key: _table(profile[key]) for key in KEYS}
    no_table = next((key for key, table in tables.items() if table is None), None)
    return f"{no_table} is no table of finite numbers" if no_table else _wrong_among(*tables.values())


def _table(value: Any) -> Floats | None:
    """Return a list of finite numbers, or of equally long such lists, as an array; else None."""
    try:
        table = np.array(value)
    except (ValueError, OverflowError):
        return None
    return table.astype(np.float64) if table.dtype.kind in "iuf" and np.isfinite(table).all() else None


def _wrong_among(shares: Any, prompts: Any, outputs: Any) -> str | None:
    if shares.ndim != 1 or len(shares) < 2 or (np.diff(shares) <= 0).any() or shares[0] != 0 or shares[-1] != 1:
        return "shares do not rise from 0 to 1"
    if prompts.ndim != 2 or prompts.shape != outputs.shape or prompts.shape[1:] != shares.shape:
        return "prompts and answers do not have a quantile for each share"
    if any((np.diff(table) < 0).any() for table in (prompts, outputs)):
        return "the quantiles of a bin fall"
    is_served = min(prompts.min(), outputs.min()) >= 1 and max(prompts.max(), outputs.max()) <= MOST_TOKENS
    return None if is_served else f"a length is not in [1, {MOST_TOKENS}]"


def _inverse(quantiles: Floats, shares: Floats, in_bin: Ints, share: Floats) -> Ints:
    """Interpolate lengths at a share of each request's bin, linear between quantiles, `(n,)`."""
    right = np.clip(np.searchsorted(shares, share, side="right"), 1, len(shares) - 1)
    left = right - 1
    part = (share - shares[left]) / (shares[right] - shares[left])
    low, high = quantiles[in_bin, left], quantiles[in_bin, right]
    return np.maximum(1, np.rint(low + (high - low) * part)).astype(np.int64)


def _quantiles(tokens: Ints) -> list[float]:
    return [round(float(value), 1) for value in np.quantile(tokens, SHARES)]


def _figure(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
