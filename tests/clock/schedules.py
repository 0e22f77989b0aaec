"""What a schedule of stages is measured by, for its tests."""

import numpy as np

from optdyn.clock.pipeline import update_seconds


def stages_of(schedule):
    return int(schedule.stage.max()) + 1


def utilization(schedule):
    """Seconds at work over S times the seconds until the last end."""
    busy = schedule.end - schedule.start
    return float(busy.sum() / (stages_of(schedule) * schedule.end.max()))


def steady_utilization(schedule):
    """Work of an update over S times the seconds between updates: no first fill, no last drain.

    A pipeline that is flushed fills and drains in every update. NaN for one update.
    """
    every = update_seconds(schedule)
    between = every[-1] - every[0] if len(every) > 1 else np.nan
    busy = (schedule.end - schedule.start)[schedule.update > 0]
    return float(busy.sum() / (stages_of(schedule) * between))


def memory(schedule):
    """(S,) the most micro-batches whose activations a stage holds, from forward to backward."""
    more, stages = np.array([1, -1, 0])[schedule.kind], range(stages_of(schedule))
    return np.array([np.cumsum(more[schedule.stage == stage]).max() for stage in stages])
