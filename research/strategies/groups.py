"""Compute groups that arrive by themselves: when they do, and what they ask of a config."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from optdyn import models, seeds
from optdyn.experiment import Experiment, Pieces
from optdyn.fields import field
from optdyn.strategies.base import Gradient, Update, alone
from optdyn.strategies.merged import cut
from optdyn.strategies.method import Methods, Reads, Setting, slowed
from optdyn.strategies.snapshots import KEPT
from optdyn.timeline.base import Timeline, staleness_of
from optdyn.timeline.compute_groups import make
from optdyn.timeline.service import DRAWN, is_drawn
from optdyn.timeline.trace import Held
from optdyn.values import ConfigError, one_of

if TYPE_CHECKING:
    from optdyn.strategies.asynchronous import Asynchronous

RECORDED = ("trace", "race")  # laws of service: arrivals that were, or are being, recorded
SLOTS = ("read", "write")
HABITS = ("diurnal", "presence", "server_bandwidth")  # of `timeline/volunteers.py`


@dataclass(frozen=True)
class Grouped(Reads):
    """Groups that arrive by themselves and share one set of parameters."""

    groups: int = field(1, "Compute groups, each synchronous inside.", at_least=1)
    snapshots: str = field(
        "",
        "asynchronous, buffered, ringmaster: how versions are kept, '' exactly and on the device, "
        "rounded to 'bfloat16', or on the 'host'.",
        one_of=KEPT,
        static=True,
    )

    barrier = False

    def message(self, gradient: Gradient, update: Update) -> Any:
        return alone(gradient, update)


def clock(of: "Asynchronous", setting: Setting, methods: Methods) -> Timeline:
    """Arrivals of `groups` groups, of every server by itself where the gradient is local.

    Then update t is the t-th arrival at each of them, its choice is (steps, servers), and the
    seconds are those of the last. A group sends each server its block, all of them when it has
    computed all.
    """
    config, local = setting.config, methods.gradient
    size: dict[str, Any] = {
        "groups": of.groups,
        "steps": config.steps,
        "batch_size": config.batch_size,
    }
    size |= {"update_bytes": setting.update_bytes, "replicas": setting.replicas}
    size |= {"staleness_bound": of.staleness_bound, "merged": bool(of.fresh)}
    held = setting.held
    if not local or not local.servers:
        return make(config.cluster, seed=config.seed, held=held, **size)
    assert setting.network
    server_of, sent = local.servers(setting.network.problem), dict[int, int]()
    servers = len(set(server_of.values()))
    if config.cluster.service == "race" or (held and not held.has("worker")):
        order = held and held.order(held.worker)
        line = make(config.cluster, held=order, **size)  # in one order, that of all servers
        same = _of_servers([line] * servers)._replace(batch=line.batch)
        return _renumbered(held, same) if held and held.has("read") else same
    if held:
        orders = held.workers((servers,), of.groups)
        own = [held.order(order) for order in orders.T]
        return _of_servers([make(config.cluster, held=each, **size) for each in own])
    cluster = slowed(setting, methods)
    for name, block in setting.network.params.items():
        bytes_of = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(block))
        number = server_of[name]
        sent[number] = sent.get(number, 0) + bytes_of
    drawn = [config.seed]
    for server in range(1, len(sent)):
        drawn.append(int(seeds.generator(config.seed, f"server {server}").integers(2**32)))
    each = [
        make(cluster, seed=seed, **size | {"update_bytes": sent[server]})
        for server, seed in enumerate(drawn)
    ]
    return _of_servers(each)


def together(of: Grouped, setting: Setting, methods: Methods, **more: Any) -> Timeline:
    """Arrivals of groups that send all blocks at once; `more` are arguments of `make`."""
    config = setting.config
    usual: dict[str, Any] = {
        "groups": of.groups,
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


def divides(groups: int, config: Experiment, methods: Methods) -> None:
    """Raises `ConfigError` if groups are not of equally many workers."""
    cluster = config.cluster
    workers = cluster.nodes * cluster.devices_per_node
    if methods.mix:
        workers = cluster.devices_per_node
    if workers % groups:
        where = "a node's" if methods.mix else "the cluster's"
        raise ConfigError(
            f"config.strategy.groups = {groups}: must divide {where} {workers} workers "
            "(config.cluster.nodes x config.cluster.devices_per_node)"
        )


def check(of: "Asynchronous", config: Experiment, methods: Methods) -> None:
    """Raises `ConfigError`."""
    cluster = config.cluster
    shared(of, config, methods, of.fresh)
    local, bound = methods.by_block, of.staleness_bound
    habit = next((key for key in HABITS if getattr(cluster, key)), "")
    apart = local or bound >= 0 or cluster.pieces != Pieces()
    if habit and (apart or config.replicas.count or not is_drawn(cluster.service)):
        raise ConfigError(
            f"config.cluster.{habit}: of one run of groups by themselves, whose times are drawn "
            "from a law, without config.cluster.pieces, a staleness bound, or blocks with servers "
            "of their own"
        )
    if bound < 0:
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


def shared(of: Any, config: Experiment, methods: Methods, fresh: tuple[str, ...] = ()) -> None:
    """Raises `ConfigError` where these groups cannot share one set of parameters."""
    cluster = config.cluster
    divides(of.groups, config, methods)
    local = methods.by_block
    if local and not is_drawn(cluster.service):
        one_of("config.cluster.service", cluster.service, (*DRAWN, *RECORDED, "geometric"))
    if local and cluster.pieces != Pieces():
        raise ConfigError("config.cluster.pieces: no block of local learning has such a server")
    if cluster.service == "race":
        if fresh:
            merges(config, methods, fresh)
        races(of.snapshots, config)
    if of.snapshots == "host":
        in_host_memory(config, methods)


def in_host_memory(config: Experiment, methods: Methods) -> None:
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


def races(snapshots: str, config: Experiment) -> None:
    """Raises `ConfigError` where groups cannot race on real workers (`research/racing`)."""
    wanted = "config.cluster.service = 'race':"
    if snapshots:
        raise ConfigError(f"{wanted} config.strategy.snapshots must be '', as workers are sent x_t")
    if config.parallel.api or config.parallel.accumulation > 1:
        raise ConfigError(f"{wanted} config.parallel must be as it is by default")
    if config.replicas.count:
        raise ConfigError(f"{wanted} config.replicas.count must be 0, one race is one run")
    if config.data.streaming:
        raise ConfigError(f"{wanted} config.data.streaming must be False")


def merges(config: Experiment, methods: Methods, fresh: tuple[str, ...]) -> None:
    """Raises `ConfigError` where a race can have no merged server."""
    cut([name for name, _ in models.make(config.model, classes=2)], fresh)
    wanted = f"config.strategy.fresh = {fresh!r}: in a race"
    if methods.gradient:
        raise ConfigError(f"{wanted} groups must take the gradient of the whole model's loss")
    if config.probes.steer:
        raise ConfigError(f"{wanted} config.probes.steer must be False, as these blocks are ahead")
