"""Find the best split of eight replicas into prefill and decode for five loads.

python docs/studies/pd_ratio.py
"""

from collections.abc import Sequence
from functools import partial

from highest_rate import Results, highest_rate_per_s, run
from table import markdown

N_REPLICAS = 8
LENGTHS = "workload.lengths.{}_tokens.median={}"
SPLITWISE = ("model=llama-3.1-70b", "cluster.pools.0.parallel.tensor=8", "cluster.pools.1.parallel.tensor=8")
"""A replica is a machine of eight H100s."""
LOADS = {
    "chat": (),
    "long prompts": (LENGTHS.format("prompt", 4096), LENGTHS.format("output", 128)),
    "long answers": (LENGTHS.format("prompt", 256), LENGTHS.format("output", 1024)),
    "Azure chat": (*SPLITWISE, "workload.lengths={kind: profile, name: azure-conv-2023}"),
    "Azure code": (*SPLITWISE, "workload.lengths={kind: profile, name: azure-code-2023}"),
}
TOGETHER = {"together": "chunked", "together, chunks of 512": "{kind: chunked, max_num_batched_tokens: 512}"}
"""vLLM's default, 8192 tokens a step on this card, and small chunks."""
MOST_PER_S = {"chat": 512.0}
"""Upper end of the search, where it is not 256."""
Rates = dict[str, dict[str, float]]
"""Requests/s by load and split."""


def result(*changes: str) -> Rates:
    """Return the highest rate of each load with each split, and with replicas that do both."""
    splits = [f"{n}:{N_REPLICAS - n}" for n in range(1, N_REPLICAS)]
    return {load: of_load(load, changes, [*splits, *TOGETHER]) for load in LOADS}


def of_load(load: str, changes: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Return requests/s of some splits, and of replicas that do both."""
    n_gpus = 8 if load.startswith("Azure") else 1
    chosen, most_per_s = [*LOADS[load], *changes], MOST_PER_S.get(load, 256.0)
    return {
        name: rate_per_s([*chosen, *(together(name, n_gpus) if name in TOGETHER else disaggregated(name))], most_per_s)
        for name in names
    }


def disaggregated(split: str) -> list[str]:
    return [f"cluster.pools.{i}.replicas={n}" for i, n in enumerate(split.split(":"))]


def together(name: str, n_gpus: int) -> list[str]:
    pool = f"{{replicas: {N_REPLICAS}, parallel: {{tensor: {n_gpus}}}, scheduler: {TOGETHER[name]}}}"
    return [f"cluster.pools=[{pool}]"]


def rate_per_s(chosen: Sequence[str], most_per_s: float) -> float:
    return highest_rate_per_s(partial(run, "pd_ratio"), chosen, most_per_s, meets)


def meets(result: Results) -> bool:
    """Check that 99% of requests meet the SLO."""
    return bool(result.summary["slo_attainment"]["frac"] >= 0.99)


def best(rates: dict[str, float]) -> str:
    """Return the split with the highest rate."""
    return max((name for name in rates if name not in TOGETHER), key=lambda name: rates[name])


def printed(result: Rates) -> str:
    """Return one line per split, the best of each load in bold."""
    rows = {
        split: {
            load: f"**{rates[split]:.1f}**" if split == best(rates) else f"{rates[split]:.1f}"
            for load, rates in result.items()
        }
        for split in result["chat"]
    }
    return markdown("prefill : decode", rows, dict.fromkeys(LOADS, "{}"))


if __name__ == "__main__":
    print(printed(result()))
