"""Compare the wait for KV transfers: pulled, pushed whole, by chunk or by layer; and the choices of splitters.

    python docs/studies/handing_over.py

On the scenarios disaggregated, conditional_disaggregation and mixed_pool, as shipped.
"""

from pathlib import Path

from simserve import load_scenario, simulate

SCENARIOS = Path(__file__).parents[2] / "scenarios"
WAYS = {
    "pull": "{how: pull}",
    "push": "{how: push}",
    "push by_chunk": "{how: push, transfer: by_chunk}",
    "push by_layer": "{how: push, transfer: by_layer}",
}
SPLITTERS = {
    "always": "always",
    "prompt_length": "{kind: prompt_length, min_prompt_tokens: 1000}",
    "load": "{kind: load, max_outstanding: 4, min_prompt_tokens: 1000}",
}
MIXING = {
    "always": "always",
    "load": "{kind: load, max_outstanding: 4}",
    "mixed 0.8": "{kind: mixed, max_prefill_waiting: 4, max_decode_kv_frac: 0.8}",
    "mixed 0.5": "{kind: mixed, max_prefill_waiting: 4, max_decode_kv_frac: 0.5}",
    "mixed 0.3": "{kind: mixed, max_prefill_waiting: 4, max_decode_kv_frac: 0.3}",
}


def transfer_ms(n_requests: int = 6000) -> dict[str, tuple[float, float]]:
    """Return p50 and p99 of `transfer_s` of each way."""
    result = {}
    for name, way in WAYS.items():
        keys = way.replace("{", "{bytes_per_s: 50.0e9, latency_s: 10.0e-6, ")
        transfer = _summary("disaggregated", n_requests, f"cluster.kv_link={keys}")["transfer"]
        result[name] = (1e3 * transfer["p50"], 1e3 * transfer["p99"])
    return result


def attainment(n_requests: int = 6000) -> dict[str, tuple[float, float]]:
    """Return the disaggregated share and the SLO attainment of each splitter."""
    result = {}
    for name, splitter in SPLITTERS.items():
        summary = _summary("conditional_disaggregation", n_requests, f"cluster.disaggregate={splitter}")
        result[name] = (summary["transfer"]["apart_frac"], summary["slo_attainment"]["frac"])
    return result


def in_bursts(n_requests: int = 3000) -> dict[str, tuple[float, float, float]]:
    """Return the disaggregated share, the share decoded by prefill replicas and the SLO attainment of each splitter."""
    result = {}
    for name, splitter in MIXING.items():
        summary = _summary("mixed_pool", n_requests, f"cluster.disaggregate={splitter}")
        transfer = summary["transfer"]
        result[name] = (transfer["apart_frac"], transfer["kept_frac"], summary["slo_attainment"]["frac"])
    return result


def _summary(name: str, n_requests: int, override: str) -> dict[str, dict[str, float]]:
    overrides = [override, f"workload.n_requests={n_requests}", "measure.replays=0"]
    return dict(simulate(load_scenario(SCENARIOS / f"{name}.yaml", overrides)).summary)


if __name__ == "__main__":
    for way, (half, most) in transfer_ms().items():
        print(f"{way}: transfer p50 {half:.2f} ms, p99 {most:.1f} ms")
    for splitter, (disaggregated, met) in attainment().items():
        print(f"{splitter}: {disaggregated:.1%} disaggregated, {met:.2%} meet the SLO")
    for splitter, (disaggregated, kept, met) in in_bursts().items():
        print(f"{splitter}, in bursts: {disaggregated:.1%} disaggregated, {kept:.1%} kept, {met:.2%} meet the SLO")
