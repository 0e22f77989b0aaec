"""Workers that take local steps at their pace, and a server that steps when their messages arrive.

    w_i   <- w_i - gamma grad f(w_i)              H_i times, by the worker's optimizer
    G      = theta_read - w_i                     is sent
    theta <- theta - eta V(G)
    w_i   <- theta,  theta_read <- theta

Workers and their clock are those of `workers.py`. In `async_local_sgd` theta moves with each
message, in `decoupled` when the messages of K learners are there.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from optdyn.base import seeds
from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.base.trees import Array, Tree
from optdyn.clock.arrivals import availability_of, queued_arrivals, renewal_arrivals
from optdyn.clock.network import to_server
from optdyn.clock.timeline import Timeline, WorkerStep, from_arrivals
from optdyn.clock.trace import RecordedTrace
from optdyn.clock.versions import Exchanges
from optdyn.core import Batch, Event, Gradient, Info, Params, Rule, Update, relative_spread, where
from optdyn.methods.averaging import fragment_bytes, join_fragments, nesterov, split_fragments
from optdyn.methods.messages import size, weighted_mean
from optdyn.methods.method import (
    FRACTION,
    ClockInputs,
    Fragmented,
    MethodStack,
    OuterMomentum,
    Periodic,
    Servers,
)
from optdyn.methods.setup import Setup
from optdyn.methods.workers import (
    LocalResult,
    Table,
    WorkerMethod,
    local_step,
    local_steps,
    put,
    round_trip_bytes,
    row,
    table,
)

StepNumbers = Mapping[str, Array]  # the `numbers` of a `WorkerStep`


class ServerState(NamedTuple):
    """The state of a server beside theta; a server is `(G, state, numbers) -> V, state`."""

    momentum: Params  # m
    gathered: Params  # Delta
    optimizer: Tree  # the state of an optax optimizer, or ()


def weighted(message: Params, c: StepNumbers) -> Params:
    if "weight" not in c:
        return message
    return jax.tree.map(lambda g: (c["weight"] * g).astype(g.dtype), message)


def delayed_nesterov(G: Params, state: ServerState, c: StepNumbers) -> tuple[Params, ServerState]:
    """Returns delayed Nesterov's step (`AsyncLocalSGD`), with `momentum_part` of b m in V."""
    G, b, n, turn, part = weighted(G, c), c["decay"], c["delay"], c["turn"], c["momentum_part"]
    total = jax.tree.map(jnp.add, state.gathered, G)
    m = jax.tree.map(lambda m, d: jnp.where(turn, b * m + d / n, m), state.momentum, total)
    step = jax.tree.map(lambda m, g: part * b * m + g / n, m, G)
    return step, ServerState(m, jax.tree.map(lambda d: jnp.where(turn, 0.0, d), total), ())


def adam(G: Params, state: ServerState, c: StepNumbers) -> tuple[Params, ServerState]:
    """Returns the step of Adam with first decay b along the weighted G (CGAD, arXiv 2605.09126)."""
    step, optimizer = optax.scale_by_adam(b1=c["decay"]).update(weighted(G, c), state.optimizer)
    return step, state._replace(optimizer=optimizer)


TINY = 1e-12  # beside norms


