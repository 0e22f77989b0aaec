"""The seconds of nodes, sets of devices with the same parameters, between their meetings."""

import jax
import numpy as np

from optdyn.base import seeds
from optdyn.base.errors import Join
from optdyn.clock.meetings import (
    LocalTimes,
    barrier_seconds,
    meetings_timeline,
    node_seconds,
    ready_and_done,
    service_draws,
)
from optdyn.clock.network import broadcast
from optdyn.clock.timeline import AllReduceStep, Timeline
from optdyn.methods.method import ClockInputs, MethodStack
from optdyn.methods.setup import Setup

SLOTS = ("worker", "read", "write")  # fields of a plan that are slots of a table
# Keys of the cluster (`method.OPTIONAL`) that all clocks of nodes know which exchange as messages.
LINKED = ("overlap", "speeds", "latencies", "bandwidths", "regions")


def has_rate(setup: Setup) -> Join:
    """Returns the row of a method that scales by the learning rate, which must not be 0."""
    return Join(
        "optimizer.learning_rate",
        not setup.optimizer.learning_rate,
        "must be other than 0, as this method scales what it keeps by it; an optax transformation "
        "hides its rate, optdyn.SGD and others show it",
    )


def local_times(inputs: ClockInputs, methods: MethodStack, steps: int) -> LocalTimes:
    """Returns the seconds of so many updates of each node by itself, and what they decide."""
    setup, size = inputs.setup, inputs.update_bytes
    if methods.read:
        return _group_times(inputs, methods, steps)
    if methods.gradient and methods.gradient.work:
        draws = service_draws(setup.cluster, steps, setup.seed)
        seconds, plan = methods.gradient.work(inputs, draws)
        return LocalTimes(*ready_and_done(setup.cluster, seconds, size), plan)
    return LocalTimes(*node_seconds(setup.cluster, steps, setup.batch_size, size, setup.seed))


def barrier_clock(inputs: ClockInputs, methods: MethodStack, transfer: float) -> Timeline:
    """Returns the timeline of nodes that wait for the last and `transfer` seconds every update."""
    local, cluster = local_times(inputs, methods, inputs.setup.steps), inputs.setup.cluster
    handed_on = broadcast(cluster, inputs.update_bytes)
    seconds = barrier_seconds(local.ready, local.done, transfer, handed_on)
    return meetings_timeline(AllReduceStep(), local, np.cumsum(seconds))


def _group_times(inputs: ClockInputs, methods: MethodStack, steps: int) -> LocalTimes:
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
        trace = inputs.trace and inputs.trace.at_node(node, whole.cluster.nodes)
        node_inputs = inputs._replace(setup=setup, replicas=0, trace=trace)
        lines.append(methods.read.clock(node_inputs, methods.inside))
    seconds = np.stack([np.diff(line.seconds, prepend=0.0) for line in lines], axis=1)
    plans = [(line.plan, line.staleness) for line in lines]
    plan, staleness = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *plans)
    slots = [getattr(plan, name).max() for name in SLOTS if hasattr(plan, name)]
    return LocalTimes(seconds, seconds, plan, staleness, 1 + int(max(slots)))
