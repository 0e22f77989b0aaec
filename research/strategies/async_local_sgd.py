"""Asynchronous local SGD with delayed Nesterov momentum (Liu et al., arXiv 2401.09135).

    G     = theta_read - w_i                    after H_i local steps of worker i from theta_read
    Delta <- Delta + G
    N-th:  m <- b m + Delta / N,  theta <- theta - eta ((1 - c N + c) b m + G / N),  Delta <- 0
    else:                         theta <- theta - eta (c b m + G / N)
    w_i   <- theta,  theta_read <- theta

Momentum of every stale G as it comes is worse than none, so it waits for N of them; N = 1 is
Nesterov's. When workers exchange, and which exchanges are N-th ones, is in `delayed_momentum.py`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from optdyn.experiment import Experiment
from optdyn.strategies import local_steps
from optdyn.strategies import workers as own
from optdyn.strategies.base import Batch, Event, Gradient, Info, Params, Strategy, Update
from optdyn.strategies.delayed_momentum import clock, order
from optdyn.strategies.method import Racing
from optdyn.values import require


class State(NamedTuple):
    params: Params  # theta
    momentum: Params  # m
    waiting: Params  # Delta
    workers: own.Table  # w_i
    read: own.Table  # theta_read
    opt_state: own.Table  # the workers', kept when they read
    newest: jax.Array  # int32, who has just read theta, or else the number of workers

    def moved_to(self, params: Params) -> "State":
        """theta is other parameters, of who has just read it too; what others have read stays."""
        workers, read = (own.put(table, self.newest, params) for table in self[3:5])
        return self._replace(params=params, workers=workers, read=read)

    def at(self, worker: int) -> tuple[Params, Any]:
        """What a worker begins with that has just read: theta, and the state of its optimizer."""
        return own.row((self.workers, self.opt_state), worker)

    def logged(self) -> dict[str, float]:
        return own.logged(self.workers)


def async_local_sgd(gradient: Gradient, update: Update, workers: int) -> Strategy:
    """Strategy of a table of `workers`; `event.choice` is a `Turn`."""

    local = local_steps.local_step(gradient, update)

    def init(params: Params) -> State:
        zeros = jax.tree.map(jnp.zeros_like, params)
        every, opt_state = own.table((params, update.init(params)), workers)
        return State(params, zeros, zeros, every, every, opt_state, jnp.int32(workers))

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        i, exchange, turn, part, rate, b, n = event.choice
        w, read = own.row(state.workers, i), own.row(state.read, i)
        loss, w, opt_state, _ = local(w, own.row(state.opt_state, i), event, batch)
        outer = jax.tree.map(jnp.subtract, read, w)
        total = jax.tree.map(jnp.add, state.waiting, outer)
        m = jax.tree.map(lambda m, d: jnp.where(turn, b * m + d / n, m), state.momentum, total)
        step = jax.tree.map(lambda m, g: part * b * m + g / n, m, outer)
        theta = jax.tree.map(lambda x, v: x - rate * v, state.params, step)
        total = jax.tree.map(lambda d: jnp.where(turn, 0.0, d), total)
        theta, m, total = own.where(exchange, (theta, m, total), state[:3])
        now = *own.where(exchange, (theta, theta), (w, read)), opt_state
        every, reads, opt_states = own.put(state[3:6], i, now)
        newest = jnp.where(exchange, i, workers)
        info = {"loss": loss, "sent_bytes": own.both_ways(exchange, w)}
        return State(theta, m, total, every, reads, opt_states, newest), info

    return Strategy(init, step)


def values(config: Experiment) -> None:
    """Raises `ConfigError`."""
    require(config, "strategy.momentum_delay", lambda v: v >= 0, "at least 1, or 0 for the groups")
    require(config, "strategy.momentum_part", lambda v: 0 <= v <= 1, "from 0 to 1")


METHOD = own.WORKERS._replace(
    keys={
        "groups": 1,  # compute groups, each synchronous inside
        "period": 8,  # H, updates of the fastest worker from one exchange to the next
        "steps_by_speed": True,  # slower workers take fewer local steps, H_i
        "outer_learning_rate": 0.7,  # eta
        "outer_momentum": 0.9,  # b
        "momentum_delay": 0,  # N, exchanges from one step of the momentum to the next; 0: groups
        "momentum_part": 0.0,  # c N, of the momentum, that comes in the steps between
    },
    read=lambda gradient, update, keys, *_: async_local_sgd(gradient, update, keys["groups"]),
    clock=clock,
    laws=(*own.WORKERS.laws, "race"),
    values=values,
    race=Racing(order, local_steps.local_steps),
)
