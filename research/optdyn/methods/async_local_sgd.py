"""Workers that take local steps at their own pace, and a server that hears of them now and then.

    w_i   <- w_i - gamma grad f(w_i)              H_i times, by an optimizer of its own
    G      = theta_read - w_i                     is sent
    theta <- theta - eta V(G)
    w_i   <- theta,  theta_read <- theta

Workers and their clock are those of `workers.py`. Members differ in when theta moves:

    async_local_sgd   with each message, which is awaited; V is one of three servers
    decoupled         when the messages of K learners are there; nobody waits for anything
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
from optdyn.methods.averaging import cut, fragment_bytes, join, nesterov
from optdyn.methods.messages import mean_of, size
from optdyn.methods.method import (
    FRACTION,
    ClockInputs,
    Fragmented,
    MethodStack,
    OuterMomentum,
    Periodic,
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

Numbers = Mapping[str, Array]  # what a `WorkerStep` says besides, by name


class ServerState(NamedTuple):
    """What a server has beside theta: `step(G, state, numbers) -> V, state` is what it does."""

    momentum: Params  # m
    waiting: Params  # Delta
    optimizer: Tree  # the state of an optax optimizer, or ()


def weighed(message: Params, c: Numbers) -> Params:
    """The message G times its `weight`, if it has one."""
    if "weight" not in c:
        return message
    return jax.tree.map(lambda g: (c["weight"] * g).astype(g.dtype), message)


def delayed_nesterov(G: Params, state: ServerState, c: Numbers) -> tuple[Params, ServerState]:
    """The delayed momentum; at a `turn` it moves, and `momentum_part` of b m is in V."""
    G, b, n, turn, part = weighed(G, c), c["decay"], c["delay"], c["turn"], c["momentum_part"]
    total = jax.tree.map(jnp.add, state.waiting, G)
    m = jax.tree.map(lambda m, d: jnp.where(turn, b * m + d / n, m), state.momentum, total)
    step = jax.tree.map(lambda m, g: part * b * m + g / n, m, G)
    return step, ServerState(m, jax.tree.map(lambda d: jnp.where(turn, 0.0, d), total), ())


def adam(G: Params, state: ServerState, c: Numbers) -> tuple[Params, ServerState]:
    """Adam of first decay b, with which CGAD (arXiv 2605.09126) steps along what is weighed."""
    step, optimizer = optax.scale_by_adam(b1=c["decay"]).update(weighed(G, c), state.optimizer)
    return step, state._replace(optimizer=optimizer)


TINY = 1e-12  # beside norms


def turned(message: Params, momentum: Params, aligned: Array, strength: Array) -> Params:
    """HeLoCo's message: D of every array turned toward the momentum m, c the cosine of both.

        D <- D                                             c >= c_ok
        D <- |D| u / |u|,  u = (1 - l) D/|D| + l m/|m|     0 <= c < c_ok,   l = min(k (1 - c) f, 1)
        D <- D - b c |D| m/|m|                             c < 0,           b = min(-k c f, 1)
        f  = |D| / (|D| + |m|)                             the confidence

    `aligned` is c_ok, `strength` k. Turning keeps the length of D. From a D that is against m a
    part of what is against it is taken off. With c_ok = -1, and where m is 0, D stays as it is.
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
        kept = (c >= aligned) | (length == 0)
        return jnp.where(kept, d, jnp.where(c < 0, shrunk, tilted)).astype(d.dtype)

    return jax.tree.map(one, message, momentum)


def heloco(D: Params, state: ServerState, c: Numbers) -> tuple[Params, ServerState]:
    """HeLoCo's D + mu m (Al Asif et al., arXiv 2606.00271), m <- mu m + (1 - mu) D."""
    mu = c["decay"]
    D = weighed(turned(D, state.momentum, c["aligned"], c["strength"]), c)
    m = jax.tree.map(lambda m, d: mu * m + (1 - mu) * d, state.momentum, D)
    return jax.tree.map(lambda m, d: d + mu * m, m, D), state._replace(momentum=m)


