"""Dtypes that make steps slower than bf16 are named, with both times and what is faster; no others are."""

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from simserve.cost.model import StepShape, shape_ps
from simserve.errors import SimserveError
from simserve.explain.explain import explain
from simserve.scenario import Scenario
from simserve.scenario.cost_warnings import warnings
from simserve.scenario.setup import PoolSetup
from simserve.scenario.typical_steps import SLOWER, slow_dtypes
from simserve.units import to_s
from tests.cli.invoke import invoke
from tests.effort import examples

Load = Callable[..., Scenario]

FP8 = "weight_dtype fp8 of qwen3-30b-a3b on h200-sxm is slower than bf16 in all decode steps: "
NUMBERS = "32 x 1,024 tokens take 50.9 ms, with bf16 16.6 ms. Set weight_dtype: fp8_block (11.6 ms)"


def qwen(dtype: str) -> tuple[str, ...]:
    """Return the overrides of the issue's pool."""
    return "model=qwen3-30b-a3b", "gpu=h200-sxm", f"weight_dtype={dtype}"


def test_fp8_experts_on_hopper_are_slower_than_bf16_and_fp8_block_is_named(load: Load, small: str) -> None:
    for dtype, time in (("fp8", "50.9"), ("bf16", "16.6"), ("fp8_block", "11.6")):
        (pool,) = explain(load(small, *qwen(dtype))).pools
        (decode,) = [step for step in pool.steps if (step.phase, step.n_requests) == ("decode", 32)]
        assert f"{decode.duration_s * 1e3:.1f}" == time
        assert pool.slow_dtypes == warnings(load(small, *qwen(dtype)).setups)
        assert (FP8 + NUMBERS in pool.slow_dtypes) == (dtype == "fp8")
        assert bool(pool.slow_dtypes) == (dtype == "fp8")


def test_explain_and_run_say_so(load: Load, small: str) -> None:
    load(small)
    sets = [part for each in qwen("fp8") for part in ("--set", each)]
    assert f"    W{FP8[1:]}{NUMBERS}\n" in invoke("explain", "a.yaml", *sets).out
    quick = ("--set", "measure={replays: 0}", "--set", "workload.n_requests=20", "--no-report")
    assert f"warning: {FP8}{NUMBERS}\n" in invoke("run", "a.yaml", *sets, *quick).err


CARDS = [
    ("h200-sxm", "vllm"),
    ("h100-sxm", "sglang"),
    ("h100-sxm", "trtllm"),
    ("a100-sxm", "vllm"),
    ("b200-sxm", "vllm"),
    ("l40s", "vllm"),
    ("mi300x", "sglang"),
    ("h100-sxm", "ideal"),
]
DTYPES = ("bf16", "fp16", "fp8", "fp8_block", "w8a8", "int8", "int4", "mxfp4", "nvfp4")
MODELS = ("qwen3-30b-a3b", "llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "llama-3.2-1b")


def step_ms(setup: PoolSetup, n: int, prompt_tokens: int) -> float:
    """Return the duration of a decode step of n requests of 1,024 tokens, or of a prompt."""
    pairs = prompt_tokens * (prompt_tokens + 1) // 2
    prompt = StepShape(prompt_tokens, prefill_pairs=pairs, prefill_context_tokens=prompt_tokens, sampled_rows=1)
    cost = setup.step_cost()
    shape = prompt if prompt_tokens else StepShape(decode_requests=n, kv_tokens=1024 * n, sampled_rows=n)
    return to_s(max(shape_ps(cost, shape), cost.host_ps(shape.sampled_rows))) * 1e3


def ratio(setup: PoolSetup, key: str, shape: tuple[int, int]) -> tuple[float, float]:
    """Return the duration of a step, and its ratio to that with bf16 in place of one dtype."""
    plain = replace(setup, weight_dtype="bf16") if key == "weight_dtype" else replace(setup, kv_dtype="bf16")
    own_ms = step_ms(setup, *shape)
    return own_ms, own_ms / step_ms(plain, *shape)


@pytest.mark.parametrize("seed", range(12))
def test_no_slower_step_goes_unsaid_and_no_other_is_said(load: Load, small: str, seed: int) -> None:
    random = Random(seed)
    for _ in range(examples(40)):
        gpu, engine = random.choice(CARDS)
        sets = {"gpu": gpu, "engine": engine, "model": random.choice(MODELS)}
        sets |= {"weight_dtype": random.choice(DTYPES), "kv_dtype": random.choice(("bf16", "fp8"))}
        sets["cluster.pools.0.parallel.tensor"] = random.choice("12")
        try:
            (setup,) = load(small, *(f"{name}={value}" for name, value in sets.items())).setups
        except SimserveError:
            continue  # the card lacks the dtype's rate, or memory for the model
        texts = slow_dtypes(setup)
        most = min(setup.ledger.lane_tokens // 1024, setup.scheduler.max_running or 512, 512)
        for key in ("weight_dtype", "kv_dtype"):
            for phase, shape in (("decode steps", (random.randint(1, most), 0)), ("prefills", (0, 2048))):
                _, slower = ratio(setup, key, shape)
                own = [text for text in texts if text.startswith(key) and f" {phase}: " in text]
                assert len(own) >= (slower > SLOWER), (sets, key, shape, slower)
                for text in own:
                    check(setup, key, text)


def check(setup: PoolSetup, key: str, text: str) -> None:
    """Check the numbers of a sentence against those of its step, computed anew."""
    said = re.search(r": ([\d,]+)( x 1,024)? tokens take ([\d,.]+) ms, with bf16 ([\d,.]+) ms\. ", text)
    assert said is not None, text
    n = int(said[1].replace(",", ""))
    own_ms, slower = ratio(setup, key, (n, 0) if said[2] else (0, n))
    assert slower > SLOWER, text
    for number, value_ms in ((said[3], own_ms), (said[4], own_ms / slower)):
        assert float(number.replace(",", "")) == pytest.approx(value_ms, rel=0.005), text
    assert max(len(sentence.split()) for sentence in text.split(". ")) <= 30, text


@pytest.mark.parametrize(
    ("sets", "remedy"),
    [
        (("gpu=h200-sxm", "model=qwen3-30b-a3b", "weight_dtype=w8a8"), "Set weight_dtype: fp8_block (11.6 ms)"),
        (("engine=trtllm", "weight_dtype=fp8_block"), "Set weight_dtype: fp8 ("),
        (("gpu=b200-sxm", "model=qwen3-30b-a3b", "weight_dtype=int4"), "nvfp4 takes 2.53 ms, in 1.1 times the memory"),
        (("gpu=l40s", "kv_dtype=fp8", "weight_dtype=fp8", "model=qwen3-30b-a3b"), " ms, in 2 times the memory"),
    ],
)
def test_the_remedy_is_the_fastest_timed_dtype_and_its_memory(
    load: Load, small: str, sets: tuple[str, ...], remedy: str
) -> None:
    assert any(remedy in text for text in slow_dtypes(load(small, *sets).setups[0]))
