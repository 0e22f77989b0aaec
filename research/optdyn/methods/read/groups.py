"""Compute groups that arrive by themselves: when they do, and what they ask of a config."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from optdyn.base.errors import ConfigError, one_of, refuse
from optdyn.base.fields import field
from optdyn.clock.base import Timeline
from optdyn.clock.cluster import Pieces
from optdyn.clock.compute_groups import make
from optdyn.clock.service import DRAWN
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
        "asynchronous, buffered, ringmaster: how versions are kept, '' exactly and on the device, "
        "rounded to 'bfloat16', or on the 'host'.",
        one_of=KEPT,
        static=True,
    )

    barrier = False

    def message(self, gradient: Gradient, update: Update) -> Callable[..., Message]:
        return send_gradient(gradient, update)

    def check(self, setup: Setup, methods: Methods) -> None:
        cluster = setup.cluster
        divides(self.groups, setup, methods)
        local = methods.by_block
        if local and not cluster.service.is_drawn:
            known = (*DRAWN, *RECORDED, "geometric")
            one_of("config.cluster.service.name", cluster.service.name, known)
        if local and cluster.pieces != Pieces():
            raise ConfigError("config.cluster.pieces: no block of local learning has such a server")
        if cluster.service.name == "race":
            races(self.snapshots, setup)
        if self.snapshots == "host":
            in_host_memory(setup, methods)


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


def divides(groups: int, setup: Setup, methods: Methods) -> None:
    """Raises `ConfigError` if groups are not of equally many workers."""
    cluster = setup.cluster
    workers = cluster.worker_count
    if methods.mix:
        workers = cluster.devices_per_node
    if workers % groups:
        where = "a node's" if methods.mix else "the cluster's"
        raise ConfigError(
            f"config.method.groups = {groups}: must divide {where} {workers} workers "
            "(config.cluster.nodes x config.cluster.devices_per_node)"
        )


def in_host_memory(setup: Setup, methods: Methods) -> None:
    """Raises `ConfigError` where versions cannot lie in the host's memory."""
    wanted = "config.method.snapshots = 'host':"
    refuse(
        (
            methods.mix or not methods.read or not methods.read.single,
            f"{wanted} of one set of parameters and one version an update, not of "
            f"config.method.name = {methods.name!r}; 'bfloat16' halves the table of all",
        ),
        (
            setup.parallel.api,
            f"{wanted} of one device, config.parallel.api = ''; on several "
            "config.parallel.shard_snapshots gives each a part of the table",
        ),
        (
            setup.replicas.count,
            f"{wanted} config.replicas.count must be 0, replicas share a device",
        ),
    )


def races(snapshots: str, setup: Setup) -> None:
    """Raises `ConfigError` where groups cannot race on real workers (`race`)."""
    wanted = "config.cluster.service.name = 'race':"
    refuse(
        (
            snapshots,
            f"{wanted} config.method.snapshots must be '', as workers are sent x_t",
        ),
        (
            setup.parallel.api or setup.parallel.accumulation > 1,
            f"{wanted} config.parallel must be as it is by default",
        ),
        (setup.replicas.count, f"{wanted} config.replicas.count must be 0, one race is one run"),
        (setup.data.streaming, f"{wanted} config.data.streaming must be False"),
    )
