"""Mooncake traces: JSON lines, timestamp in milliseconds but in steps of 3 s, chained hash_ids of 512 tokens.

There is an id for the last block of a prompt too, which nearly always is not full. That one is left out: engines share
whole blocks, and only a prompt that is equal to the last token has it as well.

Source: Mooncake (Qin et al., FAST '25), Apache-2.0.
"""

from pathlib import Path

from simserve.workload.readers.json_lines import read_lines
from simserve.workload.readers.prefix_ids import MOONCAKE_BLOCK_TOKENS, HashIds
from simserve.workload.trace import Trace


def read(path: Path) -> Trace:
    """A Mooncake trace. Raises TraceError."""
    return read_lines(path, 1e-3, lambda rows, _: HashIds(rows, MOONCAKE_BLOCK_TOKENS))
