"""Checks of a log before anything is fitted to it: of which model it is, what a cache held, and how its load varies."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from simserve import catalog
from simserve.catalog.hub import known_model
from simserve.errors import CalibrationError, CatalogError
from simserve.lab.log_errors import ReplayedLog
from simserve.lab.log_groups import ONE_LEVEL, Replayed
from simserve.report.formats import listed, plural
from simserve.scenario import Scenario
from simserve.study.intervals import Estimate, around, blocks_of, leave_one_out, standard_error
from simserve.tables.columns import Flags, Ints
from simserve.workload.readers.base import names_shown
from simserve.workload.readers.logs.base import Log

SEEN_FRAC = 0.15
"""Share of cached tokens that can be told from the error of predicted prefill times, 10 to 15% (docs/validation.md)."""


def check_server(log: Log, scenario: Scenario) -> str | None:
    """Return a caution as `check_model` does. Raises CalibrationError as it does, and for a log of several versions of
    an engine, or of more pods than replicas."""
    path, n_replicas = log.place.path, sum(setup.n_replicas for setup in scenario.setups)
    versions, pods = (log.servers.get(name, ()) for name in ("version", "pod"))
    if len(versions) > 1:
        rule = f"must be of one version of the engine, got {listed([*versions])}"
        raise CalibrationError(f"{path}: {rule}; give a log of each")
    if len(pods) > n_replicas:
        rule = f"must be of the scenario's {plural(n_replicas, 'replica')}, got {len(pods)} pods ({names_shown(pods)})"
        raise CalibrationError(f"{path}: {rule}; give the requests of one pod, or set replicas")
    return check_model(path, log.model, scenario)


def check_model(path: Path, model: str | None, scenario: Scenario) -> str | None:
    """Return a caution about a log of a model that the catalog does not know. Raises CalibrationError for a log of
    another model than the scenario's."""
    if model is None:
        return None
    own = {(setup.model.name, setup.weight_dtype) for setup in scenario.setups}
    try:
        spec = catalog.load_model(model)
        logged = spec.name, spec.weight_dtype
    except CatalogError:
        known = known_model(model.rstrip("/").rpartition("/")[2])
        if known is None:
            names = ", ".join(name for name, _ in sorted(own))
            return f"{path} names the model {model}, which the catalog does not know; taken for {names}"
        logged = known.name, known.dtype
    name, dtype = logged
    if any(name == ours and (dtype is None or dtype == precision) for ours, precision in own):
        return None
    ours = ", ".join(f"{each} in {precision}" for each, precision in sorted(own))
    theirs = model if dtype is None or any(name != each for each, _ in own) else f"{model}, in {dtype}"
    rule = f"must be a log of the scenario's model, {ours}, got one of {theirs}"
    raise CalibrationError(f"{path}: {rule}; give the log of this server, or correct model and weight_dtype")


def cached_share(replay: Replayed, rows: Ints) -> Estimate | None:
    """Return the share of prompt tokens that the server did not compute: how much less the measured TTFT of some
    requests grows with their prompts than the predicted one. None where the log says what was cached, or cannot."""
    if replay.unit == "lines" or "ttft_s" not in replay.log.measured:
        return None
    known = rows[replay.compared("ttft_s")[rows]]
    blocks, tokens = blocks_of(len(known)), replay.log.trace.prompt_tokens[known]
    is_cached = any(setup.caches_prefixes for setup in replay.scenario.setups)
    if blocks is None or not is_cached or replay.log.trace.prefixes is not None or tokens.std() < tokens.mean() / 10:
        return None
    measured, predicted = replay.log.measured["ttft_s"][known], replay.predicted["ttft_s"][known]

    def share(kept: Flags) -> float:
        spread = tokens[kept] - tokens[kept].mean()
        grows = float(spread @ predicted[kept])
        return 1 - float(spread @ measured[kept]) / grows if grows > 0 else float("nan")

    without = leave_one_out(share, blocks)
    return around(share(np.ones(len(known), np.bool_)), standard_error(without), len(without) - 1)


def is_seen(cached: Estimate | None) -> bool:
    """Return whether a share of cached tokens is larger than the error of predicted prefill times."""
    return cached is not None and cached.low > SEEN_FRAC


def cached_words(cached: Estimate | None) -> str | None:
    """Return what the TTFT of a log says about cached prompts; None: nothing."""
    if cached is None or not cached.has_interval:
        return None
    if not is_seen(cached):
        most = min(max(cached.high, SEEN_FRAC), 1.0)
        return f"cached prompts are below what TTFT can show: at most {most:.0%} of the tokens"
    low, high = (f"{100 * min(max(end, 0.0), 1.0):.0f}" for end in (cached.low, cached.high))
    remedy = "add the columns hash_ids and hash_block_tokens, or log prompts that share nothing"
    return f"a prefix cache held about {cached.value:.0%} of the prompt tokens (95% CI {low}–{high}%); {remedy}"


def early_answers(replay: ReplayedLog) -> Iterator[str]:
    """Yield what shows that single prompts were cached: answers before a prompt of that length can be computed."""
    if "ttft_s" not in replay.log.measured or replay.log.trace.prefixes is not None:
        return
    floor_s, ttft_s, tokens = replay.token_floor_s, replay.log.measured["ttft_s"], replay.log.trace.prompt_tokens
    is_early = ttft_s < tokens * floor_s
    if is_early.any():
        shortest = float((ttft_s / tokens)[is_early].min())
        what = f"the server answered {replay.some(is_early)} before a prompt of that length can be computed"
        remedy = "was it in a prefix cache? Add the columns hash_ids and hash_block_tokens, or correct the scenario"
        yield f"{what} (down to {shortest * 1e6:.3g} µs per token, at peak {floor_s * 1e6:.3g}): {remedy}"


def one_level(replays: Sequence[Replayed]) -> str | None:
    """Return what logs with one level of load cannot tell; None where the load varies."""
    if len(replays) > 1:
        return None
    log, in_flight = replays[0].log, replays[0].in_flight
    level = "one rate" if log.n_clients is None else f"{log.n_clients} requests in flight throughout"
    if log.n_clients is None and in_flight is not None:
        low, high = np.percentile(in_flight, [10, 90])
        if high >= ONE_LEVEL * max(low, 1.0):
            return None
        level = f"{low:.0f} to {high:.0f} requests in flight"
    what = "host time of a step and of a request cannot be told apart"
    return f"the log has one level of load ({level}), so {what}; add a log at another rate"
