"""Tiny scenarios for the tests of commands."""

from pathlib import Path
from typing import Any

import yaml


def write_scenario(folder: Path, **changes: Any) -> Path:
    """A scenario of 40 short requests on one H100, run once, as a file; `changes` replace top-level keys, and ... takes
    one out."""
    content: dict[str, Any] = {
        "schema": "simserve/1",
        "name": "tiny",
        "seed": 3,
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "engine": "vllm",
        "weight_dtype": "bf16",
        "kv_dtype": "bf16",
        "cluster": {
            "router": "round_robin",
            "pools": [{"name": "serve", "role": "both", "replicas": 1, "parallel": {"tensor": 1}}],
        },
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": 8},
            "lengths": {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8},
            "n_requests": 40,
        },
        "measure": {"replays": 0},
        "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
    }
    file = folder / "tiny.yaml"
    kept = {key: value for key, value in (content | changes).items() if value is not ...}
    file.write_text(yaml.safe_dump(kept, sort_keys=False))
    return file