SERVERS = {"nesterov": delayed_nesterov, "adam": adam, "heloco": heloco}


class AsyncLocalSGDState(NamedTuple):
    params: Params  # theta
    server: ServerState
    workers: Table  # w_i
    read: Table  # theta_read
    opt_state: Table  # the workers', kept when they read
    newest: jax.Array  # int32, who has just read theta, or else the number of workers

    def moved_to(self, params: Params) -> "AsyncLocalSGDState":
        """theta is other parameters, of who has just read it too; what others have read stays."""
        workers, read = put((self.workers, self.read), self.newest, (params, params))
        return self._replace(params=params, workers=workers, read=read)

    def at(self, worker: int) -> tuple[Params, Tree]:
        """What a worker begins with that has just read: theta, and the state of its optimizer."""
        return row((self.workers, self.opt_state), worker)

    def logged(self) -> dict[str, float]:
        """The distance of workers from their mean, for the log."""
        return {"worker_distance": relative_spread(self.workers)}


def async_local_sgd(
    gradient: Gradient, update: Update, workers: int, server: str = "nesterov"
) -> Rule[AsyncLocalSGDState]:
    """Rule of a table of `workers`; `event.plan` is a `WorkerStep`. `server`: one of `SERVERS`.

    Its numbers: `rate`, eta; `decay`, b; those that the server asks for; a `weight` of G, if not 1.
    """
    local, serve = local_step(gradient, update), SERVERS[server]

    def init(params: Params) -> AsyncLocalSGDState:
        zeros, nobody = jax.tree.map(jnp.zeros_like, params), jnp.int32(workers)
        every, opt_state = table((params, update.init(params)), workers)
        optimizer = optax.scale_by_adam().init(params) if server == "adam" else ()
        first = ServerState(zeros, zeros, optimizer)
        return AsyncLocalSGDState(params, first, every, every, opt_state, nobody)

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
        every, reads, opt_states = put(tables, i, (w, read, opt_state))
        newest = jnp.where(exchange, i, workers)
        info = {"loss": loss, "sent_bytes": round_trip_bytes(exchange, w)}
        return AsyncLocalSGDState(theta, after, every, reads, opt_states, newest), info

    return Rule(init, step)


