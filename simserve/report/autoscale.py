"""The page of an autoscaling study: what each policy costs and attains, and the one to take."""

from collections.abc import Sequence

from simserve.metrics.answers.autoscale import AutoscaleAnswer, RecordedFleet, ScaledFleet, SignalRank
from simserve.report.charts import axis, figure, hover, numbers, scatter
from simserve.report.document import Chapter, Document, Folded, Plot, Row, Table, Tile
from simserve.report.formats import NONE, count, listed, plural, rate, seconds, share, slo_terms
from simserve.report.margin import margin
from simserve.report.members import replicas_over_time

COLUMNS = ("GPU-hours", "USD/h", "attained", "SLO", "cut", "scalings", "oscillates", "longest below")

STATES = {"meets": "met", "likely_meets": "likely_meets"}
"""Glyphs of a policy to take: with few seeds, that of the best signal may be on the edge."""

FEW_NAMES = 8
"""Policies of a chart that have their names in it."""

HEADS = ("policy", "replica-seconds", "changes", "first change", "agrees", "differs at")

COLORS = "1342"
"""Colors of policies, by number."""

MISSING = "The fleet's own answer is missing: recorded signals stay as they were, whatever a policy wants."

RANKED = (
    "Each scales the pool by the bare rule target: one replica less at a time, if the load fits on the others. "
    "Regret is what its best target costs beyond that of the best signal."
)


def tell(answer: AutoscaleAnswer) -> Document:
    """Return all that the study tells."""
    if answer.recorded is not None:
        return _of_recording(answer, answer.recorded)
    best = None if answer.best is None else answer.policies[answer.best]
    state = "none" if answer.slo is None else "missed" if best is None else STATES.get(best.word or "", "edge")
    rows = [Row(each.policy, _cells(each), "on the front" if each.on_front else "") for each in answer.policies]
    table = Table(("policy", *COLUMNS), rows, dropped=("longest below", "scalings", "cut", "GPU-hours"))
    lead = _lead(answer, best)
    texts = (("Show the YAML", answer.yaml), ("Show the manifest", answer.manifest))
    shown = [Folded(title, text) for title, text in texts if text is not None]
    chosen = [Chapter("take", "The setting to take", shown)] if shown else []
    signals = [_ranks(answer.signals)] if answer.signals else []
    policies = f"{len(answer.policies)} {'policy' if len(answer.policies) == 1 else 'policies'}"
    return Document(
        command="autoscale",
        name=answer.scenario.name,
        state=state,
        title=_title(answer, best),
        lead=lead,
        kept=[] if best is None else [f"{best.usd_per_hour or 0.0:,.2f} USD/h"],
        setup=(f"{policies} of pool {answer.pool}, {plural(answer.n_runs, 'run')}.",),
        tiles=_tiles(best),
        parts=(
            *([Chapter("signals", "Signals", signals, RANKED)] if signals else []),
            *margin({} if best is None else {"": best.decision}),
            Chapter("front", "Cost against attainment", [_plot(answer)]),
            Chapter("policies", "Policies", [table], "Means over the seeds; prices are those of the GPUs on average."),
            *chosen,
        ),
        made={"simserve": answer.version, "scenario": answer.scenario.digest},
        brief=(f"{_title(answer, best)}: {lead}", *(signals or [table]), *_next(answer)),
        warnings=[f"{each.policy}: {each.reason}" for each in answer.policies if each.reason],
    )


def _title(answer: AutoscaleAnswer, best: ScaledFleet | None) -> str:
    if answer.slo is None:
        return "No SLO to decide by"
    if answer.signals and best is not None:
        first = answer.signals[0]
        title = f"Best signal: {first.signal}, {rate(first.target)} a replica"
        return title if best.n_scalings else "No scaling is needed"
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


