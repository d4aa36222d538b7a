"""Compare disaggregated with colocated prefill and decode: the rate per GPU at which 90% of requests meet the SLO.

python docs/studies/disaggregation.py
"""

from collections.abc import Sequence
from functools import partial

from highest_rate import Results, highest_rate_per_s, run
from table import Rows, markdown

N_GPUS = 6
MOST_PER_S = 80.0
FIXED = "{kind: fixed, prompt_tokens: 512, output_tokens: 64}"
CHAT = (
    "{kind: lognormal, prompt_tokens: {median: 590, sigma: 0.7, max: 2048}, "
    "output_tokens: {median: 140, sigma: 0.85, max: 1024}}"
)
SUMMARY = (
    "{kind: lognormal, prompt_tokens: {median: 1850, sigma: 0.3, max: 2048}, "
    "output_tokens: {median: 80, sigma: 0.5, max: 512}}"
)
CASES = {
    "512 in, 64 out": (FIXED, 0.4, 0.04),
    "the same, tight": (FIXED, 0.2, 0.03),
    "the same, loose": (FIXED, 2, 0.1),
    "chat": (CHAT, 0.25, 0.1),
    "chat, tight TPOT": (CHAT, 1, 0.03),
    "chat, loose": (CHAT, 1, 0.1),
    "summaries": (SUMMARY, 15, 0.15),
    "summaries, tight": (SUMMARY, 2, 0.03),
}
"""Lengths (means of DistServe's figure 7), and the goals for TTFT and TPOT."""
TOGETHER = {
    "whole prompts first": "{kind: prefill_first}",
    "chunks of 512": "{kind: chunked, max_num_batched_tokens: 512}",
    "chunks of 2048": "{kind: chunked, max_num_batched_tokens: 2048}",
}
SPLITS = range(1, N_GPUS)
COLUMNS = {
    "TTFT": "{:g} s",
    "TPOT": "{:g} s",
    "whole prompts": "{:.2f}",
    "chunks": "{:.2f}",
    "disaggregated": "{:.2f}",
    "best split": "{}",
    "over whole prompts": "{:.2f}x",
    "over chunks": "{:.2f}x",
}


def result(*changes: str) -> Rows:
    """Return requests/s per GPU of every case: together, and with the best split."""
    return {case: of_case(case, changes, SPLITS) for case in CASES}


def of_case(case: str, changes: Sequence[str], splits: Sequence[int]) -> dict[str, float | str]:
    lengths, ttft_s, tpot_s = CASES[case]
    chosen = [*changes, f"workload.lengths={lengths}", f"slo={{ttft_s: {ttft_s}, tpot_s: {tpot_s}}}"]
    first, *chunks = (per_gpu([*chosen, *together(policy)]) for policy in TOGETHER.values())
    disaggregated = {f"{n}:{N_GPUS - n}": per_gpu([*chosen, *of_split(n)]) for n in splits}
    best = max(disaggregated, key=lambda split: disaggregated[split])
    return {
        "TTFT": ttft_s,
        "TPOT": tpot_s,
        "whole prompts": first,
        "chunks": max(chunks),
        "disaggregated": disaggregated[best],
        "best split": best,
        "over whole prompts": disaggregated[best] / first,
        "over chunks": disaggregated[best] / max(chunks),
    }


def together(policy: str) -> list[str]:
    """Return the overrides for GPUs that all do both."""
    return [f"cluster.pools=[{{replicas: {N_GPUS}, scheduler: {policy}}}]", "cluster.kv_link=null"]


def of_split(n_prefill: int) -> list[str]:
    """Return the overrides for n_prefill prefill GPUs, the rest decode."""
    return [f"cluster.pools.0.replicas={n_prefill}", f"cluster.pools.1.replicas={N_GPUS - n_prefill}"]


def per_gpu(chosen: Sequence[str]) -> float:
    return highest_rate_per_s(partial(run, "disaggregation"), chosen, MOST_PER_S, meets) / N_GPUS


def meets(result: Results) -> bool:
    """Check DistServe's goodput: 90% of requests meet both goals."""
    return bool(result.summary["slo_attainment"]["frac"] >= 0.9)


def printed(rows: Rows) -> str:
    return markdown("req/s per GPU", rows, COLUMNS)


if __name__ == "__main__":
    print(printed(result()))