def turn_to_momentum(message: Params, momentum: Params, aligned: Array, strength: Array) -> Params:
    """Returns HeLoCo's message: each array D turned toward the momentum m, c the cosine of both.

        D <- D                                             c >= c_ok
        D <- |D| u / |u|,  u = (1 - l) D/|D| + l m/|m|     0 <= c < c_ok,   l = min(k (1 - c) f, 1)
        D <- D - b c |D| m/|m|                             c < 0,           b = min(-k c f, 1)
        f  = |D| / (|D| + |m|)                             the confidence

    `aligned` is c_ok, `strength` k. With c_ok = -1, and where m is 0, D stays as it is.
    """

    def one(d: jax.Array, m: jax.Array) -> jax.Array:
        size, length = jnp.linalg.norm(d.reshape(-1)), jnp.linalg.norm(m.reshape(-1))
        towards = m / (length + TINY)
        c = jnp.sum(d * towards) / (size + TINY)
        confidence = size / (size + length + TINY)
        part = jnp.minimum(strength * (1 - c) * confidence, 1)
        u = (1 - part) * d / (size + TINY) + part * towards
        tilted = size * u / (jnp.linalg.norm(u.reshape(-1)) + TINY)
        shrunk = d - jnp.minimum(-strength * c * confidence, 1) * c * size * towards
        unchanged = (c >= aligned) | (length == 0)
        return jnp.where(unchanged, d, jnp.where(c < 0, shrunk, tilted)).astype(d.dtype)

    return jax.tree.map(one, message, momentum)


def heloco(D: Params, state: ServerState, c: StepNumbers) -> tuple[Params, ServerState]:
    """Returns HeLoCo's D + mu m, m <- mu m + (1 - mu) D (Al Asif et al., arXiv 2606.00271)."""
    mu = c["decay"]
    D = weighted(turn_to_momentum(D, state.momentum, c["aligned"], c["strength"]), c)
    m = jax.tree.map(lambda m, d: mu * m + (1 - mu) * d, state.momentum, D)
    return jax.tree.map(lambda m, d: d + mu * m, m, D), state._replace(momentum=m)


SERVERS = {"nesterov": delayed_nesterov, "adam": adam, "heloco": heloco}


class AsyncLocalSGDState(NamedTuple):
    params: Params  # theta
    server: ServerState
    workers: Table  # w_i
    read: Table  # theta_read
    opt_state: Table  # the workers' optimizer states
    newest: jax.Array  # int32, the worker that has just read theta, or the number of workers

    def moved_to(self, params: Params) -> "AsyncLocalSGDState":
        """Returns the state with another theta, also for the worker that has just read it."""
        workers, read = put((self.workers, self.read), self.newest, (params, params))
        return self._replace(params=params, workers=workers, read=read)

    def read_slot(self, worker: int) -> tuple[Params, Tree]:
        return row((self.workers, self.opt_state), worker)

    def logged(self) -> dict[str, float]:
        return {"worker_distance": relative_spread(self.workers)}


def async_local_sgd(
    gradient: Gradient, update: Update, workers: int, server: str = "nesterov"
) -> Rule[AsyncLocalSGDState]:
    """Returns the rule of a table of `workers`; `server` is one of `SERVERS`.

    `event.plan` is a `WorkerStep` with the numbers `rate`, eta; `decay`, b; those of the server;
    and a `weight` of G, unless it is 1.
    """
    local, serve = local_step(gradient, update), SERVERS[server]

    def init(params: Params) -> AsyncLocalSGDState:
        zeros, nobody = jax.tree.map(jnp.zeros_like, params), jnp.int32(workers)
        copies, opt_state = table((params, update.init(params)), workers)
        optimizer = optax.scale_by_adam().init(params) if server == "adam" else ()
        first = ServerState(zeros, zeros, optimizer)
        return AsyncLocalSGDState(params, first, copies, copies, opt_state, nobody)

    def step(
        state: AsyncLocalSGDState, event: Event, batch: Batch
    ) -> tuple[AsyncLocalSGDState, Info]:
        i, exchange, c = event.plan
        theta, before, tables = state.params, state.server, state[2:5]
        w, read, opt_state = row(tables, i)
        loss, w, opt_state, _ = local(w, opt_state, event, batch)
        outer, after = serve(jax.tree.map(jnp.subtract, read, w), before, c)
        moved = jax.tree.map(lambda x, v: x - c["rate"] * v, theta, outer)
        theta, after = where(exchange, (moved, after), (theta, before))
        w, read = where(exchange, (theta, theta), (w, read))
        newest = jnp.where(exchange, i, workers)
        info = {"loss": loss, "sent_bytes": round_trip_bytes(exchange, w)}
        copies, reads, opt_states = put(tables, i, (w, read, opt_state))
        return AsyncLocalSGDState(theta, after, copies, reads, opt_states, newest), info

    return Rule(init, step)


