"""Model averaging, also called local SGD: nodes train by themselves and average what they have.

    x_i <- 1/P sum_j x_j        every H updates, of P nodes

The rule of `outer.py` with the weight 0, waited for. H = 1 is synchronous SGD, but not with Adam.
"""

import numpy as np
from ml_collections import ConfigDict

from research.strategies.method import Chosen, Method, Setting
from research.strategies.nodes import check, inside
from research.strategies.outer import outer
from research.timeline.base import Timeline
from research.timeline.network import between_nodes, broadcast
from research.timeline.service import DRAWN
from research.values import require


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """Nodes run apart until they meet; then all wait for the last, and for the all-reduce."""
    config, cluster, size = setting.config, setting.config.cluster, setting.update_bytes
    steps = config.steps
    ready, done, control = inside(setting, methods)(steps)
    transfer = between_nodes(cluster, size)
    meet = np.arange(1, steps + 1) % config.strategy.period == 0
    meet[-1] = True
    now, seconds = np.zeros(cluster.nodes), np.zeros(steps)
    for t in range(steps):
        first, now = now + ready[t], now + done[t]
        if meet[t]:
            now[:] = max(now.max(), first.max() + transfer) + broadcast(cluster, size)
        seconds[t] = now.max()
    none = np.zeros(steps, np.int32)
    slots = int(control["read"].max()) + 1 if "read" in control else 1
    staleness = control.pop("staleness", none)
    control = {"send": meet, "receive": meet, "waited": none} | control
    return Timeline(none, none, none, staleness, seconds, slots, control)


def values(config: ConfigDict) -> None:
    """Raises `ConfigError`."""
    require(config, "strategy.period", lambda v: v >= 1, "at least 1")


METHOD = Method(
    keys={"period": 8},  # H, updates from one average to the next
    mix=lambda inner, keys, senders: outer(inner, lambda waited: 0 * waited, senders=senders),
    clock=clock,
    laws=DRAWN,
    cluster=("overlap", "speeds", "latencies", "bandwidths"),
    info=("sent_bytes",),
    values=values,
    check=check,
)
