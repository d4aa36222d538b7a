"""What old news of queue lengths do to routers: mean time to the first token by the age of what they see.

python docs/studies/stale_views.py
"""

from highest_rate import Summary, summary_at

ROUTERS = ("least_outstanding", "power_of_two", "random")
REFRESH_S = (None, 0.05, 0.2, 1.0, 5.0)
"""None: they see what is true at every instant. Gateways ask every 0.05 s."""
SEATS = 32
"""Of a replica, which keep its steps short; who finds none free waits, so the question is one of queues."""
RATE_PER_S = 160
"""Nine tenths of what sixteen such replicas can do."""


def run(router: str, refresh_s: float | None, *, counts_own_sends: bool = False, n_requests: int = 30_000) -> Summary:
    """Llama-3.1-8B on sixteen H100s; chats."""
    views = {} if refresh_s is None else {"views": {"refresh_s": refresh_s, "counts_own_sends": counts_own_sends}}
    workload = {
        "lengths": {
            "kind": "lognormal",
            "prompt_tokens": {"median": 512, "sigma": 0.6, "max": 8192},
            "output_tokens": {"median": 200, "sigma": 0.6, "max": 4096},
        },
        "n_requests": n_requests,
    }
    scheduler = {"kind": "chunked", "max_num_seqs": SEATS}
    cluster = {"router": router, "pools": [{"replicas": 16, "scheduler": scheduler}], **views}
    return summary_at(
        RATE_PER_S, {"model": "llama-3.1-8b", "gpu": "h100-sxm", "cluster": cluster, "workload": workload}
    )


if __name__ == "__main__":
    ages = ["now" if refresh_s is None else f"{refresh_s:g} s" for refresh_s in REFRESH_S]
    print(f"{'mean TTFT, ms':>38}", *(f"{age:>8}" for age in ages))
    for router in ROUTERS:
        for counts in (False, True) if router != "random" else (False,):
            result = [run(router, refresh_s, counts_own_sends=counts) for refresh_s in REFRESH_S]
            name = f"{router}, counting its sends" if counts else router
            print(f"{name:>38}", *(f"{each['ttft_s']['mean'] * 1e3:8.0f}" for each in result), flush=True)
