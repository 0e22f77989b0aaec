"""When nodes that gossip (`gossip.py`) have heard from whom, and what they ask of a config."""

from typing import Any, NamedTuple

import numpy as np

from optdyn import seeds
from optdyn.experiment import Experiment
from optdyn.strategies import nodes
from optdyn.strategies.method import Chosen, Setting
from optdyn.timeline import graphs, habits
from optdyn.timeline.base import Timeline
from optdyn.timeline.network import broadcast, links
from optdyn.timeline.trace import Held
from optdyn.values import one_of, require

ROWS = 256  # nodes at most that each hold a whole row of R; of more those that are not 0


class Neighbours(NamedTuple):
    """Among whom an update of gossip is."""

    to: Any  # (nodes, k) int32, whom each sends to
    weight: Any  # (nodes,) float32, w
    inner: Any = ()  # what is decided for each node, (nodes, ...)
    senders: Any = None  # (nodes, k) int32, who sends to each; only of many nodes
    stand: Any = None  # (nodes,) int32, itself, or of who is away another; only if nodes leave


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """Nodes wait for what is sent to them, and for nobody else (`graphs.arrivals`).

    Who is away (`config.cluster.presence`) `stand`s where the next on the circle does who is there.
    """
    config, strategy, size = setting.config, setting.config.strategy, setting.update_bytes
    cluster, steps, name = config.cluster, config.steps, strategy.graph
    within = nodes.inside(setting, methods)(steps)
    to = graphs.graph(name, cluster.nodes, steps, seeds.generator(config.seed, "graph"))
    if held := setting.held:
        seconds, there = held.seconds, np.ones((steps, cluster.nodes), bool)
        if cluster.presence:
            there = _recorded(held, cluster.nodes)
            to = graphs.among(to, there)
    else:
        early = strategy.gossip_order == "combine"
        between, handed_on = links(cluster, size), broadcast(cluster, size)
        habit = habits.load(cluster), habits.presence(cluster, config.seed)
        ready, done = within.ready, within.done
        seconds, to, there = graphs.arrivals(to, ready, done, between, handed_on, early, *habit)
    w = graphs.weights(to, steps) if name == "push" else np.ones((steps, cluster.nodes))
    choice = Neighbours(
        graphs.each_update(to, steps),
        w.astype(np.float32),
        within.choice,
        graphs.each_update(graphs.senders(to), steps) if cluster.nodes > ROWS else None,
        graphs.stands(there) if cluster.presence else None,
    )
    none = np.zeros(steps, np.int32)
    staleness = none if within.staleness is None else within.staleness
    return Timeline(none, staleness, seconds, within.slots, choice)


def _recorded(held: Held, nodes: int) -> np.ndarray:
    """(steps, nodes) bool, who was there in a run that a trace holds. Raises `TimelineError`."""
    stand = held.whole("stand", (nodes,), 0, nodes - 1)
    there = stand == np.arange(nodes)
    good = there.any(axis=1, keepdims=True) & (graphs.stands(there) == stand)
    held.require("stand", good, "its own number of each node that is there, and the next one's")
    return there


def check(config: Experiment, methods: Chosen) -> None:
    """Raises `ConfigError`."""
    nodes.check(config, methods)
    one_of(config, "strategy.graph", graphs.GRAPHS)
    pushes = config.strategy.graph in ("push", "complete")
    wanted = f"at most {ROWS:,} that gossip on {config.strategy.graph!r}, where many send to one"
    require(config, "cluster.nodes", lambda v: v <= ROWS or not pushes, wanted)
