"""Cautions: what stands between the numbers of a run or a capacity and a decision, each a sentence with its remedy."""

from collections.abc import Iterator, Sequence

from simserve.metrics.answers.capacity import CapacityAnswer
from simserve.metrics.answers.capacity_found import FoundClients, FoundRate
from simserve.metrics.answers.pools import StudiedPool
from simserve.report.document import Cautions
from simserve.report.formats import as_sentence, count, listed
from simserve.report.run_view import RunView

CHANCE = (
    "Intervals of attainment cover sampling noise over seeds, not cost error; P and the load to count on cover both. "
    "docs/validation.md compares with real servers."
)

CHANCE_OF_SPLITS = (
    "The intervals cover sampling noise over seeds, not cost error. Ask for the capacity of the split that you take."
)

FEW_TURNS = (
    "Each client sends fewer than ten requests, so the rush at the start weighs much. Raise workload.n_requests."
)


def capacity_warnings(result: CapacityAnswer) -> Cautions:
    """Return the section of a capacity's page."""
    highest = result.answer if result.question == "rate" or result.question == "concurrency" else None
    few_turns = result.question == "concurrency" and result.answer is not None and not result.answer.enough_turns
    is_a_guess = highest is not None and bool(highest.kv_limit_is_a_guess)
    text = [*map(as_sentence, result.warnings), *_of_pools(result.pools, is_a_guess=is_a_guess)]
    text += [] if highest is None else _imprecise(highest, result.goal_frac)
    chance = CHANCE_OF_SPLITS if result.question == "ratio" else CHANCE
    return Cautions([*text, *([FEW_TURNS] if few_turns else []), chance])


def _imprecise(highest: FoundRate | FoundClients, goal_frac: float) -> Iterator[str]:
    """Yield why a highest load may be imprecise."""
    if highest.kv_limit_is_a_guess:
        yield (
            "At the answer the KV cache is nearly full, and its size is an estimate: set num_gpu_blocks to the number "
            "in the server's log."
        )
    if not highest.is_precise and highest.load.low is None:
        yield "The answer has no interval: at too few seeds queues begin to grow. Make the runs longer."
    elif not highest.is_precise:
        requested = f"{highest.precision_frac * 100:.3g}%"
        yield (
            f"The interval is wider than the requested {requested}, with as many seeds as are tried: "
            "make the runs longer."
        )
    if not highest.n_enough:
        least = count(10 / (1 - goal_frac))
        yield (
            f"The answer rests on {count(highest.n_requests)} requests, and fewer than ten of them may miss: it "
            f"needs {least}. Make the runs longer."
        )


def cautions(reader: RunView) -> list[str]:
    """Return the run's own warnings first, then those that follow from its setup."""
    text = [*map(as_sentence, reader.warnings)]
    text += _of_pools(reader.pools, is_a_guess=reader.summary.trust.kv_limit_is_a_guess)
    if reader.attainment is not None and reader.attainment_interval is None:
        text.append("The attainment has no interval: the window has too few requests.")
    return text


def _of_pools(pools: Sequence[StudiedPool], *, is_a_guess: bool) -> Iterator[str]:
    """Yield how to use costs that are not calibrated, which a run itself warns of, and a warning about a computed KV
    capacity, unless a run itself warns that this decides the result."""
    engines = {pool.engine for pool in pools if not pool.calibrated}
    if engines == {"ideal"}:
        yield "Take these latencies as a lower bound: no real engine reaches the data sheet."
    elif engines:
        yield "Until costs are calibrated, trust comparisons, not absolute times, and measure one point before you buy."
    names = [pool.name for pool in pools if not pool.kv_verified]
    if names and not is_a_guess:
        yield (
            f"KV capacity of {listed(names)} is computed, not verified: set num_gpu_blocks to the number that the "
            "engine logs at start-up."
        )