def _ranks(ranks: Sequence[SignalRank]) -> Table:
    rows = []
    for each in ranks:
        regret = "misses" if each.regret_h is None else rate(each.regret_h)
        rows.append(Row(each.signal, [rate(each.target), rate(each.gpu_hours), share(each.attained_frac), regret]))
    return Table(("signal", "target", "GPU-hours", "attained", "regret, GPU-hours"), rows, wraps=True)


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


def _next(answer: AutoscaleAnswer) -> list[str]:
    """Return which policies oscillate, and the setting to take."""
    cycling = [each.policy for each in answer.policies if each.cycle_s is not None]
    judged = [each.decision for each in answer.policies if each.decision is not None]
    exact = ["Costs count as exact here; --by total allows for their error, as run does."]
    texts = [] if any(each.n_draws for each in judged) else exact
    of_targets = ", with those of fixed fleets for the targets" if answer.signals else ""
    texts.append(f"{plural(answer.n_runs, 'run')}{of_targets}; --replications adds seeds.")
    texts += [f"In a limit cycle, up and down while the load stays: {listed(cycling)}."] if cycling else []
    if answer.best is not None and answer.yaml:
        no = "Its kind has no manifest: hpa, keda, kpa and ray_serve have one."
        file = no if answer.manifest is None else "manifest.yaml has it for your cluster."
        texts.append(f"{file} Next: give pool {answer.pool} this key.\n{answer.yaml}")
    return texts


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
        "markers+text" if len(dots) <= FEW_NAMES else "markers",
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


def _of_recording(answer: AutoscaleAnswer, recorded: RecordedFleet) -> Document:
    """Return all that the recording tells."""
    silent = "" if recorded.silent_s is None else f"Pods report {seconds(recorded.silent_s)} after joining."
    title, table = _agreement(recorded), _wishes(recorded)
    return Document(
        command="autoscale",
        name=answer.scenario.name,
        state="none",
        title=title,
        lead=MISSING,
        setup=(f"{plural(len(recorded.at_s), 'instant')} of {recorded.file}. {silent}",),
        parts=(
            Chapter("desired", "Replicas that policies want", [_replicas(recorded)]),
            Chapter("policies", "Policies", [table], " ".join(recorded.notes)),
        ),
        made={"simserve": answer.version, "scenario": answer.scenario.digest},
        brief=(f"{title}. {MISSING} {silent}", table),
        warnings=recorded.notes,
    )


def _agreement(recorded: RecordedFleet) -> str:
    """Return which policy agrees most with what was desired, or how many replicas the first wants."""
    first = max(recorded.policies, key=lambda each: each.agreed_frac or 0.0)
    if first.agreed_frac is None:
        return f"{first.policy} wants {count(first.replica_s)} replica-seconds, {count(recorded.replica_s)} recorded"
    n = sum(each is not None for each in recorded.desired or ())
    return f"{first.policy} agrees at {n - len(first.differs_at_s)} of {plural(n, 'instant')}"


def _wishes(recorded: RecordedFleet) -> Table:
    rows = [Row("recorded", [count(recorded.replica_s), *[NONE] * 4])]
    for each in recorded.policies:
        instants = [seconds(at_s) for at_s in each.differs_at_s]
        differs = f"{instants[0]} and {len(instants) - 1} more" if len(instants) > 1 else "".join(instants) or NONE
        cells = [count(each.replica_s), count(each.n_changes), seconds(each.first_change_s), share(each.agreed_frac)]
        rows.append(Row(each.policy, [*cells, differs]))
    return Table(HEADS, rows, dropped=("differs at",))


def _replicas(recorded: RecordedFleet) -> Plot:
    """Return the replicas over time: those recorded, those desired, and a line a policy."""
    own = ("k0", "recorded", recorded.replicas), ("dash k0", "desired, recorded", recorded.desired)
    policies = [(f"k{COLORS[n % len(COLORS)]}", each.policy, each.desired) for n, each in enumerate(recorded.policies)]
    at_s = recorded.at_s
    lines = [(key, name, [*zip(at_s, values, strict=True)]) for key, name, values in (*own, *policies) if values]
    return replicas_over_time("desired", at_s[-1], lines)
