"""Compare chunked prefill with whole prompts first: gaps between tokens, and the rates that a bound on them allows.

python docs/studies/chunked_prefill.py
"""

from functools import partial

from highest_rate import Results, highest_rate_per_s, run
from table import Rows, markdown

QUEUE_S = 2.0
"""Bound on the median wait, the second condition of Sarathi-Serve's capacity."""
POLICIES = {
    "whole prompts first": "{kind: prefill_first, max_num_batched_tokens: 8192, max_num_seqs: 128}",
    "chunks of 2048 tokens": "{kind: chunked, max_num_batched_tokens: 2048, max_num_seqs: 128}",
    "chunks of 512 tokens": "{kind: chunked, max_num_batched_tokens: 512, max_num_seqs: 128}",
}
COLUMNS = {
    "p99 gap at 1 req/s": "{:.0f} ms",
    "largest gap": "{:.0f} ms",
    "median TTFT": "{:.0f} ms",
    "req/s, p99 gap <= 0.1 s": "{:.2f}",
    "req/s, p99 gap <= 0.5 s": "{:.2f}",
}


def result(*changes: str) -> Rows:
    """Return gaps and TTFT at 1 req/s, and the highest rates."""
    return {name: of_policy([*changes, f"cluster.pools.0.scheduler={policy}"]) for name, policy in POLICIES.items()}


def of_policy(chosen: list[str]) -> dict[str, float]:
    summary = run("chunked_prefill", chosen).summary
    rates = {
        f"req/s, p99 gap <= {gap_s} s": highest_rate_per_s(
            partial(run, "chunked_prefill"), chosen, 10.0, partial(is_smooth, gap_s)
        )
        for gap_s in (0.1, 0.5)
    }
    return rates | {
        "p99 gap at 1 req/s": summary["itl_s"]["p99"] * 1e3,
        "largest gap": summary["itl_s"]["max"] * 1e3,
        "median TTFT": summary["ttft_s"]["p50"] * 1e3,
    }


def is_smooth(gap_s: float, result: Results) -> bool:
    """Check Sarathi-Serve's definition of capacity."""
    return bool(result.summary["itl_s"]["p99"] <= gap_s and result.summary["queue_s"]["p50"] <= QUEUE_S)


def printed(rows: Rows) -> str:
    return markdown("policy", rows, COLUMNS)


if __name__ == "__main__":
    print(printed(result()))
