"""Compute groups that arrive by themselves: when they do, and what they ask of a config."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from optdyn import models, seeds
from optdyn.experiment import Experiment, Pieces
from optdyn.strategies.merged import cut
from optdyn.strategies.method import Chosen, Setting, owns, slowed
from optdyn.strategies.snapshots import SNAPSHOTS
from optdyn.timeline.base import Timeline, staleness_of
from optdyn.timeline.compute_groups import make
from optdyn.timeline.service import DRAWN, is_drawn
from optdyn.timeline.trace import Held
from optdyn.timeline.versions import Versions
from optdyn.values import ConfigError, one_of, require

RECORDED = ("trace", "race")  # laws of service: arrivals that were, or are being, recorded
SLOTS = ("read", "write")
HABITS = ("diurnal", "presence", "server_bandwidth")  # of `timeline/volunteers.py`


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """Arrivals of `groups` groups, of every server by itself where the gradient is local.

    Then update t is the t-th arrival at each of them, its choice is (steps, servers), and the
    seconds are those of the last. A group sends each server its block, all of them when it has
    computed all.
    """
    config, local = setting.config, methods.gradient
    strategy = config.strategy
    size = {"groups": strategy.groups, "steps": config.steps, "batch_size": config.batch_size}
    size |= {"update_bytes": setting.update_bytes, "replicas": setting.replicas}
    size |= {"staleness_bound": strategy.staleness_bound, "merged": bool(strategy.fresh)}
    held = setting.held
    if not local or not local.servers:
        return make(config.cluster, seed=config.seed, held=held, **size)
    assert setting.network
    of, sent = local.servers(setting.network.problem), dict[int, int]()
    servers = len(set(of.values()))
    if config.cluster.service == "race" or (held and not held.has("worker")):
        order = held and held.order(held.worker)
        line = make(config.cluster, held=order, **size)  # in one order, that of all servers
        same = _of_servers([line] * servers)._replace(batch=line.batch)
        return _renumbered(held, same) if held and held.has("read") else same
    if held:
        orders = held.workers((servers,), strategy.groups)
        own = [held.order(order) for order in orders.T]
        return _of_servers([make(config.cluster, held=each, **size) for each in own])
    cluster = slowed(setting, methods)
    for name, block in setting.network.params.items():
        bytes_of = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(block))
        sent[of[name]] = sent.get(of[name], 0) + bytes_of
    drawn = [config.seed]
    for server in range(1, len(sent)):
        drawn.append(int(seeds.generator(config.seed, f"server {server}").integers(2**32)))
    each = [
        make(cluster, seed=seed, **size | {"update_bytes": sent[server]})
        for server, seed in enumerate(drawn)
    ]
    return _of_servers(each)


def together(setting: Setting, methods: Chosen, **more: Any) -> Timeline:
    """Arrivals of groups that send all blocks at once; `more` are arguments of `make`."""
    config = setting.config
    usual: dict[str, Any] = {
        "groups": config.strategy.groups,
        "steps": config.steps,
        "batch_size": config.batch_size,
        "update_bytes": setting.update_bytes,
        "seed": config.seed,
        "held": setting.held,
    }
    return make(slowed(setting, methods), **usual | more)


def _renumbered(held: Held, line: Timeline) -> Timeline:
    """The timeline with the slots that a trace has, whose race numbered them by itself.

    Raises `TimelineError` where they hold other versions.
    """
    read, write = (held.whole(n, line.staleness.shape[1:], 0, len(line.seconds)) for n in SLOTS)
    late = [staleness_of(*own) for own in zip(read.T, write.T, strict=True)]
    held.require("read", line.staleness == np.array(late).T, "where its version was written")
    slots = max(line.slots, 1 + int(max(read.max(), write.max())))
    return line._replace(slots=slots, choice=line.choice._replace(read=read, write=write))


def _of_servers(each: Sequence[Timeline]) -> Timeline:
    """The timeline of servers by themselves, whose update is the last of theirs."""
    choice, staleness = jax.tree.map(
        lambda *leaves: np.stack(leaves, axis=-1), *((line.choice, line.staleness) for line in each)
    )
    last = np.max([line.seconds for line in each], axis=0)
    return each[0]._replace(seconds=last, staleness=staleness, choice=choice, batch=None)


def values(config: Experiment) -> None:
    """Raises `ConfigError`."""
    require(config, "strategy.groups", lambda v: v >= 1, "at least 1")
    require(config, "strategy.staleness_bound", lambda v: v >= -1, "at least 0, or -1 for none")
    blocks = [name for name, _ in models.make(config.model, classes=2)]
    wanted = f"of the blocks {', '.join(blocks)}"
    require(config, "strategy.fresh", lambda v: set(v) <= set(blocks), wanted)
    one_of(config, "strategy.snapshots", SNAPSHOTS)
    if config.strategy.snapshots and not owns(config.strategy.name, "snapshots"):
        raise ConfigError(
            f"config.strategy.snapshots = {config.strategy.snapshots!r}: config.strategy.name = "
            f"{config.strategy.name!r} keeps no table of versions; it must be ''"
        )
    bounded = owns(config.strategy.name, "staleness_bound")
    if config.strategy.staleness_bound >= 0 and not bounded:
        raise ConfigError(
            "config.strategy.staleness_bound: only of config.strategy.name = 'asynchronous'"
        )


def divides(config: Experiment, methods: Chosen) -> None:
    """Raises `ConfigError` if groups are not of equally many workers."""
    groups, cluster = config.strategy.groups, config.cluster
    workers = cluster.nodes * cluster.devices_per_node
    if methods.mix:
        workers = cluster.devices_per_node
    if workers % groups:
        where = "a node's" if methods.mix else "the cluster's"
        raise ConfigError(
            f"config.strategy.groups = {groups}: must divide {where} {workers} workers "
            "(config.cluster.nodes x config.cluster.devices_per_node)"
        )


def check(config: Experiment, methods: Chosen) -> None:
    """Raises `ConfigError`."""
    strategy, cluster = config.strategy, config.cluster
    divides(config, methods)
    local = methods.gradient and methods.gradient.servers
    if local and not is_drawn(cluster.service):
        one_of(config, "cluster.service", (*DRAWN, *RECORDED, "geometric"))
    if local and cluster.pieces != Pieces():
        raise ConfigError("config.cluster.pieces: no block of local learning has such a server")
    if cluster.service == "race":
        races(config, methods)
    if strategy.snapshots == "host":
        in_host_memory(config, methods)
    habit = next((key for key in HABITS if getattr(cluster, key)), "")
    bound = local or strategy.staleness_bound >= 0 or cluster.pieces != Pieces()
    if habit and (bound or config.replicas.count or not is_drawn(cluster.service)):
        raise ConfigError(
            f"config.cluster.{habit}: of one run of groups by themselves, whose times are drawn "
            "from a law, without config.cluster.pieces, a staleness bound, or blocks with servers "
            "of their own"
        )
    if strategy.staleness_bound < 0:
        return
    ordered = is_drawn(cluster.service) or cluster.service in RECORDED
    if not ordered or cluster.pieces != Pieces():
        raise ConfigError(
            "config.strategy.staleness_bound: groups wait for one another only where their times "
            f"are drawn or recorded, config.cluster.service one of "
            f"{', '.join((*DRAWN, *RECORDED))} and no pieces"
        )
    if config.replicas.count:
        raise ConfigError("config.strategy.staleness_bound: only of runs, not of replicas")


def in_host_memory(config: Experiment, methods: Chosen) -> None:
    """Raises `ConfigError` where versions cannot lie in the host's memory."""
    wanted = "config.strategy.snapshots = 'host':"
    if methods.mix or not methods.read or not methods.read.single:
        raise ConfigError(
            f"{wanted} of one set of parameters and one version an update, not of "
            f"config.strategy.name = {methods.name!r}; 'bfloat16' halves the table of all"
        )
    if config.parallel.api:
        raise ConfigError(
            f"{wanted} of one device, config.parallel.api = ''; on several "
            "config.parallel.shard_snapshots gives each a part of the table"
        )
    if config.replicas.count:
        raise ConfigError(f"{wanted} config.replicas.count must be 0, replicas share a device")


