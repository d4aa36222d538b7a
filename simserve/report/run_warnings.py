"""What stands between a run's numbers and a decision: each caution a sentence, with its remedy."""

from simserve.report.formats import listed
from simserve.report.summary_reader import SummaryReader


def cautions(reader: SummaryReader) -> list[str]:
    """What not to trust: the run's own warnings first, then what follows from how it was set up."""
    own = [_uncalibrated(reader), _unverified(reader), _without_interval(reader)]
    return [_sentence(warning) for warning in reader.warnings] + [caution for caution in own if caution]


def _uncalibrated(reader: SummaryReader) -> str:
    """How to use costs that are not calibrated; that they are not, the run has warned of."""
    engines = {str(pool.get("engine")) for pool in reader.pools if not pool.get("calibrated")}
    if not engines:
        return ""
    if engines == {"ideal"}:
        return "Take these latencies as a lower bound: no real engine reaches the data sheet."
    return "Until costs are calibrated, trust comparisons before absolute times, and measure one point before you buy."


def _unverified(reader: SummaryReader) -> str:
    """Unless the run itself warned that this decides the result."""
    pools = [str(pool["name"]) for pool in reader.pools if not pool.get("kv_verified")]
    if not pools or reader.trusts("kv_limit_is_a_guess"):
        return ""
    return (
        f"KV capacity of {listed(pools)} is computed, not verified: set num_gpu_blocks to the number that the "
        "engine logs at start-up."
    )


def _without_interval(reader: SummaryReader) -> str:
    if reader.attainment is None or reader.attainment_interval is not None:
        return ""
    return "The attainment has no interval, as the window has too few requests to tell chance from effect."


def _sentence(warning: str) -> str:
    """A warning as the page writes: capital and full stop."""
    return warning[:1].upper() + warning[1:] + ("" if warning.endswith((".", "!", "?")) else ".")
