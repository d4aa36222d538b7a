"""Warnings about the numbers of a run: each a sentence with its remedy."""

from simserve.report.formats import listed
from simserve.report.summary_reader import SummaryReader


def cautions(reader: SummaryReader) -> list[str]:
    """Return the run's own warnings first, then those that follow from its setup."""
    own = [_uncalibrated(reader), _unverified(reader), _without_interval(reader)]
    return [_sentence(warning) for warning in reader.warnings] + [caution for caution in own if caution]


def _uncalibrated(reader: SummaryReader) -> str:
    """Say how to use costs that are not calibrated; the run itself warns that they are not."""
    engines = {str(pool.get("engine")) for pool in reader.pools if not pool.get("calibrated")}
    if not engines:
        return ""
    if engines == {"ideal"}:
        return "Take these latencies as a lower bound: no real engine reaches the data sheet."
    return "Until costs are calibrated, trust comparisons, not absolute times, and measure one point before you buy."


def _unverified(reader: SummaryReader) -> str:
    """Warn about a computed KV capacity, unless the run itself warns that it decides the result."""
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
    return "The attainment has no interval: the window has too few requests."


def _sentence(warning: str) -> str:
    """Return a warning with a capital and a full stop, as the page has it."""
    return warning[:1].upper() + warning[1:] + ("" if warning.endswith((".", "!", "?")) else ".")
