"""What every update rule is: two pure functions of (state, event, batch), put together of pieces.

    gradient   (params, event, batch) -> loss, grads             of one device's part of the batch
    update     an optax optimizer, of all parameters or block by block
    read       which version the gradient is taken at            gradient, update -> rule
    mix        what nodes with parameters of their own exchange  rule -> rule

A rule never sees seconds or clusters. The timeline decides which slot an update reads and which
it writes; the trainer scans `step` over those events.

Pieces are written for one device, with collectives over named axes: `data`, devices that share a
batch and hold the same parameters, and `node`, which hold their own. An axis is a `vmap` where it
is simulated and a mesh axis where it is real (`devices`).
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from optdyn.base.trees import Array, Hyper, Params, Plan, Tree

Batch = dict[str, jax.Array]
Info = dict[str, jax.Array]  # float32 scalars: `loss`, of the batch, and what else the log may show
Loss = Callable[[Params, Batch], jax.Array]


class Event(NamedTuple):
    """One update, as the update rule sees it. All leaves are scalars inside the scan.

    Its plan is `timeline`'s `Arrival`, `Shares`, `Meeting` or `AllReduceStep`, or a NamedTuple
    beside the method that alone has it; () where there is nothing to decide.
    """

    plan: Plan  # what the timeline decides of it
    hyper: Hyper  # float32, hyperparameters of this update, `learning_rate`, ...
    staleness: Tree = None  # int32, updates between the read and the arrival; or a dict by block


class State(Protocol):
    """What an update rule keeps from one update to the next: a pytree, a NamedTuple as a rule."""

    @property
    def params(self) -> Params:
        """x_t, which are evaluated."""


class NodeState(State, Protocol):
    """The state of a rule that a node follows by itself, around which others are put."""

    def moved_to(self, params: Params) -> Self:
        """The state at other parameters, which a merge of nodes has made of x_t."""


class ServedState(NodeState, Protocol):
    """The state of a server, of which workers are told what they read (`race`)."""

    def at(self, slot: Tree) -> Tree:
        """What a worker is given that reads this slot: its parameters, or these and more."""


@runtime_checkable
class LoggedState(Protocol):
    """A state that says more at log points than losses of its parameters."""

    def logged(self) -> dict[str, float]:
        """Values of a line of the log by their names."""


S = TypeVar("S", bound=State)


class SplitStep(NamedTuple, Generic[S]):
    """The step of a node, split around the exchange: for a host that carries the messages itself.

    A step is `update`, then of every fragment that is sent `message`, of every one that is received
    `on_receive`, given the sum of its messages over the nodes, and `merge_received`. No piece asks
    other nodes.
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
    split: SplitStep[S] | None = None  # the same step in pieces, where it can be cut


# The batch's loss and its gradient, means over the examples: devices average what they have.
Gradient = Callable[[Params, Event, Batch], tuple[jax.Array, Params]]


class Update(NamedTuple):
    """`apply(grads, opt_state, params, event, read_params) -> (params, opt_state)`.

    `read_params`: what the gradient was taken at. It reaches the optimizer beside `staleness` and
    the event's hyperparameters, as further arguments of an optax transform that takes them.
    """

    init: Callable[[Params], Tree]
    apply: Callable[..., tuple[Params, Tree]]


def full_gradient(loss: Loss, accumulation: int = 1) -> Gradient:
    """Returns the gradient of the batch's loss, of `accumulation` equal parts one after the other.

    Parts take less memory and have the same mean.
    """
    of = jax.value_and_grad(loss)

    def gradient(params: Params, event: Event, batch: Batch) -> tuple[jax.Array, Params]:
        def add(
            total: tuple[jax.Array, Params], part: Batch
        ) -> tuple[tuple[jax.Array, Params], None]:
            return jax.tree.map(jnp.add, total, of(params, part)), None

        if accumulation == 1:
            return of(params, batch)
        split = {name: x.reshape(accumulation, -1, *x.shape[1:]) for name, x in batch.items()}
        nothing = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        total, _ = jax.lax.scan(add, nothing, split)
        return jax.tree.map(lambda leaf: leaf / accumulation, total)

    return gradient


