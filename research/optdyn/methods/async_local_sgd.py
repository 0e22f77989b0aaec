"""A server of workers that take local steps: what it makes of the message of one of them.

theta <- theta - eta V(G)      G = theta_read - w_i, as in `async_local_sgd.py`

CGAD's server (arXiv 2605.09126): what comes late counts less, and Adam in place of a momentum.

    G     <- gate(tau) e^(-alpha tau) G      tau: how often theta was updated since it was read
    gate   = (1 + cos(pi min(tau / T, 1))) / 2                         1 without a cutoff T
    theta <- theta - eta Adam(G)                                       of first decay b

With alpha = 0 and no cutoff, and where tau = 0, G stays as it is.

HeLoCo's server (Al Asif et al., arXiv 2606.00271): what comes, turned toward the momentum.

Array by array, of the message D, the momentum m, and c the cosine of D and m:

    D <- D                                             c >= c_ok
    D <- |D| u / |u|,  u = (1 - l) D/|D| + l m/|m|     0 <= c < c_ok,   l = min(k (1 - c) f, 1)
    D <- D - b c |D| m/|m|                             c < 0,           b = min(-k c f, 1)
    f  = |D| / (|D| + |m|)                             the confidence

    m     <- mu m + (1 - mu) D
    theta <- theta - eta (D + mu m)

Turning keeps the length of D. From a D that is against m a part of what is against it is taken off.
With c_ok = -1, and where m is 0, D stays as it is.

Learners on clocks of their own, and the syncer that merges what some of them have sent.

A learner sends fragment p of P after its first p H / P local steps, rounded down, and then after
every H. `grace` seconds after messages of K learners are there the syncer merges all that have
arrived by then, and sends Theta back to these learners. A learner takes it over at the end of a
local step, at least `delay` of its own steps, and at least one, after it had sent.

Nobody knows of what is under way. A learner's newer message takes the place of its older one when
it arrives, and is dropped if the older has been merged by then, as both began at the same Theta. A
learner has one message under way at most, and gives it up when it takes Theta over. It sends none
while Theta waits for that, nor in the step that takes it over: the message would be empty, and yet
count for the quorum. A merge belongs to the last local step before it; after the very last step
there are none.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.base.trees import Array, Plan, Tree
from optdyn.clock.network import to_server
from optdyn.clock.timeline import Timeline
from optdyn.clock.trace import Held
from optdyn.clock.versions import Exchanges
from optdyn.core import Batch, Event, Gradient, Info, Params, Rule, Update, where
from optdyn.methods.averaging import cut, fragment_bytes, join, nesterov
from optdyn.methods.messages import mean_of, size
from optdyn.methods.method import (
    FRACTION,
    ClockInputs,
    Fragmented,
    Method,
    Methods,
    OuterMomentum,
    Periodic,
)
from optdyn.methods.setup import Setup
from optdyn.methods.workers import (
    LocalResult,
    Table,
    WorkerMethod,
    both_ways,
    by_speed,
    local_step,
    local_steps,
    logged,
    put,
    row,
    table,
    unhindered,
    workers_clock,
)


class Kept(NamedTuple):
    """What a server has beside theta."""

    momentum: Params  # m
    waiting: Params  # Delta
    optimizer: Tree  # the state of an optax optimizer, or ()


class ServerRule(NamedTuple):
    """`step(G, kept, c) -> V, kept`, where c are the numbers of this exchange."""

    step: Callable[[Params, Kept, Plan], tuple[Params, Kept]]
    init: Callable[[Params], Tree] = lambda params: ()  # its optimizer's state at the beginning


@dataclass(frozen=True)
class Aged(Method):
    """The numbers of what counts by its age."""

    age_decay: float = field(
        0.0, "alpha, what comes late counts e^(-alpha age) of its own.", at_least=0
    )
    age_cutoff: float = field(
        0.0,
        "T, an age from which on what comes counts nothing, and less before by a cosine; 0: none.",
        at_least=0,
    )

    def weights(self, age: np.ndarray) -> np.ndarray | None:
        """gate(tau) e^(-alpha tau) of messages of that `age`, float32; None where all count 1."""
        if not (self.age_decay or self.age_cutoff):
            return None
        weight = np.exp(-self.age_decay * age)
        if self.age_cutoff:
            weight *= (1 + np.cos(np.pi * np.minimum(age / self.age_cutoff, 1))) / 2
        return weight.astype(np.float32)


def weighed(message: Params, weight: Array | None) -> Params:
    """The message G times its weight."""
    if weight is None:
        return message
    return jax.tree.map(lambda g: (weight * g).astype(g.dtype), message)


def adam(message: Params, kept: Kept, c: Plan) -> tuple[Params, Kept]:
    """Adam of what is weighed; `c` is a `Turn`."""
    rule = optax.scale_by_adam(b1=c.decay)
    step, state = rule.update(weighed(message, c.weight), kept.optimizer)
    return step, kept._replace(optimizer=state)


ADAM = ServerRule(adam, optax.scale_by_adam().init)


TINY = 1e-12  # beside norms


@dataclass(frozen=True)
class Turned(Method):
    """The numbers of messages that are turned."""

    aligned: float = field(
        0.5,
        "c_ok of 'heloco', a cosine with the momentum from which on a message stays as it is.",
        at_least=-1,
        at_most=1,
    )
    correction: float = field(0.5, "K of 'heloco', how much others are corrected.", at_least=0)


def turned(message: Params, momentum: Params, aligned: Array, strength: Array) -> Params:
    """D of every array; `aligned` is c_ok, `strength` k."""

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


def heloco_step(message: Params, kept: Kept, c: Plan) -> tuple[Params, Kept]:
    """D + mu m, of a message that is turned, and weighed by its age; `c` is a `Turn`."""
    message = weighed(turned(message, kept.momentum, c.aligned, c.strength), c.weight)
    after = jax.tree.map(lambda m, d: c.decay * m + (1 - c.decay) * d, kept.momentum, message)
    way = jax.tree.map(lambda m, d: d + c.decay * m, after, message)
    return way, kept._replace(momentum=after)


HELOCO = ServerRule(heloco_step)


class Turn(NamedTuple):
    """A local step of worker i, and what it does to theta where it exchanges."""

    worker: Array  # int32, i
    exchange: Array  # bool
    turn: Array  # bool, whether it is an N-th exchange
    momentum_part: Array  # float32, of b m in this step of theta: c, or 1 - c N + c at a turn
    rate: Array  # float32, eta
    decay: Array  # float32, b
    delay: Array  # float32, N
    weight: Array | None = None  # float32, what G counts (`cgad.py`); None: 1
    aligned: Array | None = None  # float32, c_ok (`heloco.py`)
    strength: Array | None = None  # float32, its k


class AsyncLocalSGDState(NamedTuple):
    params: Params  # theta
    momentum: Params  # m, as in `Kept`
    waiting: Params  # Delta
    workers: Table  # w_i
    read: Table  # theta_read
    opt_state: Table  # the workers', kept when they read
    newest: jax.Array  # int32, who has just read theta, or else the number of workers
    server: Tree = ()  # the server's optimizer

    def moved_to(self, params: Params) -> "AsyncLocalSGDState":
        """theta is other parameters, of who has just read it too; what others have read stays."""
        workers, read = (put(table, self.newest, params) for table in self[3:5])
        return self._replace(params=params, workers=workers, read=read)

    def at(self, worker: int) -> tuple[Params, Tree]:
        """What a worker begins with that has just read: theta, and the state of its optimizer."""
        return row((self.workers, self.opt_state), worker)

    def logged(self) -> dict[str, float]:
        """The distance of workers from their mean, for the log."""
        return logged(self.workers)


def delayed_nesterov(G: Params, kept: Kept, c: Turn) -> tuple[Params, Kept]:
    """The delayed momentum."""
    G, b, n = weighed(G, c.weight), c.decay, c.delay
    total = jax.tree.map(jnp.add, kept.waiting, G)
    m = jax.tree.map(lambda m, d: jnp.where(c.turn, b * m + d / n, m), kept.momentum, total)
    step = jax.tree.map(lambda m, g: c.momentum_part * b * m + g / n, m, G)
    return step, Kept(m, jax.tree.map(lambda d: jnp.where(c.turn, 0.0, d), total), ())


SERVERS = {"nesterov": ServerRule(delayed_nesterov), "adam": ADAM, "heloco": HELOCO}


def async_local_sgd(
    gradient: Gradient, update: Update, workers: int, server: str = "nesterov"
) -> Rule:
    """Rule of a table of `workers`; `event.plan` is a `Turn`. `server`: one of `SERVERS`."""
    local, of = local_step(gradient, update), SERVERS[server]

    def init(params: Params) -> AsyncLocalSGDState:
        zeros, nobody = jax.tree.map(jnp.zeros_like, params), jnp.int32(workers)
        every, opt_state = table((params, update.init(params)), workers)
        return AsyncLocalSGDState(
            params, zeros, zeros, every, every, opt_state, nobody, of.init(params)
        )

    def step(
        state: AsyncLocalSGDState, event: Event, batch: Batch
    ) -> tuple[AsyncLocalSGDState, Info]:
        c = event.plan
        w, read, opt_state = row(state[3:6], c.worker)
        loss, w, opt_state, _ = local(w, opt_state, event, batch)
        before = Kept(state.momentum, state.waiting, state.server)
        outer, kept = of.step(jax.tree.map(jnp.subtract, read, w), before, c)
        theta = jax.tree.map(lambda x, v: x - c.rate * v, state.params, outer)
        theta, kept = where(c.exchange, (theta, kept), (state.params, before))
        now = *where(c.exchange, (theta, theta), (w, read)), opt_state
        every, reads, opt_states = put(state[3:6], c.worker, now)
        newest = jnp.where(c.exchange, c.worker, workers)
        info = {"loss": loss, "sent_bytes": both_ways(c.exchange, w)}
        m, total, optimizer = kept
        return AsyncLocalSGDState(
            theta, m, total, every, reads, opt_states, newest, optimizer
        ), info

    return Rule(init, step)


@dataclass(frozen=True)
class AsyncLocalSGD(WorkerMethod, Periodic, OuterMomentum, Aged, Turned, name="async_local_sgd"):
    """Asynchronous local SGD with delayed Nesterov momentum (Liu et al., arXiv 2401.09135).

        G     = theta_read - w_i                  after H_i local steps of worker i from theta_read
        Delta <- Delta + G
        N-th:  m <- b m + Delta / N,  theta <- theta - eta ((1 - c N + c) b m + G / N),  Delta <- 0
        else:                         theta <- theta - eta (c b m + G / N)
        w_i   <- theta,  theta_read <- theta

    A momentum that moves with every stale G is worse than none, so this one waits for N of them; N
    = 1 is Nesterov's. The N-th is counted over the exchanges of all workers. A worker of speed v_i
    takes H_i = H v_i / max v local steps, rounded down and at least one, so that slow workers are
    not the stalest: the paper's dynamic local updates.

    Two other servers make something else of G: those of CGAD (`cgad.py`) and HeLoCo (`heloco.py`).
    """

    steps_by_speed: bool = field(True, "Whether slower workers take fewer local steps, H_i.")
    momentum_delay: int = field(
        0,
        "N, exchanges from one step of the momentum to the next; 0: the groups.",
        wanted="at least 1, or 0 for the groups",
        holds=lambda v: v >= 0,
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

    laws = (*WorkerMethod.laws, "race")

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return async_local_sgd(gradient, update, self.groups, self.server)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """The staleness is how often theta was updated since the worker had read it."""
        line, exchange = workers_clock(self, setting, methods, self.periods(setting, methods))
        turns, is_heloco = self.turns(exchange, np.cumsum(exchange)), self.server == "heloco"

        def every(value: float) -> np.ndarray:
            return np.full(setting.setup.steps, value, np.float32)

        choice = Turn(
            line.worker,
            exchange,
            **turns,
            rate=every(self.outer_learning_rate),
            decay=every(self.outer_momentum),
            delay=every(self.delay),
            weight=self.weights(line.staleness),
            aligned=every(self.aligned) if is_heloco else None,
            strength=every(self.correction) if is_heloco else None,
        )
        return line._replace(plan=choice)

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        for key in ("momentum_delay", "momentum_part"):
            said = f"must be 0 with config.method.server = {self.server!r}, which waits for nothing"
            yield Join(f"method.{key}", self.server != "nesterov" and getattr(self, key), said)
        for key in ("age_decay", "age_cutoff"):
            raced = setup.cluster.service.name == "race" and getattr(self, key)
            said = "must be 0 with config.cluster.service.name = 'race', where ages are known when "
            yield Join(f"method.{key}", raced, f"{said}messages come")

    def periods(self, setting: ClockInputs, methods: Methods) -> list[int]:
        """H_i."""
        if self.steps_by_speed:
            return by_speed(self, setting, methods, self.period)
        return [self.period] * self.groups

    @property
    def delay(self) -> int:
        """N."""
        return self.momentum_delay or self.groups

    def turns(self, exchange: Array, count: Array) -> dict[str, Array]:
        """Whether exchanges are N-th ones, by their count, and the part of b m that each brings."""
        n = self.delay
        turn, c = exchange & (count % n == 0), self.momentum_part / n
        return {"turn": turn, "momentum_part": np.where(turn, 1 - c * n + c, c).astype(np.float32)}

    def order(self, setup: Setup, methods: Methods, line: Timeline) -> Exchanges:
        """The order of arrivals in a race, which writes who reads when."""
        each = self.periods(ClockInputs(setup, 0, 0), methods)
        return Exchanges(line, each, self.turns)

    def message(self, gradient: Gradient, update: Update) -> Callable[..., LocalResult]:
        return local_steps(gradient, update)


NEVER = math.inf
DROPPED = -1


class Rounds(NamedTuple):
    """What follows each local step, (steps, P)."""

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

    `worker`, (steps,): the learner of each local step; `seconds`, (steps,): when it is done.
    `message`, (learners, P): seconds of a message, in either direction. `period` is H, in local
    steps; `quorum` is K, 0: all learners; `delay` and `grace` as at the top of this file.
    """
    steps, (learners, fragments) = len(worker), message.shape
    phases = [p * period // fragments for p in range(fragments)]
    quorum, delay, takes = quorum or learners, max(delay, 1), message.T.tolist()
    receive, send = np.zeros((2, steps, fragments), bool)
    into, merge = np.zeros((2, steps, fragments), np.int32)
    done, count, nth = [0] * learners, [0] * fragments, list[int]()
    # Of each fragment: letters (second of arrival, learner, local step) on their way, and the local
    # steps of those that are there; when the next merge is; (second of arrival, own step of the
    # learner that is answered) of Theta; by which local step a learner took it over.
    under_way = [list[tuple[float, int, int]]() for _ in range(fragments)]
    there = [dict[int, int]() for _ in range(fragments)]
    due = [NEVER] * fragments
    back = [dict[int, tuple[float, int]]() for _ in range(fragments)]
    taken, free = ([[-1.0] * learners for _ in range(fragments)] for _ in range(2))

    def is_answered(p: int, m: int, sent: int) -> bool:
        return m in back[p] or sent < taken[p][m]

    for t, (m, now) in enumerate(zip(worker.tolist(), seconds.tolist(), strict=True)):
        done[m] += 1
        nth.append(done[m])
        end = seconds[t + 1] if t + 1 < steps else now
        for p, phase in enumerate(phases):
            arrives, since = back[p].get(m, (NEVER, 0))
            if arrives <= now:
                if done[m] >= since + delay:
                    receive[t, p], taken[p][m], free[p][m] = True, t, now
                    del back[p][m]
            elif (done[m] - phase) % period == 0 and free[p][m] <= now:
                send[t, p], free[p][m] = True, now + takes[p][m]
                heappush(under_way[p], (free[p][m], m, t))
            while True:
                if under_way[p] and under_way[p][0][0] <= min(due[p], end):
                    at, n, sent = heappop(under_way[p])
                    if is_answered(p, n, sent):
                        into[sent, p] = DROPPED
                        continue
                    there[p][n] = sent
                    if due[p] == NEVER and len(there[p]) == quorum:
                        due[p] = at + grace
                elif due[p] <= end:
                    count[p] += 1
                    merge[t, p] = count[p]
                    for n, sent in there[p].items():
                        into[sent, p] = count[p]
                        back[p][n] = due[p] + takes[p][n], nth[sent]
                    there[p], due[p] = {}, NEVER
                else:
                    break
    for p, letters in enumerate(under_way):
        for _, n, sent in letters:
            if is_answered(p, n, sent):
                into[sent, p] = DROPPED
    return Rounds(receive, send, into, merge)


def recorded_rounds(held: Held, fragments: int, steps: int) -> Rounds:
    """The rounds of a run that a trace holds. Raises `TimelineError`."""
    lows = {"into": DROPPED}
    each = (held.whole(name, (fragments,), lows.get(name, 0), steps) for name in Rounds._fields)
    receive, send, into, merge = each
    return Rounds(receive.astype(bool), send.astype(bool), into, merge)


def merges(last: np.ndarray) -> np.ndarray:
    """(steps, P) int32: how many merges follow each local step, from `Rounds.merge`."""
    return np.diff(np.maximum.accumulate(last, axis=0), axis=0, prepend=last[:1] * 0)


def ages(worker: np.ndarray, of: Rounds) -> tuple[np.ndarray, np.ndarray]:
    """(steps, P) a learner's local steps since it last took a merge over, and (steps, P) how many
    merges of the fragment it has not seen.
    """
    order = np.argsort(worker, kind="stable")  # a learner's steps are together, in order
    place = np.arange(len(worker))[:, None]
    own = worker[order]
    begin = np.searchsorted(own, own)[:, None]  # of the learner's steps

    def latest(flags: np.ndarray) -> np.ndarray:
        """The place of the learner's last flagged step so far, or the one before it begins."""
        return np.maximum(np.maximum.accumulate(np.where(flags[order], place, -1)), begin - 1)

    def held(values: np.ndarray, at: np.ndarray) -> np.ndarray:
        """What is at those places, and 0 before a learner begins."""
        return np.where(at >= begin, np.take_along_axis(values, np.maximum(at, 0), axis=0), 0)

    received = latest(of.receive)
    # The merge that the last message is in which was not dropped.
    letter = held(of.into[order], latest(of.send & (of.into != DROPPED)))
    seen = held(held(letter, received), place - 1)  # before the step
    made = np.maximum.accumulate(np.insert(of.merge, 0, 0, axis=0)[:-1], axis=0)
    back = np.argsort(order)
    steps, late = (place - received)[back], made - seen[back]
    return steps.astype(np.int32), late.astype(np.int32)


class Learning(NamedTuple):
    """A local step of learner m, and what follows it of every fragment, (P,)."""

    worker: Array  # int32, m
    receive: Array  # this and the next three as in `syncer.Rounds`
    send: Array
    into: Array
    merge: Array
    merges: Array  # int32, how many merges follow; `merge` is the last
    steps: Array  # float32, w_m
    part: Array  # float32, share of all parameters that travels there and back
    rate: Array  # float32, eta
    momentum: Array  # float32, mu


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
        return logged(self.workers)


def decoupled(gradient: Gradient, update: Update, learners: int, fragments: int = 1) -> Rule:
    """Rule of a table of `learners`; `event.plan` is a `Learning`."""
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
        c = event.plan
        x, read, opt_state, mail, into, steps = row(state[2:], c.worker)
        loss, x, opt_state, _ = local(x, opt_state, event, batch)
        x, read = chosen(c.receive, mail, x), chosen(c.receive, mail, read)
        # What is dropped must not take the place of what is merged.
        sent = c.send & (c.into != DROPPED)
        mail = chosen(sent, jax.tree.map(jnp.subtract, read, x), mail)
        into, steps = jnp.where(sent, c.into, into), jnp.where(sent, c.steps, steps)
        tables = put(state[2:], c.worker, (x, read, opt_state, mail, into, steps))
        after = merged(c, DecoupledState(*state[:2], *tables))
        return after, {"loss": loss, "sent_bytes": 2 * c.part * size(x)}

    def merged(c: Learning, state: DecoupledState) -> DecoupledState:
        """After the merges that follow a local step."""
        each = zip(parts(state.params), state.outer, parts(state.mail), strict=True)
        after = [
            lax.fori_loop(0, c.merges[p], partial(merge, c, state, p), of_fragment)
            for p, of_fragment in enumerate(each)
        ]
        theta, outer, mail = zip(*after, strict=True)
        return state._replace(params=join(theta), outer=outer, mail=join(mail))

    def merge(c: Learning, state: DecoupledState, p: int, n: Array, of_fragment: Tree) -> Tree:
        """Theta, v and the mail of fragment p after merge n, from 0 on, of those that follow."""
        theta, v, mail = of_fragment
        in_M = state.into[:, p] == c.merge[p] - c.merges[p] + 1 + n
        w = in_M * state.steps[:, p]
        delta = jax.tree.map(partial(mean_of, weights=w / jnp.maximum(w.sum(), 1.0)), mail)
        numbers = {"outer_learning_rate": c.rate, "outer_momentum": c.momentum}
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
        wanted = f"from 1 to config.method.period = {self.period}"
        self.require("fragments", 1 <= self.fragments <= self.period, wanted)
        self.require("delay", self.delay >= 0, "at least 0")
        wanted = f"at most config.method.groups = {self.groups}, or 0 for all"
        self.require("quorum", self.quorum <= self.groups, wanted)

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return decoupled(gradient, update, self.groups, self.fragments)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """Local steps as in `asynchronous`, but no learner waits for a message.

        The staleness is how many merges the fragment that lags most has not seen.
        """
        line, cluster = unhindered(self, setting, methods), setting.setup.cluster
        shares = np.array(fragment_bytes(setting._replace(update_bytes=1), self.fragments))
        if (held := setting.held) and held.has("merge"):
            made = recorded_rounds(held, self.fragments, len(line.worker))
        else:
            places = np.arange(self.groups) * cluster.nodes // self.groups
            message = [to_server(cluster, size)[places] for size in shares * setting.update_bytes]
            numbers = self.period, self.delay, self.quorum, self.grace
            made = syncer_rounds(line.worker, line.seconds, np.stack(message, axis=1), *numbers)
        steps, late = ages(line.worker, made)
        choice = Learning(
            line.worker,
            *made,
            merges=merges(made.merge),
            steps=steps.astype(np.float32),
            part=((made.send * 0.5 + made.receive * 0.5) @ shares).astype(np.float32),
            rate=np.full(len(steps), self.outer_learning_rate, np.float32),
            momentum=np.full(len(steps), self.outer_momentum, np.float32),
        )
        return line._replace(plan=choice, staleness=late.max(axis=1))
