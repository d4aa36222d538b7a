"""Oracle: the same cluster stepped one step at a time, with plain loops over requests.

It shares with the engine only what defines the problem: policies, costs, and the fields of requests and views that
policies read; what these compute is counted again in oracle_view. It keeps every request's own context, every token's
own time, and calls the scheduler at every step boundary.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

from simserve.admission.base import Admission
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from simserve.engine.offered import Patience
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Delay
from simserve.engine.slowness import Window
from simserve.routers.base import Router
from simserve.state.request import Phase, Request
from simserve.units import to_ps
from simserve.workload.trace import Trace
from tests.oracle_cache import blocks_by_name
from tests.oracle_clients import OracleClients, Server
from tests.oracle_fleet import (
    MOVES,
    NEVER_PS,
    RESENDS,
    Change,
    OracleCarrier,
    OracleFleet,
    OracleMember,
    fresh,
    lost_with,
    tokens_of,
    whole,
)
from tests.oracle_gateway import OracleRoutingView
from tests.oracle_host import OracleStore
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
    members: list[OracleMember] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    n_computed: Counter[int] = field(default_factory=Counter)
    """Tokens that steps computed for each row, on all replicas to which it was sent."""
    n_failures: Counter[int] = field(default_factory=Counter)
    n_migrations: Counter[int] = field(default_factory=Counter)


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
        return self.out_ps[-1] + self.front_end.bootstrap_ps


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
    changes: Sequence[Change] | None = None,
    slow: Mapping[int, Sequence[Window]] | None = None,
    weak: Mapping[int, Sequence[Window]] | None = None,
) -> OracleRun:
    """Serve a trace step by step: at its own times, by a closed loop of clients, or after answers; changes: of the
    fleet, None for a fixed one; slow: when members take longer, by place; weak: when ports carry less, by pool."""
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
    if patience is None and (trace.dependencies is not None or concurrency is not None):
        sessions = turns
        asked_ps += [to_ps(float(sent_s)) for sent_s in trace.arrival_s]
    clients: OracleClients | None = None

    def done(row: int, now_ps: int) -> None:
        if clients is not None:
            clients.answered(row, now_ps)
        elif sessions is not None:
            sessions.answer(row, now_ps)

    fleet = OracleFleet(
        [(change.at_ps, change, None) for change in changes or ()], [fresh([each], 0) for each in setups]
    )
    replicas: list[OracleReplica] = []
    receivers: list[OracleReplica] = []
    senders: list[OracleReplica] = []
    stores: dict[str, OracleStore] = {}
    has_roles = any(setup.role != "both" for setup in setups)

    def order(setup: ReplicaSetup, now_ps: int, pool: int) -> OracleMember:
        ranks = replicas_of(setup, lives, done)
        for rank in ranks:
            rank.id = len(replicas)
            replicas.append(rank)
            if rank.host and rank.host.spec.store:
                rank.host.share(stores.setdefault(rank.host.spec.store, OracleStore()))
            is_shared = how is not None and how.link.is_shared
            if is_shared:
                rank.ports = rank.ports[:1] if rank is replicas[0] else replicas[0].ports
            rank.carrier = OracleCarrier((weak or {}).get(0 if is_shared else pool, ()))
            rank.slow = (slow or {}).get(len(fleet.members), ())
            if setup.role != "both":
                (receivers if setup.role == "decode" else senders).append(rank)
            elif how is not None and not has_roles:
                rank.adopts = True
                receivers.append(rank)
        fleet.members.append(OracleMember(setup, ranks, now_ps))
        return fleet.members[-1]

    for setup in setups:
        order(setup, 0, setup.pool).ready_ps = 0
    router.begin(Random(router_seed))
    both = [replica for replica in replicas if replica.setup.role == "both"]
    gateways = [OracleRoutingView(router, senders or both, delay)]
    fleet.views.append((("prefill",) if senders else ("both",), gateways[0]))
    local: OracleRoutingView | None = None
    if how is not None and has_roles:
        how.router.begin(Random(f"{router_seed}/decode"))
        gateways.append(OracleRoutingView(how.router, receivers, delay))
        fleet.views.append((("decode",), gateways[1]))

    if how is not None and how.splitter is not None:
        local = gateways[1]
        if both:
            local = OracleRoutingView(deepcopy(router), both, delay)
            local.router.begin(Random(f"{router_seed}/local"))
            gateways.append(local)
            fleet.views.append((("both",), local))

    def entries() -> list[OracleReplica]:
        """Return the replicas that receive requests."""
        return [*gateways[0].all_replicas, *(local.all_replicas if local else [])]

    first_entries = entries()

    def entry(request: Request) -> tuple[OracleReplica | None, bool]:
        """Return the destination of a request, and whether a prefill replica decodes it."""
        if not entries():
            return None, False
        if local is not None and how is not None and how.splitter is not None:
            where = how.splitter.where(request, gateways[0].all_views, local.all_views)
            return (local if where == "local" else gateways[0]).pick(request), where == "prefill"
        return entries()[0] if len(entries()) == 1 and changes is None else gateways[0].pick(request), False

    may_keep = how is not None and how.splitter is not None and how.splitter.keeps
    decoding_setups = [setup for setup in setups if setup.role == "decode"]

    def limit(replica: OracleReplica, is_kept: bool = False) -> int:
        """Return the limit on prompt plus output tokens, wherever they are decoded."""
        decodes = decoding_setups if replica.setup.role == "prefill" and not is_kept else [replica.setup]
        return min(each.max_model_len for each in decodes)

    longest_of_all = max(limit(each, is_kept) for each in first_entries for is_kept in ({False, may_keep}))
    failed: set[int] = set()
    carried: dict[int, int] = {}
    """The limit on the answers of requests that lost their replica and are sent again."""
    n_failures, n_migrations = Counter[int](), Counter[int]()
    departed: dict[int, Change] = {}
    """What let each row leave its replica with its keys and values."""
    admitted: set[int] = set()
    at_gateway: list[tuple[int, int]] = []
    """(row, the load's row) of requests that wait for a replica."""
    without_receiver: list[tuple[Request, OracleReplica]] = []
    """Requests that wait for a decode replica, and where they are."""

    def send(row: int, original: int, now_ps: int) -> str | None:
        prompt = int(trace.prompt_tokens[original])
        most = longest_of_all if trace.max_tokens is None else int(trace.max_tokens[original])
        before = by_row.get(row)
        n_sent = 0 if before is None else len(tokens_of(before))
        prompt, most = prompt + n_sent, most - n_sent
        if admission is not None and row not in admitted:
            if not entries():
                at_gateway.append((row, original))
                return None
            if admission.decide(OracleRequest(row, now_ps, prompt, most), entries(), now_ps):
                rejected.add(row)
                return "turned away"
            admitted.add(row)
        request = OracleRequest(row, now_ps, prompt, most)
        sizes = {replica.block_size for replica in replicas}
        request.chains = {} if trace.prefixes is None else {n: blocks_by_name(trace, original, n) for n in sizes}
        request.session = "" if trace.session_id is None else str(trace.session_id[original])
        request.priority = 0 if trace.priority is None else int(trace.priority[original])
        request.tenant = "" if trace.tenant is None else str(trace.tenant[original])
        sender, is_kept = entry(request)
        if sender is None:
            at_gateway.append((row, original))
            return None
        longest = limit(sender, is_kept)
        if prompt + 1 > min(longest, sender.setup.max_model_len) or sender.setup.scheduler.never_fits(prompt):
            if before is not None:
                give_up_lost(row, now_ps)
                return None
            rejected.add(row)
            return "impossible"
        request.max_tokens = min(most, longest - prompt)
        most_output = carried.get(row, int(trace.output_tokens[original])) - n_sent
        life = Life(request, min(most_output, request.max_tokens), replicas.index(sender))
        if before is not None:
            life.before, life.preempted_at_ps = before.before, before.preempted_at_ps
        life.is_kept = is_kept
        lives[request] = by_row[row] = life
        if how is not None and how.is_pushed and sender in senders and not is_kept:
            sender.n_outstanding += 1
            sender.without_blocks.append(request)
            announce(request, sender)
        else:
            sender.arrive(request)
        return None

    def announce(request: Request, sender: OracleReplica) -> None:
        """Let a decode replica know of a request, once there is one."""
        life = lives[request]
        life.goes_to = gateways[1 if has_roles else 0].pick(request)
        if life.migrates and not goes_on(request, sender):
            return
        if life.goes_to is None:
            without_receiver.append((request, sender))
            return
        life.goes_to.receive(request, sender)
        if how is not None and not how.is_pushed and not life.migrates:
            life.prefill_replica, life.replica = life.replica, replicas.index(life.goes_to)

    def goes_on(request: Request, sender: OracleReplica) -> bool:
        """Return whether a replica can use the keys and values of a request that left another one."""
        life, row = lives[request], request.row
        receiver = life.goes_to
        if (
            receiver is not None
            and receiver.setup.has_common_kv
            and sender.setup.has_common_kv
            and request.prompt_tokens + request.max_tokens <= receiver.setup.max_model_len
        ):
            n_failures[row] += 1
            n_migrations[row] += 1
            life.first_places = life.first_places or (life.replica, life.prefill_replica)
            life.replica = replicas.index(receiver)
            return True
        sender.leaving.remove(request)
        lose([request], departed[row], now_ps)
        return False

    def change_fleet(now_ps: int) -> None:
        """Let members join and leave, and send what waited for them."""
        is_any_ready = False
        while (due := fleet.due(now_ps)) is not None:
            change, member = due
            if change.kind == "shift":
                fleet.shift(change)
                continue
            if change.kind == "ready":
                member = fleet.members[change.which]
            ending = fleet.pick(change)
            if member is None and change.kind == "join":
                setup = fresh(fleet.setups, change.which)
                member = order(setup, now_ps, change.which if change.takes_ps == NEVER_PS else setup.pool)
                member.is_new = change.which >= len(fleet.setups)
                for rank, lost in zip(member.ranks, fleet.members[change.before].ranks, strict=False):
                    if change.before >= 0 and rank.host and lost.host and not lost.host.store:
                        rank.host.host, lost.host.host = lost.host.host, rank.host.host
                        rank.host.disk, lost.host.disk = lost.host.disk, rank.host.disk
                if change.takes_ps == NEVER_PS:
                    continue
                if change.takes_ps:
                    fleet.changes.append((now_ps + change.takes_ps, change, member))
                    continue
            if member is not None:
                if member.gone_ps is None:
                    fleet.let_in(member, now_ps)
                    is_any_ready = True
            elif ending is not None and change.kind == "freeze":
                for rank in ending.ranks:
                    rank.is_frozen, rank.frozen_ps = True, rank.step_end_ps or now_ps
            elif ending is not None and change.kind == "slow":
                for rank in ending.ranks:
                    rank.slow = [*rank.slow, (now_ps, now_ps + change.takes_ps, change.speed)]
            elif ending is not None and change.kind != "drain":
                fleet.shut(ending)
                if change.with_kv and ending.ready_ps is None:
                    ending.gone_ps = now_ps
                    continue
                if change.with_kv and ending.draining_ps is None:
                    ending.draining_ps = now_ps
                departing = depart(ending, change, now_ps)
                is_any_ready |= lose(lost_with(ending.ranks, senders, receivers, now_ps), change, now_ps)
                for request, rank in departing:
                    rank.leaving.append(request)
                is_any_ready |= bool(departing)
                without_receiver.extend(departing)
                ending.gone_ps = None if departing else now_ps
            elif ending is not None and change.kind == "drain" and ending.draining_ps is None:
                fleet.shut(ending)
                if ending.ready_ps is None:
                    ending.gone_ps = now_ps
                else:
                    ending.draining_ps = now_ps
        for routing_view in gateways:
            routing_view.hear(now_ps)
        if is_any_ready:
            release(now_ps)

    def depart(member: OracleMember, change: Change, now_ps: int) -> list[tuple[Request, OracleReplica]]:
        """Let decoding requests leave a member with their keys and values; return them, and where they were."""
        result: list[tuple[Request, OracleReplica]] = []
        for rank in member.ranks if change.with_kv and change.kind in MOVES else ():
            for request in [each for each in rank.running if each in rank.decoding] if rank.adopts else ():
                has_gone = clients is not None and clients.has_gone(request.row)
                if not has_gone and n_failures[request.row] + 1 < change.most_sends:
                    rank.depart(request, now_ps)
                    departed[request.row] = change
                    result.append((request, rank))
        return result

    def lose(lost: list[Request], change: Change, now_ps: int) -> bool:
        """Decide about lost requests; return whether one goes back to the gateway."""
        sent_ps = asked_ps if clients is None else clients.sent_ps
        are_back = False
        gone = {id(request) for request in lost}
        for replica in replicas:
            replica.leaving = [each for each in replica.leaving if id(each) not in gone]
        without_receiver[:] = [each for each in without_receiver if id(each[0]) not in gone]
        for request in sorted(lost, key=lambda each: (sent_ps[each.row], each.row)):
            life, row = lives[request], request.row
            request.phase = Phase.DONE
            if clients is not None and clients.has_gone(row):
                clients.of(row).has_left = True
                continue
            n_failures[row] += 1
            if n_failures[row] < change.most_sends and change.kind in (MOVES if tokens_of(life) else RESENDS):
                carried[row] = life.output_tokens + len(tokens_of(life.before))
                del by_row[row]
                if tokens_of(life):
                    n_migrations[row] += 1
                    by_row[row] = Life(request, 0, life.replica, before=life, preempted_at_ps=life.preempted_at_ps)
                original = row if clients is None else clients.of(row).original
                admitted.add(row)
                at_gateway.append((row, original))
                are_back = True
            else:
                give_up_lost(row, now_ps)
        return are_back

    def give_up_lost(row: int, now_ps: int) -> None:
        """Let a request fail that lost its replica."""
        failed.add(row)
        life = by_row[row]
        life.first_ps = client_tokens_ps(row)[0] if client_tokens_ps(row) else -1
        life.finish_ps = -1
        if clients is not None:
            clients.lose(row, now_ps)
        else:
            refuse(row, now_ps)

    def release(now_ps: int) -> None:
        unplaced = [*without_receiver]
        without_receiver.clear()
        for request, sender in unplaced:
            announce(request, sender)
        sent_ps = asked_ps if clients is None else clients.sent_ps
        held = sorted(at_gateway, key=lambda each: (sent_ps[each[0]], each[0]))
        at_gateway.clear()
        for row, original in held:
            if clients is not None:
                clients.release(row, now_ps)
            elif send(row, original, now_ps) is not None:
                refuse(row, now_ps)

    def refuse(row: int, now_ps: int) -> None:
        """Let a client know of a refusal."""
        if sessions is not None:
            sessions.refuse(row, now_ps)

    def leave(row: int, now_ps: int) -> bool:
        """Drop a routed request of a client that gave up."""
        if any(row == each for each, _ in at_gateway):
            at_gateway[:] = [each for each in at_gateway if each[0] != row]
            if row in by_row:
                first_ps = client_tokens_ps(row)[0]
                by_row[row].first_ps = first_ps if first_ps + front_end.respond_ps <= now_ps else -1
                by_row[row].finish_ps = -1
            return True
        life = by_row[row]
        if life.first_ps is None:
            token_ps = tokens_of(life)
            first_ps = token_ps[0] + front_end.respond_ps if token_ps else now_ps + 1
            has_first = first_ps <= now_ps and replicas[life.replica].setup.scheduler.stream
            life.first_ps = token_ps[0] if has_first else -1
            life.finish_ps = -1
        held = [each for each in without_receiver if each[0] is life.request]
        if held and replicas[life.replica].step is None:
            without_receiver.remove(held[0])
            replicas[life.replica].leave_before_hand_over(life)
            return True
        return replicas[life.replica].let_leave(life.request, now_ps, how)

    def client_tokens_ps(row: int) -> list[int]:
        """Return the client's token times; whole answers come when they are finished."""
        life = by_row.get(row)
        if life is None:
            return []
        return tokens_of(life) if replicas[life.replica].setup.scheduler.stream or life.finish_ps >= 0 else []

    def unplaced_life(row: int) -> Life:
        """Return the record of a request that no replica has."""
        return Life(OracleRequest(row, 0, 0, 0), 0, first_ps=-1)

    def count_computed() -> Counter[int]:
        """Return the tokens computed for each row; what was computed before it was sent again is computed anew."""
        n_computed = Counter[int]()
        for request, life in lives.items():
            n_computed[request.row] += life.n_computed
            last = by_row.get(request.row)
            if last is not None and last is not life:
                last.n_recomputed_tokens += life.n_computed
        return n_computed

    def hand_over(now_ps: int, *, is_pushed: bool) -> None:
        """Route computed prompts; those pushed have begun to move in their step."""
        for replica in senders:
            while replica.handed_over and how is not None and how.is_pushed == is_pushed:
                request = replica.handed_over.pop(0)
                life = lives[request]
                if life.goes_to is None:
                    announce(request, replica)
                    continue
                at_ps = life.there_ps or life.goes_to.send_whole(request, replica, how.link, now_ps)
                life.goes_to.expect(at_ps, request, replica)
                life.prefill_replica, life.replica = life.replica, replicas.index(life.goes_to)

    if admission is not None:
        admission.begin()
    if patience is not None:
        server = Server(send, client_tokens_ps, leave)
        clients = OracleClients(trace, turns, patience, door.enter, front_end.respond_ps, server)
    else:
        for sent_s in trace.arrival_s:
            ask(to_ps(float(sent_s)))
    now_ps = -1
    while True:
        instants = [t for r in replicas for t in (r.step_end_ps, r.wake_ps) if t is not None]
        instants += [at_ps for at_ps, _ in coming[:1]] + (sessions.instants() if sessions is not None else [])
        instants += [replica.in_transfer[0][0] for replica in receivers if replica.in_transfer]
        instants += [replica.words[0][0] for replica in receivers if replica.words]
        instants += [at_ps for at_ps, *_ in fleet.changes]
        instants += [part[0] for replica in senders for part in replica.stage_sends]
        instants += [read.end_ps for replica in replicas if replica.host for read in replica.host.ahead if read.end_ps]
        instants += [copies.end_ps for store in stores.values() for copies in store.copies if copies.end_ps]
        if clients is not None:
            instants += [at_ps for at_ps in clients.instants() if at_ps > now_ps]
        if not instants:
            if clients is not None:
                asked_ps = clients.sent_ps
                for row in {each.row for each in clients.attempts} - by_row.keys() - rejected:
                    by_row[row] = unplaced_life(row)  # timed out before it reached a replica
            for row in {row for row, _ in at_gateway} - by_row.keys():
                by_row[row] = unplaced_life(row)
            computed = count_computed()
            lives_of = {row: whole(life, is_pushed=how is not None and how.is_pushed) for row, life in by_row.items()}
            ended = (replicas, asked_ps, clients, fleet.members, failed, computed, n_failures, n_migrations)
            return OracleRun(lives_of, rejected, *ended)
        now_ps = min(instants)
        for routing_view in gateways:
            routing_view.hear(now_ps - 1)
        for replica in replicas:
            if how is not None:
                replica.send_stages(how.link, now_ps)
            if replica.step_end_ps == now_ps:
                replica.commit(now_ps, how)
        for replica in receivers:
            replica.end_transfers(now_ps)
        hand_over(now_ps, is_pushed=True)
        for replica in replicas:
            if replica.host:
                replica.host.end_ahead(replica, now_ps)
        for store in stores.values():
            store.end_copies(now_ps)
        change_fleet(now_ps)
        hand_over(now_ps, is_pushed=False)
        words = sorted((word for replica in receivers for word in replica.words), key=lambda word: word[0])
        for at_ps, request, sender in words:
            if at_ps == now_ps:
                sender.without_blocks.remove(request)
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
            if send(row, row, now_ps) is not None:
                refuse(row, now_ps)
        if clients is not None:
            clients.act(now_ps)
        for replica in replicas:
            if replica.must_plan or replica.wake_ps == now_ps:
                begin_together(replica.group, now_ps, how)
        fleet.note_gone(now_ps)