@dataclass(frozen=True)
class AsyncLocalSGD(WorkerMethod, Periodic, OuterMomentum, name="async_local_sgd"):
    """Asynchronous local SGD with delayed Nesterov momentum (Liu et al., arXiv 2401.09135).

        Delta <- Delta + G
        N-th:  m <- b m + Delta / N,  theta <- theta - eta ((1 - c N + c) b m + G / N),  Delta <- 0
        else:                         theta <- theta - eta (c b m + G / N)

    The N-th is counted over the exchanges of all workers; N = 1 is Nesterov's momentum. A worker of
    speed v_i takes H_i = H v_i / max v local steps, rounded down and at least one: the paper's
    dynamic local updates.

    Two other servers are Adam and HeLoCo's (`turn_to_momentum`). With any of them late messages may
    count less, as in CGAD; tau is how often theta was updated since it was read:

        G    <- gate(tau) e^(-alpha tau) G
        gate  = (1 + cos(pi min(tau / T, 1))) / 2       1 without a cutoff T
    """

    steps_by_speed: bool = field(True, "Whether slower workers take fewer local steps, H_i.")
    momentum_delay: int = field(
        0,
        "N, exchanges from one step of the momentum to the next; 0: the groups.",
        expected="at least 1, or 0 for the groups",
        is_valid=lambda v: v >= 0,
    )
    momentum_part: float = field(
        0.0,
        "c N, share of the momentum that is applied in the steps between.",
        **FRACTION,
    )
    server: str = field(
        "nesterov",
        "Server's optimizer of messages: delayed 'nesterov', 'adam' or 'heloco'.",
        one_of=tuple(SERVERS),
        static=True,
    )
    age_decay: float = field(
        0.0, "alpha, a message of some age is weighted by e^(-alpha age).", at_least=0
    )
    age_cutoff: float = field(
        0.0,
        "T, age at which a message's weight has fallen to 0, by a cosine; 0: no cutoff.",
        at_least=0,
    )
    aligned: float = field(
        0.5,
        "c_ok, heloco: a message whose cosine with the momentum is at least this is not corrected.",
        at_least=-1,
        at_most=1,
    )
    correction: float = field(0.5, "k, heloco: strength of the correction of others.", at_least=0)

    laws = (*WorkerMethod.laws, "race")

    def read(self, gradient: Gradient, update: Update, slots: int, servers: Servers) -> Rule:
        return async_local_sgd(gradient, update, self.groups, self.server)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Returns the workers' local steps; staleness counts updates of theta since it was read."""
        line = self.local_steps_timeline(inputs, methods, self.periods(inputs, methods))
        exchange, age = line.plan.exchange, line.staleness
        constants = {
            "rate": self.outer_learning_rate,
            "decay": self.outer_momentum,
            "delay": self.delay,
        }
        if self.server == "heloco":
            constants |= {"aligned": self.aligned, "strength": self.correction}
        numbers = self.momentum_due(exchange, np.cumsum(exchange))
        for name, value in constants.items():
            numbers[name] = np.full(len(age), value, np.float32)
        if self.age_decay or self.age_cutoff:
            weight = np.exp(-self.age_decay * age)
            if self.age_cutoff:
                weight *= (1 + np.cos(np.pi * np.minimum(age / self.age_cutoff, 1))) / 2
            numbers["weight"] = weight.astype(np.float32)
        return line._replace(plan=line.plan._replace(numbers=numbers))

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        for key in ("momentum_delay", "momentum_part"):
            reason = f"must be 0 with config.method.server = {self.server!r}"
            yield Join(f"method.{key}", self.server != "nesterov" and getattr(self, key), reason)
        for key in ("age_decay", "age_cutoff"):
            raced = setup.cluster.service.name == "race" and getattr(self, key)
            reason = (
                "must be 0 with config.cluster.service.name = 'race', where ages are known too "
            )
            yield Join(f"method.{key}", raced, reason + "late")

    def periods(self, inputs: ClockInputs, methods: MethodStack) -> list[int]:
        """Returns H_i, the local steps of each worker between exchanges."""
        if not self.steps_by_speed:
            return [self.period] * self.groups
        seconds = self.work(inputs, methods, sent=False).means().max(axis=1)
        return [max(int(self.period * share + 1e-9), 1) for share in seconds.min() / seconds]

    @property
    def delay(self) -> int:
        return self.momentum_delay or self.groups

    def momentum_due(self, exchange: Array, count: Array) -> dict[str, Array]:
        """Returns whether exchanges are N-th ones, by their `count`, and the part of b m in V."""
        n = self.delay
        turn, c = exchange & (count % n == 0), self.momentum_part / n
        return {"turn": turn, "momentum_part": np.where(turn, 1 - c * n + c, c).astype(np.float32)}

    def order(self, setup: Setup, methods: MethodStack, line: Timeline) -> Exchanges:
        periods = self.periods(ClockInputs(setup, 0, 0), methods)
        return Exchanges(line, periods, self.momentum_due)

    def message(self, gradient: Gradient, update: Update) -> Callable[..., LocalResult]:
        return local_steps(gradient, update)


