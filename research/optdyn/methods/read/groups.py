"""Compute groups that arrive by themselves: when they do, and what they ask of a config."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.clock.base import Timeline
from optdyn.clock.cluster import Pieces
from optdyn.clock.compute_groups import make
from optdyn.core import Gradient, Message, Update, send_gradient
from optdyn.core.snapshots import KEPT
from optdyn.methods.method import ClockInputs, Methods, Reads, slowed
from optdyn.methods.setup import Setup

RECORDED = ("trace", "race")  # laws of service: arrivals that were, or are being, recorded


@dataclass(frozen=True)
class Grouped(Reads):
    """Groups that arrive by themselves and share one set of parameters."""

    groups: int = field(1, "Compute groups, each synchronous inside.", at_least=1)
    snapshots: str = field(
        "",
        "How versions are kept, '' exactly and on the device, "
        "rounded to 'bfloat16', or on the 'host'.",
        one_of=KEPT,
        static=True,
    )

    barrier = False

    def message(self, gradient: Gradient, update: Update) -> Callable[..., Message]:
        return send_gradient(gradient, update)

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield divides(self.groups, setup, methods)
        served = methods.by_block and setup.cluster.pieces != Pieces()
        yield Join("cluster.pieces", served, "no block of local learning has such a server")
        if setup.cluster.service.name == "race":
            yield from races(self.snapshots, setup)
        if self.snapshots == "host":
            yield from in_host_memory(setup, methods)


def together(of: Grouped, setting: ClockInputs, methods: Methods, **more: Any) -> Timeline:
    """Arrivals of groups that send all blocks at once; `more` are arguments of `make`."""
    setup = setting.setup
    usual: dict[str, Any] = {
        "groups": of.groups,
        "steps": setup.steps,
        "batch_size": setup.batch_size,
        "update_bytes": setting.update_bytes,
        "seed": setup.seed,
        "held": setting.held,
    }
    return make(slowed(setting, methods), **usual | more)


def divides(groups: int, setup: Setup, methods: Methods) -> Join:
    """Groups are of equally many workers."""
    cluster = setup.cluster
    workers = cluster.devices_per_node if methods.mix else cluster.worker_count
    where = "a node's" if methods.mix else "the cluster's"
    said = f"must divide {where} {workers} workers (config.cluster.nodes x config.cluster."
    return Join("method.groups", workers % groups, f"{said}devices_per_node)")


def in_host_memory(setup: Setup, methods: Methods) -> Iterator[Join]:
    """Versions lie in the host's memory."""
    several = methods.mix or not methods.read or not methods.read.single
    said = "of one set of parameters and one version an update, not of config.method.name = "
    said += f"{methods.name!r}; 'bfloat16' halves the table of all"
    yield Join("method.snapshots", several, said)
    said = "of one device, config.parallel.api = ''; on several config.parallel.shard_snapshots "
    yield Join("method.snapshots", setup.parallel.api, f"{said}gives each a part of the table")
    said = "config.replicas.count must be 0, replicas share a device"
    yield Join("method.snapshots", setup.replicas.count, said)


def races(snapshots: str, setup: Setup) -> Iterator[Join]:
    """Groups race on real workers (`race`)."""
    key, real = "cluster.service.name", setup.parallel
    said = "config.method.snapshots must be '', as workers are sent x_t"
    yield Join(key, snapshots, said)
    changed = real.api or real.accumulation > 1
    yield Join(key, changed, "config.parallel must be as it is by default")
    said = "config.replicas.count must be 0, one race is one run"
    yield Join(key, setup.replicas.count, said)
    yield Join(key, setup.data.streaming, "config.data.streaming must be False")
