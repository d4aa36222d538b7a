"""How many of eight GPUs should compute prompts, and how many answers? The best split for three workloads.

    python docs/studies/pd_ratio.py

For every split: the highest rate at which 99 % of requests meet the SLO.
"""

from highest_rate import Summary, highest_rate_per_s

N_GPUS = 8
MOST_PER_S = 400.0
WORKLOADS = {"chat": (512, 200), "long prompts": (4096, 128), "long outputs": (256, 1024)}
"""Medians of prompt and output tokens; both lognormal with sigma 0.5."""


def best_rates(workload: str, n_requests: int = 3000) -> dict[str, float]:
    """The highest rate of each split, and of GPUs that do both."""
    splits = {f"{n}:{N_GPUS - n}": apart(n) for n in range(1, N_GPUS)} | {"together": [{"replicas": N_GPUS}]}
    return {
        name: highest_rate_per_s(scenario(pools, workload, n_requests), MOST_PER_S, meets)
        for name, pools in splits.items()
    }


def apart(n_prefill: int) -> list[dict[str, object]]:
    """So many of the GPUs for prompts, and the rest for answers."""
    sizes = {"prefill": n_prefill, "decode": N_GPUS - n_prefill}
    return [{"name": role, "role": role, "replicas": n} for role, n in sizes.items()]


def scenario(pools: list[dict[str, object]], workload: str, n_requests: int) -> dict[str, object]:
    """Llama-3.1-8B on H100s, one a replica."""
    prompt, output = WORKLOADS[workload]
    lengths = {
        "kind": "lognormal",
        "prompt_tokens": {"median": prompt, "sigma": 0.5, "max": 16384},
        "output_tokens": {"median": output, "sigma": 0.5, "max": 8192},
    }
    return {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "cluster": {"router": "least_outstanding", "pools": pools},
        "workload": {"lengths": lengths, "n_requests": n_requests},
        "slo": {"ttft_s": 1.0, "tpot_s": 0.03},
    }


def meets(found: Summary) -> bool:
    """99 of 100 do."""
    return bool(found["slo_attainment"]["frac"] >= 0.99)


if __name__ == "__main__":
    for each in WORKLOADS:
        rates = best_rates(each)
        best = max((name for name in rates if name != "together"), key=lambda name: rates[name])
        print(f"{each}: best {best}; requests/s: " + ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items()))
