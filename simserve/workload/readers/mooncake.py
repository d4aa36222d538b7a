"""Mooncake traces: JSON lines, timestamp in milliseconds but in steps of 3 s, chained hash_ids of 512 tokens.

The last block of a prompt, nearly always partial, has an id too. It is dropped: engines share whole blocks, and only a
prompt equal to the last token has the same id.

Source: Mooncake (Qin et al., FAST '25), Apache-2.0.
"""

from pathlib import Path

from simserve.workload.readers.base import MS
from simserve.workload.readers.json_rows import read_lines
from simserve.workload.readers.prefix_ids import MOONCAKE_BLOCK_TOKENS, HashIds
from simserve.workload.trace import Trace


def read(path: Path) -> Trace:
    """Read a Mooncake trace. Raises TraceError."""
    return read_lines(path, MS, lambda rows, _: HashIds(rows, MOONCAKE_BLOCK_TOKENS))
