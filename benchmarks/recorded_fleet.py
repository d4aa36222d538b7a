"""Print a recorded run of a fleet beside simulated ones, whose load and replicas are their own.

python -m benchmarks.recorded_fleet --seeds 20   # some minutes; needs the recorded fleet
"""

import argparse

from tests.recorded_jobs import replica_seconds
from tests.test_recorded_fleet import RECORDED_REPLICA_S, changes, recorded_changes, simulated, timeline

HEAD = "| run | replica-seconds | first scale-up, s | beyond two, s | one again, s |\n|---|---|---|---|---|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    end_s = timeline()[-1].at_s
    print(HEAD)
    print("| recorded |", " | ".join(f"{each:.0f}" for each in (RECORDED_REPLICA_S, *recorded_changes())), "|")
    for seed, steps in enumerate(simulated(parser.parse_args().seeds)):
        figures = replica_seconds(steps, end_s), *changes(steps)
        print(f"| seed {seed} |", " | ".join(f"{each:.0f}" for each in figures), "|")


if __name__ == "__main__":
    main()
