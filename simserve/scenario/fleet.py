"""The sections of a fleet that changes: how replicas start and stop, what is scraped of them, and how they fail."""

from math import inf
from typing import Annotated, Literal

from numpy.random import Generator
from pydantic import Field

from simserve.catalog.types import Chance, Count, Name, Natural, NotNegative, Positive, Section
from simserve.units import LONGEST_S
from simserve.workload.amounts import DrawnSeconds, Time, seconds

SOURCES = {"disk": 1.7e9, "network": 1.25e9, "host_memory": 2.0e10}
"""[bytes/s] Rates at which a replica's weights are loaded. Disk: Llama-2-70B in 84 s and OPT-30B in 34 s from local
NVMe (ServerlessLLM, OSDI 2024). Network: 10 Gb/s, and host memory: a PCIe 4.0 link (assumed)."""

Instant = Annotated[float, Field(ge=0, le=LONGEST_S)]


class Weights(Section):
    """Where the weights of a starting replica come from."""

    source: Literal["disk", "network", "host_memory"] = Field("disk", alias="from")
    """`disk`: the machine's own; `network`: a store elsewhere; `host_memory`: a copy that a sleeping server keeps."""
    bytes_per_s: Annotated[float, Field(ge=1e6)] | None = None
    """[bytes/s] Rate at which all GPUs of a replica together read them; null: 1.7e9, 1.25e9 and 2e10."""
    shared_bytes_per_s: Annotated[float, Field(ge=1e6)] | None = None
    """[bytes/s] Rate of a store that replicas of all pools with this rate share while they load, those of a node unless
    from `network`; null: each has its own."""

    @property
    def own_rate(self) -> float:
        """[bytes/s] The most that a replica takes."""
        return self.bytes_per_s or SOURCES[self.source]

    @property
    def rate(self) -> float:
        """[bytes/s] The rate of a replica that loads alone."""
        return min(self.own_rate, self.shared_bytes_per_s or inf)


class Startup(Section):
    """The phases of a start, one after the other: seconds, or a distribution `{mean}` or `{median, sigma, max}`."""

    provision_s: Time = 0.0
    """[s] Until a machine with free GPUs is there; by default it is."""
    image_s: Time = 0.0
    """[s] To pull the image; by default the machine has it (79 s for vLLM's: vllm#48193)."""
    process_s: Time = 36.0
    """[s] From the start of the containers until weights are loaded: imports, workers, communicators (Qwen3-32B under
    vLLM: 40% of 90.7 s)."""
    weights: Weights = Weights()
    """Source of the weights; their time is their bytes by its rate."""
    compile_s: Time = 39.0
    """[s] To compile and to capture CUDA graphs (a model of 35B under vLLM)."""
    ready_probe_s: Time = 10.0
    """[s] Until a probe finds it ready and routers know (a probe every 10 s, as Kubernetes does by default)."""

    @property
    def phases(self) -> tuple[Time, ...]:
        """The times of all phases but weights; the first two are not for a restart where a replica was."""
        return self.provision_s, self.image_s, self.process_s, self.compile_s, self.ready_probe_s

    def draw(self, rng: Generator, *, in_place: bool) -> tuple[float, float, float]:
        """Draw one start: the seconds until its containers run, from then on until it loads weights, and after that."""
        provision_s, image_s, process_s, *later_s = (float(seconds(each, 1, rng)[0]) for each in self.phases)
        return 0.0 if in_place else provision_s + image_s, process_s, sum(later_s)

    def explained(self, weights_bytes: float) -> str:
        """Return the phases of a typical start in words, with the rate that weights are loaded at."""
        weights_s = weights_bytes / self.weights.rate
        source, gigabytes = self.weights.source.replace("_", " "), f"{weights_bytes / 1e9:.3g} GB"
        loaded = f"{weights_s:.3g} s to load {gigabytes} from {source} at {self.weights.rate / 1e9:.3g} GB/s"
        names = ("provisioning", "image", "process", "compilation", "probe")
        known = zip(names, map(_typical_s, self.phases), strict=True)
        parts = [loaded, *(f"{time_s:.3g} s {name}" for name, time_s in known if time_s)]
        return f"about {self.typical_s(in_place=False) + weights_s:.3g} s: {', '.join(parts)}"

    def typical_s(self, *, in_place: bool) -> float:
        """Return the seconds of a typical start, weights left out."""
        return sum(map(_typical_s, self.phases[2 * in_place :]))


def _typical_s(time: Time) -> float:
    """Return a fixed time, or the mean or median of a drawn one."""
    match time:
        case DrawnSeconds():
            return time.mean or time.median or 0.0
        case _:
            return float(time)


