"""Ten small studies, run through the command line inside this process."""

from pathlib import Path
from typing import Any

from tests.cli.invoke import Outcome, invoke
from tests.cli.scenarios import write_scenario

COMMANDS = {
    "run": ("run {tiny} --out {out}",),
    "replications": ("run {tiny} --out {out} --replications 3",),
    "capacity_by_load": ("capacity {limited} --goal 0.9 --precision 0.5 --out {out}",),
    "capacity_by_replicas": ("capacity {tiny} --goal 0.9 --replicas serve --set {rate}=60 --out {out}",),
    "capacity_by_ratio": ("capacity {split} --goal 0.9 --precision 0.5 --ratio prefill:decode --out {out}",),
    "plan": ("plan {tiny} --gpu h100-sxm,h200-sxm --tensor 1,3 --spare 1 --growth 0.2 --set {rate}=8 --out {out}",),
    "sweep": ("sweep {tiny} --vary cluster.pools.0.replicas=1,2 --vary gpu=h100-sxm,l40s --out {out}",),
    "compare": ("compare {limited} {slower} --replications 2 --out {out}",),
    "check": (
        "check {limited} --goal 0.9 --baseline {out}.json --tolerance 0.5 --update",
        "check {limited} --baseline {out}.json --set {step}=0.001 --out {out} --summary {out}.md --junit {out}.xml "
        "--json",
    ),
    "export": (
        "export {run} {replications} {capacity_by_load} {capacity_by_replicas} {capacity_by_ratio} {compare} {plan} "
        "{sweep} --xlsx {out}.xlsx --csv {out}",
    ),
}
"""The command lines of each study. `{out}` is its folder, the name of another study that one's, which ran before."""

LENGTHS = {"kind": "fixed", "prompt_tokens": 256, "output_tokens": 6}
LOAD = {"arrivals": {"kind": "poisson", "rate_per_s": 30}, "lengths": LENGTHS, "n_requests": 60}
SLO = {"ttft_s": 0.1, "tpot_s": 0.03}
LIMIT = {"e2e_s": 0.12}
"""One criterion, so that a search has few loads to run."""
SHORT = {"rate": "workload.arrivals.rate_per_s", "step": "engine.exposed_step_s"}


def pool(name: str, role: str) -> dict[str, Any]:
    """Return a pool of one replica with two slots, so that a search for its limit is short."""
    scheduler = {"kind": "chunked", "max_num_batched_tokens": 2048, "max_num_seqs": 2}
    return {"name": name, "role": role, "replicas": 1, "parallel": {"tensor": 1}, "scheduler": scheduler}


def scenarios(folder: Path) -> dict[str, Path]:
    """Write the scenarios of the studies; return their files by name."""
    together = {"router": "round_robin", "pools": [pool("serve", "both")]}
    link = {"bytes_per_s": 50.0e9, "latency_s": 10.0e-6}
    pools = [pool("prefill", "prefill"), pool("decode", "decode")]
    changes: dict[str, dict[str, Any]] = {
        "tiny": {},
        "limited": {"slo": LIMIT},
        "slower": {"slo": LIMIT, "engine": {"name": "vllm", "exposed_step_s": 0.001}},
        "split": {"slo": LIMIT, "cluster": {"router": "round_robin", "pools": pools, "kv_link": link}},
    }
    files = {}
    for name, changed in changes.items():
        (folder / name).mkdir()
        usual = {"name": name, "cluster": together, "workload": LOAD, "slo": SLO}
        files[name] = write_scenario(folder / name, **usual | changed)
    return files


class Studies:
    """The studies that have run, in a folder of their own; each runs once, and those that it reads before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._scenarios = scenarios(folder)
        self._outcomes: dict[str, list[Outcome]] = {}

    def outcomes(self, study: str) -> list[Outcome]:
        """Return what came of each command of a study."""
        if study not in self._outcomes:
            words = [line.split() for line in COMMANDS[study]]
            for other in COMMANDS:
                if "{" + other + "}" in words[0]:
                    self.outcomes(other)
            self._outcomes[study] = [invoke(*(self._filled(word, study) for word in line)) for line in words]
        return self._outcomes[study]

    def files(self, study: str, ending: str) -> list[Path]:
        """Return the files that a study wrote, by name."""
        return sorted(file for file in self.folder.rglob(f"*{ending}") if self._is_of(file, study))

    def _is_of(self, file: Path, study: str) -> bool:
        return file.relative_to(self.folder).parts[0].partition(".")[0] == f"{study}-out"

    def _filled(self, word: str, study: str) -> str:
        places = {name: self.folder / f"{name}-out" for name in COMMANDS} | self._scenarios
        return word.format(out=places[study], **places, **SHORT)
