"""TensorRT-LLM reserves the model's longest answer where no max_tokens limits it: all that is printed says so."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simserve.report.headline import headline
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.summaries import summary_of

CAUSE = (
    r"ach request reserves 131,072 tokens of KV but uses about 8\d\d, so a replica holds 3 at once and others wait\. "
    r"Set workload\.max_tokens \(the longest answer has 1,\d\d\d tokens\), or set "
    r"capacity_scheduler_policy: max_utilization"
)
REPLICAS = re.compile("replicas|add capacity", re.IGNORECASE)


def chat(folder: Path, *sets: str) -> tuple[str, ...]:
    """Return the starter scenario, chat on one GPU, under TensorRT-LLM."""
    path = folder / "scenario.yaml"
    if not path.exists():
        invoke("init", path)
    every = ("engine=trtllm", "workload.arrivals.rate_per_s=2", "measure.replays=0", *sets)
    return (str(path), *(part for each in every for part in ("--set", each)))


def run(folder: Path, *sets: str) -> tuple[dict[str, Any], str, str]:
    """Return summary, answer and warnings of a run, the page left in `out`."""
    outcome = invoke("run", *chat(folder, *sets), "--out", folder / "out")
    return json.loads((folder / "out" / "summary.json").read_text()), outcome.out, outcome.err


def test_chat_on_one_gpu_waits_18_s_for_reserved_blocks_and_every_text_names_them(tmp_path: Path) -> None:
    summary, answer, warnings = run(tmp_path)
    assert f"{summary['ttft_s']['p50']:.0f}" == "18"
    first = answer.splitlines()[0]
    assert re.search(f"E{CAUSE}\\.$", first)
    assert not REPLICAS.search(first)
    assert re.search(f"warning: e{CAUSE}\n", warnings)
    assert re.search(f"    E{CAUSE}\n", invoke("explain", *chat(tmp_path)).out)
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count(" tokens of KV but uses about ") >= 2  # headline and warnings
    assert "use kv_dtype fp8 or more GPUs" not in page


def test_with_max_tokens_the_same_chat_waits_30_ms_and_nothing_is_said(tmp_path: Path) -> None:
    limited = "workload.max_tokens=2048"
    summary, answer, warnings = run(tmp_path, limited)
    assert f"{summary['ttft_s']['p50']:.2f}" == "0.03"
    texts = (answer, warnings, invoke("explain", *chat(tmp_path, limited)).out)
    assert not any("request reserves" in text for text in texts)
    assert summary["kv"]["reservation"] is None


def test_a_few_requests_do_not_bind_and_nothing_is_said(tmp_path: Path) -> None:
    few = "workload.n_requests=3", "measure.warmup_s=0"
    summary, answer, warnings = run(tmp_path, *few)
    texts = (answer, warnings, invoke("explain", *chat(tmp_path, *few)).out)
    assert not any("request reserves" in text for text in texts)
    assert summary["kv"]["reservation"] is None


def test_max_utilization_reserves_nothing(tmp_path: Path) -> None:
    policy = "cluster.pools.0.scheduler={kind: trtllm, capacity_scheduler_policy: max_utilization}"
    summary, answer, warnings = run(tmp_path, policy)
    assert summary["ttft_s"]["p50"] < 0.1
    assert not any(
        "request reserves" in text for text in (answer, warnings, invoke("explain", *chat(tmp_path, policy)).out)
    )


@pytest.mark.parametrize(
    "scheduler",
    ["{kind: continuous}", "{kind: static, batch_size: 32, stream: true}", "{kind: dynamic, batch_size: 32}"],
)
@pytest.mark.parametrize("limit", [None, 4000])
def test_every_scheduler_that_reserves_is_named_in_headline_cause_and_warning(
    tmp_path: Path, scheduler: str, limit: int | None
) -> None:
    """Blocks for 16,000 tokens hold four requests of at most 4,000; of 200 tokens they would hold 80."""
    load = {"arrivals": {"kind": "poisson", "rate_per_s": 20}, "n_requests": 300}
    load |= {"lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 100}, "max_tokens": limit}
    scenario = write_scenario(tmp_path, engine={"name": "vllm"}, workload=load)
    pool = (f"scheduler={scheduler}", "num_gpu_blocks=1000", "max_model_len=4000")
    every = [part for each in pool for part in ("--set", f"cluster.pools.0.{each}")]
    outcome = invoke("run", scenario, *every, "--out", tmp_path / "out", "--no-report")
    longest = "(the longest answer has 100 tokens)"
    act = "Set workload.max_tokens" if limit is None else "Lower workload.max_tokens or the trace's max_tokens"
    act = f"{act} {longest}"
    cause = "ach request reserves 4,000 tokens of KV but uses about 200, so a replica holds 4 at once and others wait"
    assert f"warning: e{cause}. {act}" in outcome.err
    assert f"E{cause}. {act}." in outcome.out.splitlines()[0]
    assert "replicas" not in outcome.out.splitlines()[0]
    assert f"E{cause}. {act}\n" in invoke("explain", scenario, *every).out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    changes: dict[str, Any]
    for changes in ({}, {"probability_beyond_capacity": 1.0}, {"slo": {}, "slo_classes": {}}):
        for queue in ("critical", "steady"):
            trust = summary["trust"] | {"steady": queue, "saturated": False}
            assert f"E{cause}. {act}." in headline(summary_of(summary | {"trust": trust, "answer": None} | changes))


def test_sglang_that_counts_on_longest_answers_is_named_too(tmp_path: Path) -> None:
    sets = ("engine=sglang", "cluster.pools.0.num_gpu_blocks=10000", "workload.arrivals.rate_per_s=4")
    _, answer, warnings = run(tmp_path, *sets)
    cause = r"ach request starts only where 4,\d\d\d tokens of KV are free but uses about 8\d\d, so a replica holds 3"
    act = r"Set workload\.max_tokens \(the longest .* tokens\), or set a lower clip_max_new_tokens_estimation"
    assert re.search(f"E{cause} at once and others wait. {act}\\.$", answer.splitlines()[0])
    assert re.search(f"warning: e{cause} at once and others wait. {act}\n", warnings)
    _, answer, warnings = run(tmp_path, *sets, "workload.max_tokens=1000")
    assert not any("starts only where" in text for text in (answer, warnings))
