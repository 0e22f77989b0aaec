"""Model averaging, also called local SGD: nodes train by themselves and average what they have.

    x_i <- 1/P sum_j x_j        every H updates, of P nodes

This is the rule of `outer.py` with the weights 0 and 1, and nodes wait for it. H = 1 is synchronous
SGD, but not with Adam. Streaming (Douillard et al., arXiv 2501.18512) does the same with fragments
of the parameters, which take turns, and with what was sent tau updates before:

    x_i <- (1 - a) 1/P sum_j x_j(t - tau) + a x_i
"""

from typing import Any

import jax
import numpy as np
import optax
from jax import lax
from ml_collections import ConfigDict

from research.strategies.base import Strategy
from research.strategies.fragments import cut
from research.strategies.method import Chosen, Keys, Method, Setting
from research.strategies.nodes import check, inside
from research.strategies.outer import outer
from research.timeline.base import Timeline
from research.timeline.network import between_nodes, broadcast
from research.timeline.service import DRAWN
from research.values import require


def averaging(
    inner: Strategy,
    keys: Keys,
    senders: str | None = None,
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    """The rule around what a node does by itself; DiLoCo with an outer `optimizer`."""
    a = keys["mixing"]
    return outer(
        inner,
        lambda waited: (a * lax.axis_size("node"), 1 - a),
        optimizer,
        senders=senders,
        fragments=keys["fragments"],
    )


def turns(steps: int, period: int, fragments: int, delay: int) -> dict[str, np.ndarray]:
    """The control of `outer.py`, (steps, fragments): `send`, `receive` (bool), `waited` (int32).

    Fragment q is sent after update q H / fragments, rounded down, and then every H updates; after
    the last update all are, at once and without delay. What would arrive then or later is not sent.
    """
    send, waited = np.zeros((steps, fragments), bool), np.zeros((steps, fragments), np.int32)
    receive = np.zeros_like(send)
    updates = np.arange(1, max(steps - delay, 1))  # after which is sent what arrives before the end
    t, q = np.nonzero((updates[:, None] - np.arange(fragments) * period // fragments) % period == 0)
    send[t, q] = receive[t + delay, q] = True
    waited[t + delay, q] = delay
    send[-1] = receive[-1] = True
    return {"send": send, "receive": receive, "waited": waited}


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """Nodes run apart until they receive; then each waits for the message if it is not there.

    A fragment's message leaves when the last node has sent it and the message before has arrived,
    takes an all-reduce over the nodes, and is handed on inside them. So with delay 0 all wait for
    the last node and for the all-reduce. Raises `ConfigError` as `cut` does.
    """
    config, cluster, strategy = setting.config, setting.config.cluster, setting.config.strategy
    steps, fragments = config.steps, methods.keys(strategy).get("fragments", 1)
    ready, done, more = inside(setting, methods)(steps)
    sizes = _sizes(setting, fragments)
    transfer = [between_nodes(cluster, size) for size in sizes]
    handed_on = np.array([broadcast(cluster, size) for size in sizes])
    control: dict[str, Any] = turns(steps, strategy.period, fragments, strategy.delay)
    now, seconds = np.zeros(cluster.nodes), np.zeros(steps)
    arrival, last = np.zeros(fragments), 0.0
    for t in range(steps):
        first, now = now + ready[t], now + done[t]
        for q in np.flatnonzero(control["send"][t]):
            arrival[q] = last = max(now.max(), max(first.max(), last) + transfer[q])
        if (due := control["receive"][t]).any():
            now = np.maximum(now, arrival[due].max()) + handed_on[due].sum()
        seconds[t] = now.max()
    none = np.zeros(steps, np.int32)
    slots = int(more["read"].max()) + 1 if "read" in more else 1
    staleness = more.pop("staleness", control["waited"].max(1))
    return Timeline(none, none, none, staleness, seconds, slots, control | more)


def _sizes(setting: Setting, fragments: int) -> list[float]:
    """Bytes of the fragments."""
    assert setting.network
    parts = map(jax.tree.leaves, cut(setting.network.params, fragments))
    sizes = np.array([sum(leaf.size for leaf in leaves) for leaves in parts])
    return list(setting.update_bytes * (sizes / sizes.sum()))


def values(config: ConfigDict) -> None:
    """Raises `ConfigError`."""
    period = config.strategy.period
    require(config, "strategy.period", lambda v: v >= 1, "at least 1")
    wanted = f"from 1 to config.strategy.period = {period}"
    require(config, "strategy.fragments", lambda v: 1 <= v <= period, wanted)
    turn = period // config.strategy.fragments
    wanted = f"from 0 to {turn - 1}, less than config.strategy.period // config.strategy.fragments"
    require(config, "strategy.delay", lambda v: 0 <= v < turn, wanted)
    require(config, "strategy.mixing", lambda v: 0 <= v <= 1, "from 0 to 1")


METHOD = Method(
    keys={
        "period": 8,  # H, updates from one average of a fragment to the next
        "fragments": 1,  # of the parameters, which take turns; at most the period
        "delay": 0,  # tau, updates from the sending of a fragment to its receipt
        "mixing": 0.0,  # a, the part that nodes keep of their own parameters
    },
    compiled=("fragments", "mixing"),
    mix=averaging,
    clock=clock,
    laws=DRAWN,
    cluster=("overlap", "speeds", "latencies", "bandwidths"),
    info=("sent_bytes",),
    values=values,
    check=check,
)
