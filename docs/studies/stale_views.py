"""Measure the effect of stale views on routers: mean TTFT by the age of the view.

python docs/studies/stale_views.py
"""

from highest_rate import Summary, summary_at

ROUTERS = ("least_outstanding", "power_of_two", "random")
REFRESH_S = (None, 0.05, 0.2, 1.0, 5.0)
"""None: the view is always current. Gateways poll every 0.05 s."""
SLOTS = 32
"""Slots of a replica: few, so that steps are short and further requests queue."""
RATE_PER_S = 205
"""Some 90% of the capacity of sixteen such replicas."""


def run(router: str, refresh_s: float | None, *, counts_own_sends: bool = False, n_requests: int = 30_000) -> Summary:
    """Run chats on Llama-3.1-8B on sixteen H100s."""
    views = {} if refresh_s is None else {"views": {"refresh_s": refresh_s, "counts_own_sends": counts_own_sends}}
    workload = {
        "lengths": {
            "kind": "lognormal",
            "prompt_tokens": {"median": 512, "sigma": 0.6, "max": 8192},
            "output_tokens": {"median": 200, "sigma": 0.6, "max": 4096},
        },
        "n_requests": n_requests,
    }
    scheduler = {"kind": "chunked", "max_num_seqs": SLOTS}
    cluster = {"router": router, "pools": [{"replicas": 16, "scheduler": scheduler}], **views}
    return summary_at(
        RATE_PER_S, {"model": "llama-3.1-8b", "gpu": "h100-sxm", "cluster": cluster, "workload": workload}
    )


if __name__ == "__main__":
    ages = ["0 s" if refresh_s is None else f"{refresh_s:g} s" for refresh_s in REFRESH_S]
    print(f"{'mean TTFT, ms':>38}", *(f"{age:>8}" for age in ages))
    for router in ROUTERS:
        for counts in (False, True) if router != "random" else (False,):
            result = [run(router, refresh_s, counts_own_sends=counts) for refresh_s in REFRESH_S]
            name = f"{router}, counting its sends" if counts else router
            print(f"{name:>38}", *(f"{each['ttft_s']['mean'] * 1e3:8.0f}" for each in result), flush=True)