class Message(NamedTuple):
    """What a worker sends that computed a gradient by itself."""

    loss: jax.Array
    grads: Tree  # `Params`; of parameters on servers of their own a list of handles


def send_gradient(gradient: Gradient, update: Update) -> Callable[..., Message]:
    """What a worker of a race does that sends a gradient of one batch."""

    def work(given: Params, hyper: Hyper, batch: Callable[..., Batch], chosen: Array) -> Message:
        return Message(*gradient(given, Event((), hyper), batch(chosen[0])))

    return work


def split_parts(batch: Tree, count: int) -> Tree:
    """(count, ...) of each leaf: example i is of part i mod `count`; or so many messages."""
    if isinstance(batch, Message):
        return batch
    return jax.tree.map(lambda leaf: leaf.reshape(-1, count, *leaf.shape[1:]).swapaxes(0, 1), batch)


def gradient_or_message(gradient: Gradient) -> Gradient:
    """The gradient of a batch, or the one that it brings where it is a `Message`."""

    def given(params: Params, event: Event, batch: Batch | Message) -> tuple[jax.Array, Params]:
        if isinstance(batch, Message):
            return batch.loss, batch.grads
        return gradient(params, event, batch)

    return given


def averaged_gradient(gradient: Gradient, axis: str, message: bool = False) -> Gradient:
    """The mean of the gradients over the devices of an axis; the loss stays each one's own.

    `message` sends all leaves as one: faster on real devices, a needless copy where the axis is
    simulated.
    """
    sums = all_reduce if message else jax.lax.psum

    def mean(params: Params, event: Event, batch: Batch) -> tuple[jax.Array, Params]:
        loss, grads = gradient(params, event, batch)
        devices = jax.lax.axis_size(axis)
        return loss, jax.tree.map(lambda leaf: leaf / devices, sums(grads, axis))

    return mean


def single_optimizer(optimizer: optax.GradientTransformationExtraArgs) -> Update:
    """One optimizer of all parameters."""

    def apply(
        grads: Params, opt_state: Tree, params: Params, event: Event, read_params: Params
    ) -> tuple[Params, Tree]:
        more = {"staleness": event.staleness, "read_params": read_params}
        updates, opt_state = optimizer.update(grads, opt_state, params, **event.hyper, **more)
        return optax.apply_updates(params, updates), opt_state

    return Update(optimizer.init, apply)


def per_block_optimizer(optimizer: optax.GradientTransformationExtraArgs) -> Update:
    """An optimizer a block: each block that has a gradient is updated, by itself."""
    one = single_optimizer(optimizer)

    def init(params: Params) -> dict[str, Tree]:
        return {name: one.init(own) for name, own in params.items()}

    def apply(
        grads: Params, opt_state: Tree, params: Params, event: Event, read_params: Params
    ) -> tuple[Params, dict[str, Tree]]:
        params, opt_state, stale = dict(params), dict(opt_state), event.staleness
        for name, grad in grads.items():
            own = event._replace(staleness=stale[name]) if isinstance(stale, dict) else event
            params[name], opt_state[name] = one.apply(
                grad, opt_state[name], params[name], own, read_params[name]
            )
        return params, opt_state

    return Update(init, apply)


def all_reduce(tree: Tree, axis: str) -> Tree:
    """Sum of a pytree over the devices of an axis, as one message and not one a leaf."""
    vector, tree_of = ravel_pytree(tree)
    return tree_of(jax.lax.psum(vector, axis))


def where(condition: Array, tree: Tree, other: Tree) -> Tree:
    """`jnp.where` over pytrees, in the dtypes of `other`."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b).astype(b.dtype), tree, other)


def relative_spread(every: Params) -> float:
    """The RMS distance of rows, leaves (n, ...), from their mean, over the mean's norm."""
    return float(_distance(every))


@jax.jit
def _distance(every: Params) -> jax.Array:
    means = jax.tree.map(lambda leaf: leaf.mean(0), every)
    apart = jax.tree.map(lambda leaf, mean: leaf - mean, every, means)
    count = len(jax.tree.leaves(apart)[0])
    return optax.global_norm(apart) / count**0.5 / optax.global_norm(means)
