"""Azure LLM inference traces 2023 and 2024, and LMM 2025: CSV TIMESTAMP,ContextTokens,GeneratedTokens[,NumImages].

Source: Azure Public Dataset, CC-BY 4.0 (Patel et al., Splitwise, ISCA '24).
"""

from pathlib import Path

from simserve.workload.readers.base import checked
from simserve.workload.readers.cells import NUMBER, STAMP, seconds_since_first
from simserve.workload.readers.csv_rows import read_csv
from simserve.workload.trace import Trace

KINDS = {"TIMESTAMP": STAMP, "ContextTokens": NUMBER, "GeneratedTokens": NUMBER}


def read(path: Path) -> Trace:
    """Read an Azure trace; its stamps have up to seven fractional digits. Raises TraceError."""
    place, columns, _ = read_csv(path, KINDS, KINDS)
    return checked(place, Trace(seconds_since_first(columns.pop("TIMESTAMP")), *map(columns.pop, list(columns))))
