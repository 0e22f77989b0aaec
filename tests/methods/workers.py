"""Workers with parameters of their own on least squares."""

from functools import partial

import jax
import jax.numpy as jnp

from optdyn import core
from optdyn.experiment import Config
from optdyn.methods import Event
from optdyn.methods.compose import metered
from tests.methods.nodes import BATCHES, RATE, SGD, START, STEPS, loss, tree

WORKERS, MOMENTUM = 3, 0.6
# Parameters of about one in float32, 1e-7 an operation, some ten of them in each of 32 updates.
CLOSE = {"rtol": 0, "atol": 2e-5}


def line_of(name, groups=WORKERS, steps=STEPS, update_bytes=0, model_info=None, **values):
    """The timeline of a method; memoryless arrivals unless the cluster's `values` say else."""
    usual = {
        "batch_size": 12,
        "steps": steps,
        "cluster.nodes": groups,
        "method.name": name,
        "method.groups": groups,
        "cluster.seconds_per_example": 1 / 12,
    }
    config = Config().with_(usual | values)
    return config.timeline(steps_per_epoch=1, update_bytes=update_bytes, model_info=model_info)


def events_of(line, rate=RATE, momentum=MOMENTUM):
    hyper = {"learning_rate": jnp.full(STEPS, rate), "momentum": jnp.full(STEPS, momentum)}
    return Event(jax.tree.map(jnp.asarray, line.plan), hyper, line.staleness)


def made(make, groups=WORKERS, optimizer=SGD, meter=False):
    """`make(gradient, update, groups)` on the least squares."""
    gradient, update = core.full_gradient(loss), core.single_optimizer(optimizer)
    if meter:
        one = lambda gradient, update: make(gradient, update, groups)  # noqa: E731
        return metered(one, gradient, update, shared=False)
    return make(gradient, update, groups)


@partial(jax.jit, static_argnums=0)
def ran(method, events, batches=BATCHES, state=None):
    """(STEPS, ...) states after every update and what updates say."""

    def body(state, inputs):
        state, info = method.step(state, *inputs)
        return state, (state, info)

    return jax.lax.scan(body, state or method.init(tree(START)), (events, batches))[1]
