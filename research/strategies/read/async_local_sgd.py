"""Asynchronous local SGD with delayed Nesterov momentum (Liu et al., arXiv 2401.09135).

    G     = theta_read - w_i                    after H_i local steps of worker i from theta_read
    Delta <- Delta + G
    N-th:  m <- b m + Delta / N,  theta <- theta - eta ((1 - c N + c) b m + G / N),  Delta <- 0
    else:                         theta <- theta - eta (c b m + G / N)
    w_i   <- theta,  theta_read <- theta

Momentum of every stale G as it comes is worse than none, so it waits for N of them; N = 1 is
Nesterov's. Every N-th exchange of all workers together is a turn of the momentum.

Of its age tau, how often theta was updated since it was read, the server makes

    G     <- gate(tau) e^(-alpha tau) G               with alpha = 0, or tau = 0, as it is
    gate   = (1 + cos(pi min(tau / T, 1))) / 2        1 without a cutoff T
    theta <- theta - eta Adam(G)                      of first decay b, in place of the momentum

as CGAD (arXiv 2605.09126) has them, or it is that of HeLoCo (`heloco.py`).

A worker of speed v_i takes H_i = H v_i / max v local steps, rounded down and at least one, so that
slow workers are not the stalest: the dynamic local updates of the paper.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optdyn.basics.errors import ConfigError
from optdyn.basics.fields import field
from optdyn.basics.trees import Array, Tree
from optdyn.core import Batch, Event, Gradient, Info, Params, Rule, Update
from optdyn.setup import Setup
from optdyn.strategies.method import Methods, Setting
from optdyn.strategies.read import heloco, local_steps
from optdyn.strategies.read import workers as own
from optdyn.strategies.read.local_steps import Trained
from optdyn.strategies.shared_fields import FRACTION, OuterMomentum, Periodic
from optdyn.timeline.base import Timeline
from optdyn.timeline.exchanges import Exchanges

SERVERS = ("nesterov", "adam", "heloco")


class Turn(NamedTuple):
    """A local step of worker i, and what it does to theta where it exchanges."""

    worker: Array  # int32, i
    exchange: Array  # bool
    turn: Array  # bool, whether it is an N-th exchange
    momentum_part: Array  # float32, of b m that comes with it: c, or 1 - c N + c at a turn
    rate: Array  # float32, eta
    decay: Array  # float32, b
    delay: Array  # float32, N
    weight: Array | None = None  # float32, gate(tau) e^(-alpha tau) of the message; None: 1
    aligned: Array | None = None  # float32, c_ok of HeLoCo
    strength: Array | None = None  # float32, its k


class State(NamedTuple):
    params: Params  # theta
    momentum: Params  # m
    waiting: Params  # Delta
    workers: own.Table  # w_i
    read: own.Table  # theta_read
    opt_state: own.Table  # the workers', kept when they read
    newest: jax.Array  # int32, who has just read theta, or else the number of workers
    server: Tree = ()  # the state of the server's optimizer, if it has one

    def moved_to(self, params: Params) -> "State":
        """theta is other parameters, of who has just read it too; what others have read stays."""
        workers, read = (own.put(table, self.newest, params) for table in self[3:5])
        return self._replace(params=params, workers=workers, read=read)

    def at(self, worker: int) -> tuple[Params, Tree]:
        """What a worker begins with that has just read: theta, and the state of its optimizer."""
        return own.row((self.workers, self.opt_state), worker)

    def logged(self) -> dict[str, float]:
        """The distance of workers from their mean, for the log."""
        return own.logged(self.workers)


def async_local_sgd(
    gradient: Gradient, update: Update, workers: int, server: str = SERVERS[0]
) -> Rule:
    """Rule of a table of `workers`; `event.choice` is a `Turn`. `server`: one of `SERVERS`."""

    is_adam = server == "adam"
    local = local_steps.local_step(gradient, update)

    def init(params: Params) -> State:
        zeros = jax.tree.map(jnp.zeros_like, params)
        every, opt_state = own.table((params, update.init(params)), workers)
        nobody, kept = jnp.int32(workers), optax.scale_by_adam().init(params) if is_adam else ()
        return State(params, zeros, zeros, every, every, opt_state, nobody, kept)

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        i, exchange, turn, part, rate, b, n, weight, aligned, strength = event.choice
        w, read = own.row(state.workers, i), own.row(state.read, i)
        loss, w, opt_state, _ = local(w, own.row(state.opt_state, i), event, batch)
        outer = jax.tree.map(jnp.subtract, read, w)
        if server == "heloco":
            assert aligned is not None and strength is not None
            outer = heloco.turned(outer, state.momentum, aligned, strength)
        if weight is not None:
            outer = jax.tree.map(lambda g: (weight * g).astype(g.dtype), outer)
        total = jax.tree.map(jnp.add, state.waiting, outer)
        m = jax.tree.map(lambda m, d: jnp.where(turn, b * m + d / n, m), state.momentum, total)
        step = jax.tree.map(lambda m, g: part * b * m + g / n, m, outer)
        kept = state.server
        if is_adam:
            step, kept = optax.scale_by_adam(b1=b).update(outer, state.server)
        if server == "heloco":
            step, m = heloco.step(outer, state.momentum, b)
        theta = jax.tree.map(lambda x, v: x - rate * v, state.params, step)
        total = jax.tree.map(lambda d: jnp.where(turn, 0.0, d), total)
        theta, m, total = own.where(exchange, (theta, m, total), state[:3])
        kept = own.where(exchange, kept, state.server)
        now = *own.where(exchange, (theta, theta), (w, read)), opt_state
        every, reads, opt_states = own.put(state[3:6], i, now)
        newest = jnp.where(exchange, i, workers)
        info = {"loss": loss, "sent_bytes": own.both_ways(exchange, w)}
        return State(theta, m, total, every, reads, opt_states, newest, kept), info

    return Rule(init, step)


@dataclass(frozen=True)
class AsyncLocalSGD(own.Workers, Periodic, OuterMomentum):
    steps_by_speed: bool = field(
        True, "async_local_sgd: whether slower workers take fewer local steps, H_i."
    )
    momentum_delay: int = field(
        0,
        "async_local_sgd: N, exchanges from one step of the momentum to the next; 0: the groups.",
        wanted="at least 1, or 0 for the groups",
        holds=lambda v: v >= 0,
    )
    momentum_part: float = field(
        0.0,
        "async_local_sgd: c N, of the momentum, that comes in the steps between.",
        **FRACTION,
    )

    age_decay: float = field(
        0.0, "async_local_sgd: alpha, what comes late counts e^(-alpha age) of its own.", at_least=0
    )
    server: str = field(
        SERVERS[0],
        "async_local_sgd: what the server makes of what comes, delayed 'nesterov', 'adam' or "
        "'heloco'.",
        one_of=SERVERS,
        static=True,
    )
    age_cutoff: float = field(
        0.0,
        "async_local_sgd: T, an age from which on what comes counts nothing, and less before by a "
        "cosine; 0: none.",
        at_least=0,
    )
    aligned: float = field(
        0.5,
        "async_local_sgd: c_ok of 'heloco', a cosine with the momentum from which on a message "
        "stays as it is.",
        at_least=-1,
        at_most=1,
    )
    correction: float = field(
        0.5, "async_local_sgd: k of 'heloco', how much others are corrected.", at_least=0
    )

    laws = (*own.Workers.laws, "race")

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return async_local_sgd(gradient, update, self.groups, self.server)

    def clock(self, setting: Setting, methods: Methods) -> Timeline:
        """The staleness is how often theta was updated since the worker had read it."""
        steps = setting.setup.steps
        line, exchange = own.timeline(self, setting, methods, self.periods(setting, methods))
        age, is_heloco = line.staleness, self.server == "heloco"
        weight = np.exp(-self.age_decay * age)
        if self.age_cutoff:
            weight *= (1 + np.cos(np.pi * np.minimum(age / self.age_cutoff, 1))) / 2
        choice = Turn(
            line.worker,
            exchange,
            **self.turns(exchange, np.cumsum(exchange)),
            rate=np.full(steps, self.outer_learning_rate, np.float32),
            decay=np.full(steps, self.outer_momentum, np.float32),
            delay=np.full(steps, self.delay, np.float32),
            weight=weight.astype(np.float32) if self.age_decay or self.age_cutoff else None,
            aligned=np.full(steps, self.aligned, np.float32) if is_heloco else None,
            strength=np.full(steps, self.correction, np.float32) if is_heloco else None,
        )
        return line._replace(choice=choice)

    def check(self, setup: Setup, methods: Methods) -> None:
        super().check(setup, methods)
        if self.server != SERVERS[0] and (self.momentum_delay or self.momentum_part):
            raise ConfigError(
                "config.strategy.momentum_delay, momentum_part: must be 0 with config.strategy."
                f"server = {self.server!r}, which waits for nothing"
            )
        if (self.age_decay or self.age_cutoff) and setup.cluster.service == "race":
            raise ConfigError(
                "config.strategy.age_decay, age_cutoff: must be 0 with config.cluster.service = "
                "'race', where ages are known when messages come"
            )

    def periods(self, setting: Setting, methods: Methods) -> list[int]:
        """H_i."""
        if self.steps_by_speed:
            return own.by_speed(self, setting, methods, self.period)
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
        each = self.periods(Setting(setup, 0, 0), methods)
        return Exchanges(line, each, self.turns)

    def message(self, gradient: Gradient, update: Update) -> Callable[..., Trained]:
        return local_steps.local_steps(gradient, update)


METHOD = AsyncLocalSGD