NEVER = math.inf
DROPPED = -1


class Rounds(NamedTuple):
    """What follows each local step, (steps, P); for one fragment (steps,)."""

    receive: np.ndarray  # bool, whether the learner takes Theta over
    send: np.ndarray  # bool, whether it sends then
    into: np.ndarray  # int32, number of the merge of this message; 0: none; or DROPPED
    merge: np.ndarray  # int32, number of the last merge that follows, from 1 on; 0: none


def syncer_rounds(
    worker: np.ndarray,
    seconds: np.ndarray,
    message: np.ndarray,
    period: int,
    delay: int = 0,
    quorum: int = 0,
    grace: float = 0.0,
) -> Rounds:
    """Returns what learners exchange at their local steps, and the merges that follow.

    A learner sends fragment p of P after its first p H / P local steps, rounded down, and then
    after every H = `period`. `grace` seconds after messages of K = `quorum` learners (0: all) are
    there the syncer merges all that have arrived, and sends Theta back to these learners. A learner
    takes it over at the end of a local step, at least `delay` of its steps, and at least one, after
    it had sent.

    A learner's newer message replaces its older one when it arrives, and is dropped if the older
    has been merged by then, as both began at the same Theta. A learner has at most one message in
    transit, and gives it up when it takes Theta over. It sends none while Theta is back and not
    taken over, nor in the step that takes it over: an empty message would count for the quorum. A
    merge belongs to the last local step before it.

    `worker`, (steps,): the learner of each local step; `seconds`, (steps,): when it is done.
    `message`, (learners, P): seconds of a message, in either direction.
    """
    learners, fragments = message.shape
    arrivals = list(zip(worker.tolist(), seconds.tolist(), strict=True))
    rounds = [
        _rounds_of_fragment(
            arrivals,
            message[:, p].tolist(),
            p * period // fragments,
            period,
            max(delay, 1),
            quorum or learners,
            grace,
        )
        for p in range(fragments)
    ]
    return Rounds(*(np.stack(columns, axis=1) for columns in zip(*rounds, strict=True)))


