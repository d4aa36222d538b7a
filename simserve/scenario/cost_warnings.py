"""Warnings about the origin and accuracy of a run's step costs."""

from itertools import chain
from math import hypot
from operator import attrgetter

from simserve.catalog.dtypes import NEEDS_RATE
from simserve.catalog.load import is_listed, versions
from simserve.cost.timed_forms import ALIKE
from simserve.scenario.server_errors import WITHIN_SD, server_errors
from simserve.scenario.setup import PoolSetup
from simserve.scenario.typical_steps import slow_dtypes

NINE_IN_TEN_SD = 1.645
"""Standard deviations that nine of ten normal errors stay within."""

TITLES = {"tpot_s": "TPOT", "ttft_s": "TTFT", "e2e_s": "E2E"}


def warnings(setups: tuple[PoolSetup, ...]) -> tuple[str, ...]:
    """Return the limits of the step costs that a reader must know, and dtypes that make steps slower."""
    own = (_of_costs(setup) or "" for setup in setups), (_of_borrowed(setup) or "" for setup in setups)
    return tuple(dict.fromkeys(filter(None, chain(*own, *map(slow_dtypes, setups)))))


def _of_costs(setup: PoolSetup) -> str | None:
    """Describe how far a pool's step costs may be off; None where its kernels were timed."""
    engine, calibration = setup.engine, setup.calibration
    if engine.name == "ideal":
        return "engine ideal is the bare data-sheet roofline: real servers are slower"
    if calibration is None:
        return (
            f"step costs of engine {engine.name} are uncalibrated and unvalidated: a roofline with assumed "
            f"efficiencies ({engine.compute_efficiency:g} of peak FLOP/s, {engine.memory_efficiency:g} of bandwidth)"
        )
    if not setup.calibrated:
        how = "timed" if calibration.runs is None else "fitted to serving runs"
        return (
            f"step costs of {setup.gpu.name} under {engine.name} are uncalibrated: scaled by the data sheets from "
            f"kernels {how} on {calibration.gpu} under {calibration.engine} {calibration.engine_version}"
        )
    if (runs := calibration.runs) is not None:
        shown = (key for key in ("tpot_s", "ttft_s") if key in runs.errors)
        errors = ", ".join(f"{runs.errors[key]:.0%} in {TITLES[key]}" for key in shown)
        others = "" if setup.model.name in runs.models else f", none of them of {setup.model.name}"
        return (
            f"step costs of {setup.gpu.name} under {engine.name} are fitted to {runs.n_rows} serving runs{others}; its "
            f"kernels were not timed. Runs left out of the fit are off by {errors}"
        )
    return None


def _of_borrowed(setup: PoolSetup) -> str | None:
    calibration = setup.calibration
    if calibration is None or not setup.borrowed:
        return None
    return (
        f"the times of {' and '.join(setup.borrowed)} of {setup.model.name} are scaled by the data sheet from "
        f"another card, because calibration {calibration.gpu}/{calibration.engine} does not have them"
    )


def notes(setups: tuple[PoolSetup, ...]) -> tuple[str, ...]:
    """Return the requested features with costs that were neither timed nor validated against a server, and what of
    manifests is not simulated, with the pools that have them if others have not."""
    pools: dict[str, list[str]] = {}
    own = (attrgetter("scaler_note"), _of_constants, _of_version, _of_dtype, _of_states, _of_ranks)
    for of in (*own, of_nodes, _of_speculation, wide_intervals):
        for setup in setups:
            if (note := of(setup)) is not None:
                pools.setdefault(note, []).append(setup.name)
    return tuple(
        note if len(names) == len(setups) else f"pool{'s' * (len(names) > 1)} {' and '.join(names)}: {note}"
        for note, names in pools.items()
    )


def _of_constants(setup: PoolSetup) -> str | None:
    engine = setup.engine
    if setup.asked_version is None or is_listed(engine):
        return None
    known = f"the catalog, which has {', '.join(versions(engine.name))}"
    return (
        f"engine {engine.name} {setup.asked_version} is not in {known}: host times, memory and scheduler are those of "
        f"{engine.constants_of}, the nearest version"
    )


