"""The page of an autoscaling study: what each policy costs and attains, and the one to take."""

from simserve.metrics.answers.autoscale import AutoscaleAnswer, ScaledFleet
from simserve.report.charts import axis, figure, hover, numbers, scatter
from simserve.report.document import Chapter, Document, Folded, Plot, Row, Table, Tile
from simserve.report.formats import NONE, listed, plural, rate, seconds, share, slo_terms
from simserve.report.margin import margin

COLUMNS = ("GPU-hours", "USD/h", "attained", "SLO", "cut", "scalings", "oscillates", "longest below")


def tell(answer: AutoscaleAnswer) -> Document:
    """Return all that the study tells."""
    best = None if answer.best is None else answer.policies[answer.best]
    state = "none" if answer.slo is None else "missed" if best is None else "met"
    lead, table = _lead(answer, best), _table(answer)
    chosen = (
        [] if answer.yaml is None else [Chapter("take", "The setting to take", [Folded("Show the YAML", answer.yaml)])]
    )
    return Document(
        command="autoscale",
        name=answer.scenario.name,
        state=state,
        title=_title(answer, best),
        lead=lead,
        kept=[] if best is None else [f"{best.usd_per_hour or 0.0:,.2f} USD/h"],
        setup=(f"{_policies(answer)} of pool {answer.pool}, {plural(answer.n_runs, 'run')}.",),
        tiles=_tiles(best),
        parts=(
            *margin({} if best is None else {"": best.decision}),
            Chapter("front", "Cost against attainment", [_plot(answer)]),
            Chapter("policies", "Policies", [table], "Means over the seeds; prices are those of the GPUs on average."),
            *chosen,
        ),
        made={"simserve": answer.version, "scenario": answer.scenario.digest},
        brief=(f"{_title(answer, best)}: {lead}", table, *_next(answer)),
        warnings=_warnings(answer),
    )


def _title(answer: AutoscaleAnswer, best: ScaledFleet | None) -> str:
    if answer.slo is None:
        return "No SLO to decide by"
    return "No policy meets the SLO" if best is None else f"Cheapest that meets the SLO: {best.policy}"


def _lead(answer: AutoscaleAnswer, best: ScaledFleet | None) -> str:
    """Return what the policy to take costs and attains, or how close the others come."""
    if best is not None:
        return (
            f"{share(best.attained_frac)} of requests have {slo_terms(answer.slo or {})} "
            f"on {rate(best.mean_gpus)} GPUs on average."
        )
    known = [each for each in answer.policies if each.attained_frac is not None]
    most = max(known, key=lambda each: each.attained_frac or 0.0, default=None)
    if most is None:
        return "Give the scenario an slo; the table has what each policy costs."
    return (
        f"{most.policy} comes closest: {share(most.attained_frac)} of requests meet it "
        f"on {rate(most.mean_gpus)} GPUs on average. Start replicas sooner, or keep more of them."
    )


def _table(answer: AutoscaleAnswer) -> Table:
    rows = [Row(each.policy, _cells(each), "on the front" if each.on_front else "") for each in answer.policies]
    return Table(("policy", *COLUMNS), rows, dropped=("longest below", "scalings", "cut", "GPU-hours"))


def _cells(each: ScaledFleet) -> list[str]:
    return [
        rate(each.gpu_hours),
        NONE if each.usd_per_hour is None else f"{each.usd_per_hour:,.2f}",
        share(each.attained_frac),
        "failed" if each.reason and not each.n_seeds else (each.word or NONE).replace("_", " "),
        rate(each.n_failed),
        rate(each.n_scalings),
        NONE if each.cycle_s is None else f"every {seconds(each.cycle_s)}",
        seconds(each.longest_below_s),
    ]


def _policies(answer: AutoscaleAnswer) -> str:
    n = len(answer.policies)
    return f"{n} {'policy' if n == 1 else 'policies'}"


def _next(answer: AutoscaleAnswer) -> list[str]:
    """Return which policies oscillate, and the setting to take."""
    cycling = [each.policy for each in answer.policies if each.cycle_s is not None]
    judged = [each.decision for each in answer.policies if each.decision is not None]
    exact = ["Costs count as exact here; --by total allows for their error, as run does."]
    texts = [] if any(each.n_draws for each in judged) else exact
    texts += [f"In a limit cycle, up and down while the load stays: {listed(cycling)}."] if cycling else []
    if answer.best is not None and answer.yaml:
        texts.append(f"Next: give pool {answer.pool} this key.\n{answer.yaml}")
    return texts


def _warnings(answer: AutoscaleAnswer) -> list[str]:
    return [f"{each.policy}: {each.reason}" for each in answer.policies if each.reason]


def _tiles(best: ScaledFleet | None) -> list[Tile]:
    if best is None:
        return []
    hours = Tile("GPU-hours", rate(best.gpu_hours), [f"{rate(best.mean_gpus)} GPUs on average"])
    return [Tile("Attained", share(best.attained_frac), []), hours, Tile("Scalings", rate(best.n_scalings), [])]


def _plot(answer: AutoscaleAnswer) -> Plot:
    """Return attainment against cost, a dot a policy."""
    dots = [each for each in answer.policies if each.usd_per_hour is not None and each.attained_frac is not None]
    if not dots:
        return Plot("front", None, otherwise="No policy has both: give the scenario an slo.")
    marks = scatter(
        "markers+text",
        numbers([each.usd_per_hour or 0.0 for each in dots]),
        numbers([each.attained_frac or 0.0 for each in dots]),
        marker={"size": 10, "color": ["$c1" if each.on_front else "$shade" for each in dots]},
        textposition="top center",
        **hover([each.policy for each in dots]),
    )
    axes = {
        "xaxis": axis("Dollars an hour", rangemode="tozero"),
        "yaxis": axis("Share within the SLO", tickformat=".1~%"),
    }
    return Plot(
        "front",
        figure([marks], 340, **axes),
        "",
        "Up and to the left is better.",
        [("dot k1", "on the front"), ("dot k5", "beaten")],
    )