def _rounds_of_fragment(
    arrivals: Sequence[tuple[int, float]],
    travel: Sequence[float],
    phase: int,
    period: int,
    delay: int,
    quorum: int,
    grace: float,
) -> Rounds:
    """Returns the rounds of one fragment; `travel` has the seconds of each learner's message."""
    steps, learners = len(arrivals), len(travel)
    receive, send = np.zeros((2, steps), bool)
    into, merge = np.zeros((2, steps), np.int32)
    done = [0] * learners  # local steps so far
    nth = list[int]()  # the number of each step among its learner's
    in_transit = list[tuple[float, int, int]]()  # second of arrival, learner, local step
    arrived = dict[int, int]()  # by learner, the local step of its message
    due, merges = NEVER, 0  # the second of the next merge; merges so far
    replies = dict[int, tuple[float, int]]()  # second at which Theta is back, step it answers
    received_in = [-1] * learners  # the step that took Theta over last
    may_send = [-1.0] * learners  # the second from which on a learner may send

    def is_answered(m: int, sent: int) -> bool:
        return m in replies or sent < received_in[m]

    for t, (m, now) in enumerate(arrivals):
        done[m] += 1
        nth.append(done[m])
        end = arrivals[t + 1][1] if t + 1 < steps else now
        arrives, since = replies.get(m, (NEVER, 0))
        if arrives <= now:
            if done[m] >= since + delay:
                receive[t], received_in[m], may_send[m] = True, t, now
                del replies[m]
        elif (done[m] - phase) % period == 0 and may_send[m] <= now:
            send[t], may_send[m] = True, now + travel[m]
            heappush(in_transit, (may_send[m], m, t))
        while True:
            if in_transit and in_transit[0][0] <= min(due, end):
                at, n, sent = heappop(in_transit)
                if is_answered(n, sent):
                    into[sent] = DROPPED
                    continue
                arrived[n] = sent
                if due == NEVER and len(arrived) == quorum:
                    due = at + grace
            elif due <= end:
                merges += 1
                merge[t] = merges
                for n, sent in arrived.items():
                    into[sent] = merges
                    replies[n] = due + travel[n], nth[sent]
                arrived, due = {}, NEVER
            else:
                break
    for _, n, sent in in_transit:
        if is_answered(n, sent):
            into[sent] = DROPPED
    return Rounds(receive, send, into, merge)