def _of_version(setup: PoolSetup) -> str | None:
    calibration, version = setup.calibration, setup.asked_version
    if calibration is None or version is None or f"{calibration.engine_version}.".startswith(f"{version}."):
        return None
    return (
        f"engine {setup.engine.name} {version}: kernel costs are those of {calibration.engine} "
        f"{calibration.engine_version}, which was timed"
    )


def _of_dtype(setup: PoolSetup) -> str | None:
    calibration, dtype = setup.calibration, setup.weight_dtype
    if calibration is None or dtype not in NEEDS_RATE or ("gemm", dtype) in calibration.forms:
        return None
    timed = next((each for each in (*ALIKE[dtype], "bf16") if ("gemm", each) in calibration.forms), "bf16")
    return f"{dtype} was not timed: its kernels are assumed to reach the same share of peak as those of {timed}"


def _of_states(setup: PoolSetup) -> str | None:
    if not setup.model.n_state_layers or (setup.model.has_timed_states and setup.calibration):
        return None
    n, name = setup.model.n_state_layers, setup.model.name
    return f"the {n} layers of {name} with a state were not timed: a roofline of their bytes estimates their updates"


def of_nodes(setup: PoolSetup) -> str | None:
    """Return where the times of all-reduces between nodes are from; None without any."""
    n_nodes = setup.parallel.tensor // setup.gpu.gpus_per_node
    if n_nodes < 2:
        return None
    return (
        f"times of all-reduces over {n_nodes} nodes are medians of published nccl-tests of H100, H200, H20, B200 and "
        "A100; single clusters differ by up to a half"
    )


def _of_speculation(setup: PoolSetup) -> str | None:
    if setup.speculation is None:
        return None
    compared = (
        "multi-token prediction was compared with servers only given the tokens per step that they reached"
        if setup.speculation.kind == "mtp"
        else "this kind of speculation was not validated against a server"
    )
    return f"the acceptance rate is an assumption of the scenario, and {compared}"


def wide_intervals(setup: PoolSetup) -> str | None:
    """Return how much prediction intervals allow for errors between servers, and why; None where that adds nothing."""
    errors = server_errors()
    reason = errors.reason((setup,))
    if reason is None:
        return None
    of = errors.of((setup,))
    sizes = " and ".join([f"{of[key]:.0%} in {title}" for key, title in TITLES.items() if of[key]][:2])
    return f"prediction intervals allow for an error between servers of {sizes} (standard deviation): {reason}"


def accuracy(setup: PoolSetup) -> str:
    """Return how close predictions come to nine of ten servers like this, and why, before any run."""
    errors = server_errors()
    of = errors.of((setup,))
    sizes = [f"{title} within {NINE_IN_TEN_SD * hypot(WITHIN_SD[key], of[key]):.0%}" for key, title in TITLES.items()]
    why = errors.reason((setup,)) or "constants were fitted to such servers"
    return f"nine of ten such servers have mean {sizes[0]} and {sizes[1]} of the prediction: {why}"


def _of_ranks(setup: PoolSetup) -> str | None:
    texts = []
    if setup.parallel.pipeline > 1:
        texts.append(
            "the cost of pipeline stages is that of their kernels and links, and was not validated against a server"
        )
    if setup.n_sharing > 1:
        texts.append(
            "published servers with data-parallel ranks that share experts took 0.7 to 2.3 times the predicted time "
            "per token"
        )
    if not texts:
        return None
    text = "; ".join(texts)
    if setup.step_cost().exchange is None:
        return text
    if setup.parallel.exchange == "gather":
        return f"{text}; times of all-gathers and reduce-scatters over nodes are those of published nccl-tests"
    return f"{text}; exchanges between nodes follow DeepEP's published figures, and nothing overlaps with them"
