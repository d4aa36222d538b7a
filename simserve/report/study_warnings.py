"""What stands between the answer of a study and a decision: each caution a sentence, with its remedy."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.formats import count, number
from simserve.report.run_warnings import cautions
from simserve.report.sections import trust_list
from simserve.report.summary_reader import Answers

Facts = Mapping[str, Any]

CHANCE = (
    "The interval is that of chance alone, over seeds. How far step costs may be off is not in it: the prediction "
    "intervals of `simserve run` say that, and docs/validation.md what servers have shown."
)


def trust(found: Facts, *more: str) -> str:
    """As the section of a page."""
    return trust_list([*_said(found), *more, CHANCE], "")


def _said(found: Facts) -> Sequence[str]:
    answer = found["answer"] or {}
    guess = bool(answer.get("kv_limit_is_a_guess"))
    run = {"pools": found["pools"], "warnings": found["warnings"], "trust": {"kv_limit_is_a_guess": guess}}
    said = list(cautions(Answers(run)))
    if guess:
        said.append(
            "At the answer the KV cache is nearly full, by a number of blocks that is an estimate: give num_gpu_blocks "
            "from the server's log."
        )
    at = answer.get("offered_per_s") or answer.get("concurrency")
    if answer.get("is_precise") is False and at and number(at["low"]) is None:
        said.append(
            "How far chance may have moved the answer is not known: too few seeds tell where queues begin to grow."
        )
    elif answer.get("is_precise") is False:
        asked = f"{answer['precision_frac'] * 100:.3g} %"
        said.append(
            f"The interval is wider than the {asked} asked for, with as many seeds as are tried: make the runs longer."
        )
    if answer.get("n_enough") is False:
        least = count(10 / (1 - found["goal_frac"]))
        said.append(
            f"The answer rests on {count(answer['n_requests'])} requests, of which fewer than ten may miss: it wants "
            f"{least}; make the runs longer."
        )
    if answer.get("enough_turns") is False:
        said.append(
            "Each client asks fewer than ten times, so the rush at the start weighs much: raise workload.n_requests."
        )
    return said


def made_from(found: Facts) -> dict[str, Any]:
    """What the answer comes from, for the foot of a page."""
    scenario = found["scenario"]
    answer = found["answer"] or {}
    n_seeds = answer.get("n_seeds")
    seeds = None if n_seeds is None else f"{scenario['seed']} to {scenario['seed'] + n_seeds - 1}"
    return {"simserve": found["version"], "scenario": scenario["digest"], "seeds": seeds}