def races(config: Experiment, methods: Chosen) -> None:
    """Raises `ConfigError` where groups cannot race on real workers (`research/racing`)."""
    wanted = "config.cluster.service = 'race':"
    if config.strategy.fresh:
        merges(config, methods)
    if config.strategy.snapshots:
        raise ConfigError(f"{wanted} config.strategy.snapshots must be '', as workers are sent x_t")
    if config.parallel.api or config.parallel.accumulation > 1:
        raise ConfigError(f"{wanted} config.parallel must be as it is by default")
    if config.replicas.count:
        raise ConfigError(f"{wanted} config.replicas.count must be 0, one race is one run")
    if config.data.streaming:
        raise ConfigError(f"{wanted} config.data.streaming must be False")


def merges(config: Experiment, methods: Chosen) -> None:
    """Raises `ConfigError` where a race can have no merged server."""
    cut([name for name, _ in models.make(config.model, classes=2)], config.strategy.fresh)
    wanted = f"config.strategy.fresh = {tuple(config.strategy.fresh)!r}: in a race"
    if methods.gradient:
        raise ConfigError(f"{wanted} groups must take the gradient of the whole model's loss")
    if config.probes.steer:
        raise ConfigError(f"{wanted} config.probes.steer must be False, as these blocks are ahead")


def order(config: Experiment, line: Timeline) -> Versions:
    """Who reads when in a race."""
    strategy = config.strategy
    bound = strategy.staleness_bound if strategy.staleness_bound >= 0 else math.inf
    return Versions(line, strategy.groups, bound)
