"""Writes the pinned answers again and says what changed: `python -m tests.golden_answers`."""

import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden_answers.differences import differences
from tests.golden_answers.pinned import FOLDER, pinned, write

before = pinned()
with TemporaryDirectory() as scratch:
    write(FOLDER, Path(scratch))
after = pinned()
for kind in before:
    counts = Counter(found.kind for found in differences(before[kind], after[kind]))
    sys.stdout.write(f"{kind}.json: {', '.join(f'{n} {what}' for what, n in counts.items()) or 'unchanged'}\n")
