"""What a prefix cache takes off the time to first token of chats that hit it three times in four.

python docs/studies/prefix_cache.py
"""

from highest_rate import Summary, summary_at


def runs(n_requests: int = 4000) -> dict[str, Summary]:
    """Qwen3-32B on two H100s under SGLang; conversations behind a system prompt; with the cache and without."""
    workload = {
        "lengths": {
            "kind": "lognormal",
            "prompt_tokens": {"median": 150, "sigma": 1.0, "max": 4096},
            "output_tokens": {"median": 200, "sigma": 0.6, "max": 2048},
        },
        "prefixes": {
            "kind": "conversations",
            "turns": [1, 5],
            "think_s": {"mean": 20},
            "system_tokens": 100,
            "max_prompt_tokens": 8192,
        },
        "n_requests": n_requests,
    }
    base = {"model": "qwen3-32b", "gpu": "h100-sxm", "engine": "sglang", "workload": workload}
    pools = {
        "with the cache": {"parallel": {"tensor": 2}, "enable_prefix_caching": True},
        "without": {"parallel": {"tensor": 2}, "enable_prefix_caching": False},
    }
    return {name: summary_at(0.5, {**base, "cluster": {"pools": [pool]}}) for name, pool in pools.items()}


if __name__ == "__main__":
    for name, found in runs().items():
        hits, ttft_s = found["prefix_cache"]["hit_frac"], found["ttft_s"]["mean"]
        print(f"{name:15} hits {hits:.0%}, mean TTFT {ttft_s * 1e3:.0f} ms")
