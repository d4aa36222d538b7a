"""The league: errors and interval coverage of public data sets, what was fitted to each, and errors of peers.

Peers' errors are mean absolute errors over runs of the same kind, as (least, most) where a source gives a range.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simserve.lab.runs import METRICS, MeasuredRun, Prediction, errors_of
from simserve.lab.server_logs import LOGS
from simserve.study.cost_draws import CONFIDENCE

Range = tuple[float, float]


@dataclass(frozen=True)
class Peer:
    """Another tool, with its published errors by latency."""

    name: str
    runs: str
    """Runs that it was compared with."""
    source: str
    errors_frac: Mapping[str, Range]


@dataclass(frozen=True)
class Knowledge:
    """What is known of the runs of one file, engine and GPU; an empty text stands for all of a kind."""

    file: str
    engine: str = ""
    gpu: str = ""
    model: str = ""
    in_sample: str = "no"
    """yes: constants were fitted to these runs; partly: a constant was chosen with them among others; or no."""
    why: str = "no constant was fitted to these runs"
    peers: tuple[Peer, ...] = ()

    @property
    def label(self) -> str:
        """The runs in a few words."""
        return " ".join(part for part in (self.file, self.engine, self.gpu, self.model) if part)

    def is_about(self, file: str, engine: str, gpu: str, model: str) -> bool:
        """Tell whether a set is among these runs."""
        pairs = ((self.engine, engine), (self.gpu, gpu))
        return file == self.file and all(own in ("", of) for own, of in pairs) and model.startswith(self.model)


def _percent(**errors: float | Range) -> dict[str, Range]:
    pairs = {name: each if isinstance(each, tuple) else (each, each) for name, each in errors.items()}
    return {name: (low / 100, high / 100) for name, (low, high) in pairs.items()}


FITTED = "host constants of the engine were fitted to these runs (calibration/h100-sxm)"
OF_CARD = "factors of the card were fitted to these runs (docs/calibration.md has errors of those left out)"
AHEAD = "two constants of engines that plan ahead were chosen over five groups of runs, of which these are {}"
ONE_AHEAD = "one constant of engines that plan ahead was chosen over five groups of runs, of which these are one"

HIDDEN = "that TensorRT-LLM hides the host's work from 1.2 on was concluded from runs of which some are among these"
ROUTED = "of two readings of published routing, one was chosen in the light of these runs among others"
COLD = "the cold start of these servers was taken from these runs, or from others of which some are among these"

CALCULATOR = "best published calculator"
SIBLINGS = "other runs of the same campaign, engine and card"
OF_CALCULATORS = "comparison on runs of aiconfigurator's campaign that are not in the file"
BLIS_RUNS = "per-request runs of vLLM 0.15.1 on H100, these among them"
BLIS = "comparison published with BLIS (github.com/inference-sim/inference-sim)"

KNOWLEDGE = (
    Knowledge("inferencex.csv", "sglang", "mi300x", in_sample="yes", why=OF_CARD),
    Knowledge("inferencex.csv", "sglang", "mi355x", in_sample="yes", why=OF_CARD),
    Knowledge("inferencex.csv", "sglang", model="deepseek-v3", in_sample="partly", why=COLD),
    Knowledge("inferencex.csv", "trtllm", model="deepseek-v3", in_sample="partly", why=COLD),
    Knowledge("inferencex.csv", "trtllm", model="gpt-oss-120b", in_sample="partly", why=HIDDEN),
    Knowledge("inferencex.csv", "vllm", model="gpt-oss-120b", in_sample="partly", why=ROUTED),
    *(
        Knowledge(
            "h100_serving.csv",
            engine,
            in_sample="yes",
            why=FITTED,
            peers=(Peer(CALCULATOR, SIBLINGS, OF_CALCULATORS, _percent(tpot=tpot, ttft=ttft)),),
        )
        for engine, tpot, ttft in (("vllm", 10.9, 37), ("sglang", 26, 84), ("trtllm", 9.8, 51))
    ),
    Knowledge(
        "hopper_serving_2.csv",
        "vllm",
        model="llama-3.1-70b",
        in_sample="partly",
        why=AHEAD.format("one"),
        peers=(Peer(CALCULATOR, "45 runs of the model in fp8 on H100", OF_CALCULATORS, _percent(tpot=5.1, ttft=49)),),
    ),
    Knowledge("hopper_serving_2.csv", "vllm", model="gpt-oss-120b", in_sample="partly", why=ONE_AHEAD),
    Knowledge("hopper_serving_2.csv", "vllm", model="minimax-m2.5", in_sample="partly", why=COLD),
    Knowledge("hopper_serving_2.csv", "trtllm", model="gpt-oss-120b", in_sample="partly", why=COLD),
    Knowledge("hopper_serving_2.csv", "trtllm", model="deepseek-v3", in_sample="partly", why=COLD),
    Knowledge("hopper_serving_2.csv", "trtllm", model="llama-3.1-70b", in_sample="partly", why=HIDDEN),
    Knowledge(
        "hopper_serving_2.csv",
        "trtllm",
        model="qwen3-235b-a22b",
        peers=(Peer("AIConfigurator", "TP 4 EP 4 of the same campaign", OF_CALCULATORS, _percent(tpot=9.6)),),
    ),
    Knowledge(
        LOGS,
        "vllm",
        "h100-sxm",
        in_sample="partly",
        why=AHEAD.format("three"),
        peers=(
            Peer("BLIS, trained on such runs", BLIS_RUNS, BLIS, _percent(tpot=8.8, ttft=23.5, e2e=9.0)),
            Peer("AIConfigurator", BLIS_RUNS, BLIS, _percent(tpot=32.8, ttft=1414, e2e=49.5)),
            Peer("LLMServingSim 2", BLIS_RUNS, BLIS, _percent(tpot=32, ttft=1629, e2e=38)),
            Peer("llm-optimizer", BLIS_RUNS, BLIS, _percent(tpot=66, ttft=961, e2e=54)),
            Peer("Vidur, by model", BLIS_RUNS, BLIS, _percent(tpot=(8.5, 219), ttft=(12, 53_418), e2e=(8.4, 856))),
        ),
    ),
)
"""The first entry about a set counts."""


@dataclass(frozen=True, order=True)
class DataSet:
    """Runs of one file that share engine, GPU and model."""

    file: str
    engine: str
    gpu: str
    model: str
    """Name and dtype, and whether prefill and decode are disaggregated."""

    @property
    def knowledge(self) -> Knowledge:
        """What was fitted to it, and peers' errors: by default, nothing was fitted."""
        about = (self.file, self.engine, self.gpu, self.model)
        return next((each for each in KNOWLEDGE if each.is_about(*about)), Knowledge(self.file))


