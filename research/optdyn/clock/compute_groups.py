"""From `config.cluster` to the arrivals of its groups, by the law of their service."""

import math

import numpy as np

from optdyn.base import seeds
from optdyn.clock import habits
from optdyn.clock.arrivals import Work, arrivals
from optdyn.clock.base import Timeline, from_arrivals
from optdyn.clock.cluster import Cluster
from optdyn.clock.geometric import geometric
from optdyn.clock.network import of_groups
from optdyn.clock.nodes import compute_means, synchronous
from optdyn.clock.server import pieces_of, server
from optdyn.clock.several import several
from optdyn.clock.trace import Held, arrived
from optdyn.clock.versions import NOBODY, blank
from optdyn.clock.volunteers import volunteers


def make(
    cluster: Cluster,
    *,
    groups: int,
    steps: int,
    batch_size: int,
    update_bytes: int = 0,
    seed: int = 0,
    replicas: int = 0,
    merged: bool = False,
    staleness_bound: int = -1,
    several_of: tuple[int, str] = (1, ""),
    delay_bound: int = 0,
    allotted: float = 0.0,
    held: Held | None = None,
    message_bytes: float | None = None,
) -> Timeline:
    """The timeline of `steps` updates by `groups` groups of the cluster's workers.

    The N = nodes x devices_per_node workers form equal groups of k = N / groups, in order. A worker
    computes its share of the batch at `seconds_per_example` over its speed, times a draw of unit
    mean from the law `service`; a group delivers with its slowest worker, after sending its
    gradient and before reading the new parameters (`update_bytes` each way, or a gradient of
    `message_bytes`), behind the fraction `overlap` of its computing. One group of all is
    synchronous, without a server (`nodes.py`).

    With `cluster.pieces` the groups queue for a server instead (`server.py`), `merged` or not, with
    draws from the same law. Pieces are seconds for a whole batch, so neither `batch_size` nor
    `update_bytes` counts. With `staleness_bound` from 0 up they wait for one another, and with
    `several_of`, (K, who waits), an update is of K arrivals (`several.py`). With `delay_bound` from
    1 up what is as many updates old is dropped; one group is never late. With `allotted` above 0
    who has not delivered after so many of its mean services begins again. With a load by the hour,
    absences or a server whose link has a width they are volunteers (`volunteers.py`). Of groups
    that race, `service` "race", it is empty: the race fills it. With `held` it is that of the
    arrivals that a trace holds.

    `replicas` > 0 gives arrays (replicas, steps): consecutive windows of one long timeline, each
    starting from version 0 in every slot.
    """
    count = max(replicas, 1) * steps
    work = work_of(cluster, groups, batch_size, update_bytes, message_bytes=message_bytes)
    if cluster.service.name == "geometric":
        shape = (replicas, steps) if replicas else (steps,)
        interval = 1 / np.sum(1 / work.means().max(axis=1))  # the rates of the groups add up
        return geometric(seeds.generator(seed, "arrivals"), groups, float(interval), shape)
    bound = staleness_bound if staleness_bound >= 0 else math.inf
    oldest = delay_bound if delay_bound and groups > 1 else math.inf
    many, waiting = several_of
    who, limit = waiting or NOBODY, allotted or math.inf
    waits = bool(waiting) or min(bound, oldest, limit) < math.inf
    if cluster.service.name == "race":
        return blank(groups, steps, many, waiting, oldest < math.inf)
    law, stream = cluster.service, seeds.number(seed, "arrivals")
    if held:
        worker = held.worker
        if many > 1:
            worker = held.workers((many,), groups)
        whole = arrived(held, groups, bound, many, who, worker, oldest, limit < math.inf)
    elif pieces := pieces_of(cluster, merged):
        rng, k = seeds.generator(seed, "arrivals"), cluster.worker_count // groups
        whole, _ = server(pieces, groups, k, count, law.draw, rng)
    elif as_volunteers := habits_of(cluster, groups, update_bytes):
        whole, _ = volunteers(stream, law.draw, work, count, as_volunteers)
    elif groups == 1 and not waiting:
        sizes = {"batch_size": batch_size, "update_bytes": update_bytes}
        whole = synchronous(cluster, steps=count, seed=seed, **sizes)
    elif waits:
        bounds = {"bound": bound, "delay_bound": oldest, "allotted": limit}
        whole = several(stream, law.draw, work, count, many, who, **bounds)
    else:
        whole = arrivals(stream, law.draw, work, count)
    return _in_windows(whole, replicas, steps, groups) if replicas else whole


def _in_windows(whole: Timeline, replicas: int, steps: int, groups: int) -> Timeline:
    """(replicas, steps): consecutive windows of a timeline, each from version 0 and second 0 on."""
    seconds = whole.seconds.reshape(replicas, steps)
    starts = np.concatenate([[0.0], seconds[:-1, -1]])[:, None]
    return from_arrivals(whole.worker.reshape(replicas, steps), seconds - starts, groups)


def work_of(
    cluster: Cluster,
    groups: int,
    batch_size: int,
    update_bytes: int,
    sent: bool = True,
    message_bytes: float | None = None,
) -> Work:
    """What each group does for an update, whose gradient and parameters are `sent` or not."""
    means = compute_means(cluster, groups, batch_size)
    each = of_groups(cluster, groups, update_bytes, sent, message_bytes)
    return Work(means, each, cluster.overlap)


def habits_of(cluster: Cluster, groups: int, update_bytes: int) -> habits.Habits | None:
    """The habits of groups of volunteers; a group has the hour of its first worker's node."""
    if not (cluster.diurnal or cluster.presence or cluster.server_bandwidth):
        return None
    load = habits.load(cluster)
    if load:
        load = load._replace(phase=load.phase[np.arange(groups) * cluster.nodes // groups])
    width = cluster.server_bandwidth
    sending = 2 * update_bytes / width if width else 0.0
    return habits.Habits(load, cluster.presence, cluster.absence, sending)
