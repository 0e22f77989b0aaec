"""When nodes that gossip (`gossip.py`) have heard from whom, and what they ask of a config."""

import numpy as np
from ml_collections import ConfigDict

from research import seeds
from research.strategies import nodes
from research.strategies.method import Chosen, Setting
from research.timeline import graphs, habits
from research.timeline.base import Timeline
from research.timeline.network import broadcast, links
from research.values import one_of, require

ROWS = 256  # nodes at most that each hold a whole row of R; of more those that are not 0


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """Nodes wait for what is sent to them, and for nobody else (`graphs.arrivals`).

    Who is away (`config.cluster.presence`) `stand`s where the next on the circle does who is there.
    """
    config, strategy, size = setting.config, setting.config.strategy, setting.update_bytes
    cluster, steps, name = config.cluster, config.steps, strategy.graph
    ready, done, more = nodes.inside(setting, methods)(steps)
    to = graphs.graph(name, cluster.nodes, steps, seeds.generator(config.seed, "graph"))
    early = strategy.gossip_order == "combine"
    between, handed_on = links(cluster, size), broadcast(cluster, size)
    habit = habits.load(cluster), habits.presence(cluster, config.seed)
    seconds, to, there = graphs.arrivals(to, ready, done, between, handed_on, early, *habit)
    w = graphs.weights(to, steps) if name == "push" else np.ones((steps, cluster.nodes))
    control = {"to": graphs.each_update(to, steps), "weight": w.astype(np.float32)}
    if cluster.nodes > ROWS:
        control["from"] = graphs.each_update(graphs.senders(to), steps)
    if cluster.presence:
        control["stand"] = graphs.stands(there)
    none = np.zeros(steps, np.int32)
    slots = int(more["read"].max()) + 1 if "read" in more else 1
    staleness = more.pop("staleness", none)
    return Timeline(none, none, none, staleness, seconds, slots, control | more)


def check(config: ConfigDict, methods: Chosen) -> None:
    """Raises `ConfigError`."""
    nodes.check(config, methods)
    one_of(config, "strategy.graph", graphs.GRAPHS)
    pushes = config.strategy.graph in ("push", "complete")
    wanted = f"at most {ROWS:,} that gossip on {config.strategy.graph!r}, where many send to one"
    require(config, "cluster.nodes", lambda v: v <= ROWS or not pushes, wanted)
