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

from optdyn.strategies import base, gathering
from optdyn.strategies.asynchronous import asynchronous
from optdyn.strategies.base import Batch, Event, Gradient, Info, Strategy, Update
from optdyn.strategies.method import Method, Racing
from optdyn.strategies.snapshots import State, is_rounded
from optdyn.timeline.service import DRAWN


def buffered(
    gradient: Gradient, update: Update, slots: int, arrivals: int, rounded: bool = False
) -> Strategy:
    """Strategy of K `arrivals` an update; `event.choice` is an `Arrival` of as many reads, (K,).

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
        def one(arrival: tuple) -> tuple:
            slot, examples = arrival
            seen = state.at(slot)
            return *gradient(seen, event, examples), seen

        def add(total: tuple, arrival: tuple) -> tuple[tuple, None]:
            return jax.tree.map(jnp.add, total, one(arrival)), None

        every = event.choice.read, base.parts(batch, arrivals)
        shapes = jax.eval_shape(one, jax.tree.map(lambda leaf: leaf[0], every))
        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, shapes), every)
        loss, grads, seen = jax.tree.map(lambda leaf: leaf / arrivals, total)
        late = None if event.staleness is None else jnp.mean(event.staleness)
        event = event._replace(staleness=late)
        params, opt_state = update.apply(grads, state.opt_state, state.params, event, seen)
        slot = jnp.asarray(event.choice.write, jnp.int32)
        return state.after(params, opt_state, slot), {"loss": loss}

    return Strategy(alone.init, step)


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
    clock=gathering.clock,
    laws=(*DRAWN, "race"),
    cluster=("split", "overlap", "speeds"),
    barrier=False,
    single=False,
    values=gathering.values,
    check=gathering.check,
    info=("sent_bytes",),
    race=Racing(gathering.order, base.alone),
)