def data_set_of(run: MeasuredRun) -> DataSet:
    """Return the set of a run."""
    roles = " disaggregated" if run.is_disaggregated else ""
    return DataSet(run.source, run.engine, run.gpu, f"{run.model} {run.weight_dtype}{roles}")


def league_facts(runs: Sequence[Prediction], n_of: Mapping[DataSet, int], skipped: Sequence[str]) -> dict[str, Any]:
    """Return the league of runs; `n_of` are the cases of each set in the folder, `skipped` what is not in it."""
    by_set: dict[DataSet, list[Prediction]] = {}
    for prediction in runs:
        by_set.setdefault(data_set_of(prediction.run), []).append(prediction)

    def of(in_sample: str) -> list[Prediction]:
        return [each for each in runs if data_set_of(each.run).knowledge.in_sample == in_sample]

    return {
        "confidence": CONFIDENCE,
        "not_fitted": _figures(of("no")),
        "partly_fitted": _figures(of("partly")),
        "sets": [_set(data_set, mine, n_of[data_set]) for data_set, mine in sorted(by_set.items())],
        "peers": _peers(by_set),
        "skipped": list(skipped),
        "runs": [_run(run) for run in runs],
    }


def _set(data_set: DataSet, runs: Sequence[Prediction], n_of: int) -> dict[str, Any]:
    knowledge = data_set.knowledge
    versions = list(dict.fromkeys(each.run.version for each in runs if each.run.version))
    about = {"versions": versions, "n_in_folder": n_of, "in_sample": knowledge.in_sample, "why": knowledge.why}
    return asdict(data_set) | about | _figures(runs) | {"published": [asdict(peer) for peer in knowledge.peers]}


def _peers(by_set: Mapping[DataSet, Sequence[Prediction]]) -> list[dict[str, Any]]:
    """Return our figures over all sets that peers' published errors are about, and those errors."""
    runs_of: dict[str, list[Prediction]] = {}
    known: dict[str, Knowledge] = {}
    for data_set, runs in by_set.items():
        knowledge = data_set.knowledge
        known[knowledge.label] = knowledge
        runs_of.setdefault(knowledge.label, []).extend(runs)
    return [
        {
            "runs": label,
            "in_sample": knowledge.in_sample,
            **_figures(runs_of[label]),
            "published": [asdict(peer) for peer in knowledge.peers],
        }
        for label, knowledge in known.items()
        if knowledge.peers
    ]


def _figures(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return the errors, the share of measured means in their prediction intervals, and the median of half their width
    over the prediction, by METRICS."""
    errors: dict[str, Any] = {}
    within_frac: dict[str, float | None] = {}
    width_frac: dict[str, float | None] = {}
    for name in METRICS:
        known = [each for each in predictions if each.predicted_s and name in each.run.measured_s]
        signed = np.array([each.ratio(name) - 1 for each in known])
        errors[name] = asdict(errors_of(signed)) if known else None
        held = [(each, *each.spread.intervals_s[name]) for each in known if name in each.spread.intervals_s]
        inside = [low_s <= each.run.measured_s[name] <= high_s for each, low_s, high_s in held]
        widths = [(high_s - low_s) / 2 / each.mean_s(name) for each, low_s, high_s in held]
        within_frac[name] = float(np.mean(inside)) if held else None
        width_frac[name] = float(np.median(widths)) if held else None
    counts = {"n_runs": len(predictions), "n_refused": sum(each.predicted_s is None for each in predictions)}
    return {**counts, "errors": errors, "within_frac": within_frac, "width_frac": width_frac}


def _run(prediction: Prediction) -> dict[str, Any]:
    run, predicted_s = prediction.run, prediction.predicted_s
    data_set = data_set_of(run)
    latencies = {
        name: {
            "measured_s": run.measured_s[name],
            "predicted_s": predicted_s and predicted_s[name],
            "interval_s": prediction.spread.intervals_s.get(name),
        }
        for name in METRICS
        if name in run.measured_s
    }
    about = {"version": run.version, "label": run.label, "in_sample": data_set.knowledge.in_sample}
    return {**asdict(data_set), **about, "refused": prediction.reason or None, **latencies}
