"""A study whose runs take as long as a function of their config says, and a quadratic to train."""

import math
from typing import NamedTuple

import optdyn as od
from optdyn.evidence.trial import Curve

TARGET = 0.25  # training loss


class Known(NamedTuple):
    taken: object  # config -> (updates to the target, seconds an update)
    choose: tuple[int, ...] = (7, 8)
    report: tuple[int, ...] = (0, 1, 2)
    target: float = TARGET

    def trials(self, jobs):
        return [self.curve(job) for job in jobs]

    def curve(self, job):
        updates, update_seconds = self.taken(job.config)
        if math.isinf(updates):
            return Curve([0], [0.0], [2.3], "diverged", {})
        limit = job.most / update_seconds if job.clock == "seconds" else job.most
        ended = min(updates, limit, job.config.steps)
        loss = self.target if ended == updates else 1 + updates / 1e6
        status = "reached" if ended == updates else "ended"
        return Curve([0, ended], [0.0, ended * update_seconds], [2.3, loss], status, {})


def quadratic(groups=1):
    """16 dimensions of condition 10; 16 memoryless workers in so many groups."""
    return od.Experiment(
        model=od.Quadratic(noise=0.1),
        method=od.Asynchronous(groups=groups),
        cluster=od.Cluster(nodes=16, service=od.Exponential()),
        batch_size=16,
    )
