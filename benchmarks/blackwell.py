"""Print how far predictions are from Blackwell servers that no constant was fitted to: rows of `aiconfigurator-core`.

python -m benchmarks.blackwell --most 24   # the table of docs/validation.md; 4 runs of a server without --most
"""

import argparse
from multiprocessing import Pool

import numpy as np

from simserve.lab.campaigns import CAMPAIGNS, run_of
from simserve.lab.public import FILE, silicon_rows
from simserve.lab.runs import Errors, MeasuredRun, by, errors, predict


def runs(most: int) -> list[MeasuredRun]:
    """Return at most so many runs of each engine, card, model and dtype, evenly spaced."""
    own = [run_of(row, CAMPAIGNS["inferencemax"], FILE) for row in silicon_rows()]
    sets: dict[tuple[str, ...], list[MeasuredRun]] = {}
    for run in own:
        sets.setdefault((run.engine, run.gpu, run.model, run.weight_dtype), []).append(run)
    places = [np.unique(np.linspace(0, len(each) - 1, most).round().astype(int)).tolist() for each in sets.values()]
    return [each[place] for each, chosen in zip(sets.values(), places, strict=True) for place in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=4)
    with Pool() as pool:
        predictions = pool.map(predict, runs(parser.parse_args().most), chunksize=1)
    known = [each for each in predictions if each.predicted_s is not None]
    print(f"{len(known)} of {len(predictions)} runs; others do not fit the card or divide the model")
    for name, group in by(known, lambda run: f"{run.engine} {run.gpu} {run.model} {run.weight_dtype}").items():
        tpot, ttft = (errors(group, metric) for metric in ("tpot", "ttft"))
        print(f"{name:44} {len(group):3} TPOT {_percents(tpot)} TTFT {_percents(ttft)}")


def _percents(each: Errors) -> str:
    return f"{100 * each.mape_frac:5.1f}% ({100 * each.bias_frac:+6.1f}%)"


if __name__ == "__main__":
    main()
