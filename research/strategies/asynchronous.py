"""Asynchronous SGD with compute groups (arXiv 1605.09774, 1606.04487).

    x_{t+1} = x_t - alpha grad f(stale_{r(t)}, fresh_t)     x_t = (stale_t, fresh_t)

r(t) is the version that the arriving group had read. The workers of a group take one gradient
together; the groups do not wait for one another. Staleness is nowhere in this file: it follows from
the order of arrivals, which the timeline decides. Fresh blocks are those that one server both keeps
and computes, so that nobody holds an old copy: the merged fully-connected servers of 1606.04487. By
default there are none.

Where the gradient is local (`local.py`) no block waits for another, so each has a server and an
order of arrivals of its own. Then r(t), and the momentum that it is worth, differ by block.

The table may be of rounded versions: then a group reads x_{r(t)} rounded, and x_t itself is kept
beside them. Or it lies in the host's memory (`research/parallel/paged.py`), exact.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from research import models, seeds
from research.strategies.base import Batch, Event, Gradient, Info, Params, Strategy, Update, alone
from research.strategies.method import Chosen, Keys, Method, Racing, Setting, owns
from research.timeline.base import Timeline
from research.timeline.compute_groups import make
from research.timeline.service import DRAWN, is_drawn
from research.timeline.versions import Versions
from research.values import ConfigError, one_of, require

SNAPSHOTS = ("", "bfloat16", "host")  # how versions are kept
BITS = jnp.uint16
RECORDED = ("trace", "race")  # laws of service: arrivals that were, or are being, recorded
HABITS = ("diurnal", "presence", "server_bandwidth")  # of `timeline/volunteers.py`
Slot = Any  # int32, of all stale blocks, or a dict of one a block


class State(NamedTuple):
    slots: Params  # stale blocks, leaves (slots, ...): the versions that are still to be read
    newest: Slot  # of stale_t
    opt_state: optax.OptState
    fresh: Params  # fresh_t; of a table of rounded versions all of x_t

    def at(self, slot: Slot) -> Params:
        """The parameters as a group sees them that had read `slot`."""
        each = slot if isinstance(slot, dict) else dict.fromkeys(self.slots, slot)
        host = all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(self.slots))
        seen = (rows if host else compiled_rows)(self.slots, each)
        for name, exact in self.fresh.items():
            seen[name] = jax.tree.map(_unpacked, seen[name], exact) if name in seen else exact
        return seen

    @property
    def params(self) -> Params:
        """x_t."""
        rounded = self.slots.keys() <= self.fresh.keys()
        return self.fresh if rounded else self.at(self.newest)

    def after(self, params: Params, opt_state: optax.OptState, slot: Slot) -> "State":
        """x_{t+1} is these parameters, in this slot."""
        slots = put(self.slots, slot, {name: params[name] for name in self.slots})
        return State(slots, slot, opt_state, {name: params[name] for name in self.fresh})

    def moved_to(self, params: Params) -> "State":
        """x_t is other parameters; the versions that were read stay."""
        return self.after(params, self.opt_state, self.newest)


def rows(table: Params, slots: Mapping[str, Any]) -> Params:
    """Row `slots[name]` of each block of the table."""
    return {
        name: jax.tree.map(lambda leaf, s=slots[name]: leaf[s], block)
        for name, block in table.items()
    }


compiled_rows = jax.jit(rows, inline=True)  # where it is in no program: one, and not a dozen


def put(table: Params, slot: Slot, blocks: Params) -> Params:
    """The table with these blocks in the slot."""
    each = slot if isinstance(slot, dict) else dict.fromkeys(table, slot)
    return {
        name: jax.tree.map(
            lambda t, leaf, s=each[name]: t.at[s].set(_packed(leaf) if t.dtype == BITS else leaf),
            block,
            blocks[name],
        )
        for name, block in table.items()
    }


def _packed(leaf: jax.Array) -> jax.Array:
    """Rounded to bfloat16, as integers: to write those XLA converts a whole table on a CPU."""
    return jax.lax.bitcast_convert_type(leaf.astype(jnp.bfloat16), BITS)


def _unpacked(bits: jax.Array, exact: jax.Array) -> jax.Array:
    """What was rounded, in the dtype of what was not."""
    return jax.lax.bitcast_convert_type(bits, jnp.bfloat16).astype(exact.dtype)


def asynchronous(
    gradient: Gradient,
    update: Update,
    slots: int,
    fresh: tuple[str, ...] = (),
    servers: Mapping[str, int] | None = None,
    rounded: bool = False,
) -> Strategy:
    """Strategy over a table of `slots` snapshots of the stale blocks, all x_0 at the start.

    The slot written holds what depends on the slots read, so XLA updates the table in place: a step
    costs a synchronous one plus a copy of the stale blocks. `event.control` may have `read` and
    `write` in place of the event's own; with `servers`, the number of each block's server, they are
    (servers,) int32. It may have `seen`, blocks as they were read, in place of the slot's. Versions
    are exact, and x_t is that in its slot, or `rounded` to bfloat16, and x_t is kept besides.

    `init` raises ValueError if a name in `fresh` is not a key of the parameters.
    """

    def init(params: Params) -> State:
        if unknown := sorted(set(fresh) - set(params)):
            raise ValueError(f"fresh block {unknown[0]!r}: one of {', '.join(params)}")
        stale = {name: block for name, block in params.items() if name not in fresh}
        row = jax.tree.map(_packed, stale) if rounded else stale
        table = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], slots, axis=0), row)
        first = {name: jnp.int32(0) for name in stale} if servers else jnp.int32(0)
        kept = {name: block for name, block in params.items() if rounded or name in fresh}
        return State(table, first, update.init(params), kept)

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        read, write = slot_of(event, "read"), slot_of(event, "write")
        seen = state.at(read) | (event.control or {}).get("seen", {})
        loss, grads = gradient(seen, event, batch)
        if servers and event.staleness is not None:
            each = jnp.asarray(event.staleness)
            stale_by = {block: each[server] for block, server in servers.items()}
            event = event._replace(staleness=stale_by)
        params, opt_state = update.apply(grads, state.opt_state, state.params, event, seen)
        return state.after(params, opt_state, write), {"loss": loss}

    def slot_of(event: Event, name: str) -> Slot:
        slots = jnp.asarray((event.control or {}).get(name, getattr(event, name)), jnp.int32)
        if servers is None:
            return slots
        return {block: slots[server] for block, server in servers.items() if block not in fresh}

    return Strategy(init, step)


def is_rounded(keys: Keys) -> bool:
    """Whether the table is of rounded versions."""
    return keys["snapshots"] == "bfloat16"


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """Arrivals of `groups` groups, of every server by itself where the gradient is local.

    Then update t is the t-th arrival at each of them, `control` has `read` and `write`,
    (steps, servers), and the seconds are those of the last. A group sends each server its block,
    all of them when it has computed all.
    """
    config, local = setting.config, methods.gradient
    strategy = config.strategy
    size = {"groups": strategy.groups, "steps": config.steps, "batch_size": config.batch_size}
    size |= {"update_bytes": setting.update_bytes, "replicas": setting.replicas}
    size |= {"staleness_bound": strategy.staleness_bound, "merged": bool(strategy.fresh)}
    if not local or not local.servers:
        return make(config.cluster, seed=config.seed, **size)
    assert local.slower and setting.network
    of, sent = local.servers(setting.network.problem), dict[int, int]()
    if config.cluster.service in RECORDED:  # in one order, that of all servers
        line = make(config.cluster, **size)
        every = {name: getattr(line, name) for name in ("read", "write", "staleness")}
        every = {k: np.repeat(v[:, None], len(set(of.values())), 1) for k, v in every.items()}
        staleness = every.pop("staleness")
        return line._replace(staleness=staleness, control={**(line.control or {}), **every})
    cluster = config.cluster.copy_and_resolve_references()
    cluster.seconds_per_example *= local.slower(config, setting.network)
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
    read, write, staleness = (
        np.stack([getattr(line, name) for line in each], axis=-1)
        for name in ("read", "write", "staleness")
    )
    last = np.max([line.seconds for line in each], axis=0)
    control = {"read": read, "write": write}
    return each[0]._replace(seconds=last, staleness=staleness, control=control)


def values(config: ConfigDict) -> None:
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


def divides(config: ConfigDict, methods: Chosen) -> None:
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


def check(config: ConfigDict, methods: Chosen) -> None:
    """Raises `ConfigError`."""
    strategy, cluster = config.strategy, config.cluster
    divides(config, methods)
    local = methods.gradient and methods.gradient.servers
    if local and not is_drawn(cluster.service):
        one_of(config, "cluster.service", (*DRAWN, *RECORDED, "geometric"))
    if local and any(cluster.pieces.values()):
        raise ConfigError("config.cluster.pieces: no block of local learning has such a server")
    if cluster.service == "race":
        races(config, methods)
    if strategy.snapshots == "host":
        in_host_memory(config, methods)
    habit = next((key for key in HABITS if cluster[key]), "")
    bound = local or strategy.staleness_bound >= 0 or any(cluster.pieces.values())
    if habit and (bound or config.replicas.count or not is_drawn(cluster.service)):
        raise ConfigError(
            f"config.cluster.{habit}: of one run of groups by themselves, whose times are drawn "
            "from a law, without config.cluster.pieces, a staleness bound, or blocks with servers "
            "of their own"
        )
    if strategy.staleness_bound < 0:
        return
    ordered = is_drawn(cluster.service) or cluster.service in RECORDED
    if not ordered or any(cluster.pieces.values()):
        raise ConfigError(
            "config.strategy.staleness_bound: groups wait for one another only where their times "
            f"are drawn or recorded, config.cluster.service one of "
            f"{', '.join((*DRAWN, *RECORDED))} and no pieces"
        )
    if config.replicas.count:
        raise ConfigError("config.strategy.staleness_bound: only of runs, not of replicas")


def in_host_memory(config: ConfigDict, methods: Chosen) -> None:
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


def races(config: ConfigDict, methods: Chosen) -> None:
    """Raises `ConfigError` where groups cannot race on real workers (`research/racing`)."""
    wanted = "config.cluster.service = 'race':"
    if config.strategy.fresh:
        raise ConfigError(
            f"{wanted} config.strategy.fresh must be (), for workers take whole gradients"
        )
    if config.strategy.snapshots:
        raise ConfigError(f"{wanted} config.strategy.snapshots must be '', as workers are sent x_t")
    if config.parallel.api or config.parallel.accumulation > 1:
        raise ConfigError(f"{wanted} config.parallel must be as it is by default")
    if config.replicas.count:
        raise ConfigError(f"{wanted} config.replicas.count must be 0, one race is one run")
    if config.data.streaming:
        raise ConfigError(f"{wanted} config.data.streaming must be False")


def order(config: ConfigDict, line: Timeline) -> Versions:
    """Who reads when in a race."""
    strategy = config.strategy
    bound = strategy.staleness_bound if strategy.staleness_bound >= 0 else math.inf
    return Versions(line, strategy.groups, bound)


METHOD = Method(
    keys={
        "groups": 1,  # compute groups, each synchronous inside
        "staleness_bound": -1,  # updates a group may be ahead of the slowest; -1: any
        "fresh": (),  # blocks of a merged server, which groups read fresh
        "snapshots": "",  # versions: float32 on the device, rounded to 'bfloat16', or on the 'host'
    },
    compiled=("fresh", "snapshots"),
    read=lambda gradient, update, keys, slots, servers: asynchronous(
        gradient, update, slots, tuple(keys["fresh"]), servers, is_rounded(keys)
    ),
    clock=clock,
    laws=(*DRAWN, *RECORDED, "geometric"),
    cluster=(
        *("pieces", "split", "overlap", "speeds"),
        *("regions", "diurnal", "presence", "server_bandwidth"),
    ),
    barrier=False,
    values=values,
    check=check,
    race=Racing(order, alone),
)
