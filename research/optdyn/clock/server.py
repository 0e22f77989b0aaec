"""Groups of workers that queue for one server: Omnivore's hardware model, event by event.

Hadjis et al., "Omnivore" (arXiv 1606.04487). N workers in g groups of k = N / g share one fully
connected (FC) server. A group computes its convolutions, then queues for it:

    T_conv_compute(k) = T_conv_compute(1) / k    a batch is divided among k workers
    T_conv_network(k) = T_conv_network(1) k      k workers exchange the model with one server
    T_conv(k) = max(T_conv_compute(k), T_conv_network(k))

The paper has T_conv_network grow with k; linear growth is an assumption made here, of one model
server with one link.

*Merged*, compute and model of the FC part share the server, for T_fc a batch. *Unmerged*, as the
authors' program lays it out, every group computes its FC part on a machine of its own in T_fc, and
what the groups queue for is the server of the FC model, T_fc_network a batch.
"""

from typing import NamedTuple

import numpy as np

from optdyn.clock.arrivals import Queue, rounding
from optdyn.clock.base import Timeline, from_arrivals
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Draw


class IterationSeconds(NamedTuple):
    """Seconds of the parts of an iteration on one batch."""

    t_conv_compute_1: float  # convolutions, forward and backward, on one worker
    t_conv_network_1: float  # exchange of the convolutional model by one worker
    t_fc: float  # fully connected part, forward and backward
    merged: bool = True  # FC compute and FC model on one server
    t_fc_network: float = 0.0  # exchange of the FC model; only if not merged


def pieces_of(cluster: Cluster, merged: bool) -> IterationSeconds | None:
    """The pieces of a cluster's config, if it has any."""
    given = cluster.pieces
    if not given.conv_compute:
        return None
    return IterationSeconds(
        given.conv_compute, given.conv_network, given.fc, merged, given.fc_network
    )


def t_conv(pieces: IterationSeconds, k: int) -> float:
    """Seconds of the convolutional phase in a group of k workers."""
    return max(pieces.t_conv_compute_1 / k, pieces.t_conv_network_1 * k)


def t_fc(pieces: IterationSeconds) -> tuple[float, float]:
    """FC seconds of a batch: on the group's own machine, and on the server that all share."""
    return (0.0, pieces.t_fc) if pieces.merged else (pieces.t_fc, pieces.t_fc_network)


def server(
    pieces: IterationSeconds, groups: int, k: int, steps: int, law: Draw, rng: np.random.Generator
) -> tuple[Timeline, np.ndarray]:
    """The first `steps` updates by `groups` groups of k workers, and the server's seconds at each.

    All groups start at second 0. The mean of every worker's phase, T_conv(k), and of every FC
    service is multiplied by a draw of unit mean from `law`, and a group waits for the slowest of
    its workers, then in order of arrival for the server. It reads the parameters as it leaves the
    server: the staleness is that of the convolutional model (a merged FC model has none). Longer
    runs of the same generator state begin with shorter ones.
    """
    own, served = t_fc(pieces)
    conv_stream, own_stream, server_stream = rng.spawn(3)
    phases = groups + steps  # one at the start of each group, one after every update
    alone = law(conv_stream, (phases, k)).max(axis=1) * t_conv(pieces, k)
    alone += law(own_stream, (phases,)) * own
    services = law(server_stream, (steps,)) * served

    entries = list(zip(alone[:groups].tolist(), range(groups), strict=True))
    queue = Queue(entries, rounding(law))
    worker, seconds = np.empty(steps, np.int32), np.empty(steps)
    free = 0.0  # second at which the server has dealt with all who came before
    events = zip(services.tolist(), alone[groups:].tolist(), strict=True)
    for t, (service, phase) in enumerate(events):
        arrival, group = queue.pop()
        free = max(free, arrival) + service
        worker[t], seconds[t] = group, free
        queue.push((free + phase, group))
    return from_arrivals(worker, seconds, groups), services
