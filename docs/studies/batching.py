"""Static, dynamic and continuous batching, and blocks set aside against blocks as they are needed.

    python docs/studies/batching.py

The highest rate at which half of the requests take at most so long per output token.
"""

from highest_rate import Summary, highest_rate_per_s

SECONDS_PER_TOKEN = 0.1
POLICIES: dict[str, dict[str, object]] = {
    "static": {"kind": "static", "batch_size": 32},
    "dynamic": {"kind": "dynamic", "batch_size": 32, "window_s": 0.5},
    "continuous, blocks set aside": {"kind": "continuous"},
    "continuous, paged blocks": {"kind": "prefill_first", "max_num_batched_tokens": 4096},
}


def rates(n_requests: int = 1500) -> dict[str, float]:
    """Llama-2-13B on an A100 of 40 GB; prompts and answers of all lengths, as chats have them; max_tokens 2048."""
    lengths = {
        "kind": "lognormal",
        "prompt_tokens": {"median": 100, "sigma": 1.0, "max": 1024},
        "output_tokens": {"median": 250, "sigma": 0.8, "max": 1024},
    }
    workload = {"lengths": lengths, "n_requests": n_requests, "max_tokens": 2048}
    base = {"model": "llama-2-13b", "gpu": "a100-sxm-40gb", "workload": workload}
    return {
        name: highest_rate_per_s({**base, "cluster": {"pools": [{"scheduler": policy}]}}, 4.0, is_quick)
        for name, policy in POLICIES.items()
    }


def is_quick(found: Summary) -> bool:
    """The median answer, of 250 tokens."""
    return bool(found["e2e_s"]["p50"] <= 250 * SECONDS_PER_TOKEN)


if __name__ == "__main__":
    for name, rate_per_s in rates().items():
        print(f"{name:30} {rate_per_s:5.2f} requests/s")