@dataclass(frozen=True)
class AsyncLocalSGD(WorkerMethod, Periodic, OuterMomentum, name="async_local_sgd"):
    """Asynchronous local SGD with delayed Nesterov momentum (Liu et al., arXiv 2401.09135).

        Delta <- Delta + G
        N-th:  m <- b m + Delta / N,  theta <- theta - eta ((1 - c N + c) b m + G / N),  Delta <- 0
        else:                         theta <- theta - eta (c b m + G / N)

    A momentum that moves with every stale G is worse than none, so this one waits for N of them; N
    = 1 is Nesterov's. The N-th is counted over the exchanges of all workers. A worker of speed v_i
    takes H_i = H v_i / max v local steps, rounded down and at least one, so that slow workers are
    not the stalest: the paper's dynamic local updates.

    Two other servers make something else of G: Adam, and HeLoCo's (`turned`). With any, what comes
    late may count less, as in CGAD; tau is how often theta was updated since it was read:

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
        "C N, of the momentum, that comes in the steps between.",
        **FRACTION,
    )
    server: str = field(
        "nesterov",
        "What the server makes of what comes, delayed 'nesterov', 'adam' or 'heloco'.",
        one_of=tuple(SERVERS),
        static=True,
    )
    age_decay: float = field(
        0.0, "alpha, what comes late counts e^(-alpha age) of its own.", at_least=0
    )
    age_cutoff: float = field(
        0.0,
        "T, an age from which on what comes counts nothing, and less before by a cosine; 0: none.",
        at_least=0,
    )
    aligned: float = field(
        0.5,
        "c_ok of 'heloco', a cosine with the momentum from which on a message stays as it is.",
        at_least=-1,
        at_most=1,
    )
    correction: float = field(0.5, "K of 'heloco', how much others are corrected.", at_least=0)

    laws = (*WorkerMethod.laws, "race")

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return async_local_sgd(gradient, update, self.groups, self.server)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """The staleness is how often theta was updated since the worker had read it."""
        line = self.exchanging(inputs, methods, self.periods(inputs, methods))
        exchange, age = line.plan.exchange, line.staleness
        constants = {
            "rate": self.outer_learning_rate,
            "decay": self.outer_momentum,
            "delay": self.delay,
        }
        if self.server == "heloco":
            constants |= {"aligned": self.aligned, "strength": self.correction}
        numbers = self.turns(exchange, np.cumsum(exchange))
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
            said = f"must be 0 with config.method.server = {self.server!r}, which waits for nothing"
            yield Join(f"method.{key}", self.server != "nesterov" and getattr(self, key), said)
        for key in ("age_decay", "age_cutoff"):
            raced = setup.cluster.service.name == "race" and getattr(self, key)
            said = "must be 0 with config.cluster.service.name = 'race', where ages are known when "
            yield Join(f"method.{key}", raced, f"{said}messages come")

    def periods(self, inputs: ClockInputs, methods: MethodStack) -> list[int]:
        """H_i."""
        if not self.steps_by_speed:
            return [self.period] * self.groups
        seconds = self.work(inputs, methods, sent=False).means().max(axis=1)
        return [max(int(self.period * share + 1e-9), 1) for share in seconds.min() / seconds]

    @property
    def delay(self) -> int:
        """N."""
        return self.momentum_delay or self.groups

    def turns(self, exchange: Array, count: Array) -> dict[str, Array]:
        """Whether exchanges are N-th ones, by their count, and the part of b m that each brings."""
        n = self.delay
        turn, c = exchange & (count % n == 0), self.momentum_part / n
        return {"turn": turn, "momentum_part": np.where(turn, 1 - c * n + c, c).astype(np.float32)}

    def order(self, setup: Setup, methods: MethodStack, line: Timeline) -> Exchanges:
        """The order of arrivals in a race, which writes who reads when."""
        each = self.periods(ClockInputs(setup, 0, 0), methods)
        return Exchanges(line, each, self.turns)

    def message(self, gradient: Gradient, update: Update) -> Callable[..., LocalResult]:
        return local_steps(gradient, update)


NEVER = math.inf
DROPPED = -1


class Rounds(NamedTuple):
    """What follows each local step, (steps, P); of one fragment (steps,)."""

    receive: np.ndarray  # bool, whether the learner takes Theta over
    send: np.ndarray  # bool, whether it sends then
    into: np.ndarray  # int32, number of the merge that this message is in; 0: of none; or DROPPED
    merge: np.ndarray  # int32, number of the last merge that follows, from 1 on; 0: none does


def syncer_rounds(
    worker: np.ndarray,
    seconds: np.ndarray,
    message: np.ndarray,
    period: int,
    delay: int = 0,
    quorum: int = 0,
    grace: float = 0.0,
) -> Rounds:
    """What learners exchange at their local steps, and the merges that come of it.

    A learner sends fragment p of P after its first p H / P local steps, rounded down, and then
    after every H. `grace` seconds after messages of K learners are there the syncer merges all that
    have arrived by then, and sends Theta back to these learners. A learner takes it over at the end
    of a local step, at least `delay` of its own steps, and at least one, after it had sent.

    Nobody knows of what is under way. A learner's newer message takes the place of its older one
    when it arrives, and is dropped if the older has been merged by then, as both began at the same
    Theta. A learner has one message under way at most, and gives it up when it takes Theta over. It
    sends none while Theta waits for that, nor in the step that takes it over: the message would be
    empty, and yet count for the quorum. A merge belongs to the last local step before it; after the
    very last step there are none.

    `worker`, (steps,): the learner of each local step; `seconds`, (steps,): when it is done.
    `message`, (learners, P): seconds of a message, in either direction. `period` is H, in local
    steps; `quorum` is K, 0: all learners.
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
    takes: Sequence[float],
    phase: int,
    period: int,
    delay: int,
    quorum: int,
    grace: float,
) -> Rounds:
    """The rounds of one fragment, whose message `takes` so many seconds of each learner."""
    steps, learners = len(arrivals), len(takes)
    receive, send = np.zeros((2, steps), bool)
    into, merge = np.zeros((2, steps), np.int32)
    done, nth = (
        [0] * learners,
        list[int](),
    )  # local steps of learners; which of its learner's each is
    letters = list[tuple[float, int, int]]()  # under way: second of arrival, learner, local step
    there = dict[int, int]()  # local steps of the letters that have arrived, by learner
    due, merges = NEVER, 0  # when the next merge is; how many there were
    back = dict[int, tuple[float, int]]()  # when Theta arrives, and for which step of its learner
    taken, free = (
        [-1] * learners,
        [-1.0] * learners,
    )  # step that took Theta over; when to send again

    def is_answered(m: int, sent: int) -> bool:
        return m in back or sent < taken[m]

    for t, (m, now) in enumerate(arrivals):
        done[m] += 1
        nth.append(done[m])
        end = arrivals[t + 1][1] if t + 1 < steps else now
        arrives, since = back.get(m, (NEVER, 0))
        if arrives <= now:
            if done[m] >= since + delay:
                receive[t], taken[m], free[m] = True, t, now
                del back[m]
        elif (done[m] - phase) % period == 0 and free[m] <= now:
            send[t], free[m] = True, now + takes[m]
            heappush(letters, (free[m], m, t))
        while True:
            if letters and letters[0][0] <= min(due, end):
                at, n, sent = heappop(letters)
                if is_answered(n, sent):
                    into[sent] = DROPPED
                    continue
                there[n] = sent
                if due == NEVER and len(there) == quorum:
                    due = at + grace
            elif due <= end:
                merges += 1
                merge[t] = merges
                for n, sent in there.items():
                    into[sent] = merges
                    back[n] = due + takes[n], nth[sent]
                there, due = {}, NEVER
            else:
                break
    for _, n, sent in letters:
        if is_answered(n, sent):
            into[sent] = DROPPED
    return Rounds(receive, send, into, merge)


