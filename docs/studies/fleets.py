"""Study fleets that change: autoscalers under bursts and at a constant load, slow starts, forecasts and failures.

python docs/studies/fleets.py
"""

from collections.abc import Callable, Mapping, Sequence

from highest_rate import HERE, run
from overload import answered_frac
from table import Rows, markdown

from simserve import Results, load_scenario, simulate

SHIPPED = HERE.parents[1] / "scenarios"
AUTOSCALER = "cluster.pools.0.autoscaler"
COLUMNS = {
    "failed": "{:.1%}",
    "in the SLO": "{:.1%}",
    "GPU-hours": "{:.2f}",
    "reversals": "{:.0f}",
    "target": "{:.2f}",
    "TPOT, ms": "{:.0f}",
    "answered later": "{:.1%}",
    "attempts": "{:.2f}",
}
"""Number formats of all columns."""


def scaled(policy: str, *changes: str) -> dict[str, float]:
    """Run fleets.yaml with another autoscaler."""
    return figures(run("fleets", [f"{AUTOSCALER}={{{policy}, max_replicas: 12}}", *changes]))


def figures(results: Results) -> dict[str, float]:
    """Return the shares of requests that failed or timed out and that met the SLO, and what happened to the fleet."""
    summary, statuses = results.summary, results.requests["status"]
    scaling = summary["scaling"] or {"gpu_hours": summary["gpu_seconds"] / 3600, "n_reversals": 0}
    return {
        "failed": float(statuses.isin(("failed", "timed_out")).mean()),
        "in the SLO": summary["slo_attainment"]["frac"],
        "GPU-hours": scaling["gpu_hours"],
        "reversals": scaling["n_reversals"],
        "TPOT, ms": 1000 * summary["tpot_s"]["mean"],
    }


POLICIES = {
    "hpa, queue length": "kind: hpa, metrics: [{metric: num_requests_waiting, target: 5}]",
    "hpa, KV cache": "kind: hpa, metrics: [{metric: kv_cache_usage_perc, target: 0.5}]",
    "wva, v1": "kind: wva",
    "wva, v2": "kind: wva, version: v2",
}


def in_bursts() -> Rows:
    """Compare policies in bursts with a fixed fleet."""
    rows = {name: scaled(policy) for name, policy in POLICIES.items()}
    return rows | {"fixed: 4": figures(run("fleets", [f"{AUTOSCALER}=null", "cluster.pools.0.replicas=4"]))}


STEADY = ("workload.arrivals={kind: poisson, rate_per_s: 4}", "workload.n_requests=14000")
NOISE = "cluster.scrape.noise_frac=0.3"
LOW_KV = "kind: target, metric: kv_cache_usage_perc, down_below: 0.25, target: 0.35"
RUNNING = "kind: hpa, metrics: [{metric: num_requests_running, target: 20}]"
NO_WINDOW = "behavior: {scale_down: {stabilization_window_s: 0}}"
RULES: Mapping[str, tuple[str, ...]] = {
    "down below KV 0.25 (dynamo#9294)": (f"{LOW_KV}, down_only_if_load_fits: false",),
    "... only if the rest stays below 0.35": (LOW_KV,),
    "... and with a window of 300 s": (f"{LOW_KV}, scale_down_window_s: 300",),
    "queue / N (ray#18925)": ("kind: target, metric: num_requests_waiting, target: 5",),
    "ongoing requests, 600 s": ("kind: ray_serve, target_ongoing_requests: 20",),
    "30% noise (llm-d-autoscaling#1427)": (
        f"{RUNNING}, behavior: {{scale_down: {{stabilization_window_s: 0}}}}",
        NOISE,
    ),
    "... with a window of 300 s": (RUNNING, NOISE),
}


def at_a_constant_load() -> Rows:
    """Let published oscillations happen, and end them."""
    return {name: scaled(policy, *STEADY, *changes) for name, (policy, *changes) in RULES.items()}


HILL = (
    "workload.arrivals={kind: diurnal, rates_per_s: [2, 4, 8, 12, 12, 8, 4, 2], period_s: 3600}",
    "workload.n_requests=23300",
    "workload.timeout=null",
)
"""An hour of which the load is that of a day."""
GOAL = 0.99


def cheapest(policy: Callable[[float], str], values: Sequence[float], *changes: str) -> dict[str, float]:
    """Return the run with the highest target that reaches the goal, by bisection; the lowest target if none does."""
    low, high = 0, len(values)
    best = None
    while low < high:
        middle = (low + high) // 2
        row = scaled(policy(values[middle]), *HILL, *changes) | {"target": values[middle]}
        if row["in the SLO"] >= GOAL:
            best, low = row, middle + 1
        else:
            high = middle
    return best or scaled(policy(values[0]), *HILL, *changes) | {"target": values[0]}


