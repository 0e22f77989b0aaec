"""What nodes with parameters of their own do between their meetings, and how long it takes them."""

from collections.abc import Iterator
from functools import partial

import jax
import numpy as np

from optdyn.base import seeds
from optdyn.base.errors import Join
from optdyn.clock.meetings import (
    LocalClock,
    LocalTimes,
    barrier_seconds,
    meetings_timeline,
    node_seconds,
    ready_and_done,
    service_draws,
)
from optdyn.clock.network import broadcast
from optdyn.clock.timeline import AllReduceStep, Timeline
from optdyn.methods.method import ClockInputs, Gradients, MethodStack
from optdyn.methods.setup import Setup

SLOTS = ("worker", "read", "write")  # fields of a choice that are slots of a table


def has_rate(setup: Setup) -> Join:
    """There is a learning rate; a transformation of optax has one of its own."""
    said = "must be other than 0 for this method, which scales what it keeps by it; an optax "
    said += "transformation has a rate of its own, which the method does not see (optdyn.SGD and "
    said += "others tell it)"
    return Join("optimizer.learning_rate", not setup.optimizer.learning_rate, said)


def joins(setup: Setup, methods: MethodStack) -> Iterator[Join]:
    """The batch is divided among all devices, and nodes are no groups."""
    cluster = setup.cluster
    devices = cluster.worker_count
    said = f"must be a multiple of the cluster's {devices} devices (config.cluster.nodes x config."
    said += "cluster.devices_per_node)"
    yield Join("batch_size", setup.batch_size % devices, said)
    for key in ("regions", "diurnal", "presence"):
        said = "of nodes that compute as a whole, not of groups inside them"
        yield Join(f"cluster.{key}", methods.read and getattr(cluster, key), said)
    linked = cluster.regions and (cluster.latencies or cluster.bandwidths)
    yield Join("cluster.regions", linked, "says all links, beside latencies and bandwidths")
    said = "nodes that meet have no server"
    yield Join("cluster.server_bandwidth", cluster.server_bandwidth, said)


def inside(inputs: ClockInputs, methods: MethodStack) -> LocalClock:
    """The clock of the nodes by themselves."""
    if methods.read:
        return partial(_groups, inputs, methods)
    if methods.gradient and methods.gradient.work:
        return partial(_devices, inputs, methods.gradient)
    return partial(_equal, inputs)


def barrier_clock(inputs: ClockInputs, methods: MethodStack, transfer: float) -> Timeline:
    """The timeline of nodes that wait after every update for the last and for its exchange.

    It takes `transfer` seconds, from when the first layers' gradients are there on; then it is
    handed on inside the nodes. The plan is `AllReduceStep`.
    """
    local, cluster = inside(inputs, methods)(inputs.setup.steps), inputs.setup.cluster
    handed_on = broadcast(cluster, inputs.update_bytes)
    seconds = barrier_seconds(local.ready, local.done, transfer, handed_on)
    return meetings_timeline(AllReduceStep(), local, np.cumsum(seconds))


def _equal(inputs: ClockInputs, steps: int) -> LocalTimes:
    """Nodes whose devices take equal parts of a batch."""
    setup, size = inputs.setup, inputs.update_bytes
    each = node_seconds(setup.cluster, steps, setup.batch_size, size, setup.seed)
    return LocalTimes(*each)


def _devices(inputs: ClockInputs, gradient: Gradients, steps: int) -> LocalTimes:
    """Nodes whose devices wait for one another, each for so long as the gradient takes it."""
    assert gradient.work
    setup = inputs.setup
    seconds, choice = gradient.work(inputs, service_draws(setup.cluster, steps, setup.seed))
    return LocalTimes(*ready_and_done(setup.cluster, seconds, inputs.update_bytes), choice)


def _groups(inputs: ClockInputs, methods: MethodStack, steps: int) -> LocalTimes:
    """Nodes inside which groups arrive by themselves: every node has a clock of its own."""
    assert methods.read
    whole, cluster, lines = inputs.setup, inputs.setup.cluster, []
    k = cluster.devices_per_node
    for node in range(cluster.nodes):
        setup = whole.with_(
            cluster=cluster.with_(
                nodes=1,
                speeds=cluster.speeds[node * k : (node + 1) * k],
                latency=cluster.local_latency,
                bandwidth=cluster.local_bandwidth,
                latencies=(),  # which are those between nodes
                bandwidths=(),
            ),
            steps=steps,
            batch_size=whole.batch_size // cluster.nodes,
            seed=seeds.number(whole.seed, f"node {node}", below=2**32),
        )
        trace = inputs.trace and inputs.trace.node(node, whole.cluster.nodes)
        own = inputs._replace(setup=setup, replicas=0, trace=trace)
        lines.append(methods.read.clock(own, methods.inside))
    each = np.stack([np.diff(line.seconds, prepend=0.0) for line in lines], axis=1)
    decided = [(line.plan, line.staleness) for line in lines]
    choice, staleness = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *decided)
    slots = [getattr(choice, name).max() for name in SLOTS if hasattr(choice, name)]
    return LocalTimes(each, each, choice, staleness, 1 + int(max(slots)))
