"""The update rule: pure functions `init` and `step`, made of exchangeable pieces.

    gradient   (params, event, batch) -> loss, grads             of one device's part of the batch
    update     an optax optimizer, of all parameters or block by block
    read       the version at which the gradient is taken        gradient, update -> rule
    mix        the exchange of nodes, each with its parameters   rule -> rule

A rule never sees seconds or clusters: the trainer scans `step` over the timeline's events. Pieces
are written for one device, with collectives over named axes: `data`, devices that share a batch and
hold the same parameters, and `node`, which do not. An axis is a `vmap` where it is simulated and a
mesh axis where it is real (`devices`).
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from optdyn.base.trees import Array, Hyper, Params, Plan, Tree

Batch = dict[str, jax.Array]
Info = dict[str, jax.Array]  # float32 scalars: the batch's `loss`, and others for the log
Loss = Callable[[Params, Batch], Tree]  # of the whole batch; or a pair of it and more


class Event(NamedTuple):
    """One update as the rule sees it. All leaves are scalars inside the scan.

    Its plan is a NamedTuple of `timeline` or beside its method; () if there is nothing to decide.
    """

    plan: Plan
    hyper: Hyper  # float32, hyperparameters of this update, `learning_rate`, ...
    staleness: Tree = None  # int32, updates between the read and the arrival; or a dict by block
    decay: Array | None = None  # float32, of the average of the parameters, if it is kept
    carried: Tree = None  # the model's state that the gradient is taken with, where it is carried


class State(Protocol):
    """The state of an update rule between updates, a pytree."""

    @property
    def params(self) -> Params:
        """x_t, at which the model is evaluated."""


class NodeState(State, Protocol):
    """The state of a rule inside a node, whose parameters an exchange may replace."""

    def moved_to(self, params: Params) -> Self:
        """Returns the state with these parameters in place of x_t."""


class ServedState(NodeState, Protocol):
    """The state of a server that workers of a race read from (`race`)."""

    def read_slot(self, slot: Tree) -> Tree:
        """Returns what a worker reads from a slot: parameters, or these and more."""


@runtime_checkable
class LoggedState(Protocol):
    """A state with values for the log besides losses."""

    def logged(self) -> dict[str, float]:
        """Returns values of a line of the log by name."""


S = TypeVar("S", bound=State)


class SplitStep(NamedTuple, Generic[S]):
    """The step of a node, split around the exchange, for communication by the host.

    A step is `update`, then `message` for each fragment that is sent, `on_receive` with the sum of
    the nodes' messages for each that is received, and `merge_received`. No piece communicates.
    """

    update: Callable[[S, Event, Batch], tuple[S, Info]]
    message: Callable[[S, int, bool], jax.Array]  # (state, fragment, blocking) -> (numbers,)
    on_receive: Callable[..., S]  # (state, fragment, total), the sum of what was sent last
    merge_received: Callable[[S, Event], S]  # merges what was received last
    fragments: int


class Rule(NamedTuple, Generic[S]):
    """`init(params) -> state`; `step(state, event, batch) -> (state, info)`."""

    init: Callable[[Params], S]
    step: Callable[[S, Event, Batch], tuple[S, Info]]
    split: SplitStep[S] | None = None  # the same step in pieces, where it can be split


# Returns the batch's loss and gradient, means over the examples; devices average theirs. Where the
# model's state is carried, the loss is a pair of it and the state after the batch (`kept.py`).
Gradient = Callable[[Params, Event, Batch], tuple[Tree, Params]]


class Update(NamedTuple):
    """`apply(grads, opt_state, params, event, read_params) -> (params, opt_state)`.

    `read_params`, at which the gradient was taken, `staleness` and the event's hyperparameters are
    further arguments of an optax transform that takes them.
    """

    init: Callable[[Params], Tree]
    apply: Callable[..., tuple[Params, Tree]]


def full_gradient(loss: Loss, accumulation: int = 1, has_aux: bool = False) -> Gradient:
    """Returns the gradient of the batch's loss, in `accumulation` equal parts to save memory.

    With `has_aux` the loss is a pair, and its mean over the parts, too.
    """
    value_and_grad = jax.value_and_grad(loss, has_aux=has_aux)

    def gradient(params: Params, event: Event, batch: Batch) -> tuple[Tree, Params]:
        def add(total: Tree, part: Batch) -> tuple[Tree, None]:
            return jax.tree.map(jnp.add, total, value_and_grad(params, part)), None

        if accumulation == 1:
            return value_and_grad(params, batch)
        split = {name: x.reshape(accumulation, -1, *x.shape[1:]) for name, x in batch.items()}
        found = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape), jax.eval_shape(loss, params, batch)
        )
        zeros = found, jax.tree.map(jnp.zeros_like, params)
        total, _ = jax.lax.scan(add, zeros, split)
        return jax.tree.map(lambda leaf: leaf / accumulation, total)

    return gradient


class Message(NamedTuple):
    loss: jax.Array
    grads: Tree  # `Params`, or the group's number where these are on several servers


def send_gradient(gradient: Gradient, update: Update) -> Callable[..., Message]:
    """Returns the computation of a worker of a race that sends the gradient of one batch."""

    def work(params: Params, hyper: Hyper, batch: Callable[..., Batch], chosen: Array) -> Message:
        return Message(*gradient(params, Event((), hyper), batch(chosen[0])))

    return work


def split_parts(batch: Tree, count: int) -> Tree:
    """Returns leaves (count, ...): example i is in part i mod `count`. A message stays itself."""
    if isinstance(batch, Message):
        return batch
    return jax.tree.map(lambda leaf: leaf.reshape(-1, count, *leaf.shape[1:]).swapaxes(0, 1), batch)


def gradient_or_message(gradient: Gradient) -> Gradient:
    """Returns the gradient of a batch, or the one in it where it is a `Message`."""

    def found(params: Params, event: Event, batch: Batch | Message) -> tuple[jax.Array, Params]:
        if isinstance(batch, Message):
            return batch.loss, batch.grads
        return gradient(params, event, batch)

    return found


def averaged_gradient(gradient: Gradient, axis: str, message: bool = False) -> Gradient:
    """Returns the mean of the gradients over the devices of an axis, with each device's loss.

    `message` sends all leaves as one, which is faster on real devices only.
    """
    sums = all_reduce if message else jax.lax.psum

    def mean(params: Params, event: Event, batch: Batch) -> tuple[jax.Array, Params]:
        loss, grads = gradient(params, event, batch)
        devices = jax.lax.axis_size(axis)
        return loss, jax.tree.map(lambda leaf: leaf / devices, sums(grads, axis))

    return mean


def single_optimizer(optimizer: optax.GradientTransformationExtraArgs) -> Update:
    def apply(
        grads: Params, opt_state: Tree, params: Params, event: Event, read_params: Params
    ) -> tuple[Params, Tree]:
        more = {"staleness": event.staleness, "read_params": read_params}
        updates, opt_state = optimizer.update(grads, opt_state, params, **event.hyper, **more)
        return optax.apply_updates(params, updates), opt_state

    return Update(optimizer.init, apply)


def per_block_optimizer(optimizer: optax.GradientTransformationExtraArgs) -> Update:
    """Returns the update by an optimizer a block, of the blocks that have a gradient."""
    update = single_optimizer(optimizer)

    def init(params: Params) -> dict[str, Tree]:
        return {name: update.init(block) for name, block in params.items()}

    def apply(
        grads: Params, opt_state: Tree, params: Params, event: Event, read_params: Params
    ) -> tuple[Params, dict[str, Tree]]:
        params, opt_state, stale = dict(params), dict(opt_state), event.staleness
        for name, grad in grads.items():
            its_event = event._replace(staleness=stale[name]) if isinstance(stale, dict) else event
            params[name], opt_state[name] = update.apply(
                grad, opt_state[name], params[name], its_event, read_params[name]
            )
        return params, opt_state

    return Update(init, apply)


def all_reduce(tree: Tree, axis: str) -> Tree:
    """Returns the sum over the devices of an axis, sent as one message."""
    vector, unravel = ravel_pytree(tree)
    return unravel(jax.lax.psum(vector, axis))


def where(condition: Array, tree: Tree, other: Tree) -> Tree:
    """Returns `jnp.where` over pytrees, in the dtypes of `other`."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b).astype(b.dtype), tree, other)


def relative_spread(rows: Params) -> float:
    """Returns the RMS distance of rows, leaves (n, ...), from their mean, over the mean's norm."""
    return float(_relative_spread(rows))


@jax.jit
def _relative_spread(rows: Params) -> jax.Array:
    means = jax.tree.map(lambda leaf: leaf.mean(0), rows)
    deviations = jax.tree.map(lambda leaf, mean: leaf - mean, rows, means)
    count = len(jax.tree.leaves(deviations)[0])
    return optax.global_norm(deviations) / count**0.5 / optax.global_norm(means)
