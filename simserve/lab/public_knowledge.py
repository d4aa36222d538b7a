"""What is known of public data sets beyond their rows: what was fitted to them, and the errors that peers published.

Peers' errors are mean absolute errors over runs of the same kind, as (least, most) where a source gives a range.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Range = tuple[float, float]

LOGS = "logs"
"""Name of the logs of a folder, in place of a file's."""


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
    Knowledge(
        "h100_serving.csv",
        "vllm",
        in_sample="yes",
        why=FITTED,
        peers=(Peer(CALCULATOR, SIBLINGS, OF_CALCULATORS, _percent(tpot=10.9, ttft=37)),),
    ),
    Knowledge(
        "h100_serving.csv",
        "sglang",
        in_sample="yes",
        why=FITTED,
        peers=(Peer(CALCULATOR, SIBLINGS, OF_CALCULATORS, _percent(tpot=26, ttft=84)),),
    ),
    Knowledge(
        "h100_serving.csv",
        "trtllm",
        in_sample="yes",
        why=FITTED,
        peers=(Peer(CALCULATOR, SIBLINGS, OF_CALCULATORS, _percent(tpot=9.8, ttft=51)),),
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
            Peer(
                "Vidur, by model",
                BLIS_RUNS,
                BLIS,
                _percent(tpot=(8.5, 219), ttft=(12, 53_418), e2e=(8.4, 856)),
            ),
        ),
    ),
)
"""The first entry about a set counts."""


def knowledge_of(file: str, engine: str, gpu: str, model: str) -> Knowledge:
    """Return what is known of a set: by default that nothing was fitted to it."""
    return next((each for each in KNOWLEDGE if each.is_about(file, engine, gpu, model)), Knowledge(file))
