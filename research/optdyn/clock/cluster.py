"""The workers of an experiment, their speeds, and the network between them.

Seconds are simulated, sizes are bytes.
"""

from collections.abc import Iterator
from dataclasses import InitVar, dataclass
from dataclasses import field as dataclass_field
from typing import Any, Self

from optdyn.base.arguments import check_arguments
from optdyn.base.errors import Check, ConfigError, short_repr
from optdyn.base.fields import Value, field, normalize
from optdyn.base.ranges import A_WORKER, BLOCKS, LEAST_AND_MOST, WIDE
from optdyn.clock.service import Exponential, Law


@dataclass(frozen=True)
class Pieces(Value, section="cluster.pieces"):
    """Measured seconds of the pieces of an update, for the whole batch.

    They replace `seconds_per_example` and the network in `sync` and `asynchronous`
    (`clock/arrivals.py`).
    """

    conv_compute: float = field(
        0.0, "Convolutions on one worker, divided among a group's. 0: no pieces.", at_least=0
    )
    conv_network: float = field(
        0.0, "Exchange of the convolutions by one worker; k take k times as long.", at_least=0
    )
    fc: float = field(0.0, "The dense part, on one server if method.fresh names it.", at_least=0)
    fc_network: float = field(
        0.0, "The dense part's exchange with its server, if method.fresh is ().", at_least=0
    )


@dataclass(frozen=True)
class Cluster(Value, section="cluster"):
    """The workers, their speeds, and the network between them.

    `workers` = `nodes * devices_per_node` may replace `nodes`. Raises `ConfigError` for a value out
    of its range.
    """

    nodes: int = field(1, "Nodes; local, stale_pipeline: stages of the model.", **WIDE)
    devices_per_node: int = field(1, "Devices of a node, each a worker.", **WIDE)
    speeds: tuple[float, ...] = field((), "Relative speed of each worker; (): all 1.", **A_WORKER)
    split: str = field(
        "equal",
        "Division of a group's batch: 'equal', or 'proportional' to speeds.",
        one_of=("equal", "proportional"),
    )
    service: Law = dataclass_field(default_factory=Exponential)
    seconds_per_example: float = field(
        1e-3, "Mean seconds of an example on a worker of speed 1.", above=0
    )
    collective: str = field(
        "ring",
        "Algorithm of all-reduces: 'ring', 'tree' or 'server'.",
        one_of=("ring", "tree", "server"),
    )
    latency: float = field(0.0, "Seconds a message.", at_least=0)
    bandwidth: float = field(0.0, "Bytes a second; 0: transfers take no time.", at_least=0)
    latencies: tuple[Any, ...] = field(
        (), "Seconds a message from the row's node to the column's; (): cluster.latency."
    )
    bandwidths: tuple[Any, ...] = field(
        (), "Bytes a second from the row's node to the column's; (): cluster.bandwidth."
    )
    regions: int = field(
        0,
        "Regions of the earth with the nodes, which add to latencies; 0: none.",
        at_least=0,
        at_most=BLOCKS,
    )
    bandwidth_variation: float = field(
        0.0, "Standard deviation over mean of the bandwidth of regions' links.", at_least=0
    )
    diurnal: float = field(
        0.0,
        "Amplitude of the daily load, which slows nodes by the hour of their longitude.",
        at_least=0,
        below=1,
    )
    day: float = field(86_400.0, "Seconds of a day.", above=0)
    presence: float = field(
        0.0, "Mean seconds until a node leaves, exponential; 0: never.", at_least=0
    )
    absence: float = field(0.0, "Mean seconds until a node that left is back.", at_least=0)
    server_bandwidth: float = field(
        0.0,
        "asynchronous: bytes a second of the server's link, one message at a time; 0: no limit.",
        at_least=0,
    )
    overlap: float = field(
        0.0,
        "Last fraction of the computing during which an exchange may run.",
        at_least=0,
        at_most=1,
    )
    pieces: Pieces = dataclass_field(default_factory=Pieces)
    local_latency: float = field(0.0, "Seconds a message inside a node.", at_least=0)
    local_bandwidth: float = field(
        0.0, "Bytes a second inside a node; 0: transfers take no time.", at_least=0
    )
    disturbances: tuple[Any, ...] = field(
        (), "dynamic_batch: (worker, first epoch, last, slowdown), ..."
    )
    disturbance_probability: float = field(
        0.0,
        "dynamic_batch: probability at an epoch that a worker begins to be delayed.",
        at_least=0,
        at_most=1,
    )
    disturbance_seconds: tuple[float, ...] = field(
        (5.0, 10.0), "dynamic_batch: least and most seconds of delay in an epoch.", **LEAST_AND_MOST
    )
    disturbance_epochs: tuple[int, ...] = field(
        (4, 20), "dynamic_batch: least and most epochs that a delay lasts.", **LEAST_AND_MOST
    )
    workers: InitVar[int | None] = None

    def __post_init__(self, workers: int | None) -> None:
        super().__post_init__()
        if workers is not None:
            workers = normalize(workers, 0)  # also of NumPy
            ConfigError.refuse(self._wrong_workers(workers))
            object.__setattr__(self, "nodes", workers // self.devices_per_node)
            super().__post_init__()  # of these nodes

    def _wrong_workers(self, workers: Any) -> Iterator[Check]:
        where, devices = f"Cluster.workers = {short_repr(workers)}", self.devices_per_node
        is_wrong = type(workers) is not int or workers < 1 or workers % devices
        multiple = f"must be a multiple of devices_per_node = {devices}, at least 1"
        yield is_wrong, f"{where}: {multiple}"
        product = f"must be nodes * devices_per_node = {self.worker_count}, or leave nodes out"
        yield self.nodes not in (1, workers // devices), f"{where}: {product}"

    @property
    def worker_count(self) -> int:
        return self.nodes * self.devices_per_node

    @check_arguments
    def with_(self, **changes: Any) -> Self:
        nodes = {"nodes": 1} if changes.get("workers") else {}
        return super().with_(**nodes | changes)
