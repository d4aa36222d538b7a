"""python -m tests.fuzz --n 5000 --seed S --subject NAME: so many mutants, one seed each; those that broke a rule."""

import argparse
import shutil
import tempfile
import warnings
from pathlib import Path

from tests.fuzz.rules import BrokenRule
from tests.fuzz.subjects import SUBJECTS, one_case


def main() -> int:
    """Try the seeds from S on; return 1 if one broke a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="number of mutants")
    parser.add_argument("--subject", choices=list(SUBJECTS), help="one kind of input only")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first")
    arguments = parser.parse_args()
    warnings.simplefilter("error")
    n_broken = 0
    with tempfile.TemporaryDirectory() as place:
        for seed in range(arguments.seed, arguments.seed + arguments.n):
            folder = Path(place) / "case"
            folder.mkdir()
            try:
                one_case(seed, folder, arguments.subject)
            except BrokenRule as broken:
                n_broken += 1
                print(f"seed {seed}: {broken}\n", flush=True)
            shutil.rmtree(folder)
    print(f"{arguments.n} mutants, {n_broken} broke a rule")
    return 1 if n_broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
