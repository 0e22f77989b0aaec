"""What a run keeps beside its rule's state: the model's state, and an average of its parameters.

    s <- s'(batch, s)            the model's state, where it is `carried`
    a <- a + (1 - d) / (1 - d^t) (x_t - a)        the average `ema` of decay d, a_1 = x_1
    a  = 1/K sum_{k < K} x_{t-k}                  the average `lawa` of the last K updates

Each wraps a rule, whose own state it does not touch. A gradient is taken with the newest state of
its owner, whatever version of the parameters it reads: the increment s' - s_read, added to a newer
s, would be an average with a delay, which diverges where (1 - decay) x staleness is above 1.57. So
the state is in no table of versions, and no message, staleness rule or optimizer sees it.

    owner                 methods                                  meets
    the server            sync, asynchronous and its kin           every update
    the server            dynamic_batch, an example as another     every update
    a block, the newest   local, stale_pipeline                    never
    a worker              elastic, ad_psgd, async_local_sgd        never
    a node                model averaging, DiLoCo, DASO            the plain mean, where they meet
    a node                demo, sparta                             every update
    a node                gossip and what is over a graph          never

A mean of states is that of their union, not one of variances (`adapters.moments`). The clocks count
no bytes for it, as a norm has two numbers a channel beside a channel's weights.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from optdyn.base.trees import Params, Tree
from optdyn.clock.timeline import AllReduceStep, Meeting
from optdyn.core import Batch, Event, Gradient, Info, LoggedState, Rule, all_reduce
from optdyn.methods.method import MethodStack
from optdyn.methods.workers import put, row, table
from optdyn.problem.models.adapters import from_moments, mean_of_rows, moments
from optdyn.problem.problem import STATE, Problem


class Keeping(NamedTuple):
    """What is kept, of a program."""

    carries: bool = False  # the model's state
    meets: bool = True  # whether it is the mean of the nodes where these meet
    average: str = ""  # 'ema' or 'lawa', latest weight averaging (arXiv 2209.14981); '': none
    last: int = 1  # K


NOTHING_KEPT = Keeping()


class Carrying(NamedTuple):
    inner: Tree  # the rule's state
    carried: Params  # the model's; of workers, leaves (workers, ...)

    @property
    def params(self) -> Params:
        return self.inner.params

    @property
    def opt_state(self) -> Tree:
        return self.inner.opt_state

    def moved_to(self, params: Params) -> "Carrying":
        return self._replace(inner=self.inner.moved_to(params))

    def logged(self) -> dict[str, float]:
        return self.inner.logged() if isinstance(self.inner, LoggedState) else {}


def with_opt_state(state: Tree, opt_state: Tree) -> Tree:
    """Returns the state of a rule inside a node, with another state of its optimizer."""
    if isinstance(state, Carrying):
        return state._replace(inner=with_opt_state(state.inner, opt_state))
    return state._replace(opt_state=opt_state)


class Averaging(NamedTuple):
    inner: Tree
    average: Params  # `ema`; of `lawa` a ring, leaves (K, ...)
    updates: jax.Array  # int32

    @property
    def params(self) -> Params:
        return self.inner.params

    @property
    def opt_state(self) -> Tree:
        return self.inner.opt_state

    def logged(self) -> dict[str, float]:
        return self.inner.logged() if isinstance(self.inner, LoggedState) else {}


def carrying_gradient(make: Callable[[Problem], Gradient], problem: Problem) -> Gradient:
    """Returns the gradient that `make` makes of a problem, with the state that an event brings.

    Its loss is a pair with `moments` of the state after about that before: those of a forward pass
    at the parameters that it is given, unless it has others.
    """

    def gradient(params: Params, event: Event, batch: Batch) -> tuple[Tree, Params]:
        its = problem.carrying(event.carried)
        loss, grads = make(its)(params, event, batch)
        if not isinstance(loss, tuple):  # the compiler finds the forward pass that is there already
            loss = loss, its.loss_and_state(params, batch)[1]
        return loss, grads

    return gradient


def carrying(rule: Rule, axis: str | None, workers: int = 0) -> Rule[Carrying]:
    """Returns the rule with the model's state, which `starting` puts into it.

    `axis` is that of devices whose batches are one update's, whose states are averaged. With
    `workers` each has a state, and `event.plan` their number.
    """

    def init(params: Params) -> Carrying:
        return Carrying(rule.init(params), {})

    def step(state: Carrying, event: Event, batch: Batch) -> tuple[Carrying, Info]:
        before = row(state.carried, event.plan.worker) if workers else state.carried
        inner, info = rule.step(state.inner, event._replace(carried=before), batch)
        loss, found = info["loss"]
        after = from_moments(lax.pmean(found, axis) if axis else found, before, before)
        carried = put(state.carried, event.plan.worker, after) if workers else after
        return Carrying(inner, carried), info | {"loss": loss}

    return Rule(init, step)


def starting(rule: Rule, workers: int = 0) -> Rule:
    """Returns the rule whose `init` takes the model's state as `STATE` of the parameters."""

    def init(variables: Params) -> Tree:
        params = {name: block for name, block in variables.items() if name != STATE}
        carried = variables[STATE]
        return with_carried(rule.init(params), table(carried, workers) if workers else carried)

    return rule._replace(init=init)


