"""What stands between a run's numbers and a decision: each caution in one sentence, with its remedy."""

from simserve.report.answers import FEW_FOR_P99, Answers
from simserve.report.formats import count, listed


def cautions(answers: Answers) -> list[str]:
    """What not to trust, the gravest first; the run's own warnings come last, said once."""
    own = [_saturated(answers), _few(answers), _uncalibrated(answers), _unverified(answers), _uncounted(answers)]
    return [caution for caution in own if caution] + [warning for warning in answers.warnings if not _said(warning)]


def _saturated(answers: Answers) -> str:
    if not answers.is_saturated:
        return ""
    return "Saturated: latencies grow with the length of the run. Only the throughput is a property of the cluster."


def _few(answers: Answers) -> str:
    n = answers.n("finished")
    if n >= FEW_FOR_P99:
        return ""
    return f"Few requests: a p99 of {count(n)} is a guess. Take at least {FEW_FOR_P99:,}, and ten times that for p99.9."


def _uncalibrated(answers: Answers) -> str:
    pools = [pool for pool in answers.pools if not pool.get("calibrated")]
    engines = sorted({str(pool.get("engine")) for pool in pools})
    if not pools:
        return ""
    if engines == ["ideal"]:
        return "Data-sheet costs: engine ideal is a bound that no real engine reaches, so real latencies are longer."
    return (
        f"Uncalibrated costs: {listed(engines)} is a roofline with assumed efficiencies, not held against hardware. "
        "Trust comparisons before absolute times, and measure one point before you buy."
    )


def _unverified(answers: Answers) -> str:
    pools = [str(pool["name"]) for pool in answers.pools if not pool.get("kv_verified")]
    if not pools:
        return ""
    return (
        f"KV capacity of {listed(pools)} is computed, not verified: set num_gpu_blocks to the number that the "
        "engine logs at start-up."
    )


def _uncounted(answers: Answers) -> str:
    if answers.attainment is None or answers.attainment_interval is not None:
        return ""
    return "No interval for the attainment: the window is too short to tell chance from effect. Make the run longer."


def _said(warning: str) -> bool:
    """A warning of the run that a caution above already tells."""
    return any(word in warning.lower() for word in ("uncalibrated", "not calibrated", "num_gpu_blocks"))
