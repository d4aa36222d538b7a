"""Measure the effect of a prefix cache on TTFT, for chats and for questions about long documents.

python docs/studies/prefix_cache.py
"""

from highest_rate import run
from table import Rows, markdown

QUESTIONS = (
    "workload.prefixes={kind: documents, n_documents: 20, document_tokens: 5000}",
    "workload.lengths.prompt_tokens={median: 100, sigma: 0.5, max: 1000}",
)
LOADS = {
    "chats of a few turns": (),
    "documents, 0.2 req/s": (*QUESTIONS, "workload.arrivals.rate_per_s=0.2"),
    "documents, 2 req/s": (*QUESTIONS, "workload.arrivals.rate_per_s=2"),
}
COLUMNS = {
    "prompt tokens cached": "{:.0%}",
    "mean TTFT without": "{:.0f} ms",
    "with the cache": "{:.0f} ms",
    "ratio": "{:.1f}",
}


def result(*changes: str) -> Rows:
    """Return the cached share of prompt tokens, and the mean TTFT with and without the cache."""
    return {load: of_load([*chosen, *changes]) for load, chosen in LOADS.items()}


def of_load(chosen: list[str]) -> dict[str, float]:
    cached, plain = (
        run("prefix_cache", [*chosen, f"cluster.pools.0.enable_prefix_caching={caches}"]).summary
        for caches in ("true", "false")
    )
    cached_s, plain_s = cached["ttft_s"]["mean"], plain["ttft_s"]["mean"]
    return {
        "prompt tokens cached": cached["prefix_cache"]["hit_frac"],
        "mean TTFT without": plain_s * 1e3,
        "with the cache": cached_s * 1e3,
        "ratio": plain_s / cached_s,
    }


def printed(rows: Rows) -> str:
    return markdown("load", rows, COLUMNS)


if __name__ == "__main__":
    print(printed(result()))