def model_state(state: Tree) -> Params | None:
    """Returns the model's state in that of a rule, as its owners have it; None if it has none."""
    while not isinstance(state, Carrying):
        if not hasattr(state, "inner"):
            return None
        state = state.inner
    return state.carried


def with_carried(state: Tree, carried: Params) -> Tree:
    if isinstance(state, Carrying):
        return state._replace(carried=carried)
    return state._replace(inner=with_carried(state.inner, carried))


def meeting(rule: Rule) -> Rule:
    """Returns the rule of a node whose model's state is averaged where nodes meet."""

    def step(state: Tree, event: Event, batch: Batch) -> tuple[Tree, Info]:
        after, info = rule.step(state, event, batch)
        plan, carried = event.plan, model_state(after)
        if isinstance(plan, Meeting) and plan.to is None:
            due = jnp.any(plan.receive)
            weight = 1.0 if plan.present is None else plan.present[lax.axis_index("node")]
        elif isinstance(plan, AllReduceStep):
            due, weight = jnp.bool_(True), 1.0
        else:
            return after, info

        def mean(carried: Params) -> Params:
            def of_nodes(tree: Params) -> Params:
                # As one sum: XLA on a CPU ends in a fault if it loads a branch with several.
                weighted = jax.tree.map(lambda leaf: weight * leaf.astype(jnp.float32), tree)
                sums = all_reduce(weighted, "node")
                return jax.tree.map(lambda leaf: leaf / lax.axis_size("node"), sums)

            center = of_nodes(carried)
            return from_moments(of_nodes(moments(carried, center)), center, carried)

        carried = lax.cond(due, mean, lambda carried: carried, carried)
        return with_carried(after, carried), info

    return Rule(rule.init, step)


def averaging(rule: Rule, kind: str, last: int) -> Rule[Averaging]:
    """Returns the rule with an average of the parameters that it evaluates, once an update."""

    def init(params: Params) -> Averaging:
        inner = rule.init(params)
        shape = (last,) if kind == "lawa" else ()
        zeros = jax.tree.map(lambda x: jnp.zeros((*shape, *x.shape), x.dtype), inner.params)
        return Averaging(inner, zeros, jnp.int32(0))

    def step(state: Averaging, event: Event, batch: Batch) -> tuple[Averaging, Info]:
        inner, info = rule.step(state.inner, event, batch)
        count, x = state.updates + 1, inner.params
        if kind == "lawa":
            average = put(state.average, state.updates % last, x)
            return Averaging(inner, average, count), info
        assert event.decay is not None
        weight = (1 - event.decay) / -jnp.expm1(count * jnp.log(event.decay))
        average = jax.tree.map(lambda a, x: a + weight * (x - a), state.average, x)
        return Averaging(inner, average, count), info

    return Rule(init, step)


def average_of(state: Averaging, kind: str) -> Params:
    """Returns the average after one update or more."""
    if kind == "ema":
        return state.average

    def mean(ring: jax.Array) -> jax.Array:  # places that are still empty are 0
        return ring.sum(axis=0) / jnp.minimum(state.updates, len(ring)).astype(ring.dtype)

    return jax.tree.map(mean, state.average)


def carried_in(state: Tree, methods: MethodStack) -> Params | None:
    """Returns the model's state in that of a rule, the mean of workers'; None if it has none."""
    carried = model_state(state)
    if carried is None or not (methods.read and methods.read.has_worker_params):
        return carried
    return mean_of_rows(carried)
