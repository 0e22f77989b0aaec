"""Elastic averaging SGD, EASGD and EAMSGD (Zhang, Choromanska and LeCun, arXiv 1412.6651).

    s   = a (w_i - w*)              with every H-th arrival of worker i, else 0
    w*  <- w* + s                   the center, which is evaluated
    w_i <- w_i - gamma g(w_i) - s   by its own optimizer: with momentum it is EAMSGD

As in the paper's algorithm 1 the spring pulls at what w_i was before the local step. An exchange
keeps w* + sum_i w_i. The paper's a is 0.9 / p for p workers: the key is p a, so that at 1 the
center would be the workers' mean if all exchanged at once. It is 0 where workers are on their own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base.fields import field
from optdyn.base.trees import Tree
from optdyn.clock.base import Timeline
from optdyn.clock.exchanges import Exchanges
from optdyn.core import Array, Batch, Event, Gradient, Info, Params, Rule, Update
from optdyn.methods.method import ClockInputs, Methods
from optdyn.methods.read import local_steps
from optdyn.methods.read import workers as own
from optdyn.methods.read.local_steps import LocalResult
from optdyn.methods.setup import Setup
from optdyn.methods.shared_fields import Periodic


class Exchange(NamedTuple):
    """A local step of worker i, and whether it exchanges."""

    worker: Array  # int32, i
    exchange: Array  # bool
    elasticity: Array  # float32, a


class ElasticState(NamedTuple):
    params: Params  # w*
    workers: own.Table  # w_i
    opt_state: own.Table

    def moved_to(self, params: Params) -> "ElasticState":
        """w* is other parameters; the workers stay, and are pulled there."""
        return self._replace(params=params)

    def at(self, worker: int) -> tuple[Params, Tree]:
        """What a worker goes on with that has exchanged: w_i, and the state of its optimizer."""
        return own.row((self.workers, self.opt_state), worker)

    def logged(self) -> dict[str, float]:
        """The distance of workers from their mean, for the log."""
        return own.logged(self.workers)


def pull(worker: Params, center: Params, a: Array) -> Params:
    """s, which the center gains and the worker loses."""
    return jax.tree.map(lambda w, c: a.astype(w.dtype) * (w - c), worker, center)


def elastic(gradient: Gradient, update: Update, workers: int) -> Rule:
    """Rule of a table of `workers`; `event.choice` is an `Exchange`."""

    local = local_steps.local_step(gradient, update)

    def init(params: Params) -> ElasticState:
        return ElasticState(
            params, own.table(params, workers), own.table(update.init(params), workers)
        )

    def step(state: ElasticState, event: Event, batch: Batch) -> tuple[ElasticState, Info]:
        i, exchange, a = event.choice
        w = own.row(state.workers, i)
        loss, after, opt_state, w = local(w, own.row(state.opt_state, i), event, batch)
        s = pull(w, state.params, a)
        center = own.where(exchange, jax.tree.map(jnp.add, state.params, s), state.params)
        after = own.where(exchange, jax.tree.map(jnp.subtract, after, s), after)
        table = own.put(state.workers, i, after)
        info = {"loss": loss, "sent_bytes": own.both_ways(exchange, w)}
        return ElasticState(center, table, own.put(state.opt_state, i, opt_state)), info

    return Rule(init, step)


@dataclass(frozen=True)
class Elastic(own.WorkerMethod, Periodic, name="elastic"):
    elasticity: float = field(
        0.9, "P a, of p groups; an exchange moves both sides by a of their distance."
    )

    laws = (*own.WorkerMethod.laws, "race")

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = f"from 0 to config.method.groups = {self.groups}"
        self.require("elasticity", 0 <= self.elasticity <= self.groups, wanted)

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return elastic(gradient, update, self.groups)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """All workers have one period; a gradient is taken at what its worker is: none is stale."""
        line, exchange = own.timeline(self, setting, methods, self.periods, is_stale=False)
        a = np.full(setting.setup.steps, self.elasticity / self.groups, np.float32)
        return line._replace(choice=Exchange(line.worker, exchange, a))

    @property
    def periods(self) -> list[int]:
        """H of every worker."""
        return [self.period] * self.groups

    def order(self, setup: Setup, methods: Methods, line: Timeline) -> Exchanges:
        """The order of arrivals in a race, which writes who exchanges when."""
        return Exchanges(line, self.periods, is_stale=False)

    def message(self, gradient: Gradient, update: Update) -> Callable[..., LocalResult]:
        return local_steps.local_steps(gradient, update, before=True)
