"""Fleet size: the replicas that a load needs, their price, and what other numbers attain, in words and as a page."""

from simserve.metrics.answers.capacity import ReplicasCapacity
from simserve.metrics.answers.capacity_found import FoundReplicas
from simserve.metrics.answers.capacity_loads import ProbedLoad
from simserve.metrics.answers.parts import Bounded
from simserve.metrics.goal import probability
from simserve.metrics.summary_schema import EARLIER
from simserve.report.capacity.frame import CapacityHead, capacity_document, page_table, tail_tiles
from simserve.report.capacity.load_charts import LoadAxis, attainment_chart, below_chart
from simserve.report.capacity.load_curve import REPLICAS
from simserve.report.capacity.rate import LOAD_COLUMNS, Columns, load_table, wanted
from simserve.report.document import Chapter, Document, Key, Plot, Tile
from simserve.report.formats import NONE, interval, plural, rate, share
from simserve.report.nominal_load import by_cost_error, drawn


def sentence(result: ReplicasCapacity) -> str:
    """Return the answer in sentences."""
    name, pool, answer = result.scenario.name, result.pool, result.answer
    offered = rate(result.points[-1].offered_per_s)
    if answer is None:
        most = result.points[-1].replicas
        stopped = f"more than {most:,} replicas of {pool}, where the search stopped"
        return " ".join(filter(None, (f"{name} needs {stopped}, so that {wanted(result)}.", _tied(result))))
    fleet, n = answer.fleet, answer.replicas
    size = f"{plural(n, 'replica')} of {pool}, {plural(fleet.n_gpus, 'GPU')} in all"
    price = f" at {fleet.usd_per_hour:,.2f} dollars an hour" if fleet.usd_per_hour else ""
    fewer = [each for each in result.points if each.replicas == n - 1 and each.decision in ("missed", None)]
    short = ""
    if fewer:
        short = "the queue only grows" if fewer[0].saturated else f"{share(fewer[0].attained_frac)} attain it"
    load = result.load
    nominal = "the nominal " if load and load.nominal_per_s else ""
    parts = [
        f"{name} needs {size}{price}, for {nominal}{offered} req/s.",
        f"With them {wanted(result)}.",
        f"SLO attainment: {share(_point(result, answer).attained_frac)} ({_certainty(result, answer)}).",
        "" if answer.probability is None else by_cost_error(answer.probability, answer.r),
        f"One replica fewer misses the SLO: {short}." if fewer else "",
        _tied(result),
        drawn(result.load, answer.n_seeds),
    ]
    return " ".join(filter(None, parts))


def _point(result: ReplicasCapacity, answer: FoundReplicas) -> ProbedLoad:
    """Return the number of replicas of the answer, with its runs."""
    return next(each for each in result.points if each.replicas == answer.replicas)


def _tied(result: ReplicasCapacity) -> str:
    """Return the fewest replicas on the edge; nothing where there are none."""
    tied = result.tied
    if tied is None:
        return ""
    ends = interval(tied.low_frac, tied.high_frac)
    met = f"{share(tied.attained_frac)}, 95% CI {ends}, {plural(tied.n_seeds, 'seed')}"
    fewer = plural(tied.replicas, "replica")
    if tied.word is not None and tied.edge_by == "cost":
        chance = f"P {probability(tied.probability or 0.0)}, r {tied.r or 0.0:.2f}"
        next_step = "Calibrate with a log of your server, or decide as simulated: --by noise."
        return f"As simulated, {fewer} would do; with the error of the costs that is not sure ({chance}). {next_step}"
    return f"Statistically tied with the goal: {fewer} ({met}). Rerun with longer runs to decide."


def _certainty(result: ReplicasCapacity, answer: FoundReplicas) -> str:
    within = " within one run, which every seed repeats" if answer.n_seeds == 1 else ""
    if answer.low_frac is None:
        return f"no interval{within}"
    ends = interval(answer.low_frac, answer.high_frac)
    seeds = "" if within else f", {answer.n_seeds} seeds"
    return f"{result.confidence * 100:.0f}% CI {ends}{within}{seeds}"


def tell(result: ReplicasCapacity) -> Document:
    """Return all that the answer tells."""
    answer = result.answer
    at = None if answer is None else Bounded(value=answer.replicas, low=None, high=None)
    loads = LoadAxis(REPLICAS, at)
    figure = attainment_chart(result.points, result.goal_frac, loads)
    figure["layout"]["xaxis"]["tickvals"] = [point.replicas for point in result.points]
    note = "Share of requests that met every SLO, with its 95% CI." + below_chart(result.points, result.goal_frac)
    keys: list[Key] = [("k1", "attained"), ("dash k2", "goal"), ("k0", "answer")]
    replicas: Columns = {"replicas": lambda point: f"{point.replicas}"}
    slo: Columns = {"SLO": lambda point: EARLIER.get(point.decision or "", NONE)}
    table = load_table(result, result.points, replicas | LOAD_COLUMNS | slo)  # the fewest first
    how = "Means over runs; all use the same seeds."
    parts = (
        Chapter("curve", "Attainment against replicas", [Plot("attainment", figure, "", note, keys)]),
        Chapter("tried", "All numbers of replicas", [page_table(table)], how),
    )
    return capacity_document(result, _head(result), parts, (sentence(result), table))


def _head(result: ReplicasCapacity) -> CapacityHead:
    answer = result.answer
    if answer is None:
        state = "edge" if result.tied else "missed"
        title = f"More than {plural(result.points[-1].replicas, 'replica')}"
        return CapacityHead(state, title, sentence(result))
    fleet = answer.fleet
    title = f"{plural(answer.replicas, 'replica')} of {result.pool}, {plural(fleet.n_gpus, 'GPU')} in all"
    point = _point(result, answer)
    ci = f"95% CI {interval(answer.low_frac, answer.high_frac)}"
    tiles = [
        Tile("SLO attainment", share(point.attained_frac), [ci]),
        Tile("Load", f"{rate(point.offered_per_s)}/s", [f"{rate(point.offered_per_s / fleet.n_gpus)}/s per GPU"]),
    ]
    if fleet.usd_per_hour:
        tiles.append(Tile("Price", f"{fleet.usd_per_hour:,.2f} $", ["per hour, at catalog prices"]))
    tiles.append(Tile("Power", f"{fleet.kw:.3g} kW", ["rated, from data sheets"]))
    return CapacityHead(answer.decision or "met", title, sentence(result), (*tiles, *tail_tiles(point)))
