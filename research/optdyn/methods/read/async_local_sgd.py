"""Asynchronous local SGD with delayed Nesterov momentum (Liu et al., arXiv 2401.09135).

    G     = theta_read - w_i                    after H_i local steps of worker i from theta_read
    Delta <- Delta + G
    N-th:  m <- b m + Delta / N,  theta <- theta - eta ((1 - c N + c) b m + G / N),  Delta <- 0
    else:                         theta <- theta - eta (c b m + G / N)
    w_i   <- theta,  theta_read <- theta

A momentum that moves with every stale G is worse than none, so this one waits for N of them; N = 1
is Nesterov's. The N-th is counted over the exchanges of all workers. A worker of speed v_i takes
H_i = H v_i / max v local steps, rounded down and at least one, so that slow workers are not the
stalest: the paper's dynamic local updates.

Two other servers make something else of G: those of CGAD (`cgad.py`) and HeLoCo (`heloco.py`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.base.trees import Array, Tree
from optdyn.clock.base import Timeline
from optdyn.clock.exchanges import Exchanges
from optdyn.core import Batch, Event, Gradient, Info, Params, Rule, Update
from optdyn.methods.method import ClockInputs, Methods
from optdyn.methods.read import cgad, heloco, local_steps
from optdyn.methods.read import workers as own
from optdyn.methods.read.local_steps import LocalResult
from optdyn.methods.read.server import Kept, ServerRule
from optdyn.methods.setup import Setup
from optdyn.methods.shared_fields import FRACTION, OuterMomentum, Periodic


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
    workers: own.Table  # w_i
    read: own.Table  # theta_read
    opt_state: own.Table  # the workers', kept when they read
    newest: jax.Array  # int32, who has just read theta, or else the number of workers
    server: Tree = ()  # the server's optimizer

    def moved_to(self, params: Params) -> "AsyncLocalSGDState":
        """theta is other parameters, of who has just read it too; what others have read stays."""
        workers, read = (own.put(table, self.newest, params) for table in self[3:5])
        return self._replace(params=params, workers=workers, read=read)

    def at(self, worker: int) -> tuple[Params, Tree]:
        """What a worker begins with that has just read: theta, and the state of its optimizer."""
        return own.row((self.workers, self.opt_state), worker)

    def logged(self) -> dict[str, float]:
        """The distance of workers from their mean, for the log."""
        return own.logged(self.workers)


def nesterov(G: Params, kept: Kept, c: Turn) -> tuple[Params, Kept]:
    """The delayed momentum."""
    G, b, n = cgad.weighed(G, c.weight), c.decay, c.delay
    total = jax.tree.map(jnp.add, kept.waiting, G)
    m = jax.tree.map(lambda m, d: jnp.where(c.turn, b * m + d / n, m), kept.momentum, total)
    step = jax.tree.map(lambda m, g: c.momentum_part * b * m + g / n, m, G)
    return step, Kept(m, jax.tree.map(lambda d: jnp.where(c.turn, 0.0, d), total), ())


SERVERS = {"nesterov": ServerRule(nesterov), "adam": cgad.ADAM, "heloco": heloco.HELOCO}


def async_local_sgd(
    gradient: Gradient, update: Update, workers: int, server: str = "nesterov"
) -> Rule:
    """Rule of a table of `workers`; `event.choice` is a `Turn`. `server`: one of `SERVERS`."""
    local, of = local_steps.local_step(gradient, update), SERVERS[server]

    def init(params: Params) -> AsyncLocalSGDState:
        zeros, nobody = jax.tree.map(jnp.zeros_like, params), jnp.int32(workers)
        every, opt_state = own.table((params, update.init(params)), workers)
        return AsyncLocalSGDState(
            params, zeros, zeros, every, every, opt_state, nobody, of.init(params)
        )

    def step(
        state: AsyncLocalSGDState, event: Event, batch: Batch
    ) -> tuple[AsyncLocalSGDState, Info]:
        c = event.choice
        w, read, opt_state = own.row(state[3:6], c.worker)
        loss, w, opt_state, _ = local(w, opt_state, event, batch)
        before = Kept(state.momentum, state.waiting, state.server)
        outer, kept = of.step(jax.tree.map(jnp.subtract, read, w), before, c)
        theta = jax.tree.map(lambda x, v: x - c.rate * v, state.params, outer)
        theta, kept = own.where(c.exchange, (theta, kept), (state.params, before))
        now = *own.where(c.exchange, (theta, theta), (w, read)), opt_state
        every, reads, opt_states = own.put(state[3:6], c.worker, now)
        newest = jnp.where(c.exchange, c.worker, workers)
        info = {"loss": loss, "sent_bytes": own.both_ways(c.exchange, w)}
        m, total, optimizer = kept
        return AsyncLocalSGDState(
            theta, m, total, every, reads, opt_states, newest, optimizer
        ), info

    return Rule(init, step)


@dataclass(frozen=True)
class AsyncLocalSGD(
    own.WorkerMethod, Periodic, OuterMomentum, cgad.Aged, heloco.Turned, name="async_local_sgd"
):
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

    laws = (*own.WorkerMethod.laws, "race")

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return async_local_sgd(gradient, update, self.groups, self.server)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """The staleness is how often theta was updated since the worker had read it."""
        line, exchange = own.timeline(self, setting, methods, self.periods(setting, methods))
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
        return line._replace(choice=choice)

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
        each = self.periods(ClockInputs(setup, 0, 0), methods)
        return Exchanges(line, each, self.turns)

    def message(self, gradient: Gradient, update: Update) -> Callable[..., LocalResult]:
        return local_steps.local_steps(gradient, update)
