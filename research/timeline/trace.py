"""Arrivals recorded elsewhere: a CSV file with a header and the columns `worker,seconds`.

One row an arrival: the group that delivered (0, 1, ...) and when, in seconds from the start.
"""

import numpy as np
import pandas as pd

from research.timeline.base import Timeline, TimelineError, from_arrivals


def trace(path: str, groups: int, steps: int) -> Timeline:
    """The first `steps` arrivals of the file; `TimelineError` in one line if it cannot serve."""
    try:
        table = pd.read_csv(path)
        worker = table["worker"].to_numpy(np.float64)  # a fraction or a blank is found below
        seconds = table["seconds"].to_numpy(np.float64)
    except OSError as error:
        raise TimelineError(f"trace {path}: {error.strerror or error}") from error
    except (KeyError, ValueError) as error:
        raise TimelineError(
            f"trace {path}: not a CSV file with the columns worker (integers) and seconds"
        ) from error
    if len(worker) < steps:
        raise TimelineError(f"trace {path}: {len(worker)} arrivals, the run has {steps} steps")
    strangers = worker[~np.isin(worker, np.arange(groups))]
    if len(strangers):
        raise TimelineError(
            f"trace {path}: worker {strangers[0]:g}, but groups are 0..{groups - 1}"
        )
    missing = np.setdiff1d(np.arange(groups), worker)
    if len(missing):
        raise TimelineError(f"trace {path}: no arrival of worker {missing[0]} of {groups}")
    if not np.all(np.isfinite(seconds)) or np.any(np.diff(seconds) < 0) or seconds[0] < 0:
        raise TimelineError(f"trace {path}: seconds must be finite, from 0 up and in order")
    return from_arrivals(worker[:steps], seconds[:steps], groups)
