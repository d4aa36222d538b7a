"""Oracle: the same cluster stepped one step at a time, with plain loops over requests.

It shares with the engine only what defines the problem: policies, costs, and the fields of requests and views that
policies read; what these compute is counted again in oracle_view. It keeps every request's own context, every token's
own time, and calls the scheduler at every step boundary.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random

from simserve.admission.base import Admission
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from simserve.engine.offered import Patience
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Delay
from simserve.routers.base import Router
from simserve.state.request import Request
from simserve.units import to_ps
from simserve.workload.trace import Trace
from tests.oracle_cache import blocks_by_name
from tests.oracle_clients import OracleClients, Server
from tests.oracle_gateway import OracleRoutingView
from tests.oracle_replica import Life, OracleReplica, begin_together, replicas_of
from tests.oracle_sessions import OracleSessions
from tests.oracle_view import OracleRequest


@dataclass
class OracleRun:
    """Record of an oracle run."""

    lives: dict[int, Life]
    rejected: set[int]
    replicas: list[OracleReplica]
    sent_ps: list[int]
    """Send time of each request, by row."""
    clients: OracleClients | None = None


class OracleFrontEndQueue:
    """Front end: servers that each take in one request at a time, and release them in order."""

    def __init__(self, front_end: FrontEnd) -> None:
        self.front_end = front_end
        self.free_at_ps = [0] * front_end.n_servers
        self.out_ps: list[int] = []

    def enter(self, sent_ps: int, prompt_tokens: int) -> int:
        server = self.free_at_ps.index(min(self.free_at_ps))
        begin_ps = max(sent_ps, self.free_at_ps[server])
        self.free_at_ps[server] = begin_ps + self.front_end.receive_ps + self.front_end.token_ps * prompt_tokens
        self.out_ps.append(max([self.free_at_ps[server], *self.out_ps]))
        return self.out_ps[-1]


def run(
    setups: Sequence[ReplicaSetup],
    router: Router,
    trace: Trace,
    router_seed: int = 0,
    concurrency: int | None = None,
    front_end: FrontEnd | None = None,
    how: Disaggregation | None = None,
    delay: Delay | None = None,
    stop_ps: int | None = None,
    patience: Patience | None = None,
    admission: Admission | None = None,
    n_timed: int = 0,
) -> OracleRun:
    """Serve a trace step by step: at its own times, by a closed loop of clients, or after answers."""
    lives: dict[Request, Life] = {}
    by_row: dict[int, Life] = {}
    rejected: set[int] = set()
    front_end = front_end or FrontEnd()
    door = OracleFrontEndQueue(front_end)
    coming: list[tuple[int, int]] = []
    asked_ps: list[int] = []

    def ask(sent_ps: int) -> None:
        row = len(asked_ps)
        if row < len(trace):
            coming.append((door.enter(sent_ps, int(trace.prompt_tokens[row])), row))
            asked_ps.append(sent_ps)

    sessions: OracleSessions | None = None
    turns = OracleSessions(trace, concurrency, front_end.respond_ps, stop_ps, n_timed)
    if patience is None and (trace.dependencies is not None or n_timed):
        sessions = turns
        asked_ps += [to_ps(float(sent_s)) for sent_s in trace.arrival_s]
    clients: OracleClients | None = None

    def done(row: int, now_ps: int) -> None:
        if clients is not None:
            clients.answered(row, now_ps)
        elif sessions is not None:
            sessions.answer(row, now_ps)
        elif concurrency is not None:
            ask(now_ps + front_end.respond_ps)

    replicas = [rank for setup in setups for rank in replicas_of(setup, lives, done)]
    if how is not None and how.link.is_shared:
        for replica in replicas:
            replica.port = replicas[0].port
    for index, replica in enumerate(replicas):
        replica.id = index
    router.begin(Random(router_seed))
    receivers = [replica for replica in replicas if replica.setup.role == "decode"]
    both = [replica for replica in replicas if replica.setup.role == "both"]
    senders = [replica for replica in replicas if replica.setup.role == "prefill"]
    gateways = [OracleRoutingView(router, senders or both, delay)]
    local: OracleRoutingView | None = None
    if how is not None:
        how.router.begin(Random(f"{router_seed}/decode"))
        gateways.append(OracleRoutingView(how.router, receivers, delay))

    if how is not None and how.splitter is not None:
        local = gateways[1]
        if both:
            local = OracleRoutingView(deepcopy(router), both, delay)
            local.router.begin(Random(f"{router_seed}/local"))
            gateways.append(local)
    entries = [*gateways[0].replicas, *(local.replicas if local else [])]

    def entry(request: Request) -> tuple[OracleReplica, bool]:
        """Return the destination of a request, and whether a prefill replica decodes it."""
        if local is not None and how is not None and how.splitter is not None:
            where = how.splitter.where(request, gateways[0].views, local.views)
            return (local if where == "local" else gateways[0]).pick(request), where == "prefill"
        return entries[0] if len(entries) == 1 else gateways[0].pick(request), False

    may_keep = how is not None and how.splitter is not None and how.splitter.keeps

    def limit(replica: OracleReplica, is_kept: bool = False) -> int:
        """Return the limit on prompt plus output tokens, wherever they are decoded."""
        decodes = receivers if replica.setup.role == "prefill" and not is_kept else [replica]
        return min(each.setup.max_model_len for each in decodes)

    def send(row: int, original: int, now_ps: int) -> str | None:
        prompt = int(trace.prompt_tokens[original])
        longest = max(limit(each, is_kept) for each in entries for is_kept in ({False, may_keep}))
        most = longest if trace.max_tokens is None else int(trace.max_tokens[original])
        if admission is not None and admission.decide(OracleRequest(row, now_ps, prompt, most), entries, now_ps):
            rejected.add(row)
            return "turned away"
        request = OracleRequest(row, now_ps, prompt, most)
        sizes = {replica.block_size for replica in replicas}
        request.chains = {} if trace.prefixes is None else {n: blocks_by_name(trace, original, n) for n in sizes}
        request.session = "" if trace.session_id is None else str(trace.session_id[original])
        request.priority = 0 if trace.priority is None else int(trace.priority[original])
        request.tenant = "" if trace.tenant is None else str(trace.tenant[original])
        sender, is_kept = entry(request)
        longest = limit(sender, is_kept)
        if prompt + 1 > min(longest, sender.setup.max_model_len) or sender.setup.scheduler.never_fits(prompt):
            rejected.add(row)
            return "impossible"
        request.max_tokens = min(most, longest - prompt)
        life = Life(request, min(int(trace.output_tokens[original]), request.max_tokens), replicas.index(sender))
        life.is_kept = is_kept
        lives[request] = by_row[row] = life
        if how is not None and how.is_pushed and sender in senders and not is_kept:
            sender.n_outstanding += 1
            life.goes_to = gateways[1].pick(request)
            life.goes_to.receive(request, sender)
        else:
            sender.arrive(request)
        return None

    def leave(row: int, now_ps: int) -> bool:
        """Drop a routed request of a client that gave up."""
        life = by_row[row]
        if life.first_ps is None:
            first_ps = life.token_ps[0] + front_end.respond_ps if life.token_ps else now_ps + 1
            has_first = first_ps <= now_ps and replicas[life.replica].setup.scheduler.stream
            life.first_ps = life.token_ps[0] if has_first else -1
            life.finish_ps = -1
        return replicas[life.replica].let_leave(life.request, now_ps, how)

    def client_tokens_ps(row: int) -> list[int]:
        """Return the client's token times; whole answers come when they are finished."""
        life = by_row.get(row)
        if life is None:
            return []
        return life.token_ps if replicas[life.replica].setup.scheduler.stream or life.finish_ps >= 0 else []

    if admission is not None:
        admission.begin()
    if patience is not None:
        server = Server(send, client_tokens_ps, leave)
        clients = OracleClients(trace, turns, patience, door.enter, front_end.respond_ps, server)
    else:
        for sent_s in trace.arrival_s if concurrency is None else [0.0] * concurrency:
            ask(to_ps(float(sent_s)))
    now_ps = -1
    while True:
        instants = [t for r in replicas for t in (r.step_end_ps, r.wake_ps) if t is not None]
        instants += [at_ps for at_ps, _ in coming[:1]] + (sessions.instants() if sessions is not None else [])
        instants += [replica.in_transfer[0][0] for replica in receivers if replica.in_transfer]
        instants += [replica.words[0][0] for replica in receivers if replica.words]
        if clients is not None:
            instants += [at_ps for at_ps in clients.instants() if at_ps > now_ps]
        if not instants:
            if clients is not None:
                asked_ps = clients.sent_ps
                for row in {each.row for each in clients.attempts} - by_row.keys() - rejected:
                    by_row[row] = Life(
                        OracleRequest(row, 0, 0, 0), 0, first_ps=-1
                    )  # timed out before it reached a replica
            return OracleRun(by_row, rejected, replicas, asked_ps, clients)
        now_ps = min(instants)
        for routing_view in gateways:
            routing_view.hear(now_ps - 1)
        for replica in replicas:
            if replica.step_end_ps == now_ps:
                replica.commit(now_ps, how)
        for replica in receivers:
            replica.end_transfers(now_ps)
        for routing_view in gateways:
            routing_view.hear(now_ps)
        for replica in senders:
            while replica.handed_over and how is not None:
                request = replica.handed_over.pop(0)
                life = lives[request]
                if life.goes_to is None:
                    life.goes_to = gateways[1].pick(request)
                    life.goes_to.receive(request, replica)
                else:
                    at_ps = life.there_ps or life.goes_to.send_whole(request, replica, how.link, now_ps)
                    life.goes_to.expect(at_ps, request, replica)
                life.prefill_replica, life.replica = life.replica, replicas.index(life.goes_to)
        words = sorted((word for replica in receivers for word in replica.words), key=lambda word: word[0])
        for at_ps, request, sender in words:
            if at_ps == now_ps:
                sender.n_outstanding -= 1
                sender.arrive(request)
        for replica in receivers:
            replica.words = [word for word in replica.words if word[0] > now_ps]
        while True:
            for row in sessions.send(now_ps) if sessions is not None else []:
                asked_ps[row] = now_ps
                coming.append((door.enter(now_ps, int(trace.prompt_tokens[row])), row))
            if not coming or coming[0][0] > now_ps:
                break
            row = coming.pop(0)[1]
            if send(row, row, now_ps) is None:
                continue
            if sessions is not None:
                sessions.refuse(row, now_ps)
            elif concurrency is not None:
                ask(now_ps)
        if clients is not None:
            clients.act(now_ps)
        for replica in replicas:
            if replica.must_plan or replica.wake_ps == now_ps:
                begin_together(replica.group, now_ps, how)
