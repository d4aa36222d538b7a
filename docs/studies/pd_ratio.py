"""How many of eight GPUs should compute prompts, and how many answers? Prints the best split for three workloads.

    python docs/studies/pd_ratio.py

For every split the highest rate at which 99 % of requests meet the SLO is found by bisection, on the same requests for
all.
"""

from simserve import Scenario, simulate

N_GPUS = 8
N_REQUESTS = 3000
GOAL_FRAC = 0.99
SLO = {"ttft_s": 1.0, "tpot_s": 0.03}
WORKLOADS = {"chat": (512, 200), "long prompts": (4096, 128), "long outputs": (256, 1024)}
"""Medians of prompt and output tokens; both lognormal with sigma 0.5."""
STEPS = 8
"""Of the bisection: the rate is known to 1 / 2^8 of its range."""


def scenario(pools: list[dict[str, object]], workload: str, rate_per_s: float) -> Scenario:
    """Llama-3.1-8B on H100s, one a replica."""
    prompt, output = WORKLOADS[workload]
    lengths = {
        "kind": "lognormal",
        "prompt_tokens": {"median": prompt, "sigma": 0.5, "max": 16384},
        "output_tokens": {"median": output, "sigma": 0.5, "max": 8192},
    }
    return Scenario.from_dict(
        {
            "schema": "simserve/1",
            "model": "llama-3.1-8b",
            "gpu": "h100-sxm",
            "cluster": {"router": "least_outstanding", "pools": pools},
            "workload": {
                "arrivals": {"kind": "poisson", "rate_per_s": rate_per_s},
                "lengths": lengths,
                "n_requests": N_REQUESTS,
            },
            "measure": {"warmup_requests": N_REQUESTS // 10},
            "slo": SLO,
        }
    )


def most_per_s(pools: list[dict[str, object]], workload: str) -> float:
    """The highest rate that meets the goal; 0 where none does."""
    low, high = 0.0, 400.0
    for _ in range(STEPS):
        rate_per_s = (low + high) / 2
        summary = simulate(scenario(pools, workload, rate_per_s)).summary
        met = not summary["trust"]["saturated"] and summary["slo_attainment"]["frac"] >= GOAL_FRAC
        low, high = (rate_per_s, high) if met else (low, rate_per_s)
    return low


def apart(n_prefill: int) -> list[dict[str, object]]:
    """So many of the GPUs for prompts, and the rest for answers."""
    sizes = {"prefill": n_prefill, "decode": N_GPUS - n_prefill}
    return [{"name": role, "role": role, "replicas": n} for role, n in sizes.items()]


def main() -> None:
    """A line a split, requests a second for each workload; then the best of each, beside GPUs that do both."""
    found = {name: {n: most_per_s(apart(n), name) for n in range(1, N_GPUS)} for name in WORKLOADS}
    print(f"{'prefill:decode':16}" + "".join(f"{name:>16}" for name in WORKLOADS))
    for n in range(1, N_GPUS):
        print(f"{f'{n}:{N_GPUS - n}':16}" + "".join(f"{found[name][n]:13.1f}/s  " for name in WORKLOADS))
    for name, rates in found.items():
        best = max(rates, key=lambda n: rates[n])
        together = most_per_s([{"replicas": N_GPUS}], name)
        print(f"{name}: best {best}:{N_GPUS - best}, {rates[best]:.1f}/s; together {together:.1f}/s")


if __name__ == "__main__":
    main()