RATES_PER_S = (1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4, 2.6, 2.8)
"""Requests/s of a replica that are aimed at; it serves 2.7."""


def by_rate(forecast: str, provision_s: int, *changes: str) -> dict[str, float]:
    """Return the cheapest fleet by the rate of arrivals, which looks ahead by the time of a start."""
    rule = "kind: target, metric: 'rate(gateway_arrival_total[1m])', interval_s: 60, scale_down_window_s: 120"
    ahead = f"{rule}, forecast: {forecast}, lead_s: {90 + provision_s}"
    start = f"cluster.pools.0.startup.provision_s={provision_s}"
    return cheapest(lambda rate_per_s: f"{ahead}, target: {rate_per_s}", RATES_PER_S, start, *changes)


def slow_starts() -> Rows:
    """Find what a slow start costs, and what a forecast saves."""
    rows = {f"start of {90 + provision_s} s": by_rate("null", provision_s) for provision_s in (0, 150, 300)}
    return rows | {f"... {forecast}": by_rate(forecast, 300) for forecast in ("kalman", "arima")}


SIGNALS = {
    "rate(generation_tokens_total[1m])": 285.0,
    "rate(prompt_tokens_total[1m])": 3000.0,
    "rate(request_arrival_total[1m])": 2.7,
    "num_requests_running": 30.0,
    "kv_cache_usage_perc": 0.4,
    "num_requests_waiting": 1.0,
}
"""Signals, with what a busy replica has."""


def signals(*changes: str) -> Rows:
    """Return the cheapest fleet by each signal."""
    how = "kind: target, scale_down_window_s: 120, metric: "
    return {
        name: cheapest(
            lambda target, name=name: f"{how} '{name}', target: {target}",
            [value * share for share in (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1)],
            *changes,
        )
        for name, value in SIGNALS.items()
    }


def node_lost() -> Rows:
    """Lose one of two nodes at peak load (scenarios/retry_storm.yaml)."""
    cases = {
        "no retries": ["workload.retries=null"],
        "five attempts": [],
        "... with a budget of 10%": ["workload.retries.budget_frac=0.1"],
    }
    return {
        name: _lost(simulate(load_scenario(SHIPPED / "retry_storm.yaml", changes))) for name, changes in cases.items()
    }


def _lost(results: Results) -> dict[str, float]:
    retries = results.summary["retries"]
    attempts = retries["attempts_per_request"] if retries else 1.0
    return {"answered later": answered_frac(results, (250.0, 580.0)), "attempts": attempts}


FAILS = "cluster.failures=[{what: gpu, at_s: 15, detect_s: 10}]"


DECODES = (
    "workload.lengths={kind: fixed, prompt_tokens: 32, output_tokens: 400}",
    "workload.arrivals.rate_per_s=40",
    "workload.n_requests=600",
    "measure={warmup_s: 0, replays: 0}",
)
"""Prompts are short, as all ranks wait for one that prefills."""


def wide_experts() -> Rows:
    """Let a GPU of 32 fail that serve experts as few wide or as many narrow instances (scenarios/expert_ranks.yaml)."""
    rows = {}
    for n in (4, 2, 1):
        width = 32 // n
        shape = [f"cluster.pools.0.replicas={n}", f"cluster.pools.0.parallel={{data: {width}, expert: {width}}}"]
        well, lost = (
            figures(simulate(load_scenario(SHIPPED / "expert_ranks.yaml", [*DECODES, *shape, *more])))
            for more in ((), (FAILS,))
        )
        rows[f"{n} of {width} GPUs"] = lost | {"TPOT, ms": well["TPOT, ms"]}
    return rows


STUDIES: Mapping[str, tuple[Callable[[], Rows], Sequence[str]]] = {
    "bursts": (in_bursts, ("failed", "in the SLO", "GPU-hours")),
    "constant load": (at_a_constant_load, ("reversals", "in the SLO", "GPU-hours")),
    "a hill of load": (slow_starts, ("target", "in the SLO", "GPU-hours")),
    "signal": (signals, ("target", "in the SLO", "GPU-hours")),
    "a node lost": (node_lost, ("answered later", "attempts")),
    "experts on 32 GPUs": (wide_experts, ("TPOT, ms", "failed", "in the SLO")),
}
"""Studies by the corner of their tables, with their columns."""


def result() -> Mapping[str, Rows]:
    """Return the tables."""
    return {name: study() for name, (study, _) in STUDIES.items()}


def printed(tables: Mapping[str, Rows]) -> str:
    return "\n\n".join(
        markdown(name, rows, {column: COLUMNS[column] for column in STUDIES[name][1]}) for name, rows in tables.items()
    )


if __name__ == "__main__":
    print(printed(result()))
