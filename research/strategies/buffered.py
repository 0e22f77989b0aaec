"""Updates of several arrivals: K-sync, K-async and their kin, and buffered aggregation.

    x_{t+1} = x_t - alpha 1/K sum_j grad f_j(x_{t - tau_j})      j = 1, ..., K

The gradients of n groups are gathered, and their mean is applied at the Kth. Who waits meanwhile,
and so what tau_j is, is the clock's matter alone (`timeline/several.py`; Dutta et al., arXiv
1803.01113). FedBuff (Nguyen et al., arXiv 2106.06639), whose clients send one gradient each, is
`k_batch_async`. f_j is the loss of a Kth of the batch, so that an update is of as many examples as
it is elsewhere: with K = n all of `k_sync` is synchronous SGD, and `k_batch_async` with K = 1
asynchronous SGD.
"""

import jax
import jax.numpy as jnp
from jax import lax
from ml_collections import ConfigDict

from research.strategies import base, groups
from research.strategies.asynchronous import asynchronous
from research.strategies.base import Batch, Event, Gradient, Info, Strategy, Update
from research.strategies.method import Chosen, Method, Racing, Setting, devices_of, slowed
from research.strategies.snapshots import State, is_rounded
from research.timeline.base import Timeline
from research.timeline.compute_groups import make
from research.timeline.service import DRAWN
from research.timeline.versions import WAITING, Versions
from research.values import ConfigError, one_of, require


def buffered(
    gradient: Gradient, update: Update, slots: int, arrivals: int, rounded: bool = False
) -> Strategy:
    """Strategy of K `arrivals` an update; `event.control["read"]`, (K,), is where each had read.

    Example i of a device's part of a batch is of arrival i mod K, however many devices there are.
    The optimizer is given the means of what was read and of how late it is. A step also says the
    bytes that groups send (`sent_bytes`). Versions are exact or `rounded`, as in `asynchronous`.
    """
    alone = asynchronous(gradient, update, slots, rounded=rounded)

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        after, info = (
            alone.step(state, event, batch) if arrivals == 1 else mean(state, event, batch)
        )
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(after.params))
        return after, info | {"sent_bytes": jnp.float32(arrivals * size)}

    def mean(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        control = event.control or {}

        def one(arrival: tuple) -> tuple:
            slot, examples = arrival
            seen = state.at(slot)
            return *gradient(seen, event, examples), seen

        def add(total: tuple, arrival: tuple) -> tuple[tuple, None]:
            return jax.tree.map(jnp.add, total, one(arrival)), None

        every = control["read"], base.parts(batch, arrivals)
        shapes = jax.eval_shape(one, jax.tree.map(lambda leaf: leaf[0], every))
        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, shapes), every)
        loss, grads, seen = jax.tree.map(lambda leaf: leaf / arrivals, total)
        late = None if event.staleness is None else jnp.mean(event.staleness)
        event = event._replace(staleness=late)
        params, opt_state = update.apply(grads, state.opt_state, state.params, event, seen)
        slot = jnp.asarray(control.get("write", event.write), jnp.int32)
        return state.after(params, opt_state, slot), {"loss": loss}

    return Strategy(alone.init, step)


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """Groups compute a Kth of the batch, and send a gradient and read parameters for it.

    Whoever is dropped stops at once. Where the gradient is local a group sends all blocks together.
    """
    config, strategy = setting.config, setting.config.strategy
    return make(
        slowed(setting, methods),
        groups=strategy.groups,
        steps=config.steps,
        batch_size=config.batch_size // strategy.arrivals,
        update_bytes=setting.update_bytes,
        seed=config.seed,
        several_of=(strategy.arrivals, strategy.waiting),
    )


def order(config: ConfigDict, line: Timeline) -> Versions:
    """Who reads when in a race."""
    of = config.strategy
    return Versions(line, of.groups, arrivals=of.arrivals, waiting=of.waiting)


def values(config: ConfigDict) -> None:
    """Raises `ConfigError`."""
    require(config, "strategy.arrivals", lambda v: v >= 1, "at least 1")
    one_of(config, "strategy.waiting", WAITING)


def check(config: ConfigDict, methods: Chosen) -> None:
    """Raises `ConfigError`."""
    groups.check(config, methods)
    strategy, (nodes, devices) = config.strategy, devices_of(config)
    if strategy.arrivals > strategy.groups and "batch" not in strategy.waiting:
        raise ConfigError(
            f"config.strategy.arrivals = {strategy.arrivals}: must be at most config.strategy."
            f"groups = {strategy.groups}, of which each delivers once with {strategy.waiting!r}"
        )
    if strategy.fresh:
        raise ConfigError(f"config.strategy.fresh: no block is merged of {methods.name!r}")
    parts = strategy.arrivals * config.parallel.accumulation
    parts *= nodes * devices if methods.mix else devices if config.parallel.api else 1
    if config.batch_size % parts:
        raise ConfigError(
            f"config.batch_size = {config.batch_size}: must be a multiple of {parts} "
            "(config.strategy.arrivals x devices that share it x config.parallel.accumulation)"
        )


METHOD = Method(
    keys={
        "groups": 1,  # compute groups, each synchronous inside
        "arrivals": 1,  # K, gradients of an update, a Kth of the batch each
        "waiting": "k_batch_async",  # or 'k_async', 'k_sync', 'k_batch_sync'
        "snapshots": "",  # versions: float32 on the device, or rounded to 'bfloat16'
    },
    compiled=("arrivals", "snapshots"),
    read=lambda gradient, update, keys, slots, servers: buffered(
        gradient, update, slots, keys["arrivals"], is_rounded(keys)
    ),
    clock=clock,
    laws=(*DRAWN, *groups.RECORDED),
    cluster=("split", "overlap", "speeds"),
    barrier=False,
    single=False,
    values=values,
    check=check,
    info=("sent_bytes",),
    race=Racing(order, base.alone),
)
