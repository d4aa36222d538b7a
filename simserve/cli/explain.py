"""`simserve explain`: dry-run a scenario, or tell the sizes of a model."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.cli import terminal
from simserve.cli.options import AllowPlugin, AsJson, Assignments, Seed, loaded

if TYPE_CHECKING:
    from simserve.explain.answer import ExchangeAnswer, PoolAnswer, TypicalStep
    from simserve.scenario.model_sizes import KvGroupAnswer, ModelAnswer

MayBeFile = Annotated[Path | None, typer.Argument(help="File, or @NAME: `simserve init --list`.", show_default=False)]
Model = Annotated[str | None, typer.Option("--model", metavar="NAME|FILE", help="Describe a model alone.")]
Context = Annotated[int | None, typer.Option("--context", help="Longest request of --model. Default: the model's.")]


def explain(
    scenario: MayBeFile = None,
    model: Model = None,
    context: Context = None,
    assignments: Assignments = None,
    seed: Seed = None,
    allow_plugin: AllowPlugin = None,
    as_json: AsJson = False,
) -> None:
    """Show memory, defaults and step costs of a scenario, without a run; or the sizes of a model, and cards for it.

    A scenario that names a module as a plug-in is a program: the module is imported only with --allow-plugin.
    """
    from dataclasses import asdict

    from simserve.errors import SimserveError
    from simserve.explain.explain import explain as dry_run
    from simserve.scenario.model_sizes import model_sizes

    if model is not None and scenario is None and seed is None and not (assignments or allow_plugin):
        sizes = model_sizes(model, context)
        terminal.result_json(asdict(sizes)) if as_json else terminal.result("\n".join(_model_lines(sizes)))
        return
    if scenario is None or model is not None or context is not None:
        got = f"{scenario or 'no scenario'} and --model {model or 'missing'}"
        rule = f"takes a scenario with its options, or --model with --context alone, got {got}"
        raise SimserveError(f"explain: {rule}; --set changes the model and max_model_len of a scenario")
    explained = loaded(scenario, assignments, seed, allow_plugin, is_trusted=False)
    answer = dry_run(explained)
    if as_json:
        terminal.result_json(asdict(answer))
        return
    terminal.result(f"# scenario {answer.digest}; comments give the origin of values that the file does not set")
    terminal.result(explained.to_yaml())
    for pool in answer.pools:
        terminal.result("\n".join(_pool_lines(pool)))
    why = answer.one_process
    terminal.result(
        "Processes: " + (f"one, as {why}" if why else "a long run uses several, as replicas are independent")
    )


def _pool_lines(pool: "PoolAnswer") -> Iterator[str]:
    from simserve.metrics.kv_json import ReservationJson, cause_and_remedy

    version = "" if pool.engine == "ideal" else f" {pool.engine_version}"
    constants = "" if version[1:] in ("", pool.constants_of) else f" (constants of {pool.constants_of})"
    replica = f"{pool.model} on {pool.gpus_per_replica} x {pool.gpu} as {pool.engine}{version}{constants}"
    yield f"Pool {pool.name} ({pool.role}): {pool.n_replicas} x {replica}"
    if version:
        yield from _origin_lines(pool)
    yield "\n  Memory of each GPU"
    parts = [(name.replace("_", " "), f"{n_bytes / 1e9:,.2f} GB") for name, n_bytes in pool.memory_bytes.items()]
    yield terminal.table(parts, indent="    ")
    origin = "given by the scenario" if pool.kv_verified else "estimated; set num_gpu_blocks if you know it"
    of = "per replica" if pool.ranks_per_replica == 1 else f"for each of the {pool.ranks_per_replica} schedulers"
    holds = "for requests of any length," if pool.kv_tokens is None else f"= {pool.kv_tokens:,} tokens"
    kind = "KV" if any(group.bytes_per_token for group in pool.kv_groups) else "states"
    yield f"    {kind}: {pool.n_blocks:,} blocks {holds} {of} ({origin})"
    if pool.fills_blocks and any(group.bytes_per_request for group in pool.kv_groups):
        yield f"    block: {pool.block_tokens:,} tokens, as a state fills one; prefixes hit at its multiples"
    yield f"    longest request: {pool.max_model_len:,} tokens"
    if pool.reservation is not None:
        yield f"    {cause_and_remedy(ReservationJson(**vars(pool.reservation)))}"
    if len(pool.kv_groups) > 1:
        yield "    of which it holds, by kind of layer:"
        yield terminal.table([_group_row(group) for group in pool.kv_groups], indent="      ")
    if pool.host_tokens:
        disk = f", and {pool.disk_tokens:,} on disk" if pool.disk_tokens else ""
        of = " for all replicas" if pool.host_scope == "pool" else ""
        size, unit = (1, "tokens") if pool.fills_blocks else (pool.block_tokens, "states")
        each = f"{size * pool.host_token_s * 1e6:,.3g} us each from or to the GPU"
        yield f"    host: {pool.host_tokens // size:,} {unit}{of}, {each}{disk}"
    if pool.exchange is not None:
        yield from _exchange_lines(pool.exchange)
    if pool.balance_iters is not None:
        timeout, batching = pool.balance_iters
        yield f"\n  Balance: prompts wait up to {timeout} steps for one on each rank, then {batching} steps for more"
    together = "" if pool.ranks_per_replica == 1 else ", for one scheduler"
    yield f"\n  Cost of typical steps{together} ({_state(pool)})"
    columns_s = {"time": "duration_s", "by tokens": "tokens_s", "attention": "attention_s", "sampling": "sampling_s"}
    if pool.tokens_per_step > 1:
        columns_s["drafting"] = "drafting_s"
        yield f"    {pool.tokens_per_step:.2f} expected tokens per step and decoding request"
    columns_s |= {} if pool.exchange is None else {"exchange": "exchange_s"}
    columns_s |= {"context": "context_s"} if any(step.context_s for step in pool.steps) else {}
    columns_s |= {"for the host": "host_wait_s"} if any(step.host_wait_s for step in pool.steps) else {}
    total, *others = columns_s
    rows = [("", total, "tokens/s", *others), *(_step_row(step, columns_s.values()) for step in pool.steps)]
    yield terminal.table(rows, indent="    ")
    yield from (f"    {text[0].upper()}{text[1:]}" for text in pool.slow_dtypes)


def _model_lines(answer: "ModelAnswer") -> Iterator[str]:
    total, active = (f"{n / 1e9:,.4g} billion" for n in (answer.n_parameters, answer.n_active))
    yield f"{answer.model} in {answer.weight_dtype}: {total} parameters, {active} active per token without embeddings\n"
    yield terminal.table(
        [(part.replace("_", " "), f"{n / 1e6:,.1f} million") for part, n in answer.parameters.items() if n]
    )
    heads = [f"{n:,} tokens" for n in answer.requests]
    memory: list[tuple[str, ...]] = [("layers", "", "a token", *heads)]
    for same in zip(*answer.requests.values(), strict=True):
        token = f"{same[0].bytes_per_token:,.0f} B" if same[0].bytes_per_token else "-"
        memory.append((*_group_row(same[0])[:2], token, *(_size(group.longest_bytes) for group in same)))
    sums = [sum(group.longest_bytes for group in groups) for groups in answer.requests.values()]
    memory += [("all", "", "", *map(_size, sums))] * (len(memory) > 2)
    states = " and states" if any(group.bytes_per_request for group in answer.requests[max(answer.requests)]) else ""
    yield f"\nMemory of a request between steps, before GPUs divide it: KV cache in {answer.kv_dtype}{states}"
    yield terminal.table(memory)
    yield f"\nFewest GPUs for weights and a request of {heads[-1]}, with a scenario's defaults (-: none in a node)"
    lengths, n_columns = [f"of {n:,}" for n in answer.requests], 6 + (len(heads) > 1)
    columns = ("card", "dtype", "tensor", "weights/GPU", "KV/GPU", f"requests {lengths[0]}", lengths[-1])
    cards: list[tuple[str, ...]] = [(*columns[:n_columns], "longest, tokens")]
    for fit in answer.fits:
        sizes = ("-" if n is None else _size(n) for n in (fit.weights_bytes, fit.kv_bytes))
        n_requests, n_longest, tokens = (
            "-" if n is None else f"{n:,}" for n in (fit.n_requests, fit.n_longest, fit.kv_tokens)
        )
        longest = "any" if fit.tensor and fit.kv_tokens is None else tokens
        cells = (fit.gpu, fit.weight_dtype, f"{fit.tensor or '-'}", *sizes, n_requests, n_longest)
        cards.append((*cells[:n_columns], longest))
    yield terminal.table(cards)


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.2f} MB"


def _state(pool: "PoolAnswer") -> str:
    if not pool.calibrated:
        return "uncalibrated"
    return "calibrated" if pool.fitted_runs is None else "fitted to serving runs"


def _origin_lines(pool: "PoolAnswer") -> Iterator[str]:
    """Yield which versions host times and kernels are of, and whether planning ahead hides the host's work."""
    host = "assumed" if pool.fitted_to is None else f"fitted to servers of {pool.engine} {pool.fitted_to}"
    changed = "" if pool.constants_of == pool.fitted_to else f", with known changes up to {pool.constants_of}"
    yield f"  Host times: {host}{changed}"
    timed = None if pool.calibration is None else f"timed on {pool.calibration.replace('/', ' under ', 1)}"
    yield f"  Kernels: {pool.fitted_runs or timed or 'a plain roofline'}"
    if pool.experts is not None:
        yield f"  Experts: {pool.experts}"
    if pool.all_reduces is not None:
        yield f"  {pool.all_reduces[0].upper()}{pool.all_reduces[1:]}"
    if pool.hides_host:
        yield "  Steps: planned one ahead; the host's work hides behind kernels"
    else:
        planned = "planned one ahead" if pool.plans_ahead else "not planned ahead"
        yield f"  Steps: {planned}; the GPU waits for host times"
    yield from (f"  {note}" for note in pool.step_notes)
    yield f"  How sure: {pool.accuracy}"
    if pool.start is not None:
        yield f"  A start: {pool.start}"


