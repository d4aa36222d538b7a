"""Chunked prefill against whole prompts first: the largest gap between tokens, and the rate that a bound on it allows.

python docs/studies/chunked_prefill.py
"""

from highest_rate import Summary, highest_rate_per_s, summary_at

GAP_S = 0.1
QUEUE_S = 2.0
POLICIES: dict[str, dict[str, object]] = {
    "whole prompts first": {"kind": "prefill_first", "max_num_batched_tokens": 8192, "max_num_seqs": 128},
    "chunks of 512 tokens": {"kind": "chunked", "max_num_batched_tokens": 512, "max_num_seqs": 128},
}


def scenario(policy: dict[str, object], n_requests: int) -> dict[str, object]:
    """Llama-3.1-8B on an A100, with the prompts and answers of openchat_sharegpt4."""
    lengths = {
        "kind": "lognormal",
        "prompt_tokens": {"median": 1730, "sigma": 0.93, "max": 8192},
        "output_tokens": {"median": 415, "sigma": 0.35, "max": 4096},
    }
    workload = {"lengths": lengths, "n_requests": n_requests}
    return {
        "model": "llama-3.1-8b",
        "gpu": "a100-sxm",
        "cluster": {"pools": [{"scheduler": policy}]},
        "workload": workload,
    }


def gaps_s(rate_per_s: float = 1.0, n_requests: int = 1000) -> dict[str, float]:
    """The p99 gap between tokens at one rate."""
    return {
        name: summary_at(rate_per_s, scenario(policy, n_requests))["itl_s"]["p99"] for name, policy in POLICIES.items()
    }


def rates(n_requests: int = 1000) -> dict[str, float]:
    """The highest rate at which the p99 gap is at most GAP_S and half of the requests wait at most QUEUE_S."""
    return {
        name: highest_rate_per_s(scenario(policy, n_requests), 10.0, is_smooth) for name, policy in POLICIES.items()
    }


def is_smooth(found: Summary) -> bool:
    """As Sarathi-Serve defines capacity."""
    return bool(found["itl_s"]["p99"] <= GAP_S and found["queue_s"]["p50"] <= QUEUE_S)


if __name__ == "__main__":
    gaps, highest = gaps_s(), rates()
    for name in POLICIES:
        print(f"{name:22} p99 gap at 1 request/s {gaps[name] * 1e3:6.0f} ms, up to {highest[name]:.2f} requests/s")