def ages(worker: np.ndarray, rounds: Rounds) -> tuple[np.ndarray, np.ndarray]:
    """Returns local steps since a learner's last receipt, and merges not seen since, (steps, P)."""
    order = np.argsort(worker, kind="stable")  # a learner's steps are together, in order
    index, ordered = np.arange(len(worker))[:, None], worker[order]
    begin = np.searchsorted(ordered, ordered)[:, None]  # index of the learner's first step

    def latest(flags: np.ndarray) -> np.ndarray:
        """Returns the index of the learner's last flagged step so far; without one begin - 1."""
        return np.maximum(np.maximum.accumulate(np.where(flags[order], index, -1)), begin - 1)

    def value(values: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.where(at >= begin, np.take_along_axis(values, np.maximum(at, 0), axis=0), 0)

    received = latest(rounds.receive)
    # The merge of the last message that was not dropped.
    merge_of_message = value(rounds.into[order], latest(rounds.send & (rounds.into != DROPPED)))
    merges_seen = value(value(merge_of_message, received), index - 1)  # before the step
    merges = np.maximum.accumulate(np.insert(rounds.merge, 0, 0, axis=0)[:-1], axis=0)
    unsorted = np.argsort(order)
    steps, missed = (index - received)[unsorted], merges - merges_seen[unsorted]
    return steps.astype(np.int32), missed.astype(np.int32)


def _recorded_rounds(trace: RecordedTrace, fragments: int) -> Rounds:
    """Returns the rounds of a recorded run. Raises `TimelineError`."""
    least, most = {"into": DROPPED}, len(trace.worker)
    columns = [trace.integers(n, (fragments,), least.get(n, 0), most) for n in Rounds._fields]
    receive, send, into, merge = columns
    return Rounds(receive.astype(bool), send.astype(bool), into, merge)


class DecoupledState(NamedTuple):
    params: Params  # Theta
    outer: tuple[Tree, ...]  # v of each fragment
    workers: Table  # x_m; from here on all are tables of the learners
    read: Table  # Theta_m
    opt_state: Table
    mail: Table  # D_m from its sending to its merge, then Theta on its way back
    into: jax.Array  # (learners, P) int32, the merge of D_m
    steps: jax.Array  # (learners, P) float32, w_m of that D_m

    def moved_to(self, params: Params) -> "DecoupledState":
        """Returns the state with another Theta, which learners get with their next merge."""
        return self._replace(params=params)

    def logged(self) -> dict[str, float]:
        return {"worker_distance": relative_spread(self.workers)}


def decoupled(
    gradient: Gradient, update: Update, learners: int, fragments: int = 1
) -> Rule[DecoupledState]:
    """Returns the rule of a table of `learners`.

    `event.plan` is a `WorkerStep` with these numbers, (P,) of the fragments or scalars: those of
    `Rounds`; `merges`, how many follow, `merge` the last of them; `steps`, w_m; `part`, the share
    of all parameters that travels there and back; `rate` and `momentum`, eta and mu.
    """
    local, server = local_step(gradient, update), nesterov()
    parts = partial(split_fragments, fragments=fragments)

    def init(params: Params) -> DecoupledState:
        copies, opt_state = table((params, update.init(params)), learners)
        none = jnp.zeros((learners, fragments), jnp.int32)
        mail = jax.tree.map(jnp.zeros_like, copies)
        outer = tuple(map(server.init, parts(params)))
        return DecoupledState(
            params, outer, copies, copies, opt_state, mail, none, none + jnp.float32(0)
        )

    def where_fragments(flags: Array, tree: Tree, other: Tree) -> Tree:
        return join_fragments(list(map(where, flags, parts(tree), parts(other))))

    def step(state: DecoupledState, event: Event, batch: Batch) -> tuple[DecoupledState, Info]:
        m, c = event.plan.worker, event.plan.numbers
        x, read, opt_state, mail, into, steps = row(state[2:], m)
        loss, x, opt_state, _ = local(x, opt_state, event, batch)
        received = c["receive"]
        x, read = where_fragments(received, mail, x), where_fragments(received, mail, read)
        # A dropped message must not replace one that is merged.
        sent = c["send"] & (c["into"] != DROPPED)
        mail = where_fragments(sent, jax.tree.map(jnp.subtract, read, x), mail)
        into, steps = jnp.where(sent, c["into"], into), jnp.where(sent, c["steps"], steps)
        tables = put(state[2:], m, (x, read, opt_state, mail, into, steps))
        after = merge(c, DecoupledState(*state[:2], *tables))
        return after, {"loss": loss, "sent_bytes": 2 * c["part"] * size(x)}

    def merge(c: StepNumbers, state: DecoupledState) -> DecoupledState:
        before = zip(parts(state.params), state.outer, parts(state.mail), strict=True)
        after = [
            lax.fori_loop(0, c["merges"][p], partial(merge_fragment, c, state, p), fragment)
            for p, fragment in enumerate(before)
        ]
        theta, outer, mail = zip(*after, strict=True)
        return state._replace(params=join_fragments(theta), outer=outer, mail=join_fragments(mail))

    def merge_fragment(
        c: StepNumbers, state: DecoupledState, p: int, n: Array, fragment: Tree
    ) -> Tree:
        """Returns Theta, v and the mail of fragment p after the n-th merge, counted from 0."""
        theta, v, mail = fragment
        in_M = state.into[:, p] == c["merge"][p] - c["merges"][p] + 1 + n
        w = in_M * state.steps[:, p]
        delta = jax.tree.map(partial(weighted_mean, weights=w / jnp.maximum(w.sum(), 1.0)), mail)
        numbers = {"outer_learning_rate": c["rate"], "outer_momentum": c["momentum"]}
        updates, v = server.update(delta, v, theta, **numbers)
        theta = optax.apply_updates(theta, updates)
        return theta, v, jax.vmap(where, (0, None, 0))(in_M, theta, mail)

    return Rule(init, step)


@dataclass(frozen=True)
class Decoupled(WorkerMethod, Periodic, Fragmented, OuterMomentum, name="decoupled"):
    """Decoupled DiLoCo (Douillard et al., arXiv 2604.21428): learners that wait for nobody.

        D_m     = Theta_m - x_m         after every H-th local step of learner m, sent to the syncer
        Delta   = sum_{m in M} w_m D_m / sum_{m in M} w_m       w_m = tokens_m (tokens_m / steps_m)
        v       <- mu v + Delta
        Theta   <- Theta - eta (Delta + mu v)
        x_m, Theta_m <- Theta           of m in M, at the end of its local step by which it is back

    Theta_m is what learner m took over last; tokens_m and steps_m count from then. All batches have
    one size here, so w_m is steps_m. M are the learners whose messages have arrived by a merge, at
    least K of them (`syncer_rounds`). They train on meanwhile, and lose what they did between
    sending and receipt. Fragments are sent H / P steps apart. A learner that is away keeps its
    parameters and loses the local step that it was at.
    """

    quorum: int = field(0, "K, least number of learners in a merge; 0: all.", at_least=0)
    grace: float = field(0.0, "Seconds from the K-th learner's message to the merge.", at_least=0)

    cluster = (*WorkerMethod.cluster, "latencies", "bandwidths", "regions", "diurnal", "presence")

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = f"from 1 to config.method.period = {self.period}"
        self.require("fragments", 1 <= self.fragments <= self.period, expected)
        self.require("delay", self.delay >= 0, "at least 0")
        expected = f"at most config.method.groups = {self.groups}, or 0 for all"
        self.require("quorum", self.quorum <= self.groups, expected)

    def read(self, gradient: Gradient, update: Update, slots: int, servers: Servers) -> Rule:
        return decoupled(gradient, update, self.groups, self.fragments)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Returns the learners' local steps, with the staleness of the fragment that lags most."""
        setup, trace, count = inputs.setup, inputs.trace, self.groups
        shares = np.array(fragment_bytes(inputs._replace(update_bytes=1), self.fragments))
        stream, law = seeds.number(setup.seed, "arrivals"), setup.cluster.service.draw
        work = self.work(inputs, methods, sent=False)
        if trace:
            trace.require_groups(trace.worker, count)
            line = from_arrivals(trace.worker, trace.seconds, count)
        elif availability := availability_of(setup.cluster, count, 0):
            line = queued_arrivals(stream, law, work, setup.steps, availability=availability)
        else:
            line = renewal_arrivals(stream, law, work, setup.steps)
        if trace and trace.has("merge"):  # in a real run other seconds decided it
            rounds = _recorded_rounds(trace, self.fragments)
        else:
            places = np.arange(count) * setup.cluster.nodes // count
            message = [
                to_server(setup.cluster, size)[places] for size in shares * inputs.update_bytes
            ]
            rounds = syncer_rounds(
                line.worker,
                line.seconds,
                np.stack(message, axis=1),
                self.period,
                self.delay,
                self.quorum,
                self.grace,
            )
        steps, late = ages(line.worker, rounds)
        last = np.maximum.accumulate(rounds.merge, axis=0)
        numbers = rounds._asdict() | {
            "merges": np.diff(last, axis=0, prepend=last[:1] * 0),
            "steps": steps.astype(np.float32),
            "part": ((rounds.send * 0.5 + rounds.receive * 0.5) @ shares).astype(np.float32),
            "rate": np.full(len(steps), self.outer_learning_rate, np.float32),
            "momentum": np.full(len(steps), self.outer_momentum, np.float32),
        }
        plan = WorkerStep(line.worker, numbers=numbers)
        return line._replace(plan=plan, staleness=late.max(axis=1))

    def exchanged(self, plan: WorkerStep) -> np.ndarray:
        return np.asarray(plan.numbers["part"])
