"""Measure when a draft model pays: while GPUs wait for memory, and no longer once they compute.

    python docs/studies/speculation.py

Llama-3.1-70B on four H100s, chat, proposals by Llama-3.2-1B; a number of clients, each with one request in flight.
"""

from typing import Any

from simserve import Scenario, simulate

CLIENTS = (1, 4, 16, 64, 256, 512)
DRAFT = {"kind": "draft_model", "model": "llama-3.2-1b"}


def tokens_per_s(clients: int, tokens: int, acceptance: float = 0.7, n_each: int = 6) -> float:
    """Return output tokens/s with `tokens` proposals per step, 0 for plain decoding; n_each: requests of a client."""
    summary = simulate(Scenario.from_dict(scenario(clients, tokens, acceptance, n_each))).summary
    return float(summary["output_tokens_per_s"])


def scenario(clients: int, tokens: int, acceptance: float, n_each: int) -> dict[str, Any]:
    """Return the same load for all settings; the start of the clients is warm-up."""
    n_requests = max(n_each * clients, 40)
    speculation = {**DRAFT, "tokens": tokens, "acceptance": acceptance}
    return {
        "schema": "simserve/1",
        "model": "llama-3.1-70b",
        "gpu": "h100-sxm",
        "cluster": {"pools": [{"parallel": {"tensor": 4}, "speculation": speculation}]},
        "workload": {
            "client": {"kind": "closed_loop", "concurrency": clients},
            "lengths": {"kind": "uniform", "prompt_tokens": [100, 400], "output_tokens": [100, 300]},
            "n_requests": n_requests,
        },
        "measure": {"warmup_requests": n_requests // 4, "replays": 0},
    }


if __name__ == "__main__":
    for acceptance in (0.7, 0.5):
        print(f"acceptance {acceptance}")
        for each in CLIENTS:
            plain, *proposed = (tokens_per_s(each, k, acceptance) for k in (0, 2, 4))
            gains = ", ".join(f"{rate / plain:.2f}x" for rate in proposed)
            print(f"  {each} clients: {plain:.0f} tokens/s; with 2 and 4 proposed {gains}", flush=True)
