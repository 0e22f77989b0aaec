"""A server of a race in parts: each keeps some of the blocks, and workers send to it directly.

    part k    x_{t+1}[k] = step(x_t[k], g_t[k])      t: in the order that the command decides

The command hears only that a gradient is there, and numbers it. So all parts have one order of
updates, and what a worker reads is one version of all blocks.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.basics.errors import ConfigError, refuse
from optdyn.basics.trees import Tree
from optdyn.core import Event, Message, Params, State
from optdyn.racing.server import event_of
from optdyn.racing.worker import Compute, Handle, Shards, halves_of
from optdyn.strategies.read.groups import Grouped
from optdyn.training.run import Run

Call = Callable[..., Handle]  # (method of a `Part`, its arguments) -> a handle of what it returns


def blocks(params: Params, servers: int) -> list[list[str]]:
    """Names by part, so that the largest is as small as this is likely to get: largest first."""
    size = {name: sum(x.size for x in jax.tree.leaves(own)) for name, own in params.items()}
    found: list[list[str]] = [[] for _ in range(servers)]
    for name in sorted(size, key=lambda name: -size[name]):
        min(found, key=lambda own: sum(size[other] for other in own)).append(name)
    return found


class Part:
    """Keeps some blocks, versions that are still to be read among them."""

    def __init__(self, run: Run, number: int, servers: int):
        self._halves = halves_of(run)
        own = {name: run.params[name] for name in blocks(run.params, servers)[number]}
        self._state = run.program.rule.init(own)
        # Compiled before the clock of the race begins, of which `put` leaves nothing.
        self.step(event_of(run, 0), jax.tree.map(np.zeros_like, jax.device_get(own)))

    def put(self, state: Mapping[str, np.ndarray]) -> None:
        """`state`: leaves of the whole one."""
        self._state = filled(self._state, state)

    def step(self, event: Event, grads: Params) -> None:
        """Makes an update of the gradients of its blocks."""
        self._state, _ = self._halves.update(self._state, event, Message(jnp.zeros(()), grads))

    def at(self, slot: int) -> Params:
        """What a worker sees of its blocks that reads the slot."""
        return jax.device_get(self._halves.given(self._state, slot))

    def get(self) -> dict[str, np.ndarray]:
        """The state of its blocks."""
        return leaves(self._state)


def leaves(state: State) -> dict[str, np.ndarray]:
    """The leaves of a state by path, which is the same in a state of some blocks only."""
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(state))
    }


def filled(like: State, found: Mapping[str, np.ndarray]) -> State:
    """A state like this one, of leaves by path."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jnp.array(found[jax.tree_util.keystr(path)]), like
    )


def shards(
    parts: Sequence[Call], fetch: Callable[[list[Handle]], list[Tree]], like: State
) -> Shards:
    """`fetch`: what handles are of. `like`: a state of all blocks."""

    def put(state: State) -> None:
        of = leaves(state)
        fetch([call("put", of) for call in parts])

    def step(event: Event, grads: Sequence[Handle]) -> None:
        for call, own in zip(parts, grads, strict=True):
            call("step", event, own)

    def at(slot: int) -> list[Handle]:
        return [call("at", slot) for call in parts]

    def get() -> State:
        each = fetch([call("get") for call in parts])
        return filled(like, {path: leaf for own in each for path, leaf in own.items()})

    return Shards(put, step, at, get)


def parted(compute: Compute, run: Run, servers: int) -> Callable[..., tuple[Tree, ...]]:
    """(numbers of its batches, what it is given of every part) -> loss, and each one's gradient."""
    names = blocks(run.params, servers)

    def compute_parts(numbers: range, *given: Params) -> tuple[Tree, ...]:
        loss, grads = compute({name: own for part in given for name, own in part.items()}, numbers)
        return loss, *({name: grads[name] for name in own} for own in names)

    return compute_parts


def check(run: Run, servers: int) -> None:
    """Raises `ConfigError` if the server of this run cannot have so many parts."""
    config, wanted = run.config, f"--servers={servers}"
    methods = config.methods
    one = isinstance(methods.read, Grouped) and methods.read.single
    more = not one or methods.get("fresh", ()) or config.probes.momentum
    refuse(
        (
            not 1 <= servers <= len(run.params),
            f"{wanted}: must be from 1 to {len(run.params)}, the blocks of the model",
        ),
        (
            servers > 1 and more,
            f"{wanted}: only where an update is one gradient of the whole batch, and the server "
            "needs it for nothing else: without fresh blocks and config.probes.momentum",
        ),
    )
    if servers == 1:
        return
    for own in blocks(run.params, servers):
        check_separable(run, own, wanted)


def check_separable(run: Run, blocks: Collection[str], wanted: str) -> None:
    """Raises `ConfigError` if how the blocks move depends on the gradients of others.

    So it does with an optimizer that scales all by the norm of all. Two updates are made of random
    gradients, the second for those that have a memory. `wanted` is the key that asks for it.
    """
    halves = halves_of(run)
    rng = np.random.default_rng(0)
    grads = jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(x.dtype), run.params)
    zeros = jax.tree.map(np.zeros_like, grads)
    event = event_of(run, 0)

    def moved(others: Params) -> list[jax.Array]:
        state = run.program.rule.init(run.params)
        own = {name: grads[name] for name in blocks}
        for _ in range(2):
            state, _ = halves.update(state, event, Message(jnp.zeros(()), {**others, **own}))
        return jax.tree.leaves({name: state.params[name] for name in blocks})

    pairs = zip(moved(grads), moved(zeros), strict=True)
    if not all(np.array_equal(one, other) for one, other in pairs):
        raise ConfigError(
            f"{wanted}: the servers of a race move their blocks one after the other, and this "
            "optimizer moves a block by the gradients of all; take one that does not"
        )
