"""Nodes on least squares whose curvature differs from node to node."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from optdyn import core, optimizers
from optdyn.devices.simulated import over_nodes
from optdyn.methods import Event
from optdyn.methods.averaging import DiLoCo, ModelAveraging, SlowMo
from optdyn.methods.messages import SIMULATED
from optdyn.methods.sync import sync

NODES, EACH, STEPS, P = 3, 4, 32, 14  # EACH: examples a node; P: parameters
RATE = 0.05
RNG = np.random.default_rng(7)
BATCHES = {
    "inputs": RNG.normal(size=(STEPS, NODES * EACH, P)).astype(np.float32),
    "targets": RNG.normal(size=(STEPS, NODES * EACH)).astype(np.float32),
}
START = RNG.normal(size=P).astype(np.float32)
SGD = optimizers.optimizer("sgd", ("learning_rate", "momentum"))


def tree(flat):
    """A matrix (3, 4) and a vector (2,)."""
    flat = jnp.asarray(flat)
    return {"a": flat[..., :12].reshape(*flat.shape[:-1], 3, 4), "b": flat[..., 12:]}


def flattened(params):
    """(..., 14)."""
    matrix = params["a"]
    return np.concatenate([np.reshape(matrix, (*matrix.shape[:-2], 12)), params["b"]], axis=-1)


def loss(params, batch):
    flat = jnp.concatenate([params["a"].reshape(-1), params["b"]])
    return 0.5 * jnp.mean((batch["inputs"] @ flat - batch["targets"]) ** 2)


def inner(optimizer=SGD):
    """What a node does by itself."""
    return sync(
        core.averaged_gradient(core.full_gradient(loss), "data"), core.single_optimizer(optimizer)
    )


def averaging(inner, keys, collectives=SIMULATED, optimizer=None):
    """Model averaging with an outer `optimizer`; without one, the mean."""

    class Averaging(ModelAveraging):
        def outer(self):
            return optimizer

    return Averaging(**keys).mix(inner, collectives)


def diloco(inner, keys, collectives=SIMULATED):
    return DiLoCo(**keys).mix(inner, collectives)


def slowmo(inner, keys, collectives=SIMULATED):
    return SlowMo(**keys).mix(inner, collectives)


def events(choice, rates=RATE, momentum=0.0):
    hyper = {"learning_rate": jnp.broadcast_to(jnp.asarray(rates, float), STEPS)}
    if momentum is not None:
        hyper["momentum"] = jnp.full(STEPS, momentum)
    return Event(jax.tree.map(jnp.asarray, choice), hyper)


_over = cache(partial(over_nodes, devices=1))  # one method, one program


@partial(jax.jit, static_argnums=0)
def _scan(made, start, events, batches):
    def body(state, inputs):
        state, info = made.step(state, *inputs)
        return state, (state.state, info["sent_bytes"])

    return jax.lax.scan(body, made.init(start), (events, batches))[1]


def ran(method, events, nodes=NODES, batches=BATCHES, start=None):
    """(STEPS, nodes, ...) states of the nodes after every update, and (STEPS,) bytes sent."""
    return _scan(_over(method, nodes), start or tree(START), events, batches)


def gradient(x, t, rows):
    """Of a node's examples, in float64."""
    inputs = np.float64(BATCHES["inputs"][t, rows])
    return inputs.T @ (inputs @ x - BATCHES["targets"][t, rows]) / (rows.stop - rows.start)


def matrices(to):
    """P of a graph, (T, nodes, nodes): the share of each node's messages that go to each."""
    turns, nodes, k = to.shape
    p = np.zeros((turns, nodes, nodes))
    np.add.at(p, (np.arange(turns)[:, None, None], to, np.arange(nodes)[:, None]), 1 / k)
    return p