def _exchange_lines(exchange: "ExchangeAnswer") -> Iterator[str]:
    by_batch, is_near = exchange.kernels in ("by_batch", "all_to_all"), exchange.n_nodes == 1
    edge = f"{exchange.low_latency_tokens} tokens a GPU"
    above, most = (f", {word} {edge}" if by_batch else "" for word in ("above", "up to"))
    link = f"{exchange.bytes_per_s / 1e9:,.4g} GB/s a GPU, {exchange.latency_s * 1e6:,.3g} us"
    where = "in one node" if is_near else f"over {exchange.n_nodes} nodes"
    over = f"\n  Experts {where} ({link}), {exchange.experts_per_gpu} on each GPU;"
    if exchange.kernels == "gather":
        yield f"{over} every GPU gets all tokens"
        yield "    (all-gather and reduce-scatter, each GPU with as many tokens as that with most)"
        return
    yield f"{over} a token goes"
    if exchange.kernels != "low_latency":
        far = "" if is_near else f"{exchange.far_nodes:.2f} other nodes, and there on to "
        nodes = f"to {far}its experts' {exchange.gpus:.2f} GPUs"
        yield f"    {nodes} (normal kernels{above})"
    if exchange.kernels != "normal":
        others = f"{exchange.far_experts:.2f} experts on other nodes and {exchange.near_experts:.2f} in its own"
        far = f"to {f'{exchange.near_experts:.2f} experts' if is_near else others}"
        yield f"    {far} (low-latency kernels{most})"


def _group_row(group: "KvGroupAnswer") -> tuple[str, ...]:
    kind = group.kind if group.window is None else f"{group.kind} {group.window:,}"
    return (
        f"draft, {kind}" if group.is_draft else kind,
        f"{group.n_layers} layers",
        f"{group.longest_bytes / 1e9:,.2f} GB",
    )


def _step_row(step: "TypicalStep", parts: Iterable[str]) -> tuple[str, ...]:
    decode = f"decode {step.n_requests} x {step.context_tokens:,} tokens"
    label = decode if step.phase == "decode" else f"prefill {step.n_tokens:,} tokens"
    total, *others = (f"{getattr(step, part) * 1e3:,.2f} ms" for part in parts)
    return (label, total, f"{step.tokens_per_s:,.0f}", *others)