def ages(worker: np.ndarray, rounds: Rounds) -> tuple[np.ndarray, np.ndarray]:
    """(steps, P) a learner's local steps since it last took a merge over, and (steps, P) how many
    merges of the fragment it has not seen.
    """
    order = np.argsort(worker, kind="stable")  # a learner's steps are together, in order
    place, ordered = np.arange(len(worker))[:, None], worker[order]
    begin = np.searchsorted(ordered, ordered)[:, None]  # of the learner's steps

    def latest(flags: np.ndarray) -> np.ndarray:
        """The place of the learner's last flagged step so far, or the one before it begins."""
        return np.maximum(np.maximum.accumulate(np.where(flags[order], place, -1)), begin - 1)

    def value(values: np.ndarray, at: np.ndarray) -> np.ndarray:
        """What is at those places, and 0 before a learner begins."""
        return np.where(at >= begin, np.take_along_axis(values, np.maximum(at, 0), axis=0), 0)

    received = latest(rounds.receive)
    # The merge that the last message is in which was not dropped.
    letter = value(rounds.into[order], latest(rounds.send & (rounds.into != DROPPED)))
    seen = value(value(letter, received), place - 1)  # before the step
    made = np.maximum.accumulate(np.insert(rounds.merge, 0, 0, axis=0)[:-1], axis=0)
    back = np.argsort(order)
    steps, late = (place - received)[back], made - seen[back]
    return steps.astype(np.int32), late.astype(np.int32)