class Shutdown(Section):
    """What a replica that is told to leave does."""

    drain: bool = True
    """Whether it finishes the requests it has; else they are cut at once (vLLM without `--shutdown-timeout`)."""
    pre_stop_s: NotNegative = 0.0
    """[s] Time that it keeps its GPUs at least (Kubernetes `preStop`); requests go on meanwhile."""
    timeout_s: NotNegative | None = None
    """[s] Time after `pre_stop_s` after which the server cuts what is left (vLLM `--shutdown-timeout`, 45 in KServe's
    deployment); null: it waits for all."""
    grace_s: NotNegative | None = 30.0
    """[s] Time, `pre_stop_s` included, after which what is left is cut, a failed request each (Kubernetes
    `terminationGracePeriodSeconds`); null: never."""
    min_available: Natural | None = None
    """Fewest ready replicas that evictions from nodes leave (`minAvailable` of a PodDisruptionBudget); null: none."""
    max_unavailable: Natural | None = None
    """Most replicas that evictions leave missing or not ready (`maxUnavailable` of it); null: all."""

    @property
    def kills_at_s(self) -> float | None:
        """[s] When a replica dies from which others fetch keys and values since it was cut; None: it waits for them."""
        timeout_s = None if self.timeout_s is None else self.pre_stop_s + self.timeout_s
        cuts_first = self.grace_s is not None and (timeout_s is None or self.grace_s <= timeout_s)
        return None if self.drain and cuts_first else self.grace_s


class Spares(Section):
    """Replicas that stand by: for those that fail, on GPUs of their own, each replaced once used; or asleep."""

    warm: Natural = 0
    """Loaded: one takes the place of a failed replica as soon as the failure is known."""
    cold: Natural = 0
    """Machines only: a replica starts there without `provision_s` and `image_s`."""
    sleeping: Natural = 0
    """Most replicas that sleep once they are let go (vLLM `/sleep`, level 1), and wake before others start."""
    wake_s: NotNegative = 3.0
    """[s] Time to wake (Qwen3-32B: 1.5 to 5.1 s; 0.59 s in vllm#48193)."""
    holds_gpus: bool = True
    """Whether they keep their GPUs asleep; else others may have these, and one wakes once its own are free."""

    @property
    def n(self) -> int:
        """All that there are from the start."""
        return self.warm + self.cold


class Scrape(Section):
    """What autoscalers see: samples of each ready replica and of the gateway."""

    interval_s: Annotated[float, Field(ge=0.1, le=3600)] = 15.0
    """[s] Time between two samples (Prometheus `scrape_interval`)."""
    delay_s: Annotated[float, Field(ge=0, le=3600)] = 1.0
    """[s] Time until a sample can be read."""
    noise_frac: Chance = 0.0
    """[share] Standard deviation of a factor on each sample."""


class Event(Section):
    """Failures of one kind, at an instant or with a rate."""

    pool: Name | None = None
    """Pool of the replicas that fail; null: any."""
    at_s: Instant | None = None
    """[s] Instant of one failure; null: with `mtbf_s`."""
    member: Natural | None = None
    """Id of the replica that fails at `at_s`, or of one on the node or rack that does; null: the first that serves."""
    mtbf_s: Positive | None = None
    """[s] Mean time between failures of ONE such unit, exponential; null: with `at_s`."""


class Failure(Event):
    """Failures that end a replica."""

    what: Literal["process", "gpu", "node", "rack", "drain", "spot"]
    """`process`: the engine of a replica; `gpu`: one of its GPUs; `node` and `rack`: all replicas with a GPU there.
    `drain`: a node is emptied (`kubectl drain`); `spot`: it is reclaimed. Replicas leave it, and start elsewhere."""
    detect_s: Annotated[float, Field(ge=0, le=86_400)] = 10.0
    """[s] Time until the failure is known and a replacement begins to start. Until then routers send it requests, which
    wait, and fail with it."""
    notice_s: NotNegative = 120.0
    """[s] Time from the notice until a `spot` node is reclaimed, with what is left on it (AWS; Google, Azure: 30)."""
    repair_s: NotNegative | None = None
    """[s] Time from when a failure is known, or a node empty, until its GPUs are back in `gpu_budget`; null: others are
    there at once."""
    recover: Literal["restart", "none"] = "restart"
    """`restart`: a process starts again where it was, and what lost its GPUs on others; `none`: nothing does."""


class Passing(Event):
    """Failures that end nothing and are not detected: something has a part of its speed."""

    what: Literal["slow", "link"]
    """`slow`: all work of a replica, GPUs and host; `link`: ports of prefill and decode replicas, or of a `pool`."""
    speed_frac: Chance = 0.5
    """[share] Speed that is left; 0: the link is down, and transfers wait."""
    for_s: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None
    """[s] Time until all of it is back; null: never."""


AnyFailure = Annotated[Failure | Passing, Field(discriminator="what")]


class OnFailure(Section):
    """What becomes of the requests of a replica that fails."""

    clients: Literal["fail", "retry"] = "fail"
    """`retry`: the gateway sends requests once more of which no token was sent. All others fail for their clients, and
    these may try again by `workload.retries`."""
    migrate: Literal["none", "recompute", "with_kv"] = "none"
    """`recompute`: the gateway goes on elsewhere with requests of which tokens were sent: the new prompt is the prompt
    and these tokens. `with_kv`: those on a replica that leaves take their KV along over `kv_link`."""
    max_attempts: Annotated[int, Field(ge=2, le=100)] = 3
    """Most times that the gateway sends a request, with `retry` or `migrate`."""
    host_tier: Literal["lost", "kept"] = "lost"
    """`kept`: a server of its own has the prefixes in a replica's host memory, and finds them when the process is there
    again; `lost`: the process has them. A store of `scope: pool` outlives processes anyway."""


class PlacementSection(Section):
    """Where replicas are; they fill nodes in the order of joining."""

    gpus_per_node: Count | None = None
    """GPUs of a node; null: the card's."""
    nodes_per_rack: Count | None = None
    """Nodes of a rack; null: all are in one."""
