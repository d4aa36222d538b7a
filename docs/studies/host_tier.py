"""Find when swapping a preempted request to host memory beats recomputation.

python docs/studies/host_tier.py
"""

from highest_rate import Summary

from simserve import Scenario, simulate
from simserve.cost.model import StepShape, shape_ps
from simserve.units import to_s

LINKS = {"PCIe 3.0": 16e9, "PCIe 4.0": 32e9, "PCIe 5.0": 64e9, "NVLink-C2C": 450e9}
"""x16, one way (450 GB/s: NVIDIA GH200 data sheet, 900 GB/s both ways)."""

CONTEXTS = (500, 1000, 2000, 4000, 8000, 16000, 32000)

LENGTHS = {"short": ([100, 400], [100, 400]), "long": ([2000, 3000], [200, 600])}
"""Ranges of prompt and output tokens."""

KV_TOKENS = {"short": 6_000, "long": 30_000}
"""Size of the KV cache: too small for the clients, so that requests are preempted."""


def scenario(model: str, lengths: str, host_tier: dict[str, object] | None = None, n_requests: int = 600) -> Scenario:
    """Return a scenario of 64 clients and one H100 replica with too few blocks for them."""
    pool: dict[str, object] = {"num_gpu_blocks": KV_TOKENS[lengths] // 16, "enable_prefix_caching": False}
    if host_tier is not None:
        pool["host_tier"] = {"bytes": 200e9, **host_tier}
    prompt, output = LENGTHS[lengths]
    workload = {
        "client": {"kind": "closed_loop", "concurrency": 64},
        "lengths": {"kind": "uniform", "prompt_tokens": prompt, "output_tokens": output},
        "n_requests": n_requests,
    }
    given = {"schema": "simserve/1", "model": model, "gpu": "h100-sxm", "engine": "vllm", "measure": {"replays": 0}}
    return Scenario.from_dict({**given, "cluster": {"pools": [pool]}, "workload": workload})


def break_even(model: str) -> dict[int, tuple[float, float]]:
    """Return, for contexts of n tokens, the prefill time alone and the bytes/s at which two copies take as long."""
    setup = scenario(model, "long").setups[0]
    cost = setup.step_cost()
    token_bytes = setup.ledger.block_bytes / setup.ledger.block_size
    result = {}
    for n in CONTEXTS:
        if n <= setup.model.max_position_embeddings:
            prefill_s = to_s(shape_ps(cost, StepShape(n, n * (n + 1) // 2, n, sampled_rows=1)))
            result[n] = prefill_s, 2 * n * token_bytes / prefill_s
    return result


def runs(model: str, lengths: str, n_requests: int = 600) -> dict[str, Summary]:
    """Return the summaries of recomputation and of swapping over each link."""
    tiers = {"recompute": None} | {
        name: {"bytes_per_s": bytes_per_s, "preemption": "swap"} for name, bytes_per_s in LINKS.items()
    }
    return {name: simulate(scenario(model, lengths, tier, n_requests)).summary for name, tier in tiers.items()}


if __name__ == "__main__":
    for model in ("llama-3.1-8b", "llama-2-7b"):
        print(f"\n{model}, prefill of n tokens, and the bytes/s at which two copies take as long:")
        for n, (prefill_s, bytes_per_s) in break_even(model).items():
            print(f"  {n:6} tokens {prefill_s * 1e3:8.1f} ms {bytes_per_s / 1e9:6.1f} GB/s")
        for lengths in LENGTHS:
            for name, result in runs(model, lengths).items():
                n_preempted, rate = result["preemptions"]["n"], result["output_tokens_per_s"]
                print(
                    f"  {lengths:6} {name:11} {rate:7.0f} tokens/s, {n_preempted:5} preemptions, "
                    f"TPOT p99 {result['tpot_s']['p99'] * 1e3:.1f} ms, E2E p99 {result['e2e_s']['p99']:.1f} s"
                )
