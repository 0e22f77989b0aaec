"""The events of a run, as arrays of one entry an update, or (replicas, steps)."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from research.values import InputError


class TimelineError(InputError):
    """A timeline that cannot be made; the message is one line."""


class Timeline(NamedTuple):
    worker: np.ndarray  # (..., steps) int32, group that arrives
    read: np.ndarray  # (..., steps) int32, slot its gradient was taken at
    write: np.ndarray  # (..., steps) int32, slot that receives the new parameters
    staleness: np.ndarray  # (..., steps) int32, updates between the read and the arrival
    seconds: np.ndarray  # (..., steps) float64, simulated time of the arrival
    slots: int  # snapshots that the slots address
    control: Mapping[str, np.ndarray] | None = None  # (..., steps, ...) what else it decides


def from_arrivals(worker: np.ndarray, seconds: np.ndarray, workers: int) -> Timeline:
    """Timeline of workers that read when they write: slot w holds what worker w last saw.

    `worker` and `seconds`, (..., steps). All workers read version 0 at second 0. The staleness of
    an arrival is the number of others since the same worker's last: t - (s + 1) for arrivals at t
    and s, and t for the first.
    """
    worker = worker.astype(np.int32)
    order = np.argsort(worker, axis=-1, kind="stable").astype(np.int32)
    ordered = np.take_along_axis(worker, order, -1)
    before = np.full_like(order, -1)
    before[..., 1:] = np.where(ordered[..., 1:] == ordered[..., :-1], order[..., :-1], -1)
    previous = np.empty_like(order)
    np.put_along_axis(previous, order, before, -1)
    staleness = np.arange(worker.shape[-1], dtype=np.int32) - previous - 1
    return Timeline(worker, worker, worker, staleness, seconds, workers)