def _recorded_rounds(trace: RecordedTrace, fragments: int) -> Rounds:
    """The rounds of a run that a trace holds. Raises `TimelineError`."""
    least, most = {"into": DROPPED}, len(trace.worker)
    columns = [trace.whole(n, (fragments,), least.get(n, 0), most) for n in Rounds._fields]
    receive, send, into, merge = columns
    return Rounds(receive.astype(bool), send.astype(bool), into, merge)


class DecoupledState(NamedTuple):
    params: Params  # Theta
    outer: tuple[Tree, ...]  # v of each fragment
    workers: Table  # x_m; from here on all are tables of the learners
    read: Table  # Theta_m
    opt_state: Table
    mail: Table  # D_m from its sending to its merge, and then Theta, on its way back
    into: jax.Array  # (learners, P) int32, the merge that D_m is for
    steps: jax.Array  # (learners, P) float32, w_m of that D_m

    def moved_to(self, params: Params) -> "DecoupledState":
        """Theta is other parameters, which learners hear of with their next merge."""
        return self._replace(params=params)

    def logged(self) -> dict[str, float]:
        """The distance of learners from their mean, for the log."""
        return {"worker_distance": relative_spread(self.workers)}


def decoupled(
    gradient: Gradient, update: Update, learners: int, fragments: int = 1
) -> Rule[DecoupledState]:
    """Rule of a table of `learners`; `event.plan` is a `WorkerStep`.

    Its numbers, (P,) of the fragments or scalars: those of `Rounds`; `merges`, how many follow, of
    which `merge` is the last; `steps`, w_m; `part`, the share of all parameters that travels there
    and back; `rate` and `momentum`, eta and mu.
    """
    local, server = local_step(gradient, update), nesterov()
    parts = partial(cut, fragments=fragments)

    def init(params: Params) -> DecoupledState:
        every, opt_state = table((params, update.init(params)), learners)
        none = jnp.zeros((learners, fragments), jnp.int32)
        mail = jax.tree.map(jnp.zeros_like, every)
        outer = tuple(map(server.init, parts(params)))
        return DecoupledState(
            params, outer, every, every, opt_state, mail, none, none + jnp.float32(0)
        )

    def chosen(flags: Array, tree: Tree, other: Tree) -> Tree:
        """The fragments of `tree` whose flag is set, (P,), and of `other` the rest."""
        return join(list(map(where, flags, parts(tree), parts(other))))

    def step(state: DecoupledState, event: Event, batch: Batch) -> tuple[DecoupledState, Info]:
        m, c = event.plan.worker, event.plan.numbers
        x, read, opt_state, mail, into, steps = row(state[2:], m)
        loss, x, opt_state, _ = local(x, opt_state, event, batch)
        x, read = chosen(c["receive"], mail, x), chosen(c["receive"], mail, read)
        # What is dropped must not take the place of what is merged.
        sent = c["send"] & (c["into"] != DROPPED)
        mail = chosen(sent, jax.tree.map(jnp.subtract, read, x), mail)
        into, steps = jnp.where(sent, c["into"], into), jnp.where(sent, c["steps"], steps)
        tables = put(state[2:], m, (x, read, opt_state, mail, into, steps))
        after = merged(c, DecoupledState(*state[:2], *tables))
        return after, {"loss": loss, "sent_bytes": 2 * c["part"] * size(x)}

    def merged(c: Numbers, state: DecoupledState) -> DecoupledState:
        """After the merges that follow a local step."""
        each = zip(parts(state.params), state.outer, parts(state.mail), strict=True)
        after = [
            lax.fori_loop(0, c["merges"][p], partial(merge, c, state, p), of_fragment)
            for p, of_fragment in enumerate(each)
        ]
        theta, outer, mail = zip(*after, strict=True)
        return state._replace(params=join(theta), outer=outer, mail=join(mail))

    def merge(c: Numbers, state: DecoupledState, p: int, n: Array, of_fragment: Tree) -> Tree:
        """Theta, v and the mail of fragment p after merge n, from 0 on, of those that follow."""
        theta, v, mail = of_fragment
        in_M = state.into[:, p] == c["merge"][p] - c["merges"][p] + 1 + n
        w = in_M * state.steps[:, p]
        delta = jax.tree.map(partial(mean_of, weights=w / jnp.maximum(w.sum(), 1.0)), mail)
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

    Theta_m is what learner m took over last; tokens_m and steps_m count from then. All batches are
    of one size here, so that w_m is steps_m. M are the learners whose messages have arrived by a
    merge, at least K of them (see `syncer_rounds`). They train on meanwhile, and lose what they
    did between their sending and the receipt. All this holds for every fragment of the
    parameters by itself, and the fragments' turns are H / P steps apart.

    With K = all, no grace, equal speeds and prompt messages it is streaming DiLoCo with a delay of
    one update. A learner that is away keeps its parameters and loses the local step that it was at.
    """

    quorum: int = field(0, "K, learners that a merge needs at least; 0: all of them.", at_least=0)
    grace: float = field(0.0, "Seconds from the message of the K-th to the merge.", at_least=0)

    cluster = (
        *WorkerMethod.cluster,
        "latencies",
        "bandwidths",
        "regions",
        "diurnal",
        "presence",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = f"from 1 to config.method.period = {self.period}"
        self.require("fragments", 1 <= self.fragments <= self.period, expected)
        self.require("delay", self.delay >= 0, "at least 0")
        expected = f"at most config.method.groups = {self.groups}, or 0 for all"
        self.require("quorum", self.quorum <= self.groups, expected)

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return decoupled(gradient, update, self.groups, self.fragments)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Local steps as in `asynchronous`, but no learner waits for a message.

        The staleness is how many merges the fragment that lags most has not seen.
        """
        setup, trace, count = inputs.setup, inputs.trace, self.groups
        shares = np.array(fragment_bytes(inputs._replace(update_bytes=1), self.fragments))
        stream, law = seeds.number(setup.seed, "arrivals"), setup.cluster.service.draw
        work = self.work(inputs, methods, sent=False)
        if trace:
            trace.groups(trace.worker, count)
            line = from_arrivals(trace.worker, trace.seconds, count)
        elif availability := availability_of(setup.cluster, count, 0):
            line = queued_arrivals(stream, law, work, setup.steps, availability=availability)
        else:
            line = renewal_arrivals(stream, law, work, setup.steps)
        if trace and trace.has("merge"):  # seconds decide it, and those of a real run are not drawn
            made = _recorded_rounds(trace, self.fragments)
        else:
            places = np.arange(count) * setup.cluster.nodes // count
            message = [
                to_server(setup.cluster, size)[places] for size in shares * inputs.update_bytes
            ]
            made = syncer_rounds(
                line.worker,
                line.seconds,
                np.stack(message, axis=1),
                self.period,
                self.delay,
                self.quorum,
                self.grace,
            )
        steps, late = ages(line.worker, made)
        last = np.maximum.accumulate(made.merge, axis=0)
        numbers = made._asdict() | {
            "merges": np.diff(last, axis=0, prepend=last[:1] * 0),
            "steps": steps.astype(np.float32),
            "part": ((made.send * 0.5 + made.receive * 0.5) @ shares).astype(np.float32),
            "rate": np.full(len(steps), self.outer_learning_rate, np.float32),
            "momentum": np.full(len(steps), self.outer_momentum, np.float32),
        }
        plan = WorkerStep(line.worker, numbers=numbers)
        return line._replace(plan=plan, staleness=late.max(axis=1))

    def exchanged(self, plan: WorkerStep) -> np.ndarray:
        """The part of the fragments that are sent or received."""
        return np.asarray(plan.numbers["part"])
