"""Which version of its parameters every stage of a pipeline has that is never flushed.

tau_s = S - s        stash, no_stash, predict
tau_s = 1            2bw, of all stages but where there is one only
"""

from typing import NamedTuple

import numpy as np

from optdyn.timeline.base import Timeline
from optdyn.trees import Array, Params

KINDS = ("stash", "2bw", "no_stash", "predict")


class Stages(NamedTuple):
    """The version that each block is read at and that the new one is, (blocks,) int32 slots."""

    read: Array
    write: Array
    before: Array | None = None  # the version before that, which predictions ask for
    newest: Array | None = None  # x_t, whose derivatives `strategies/stage_parameters.py` takes
    ahead: Array | None = None  # by how much parameters are predicted to move
    seen: Params | None = None


def cuts(stages: int, blocks: int) -> list[int]:
    """The first block of every stage."""
    return [(blocks - 1) * stage // stages for stage in range(stages)]


def delays(kind: str, stages: int, blocks: int) -> np.ndarray:
    """(blocks,) int32, tau of every block; the last is where the block before it is."""
    trunk = np.minimum(np.arange(blocks), max(blocks - 2, 0))
    behind = stages - np.searchsorted(cuts(stages, blocks), trunk, side="right")
    return np.minimum(behind.max(), 1) + 0 * behind if kind == "2bw" else behind


def stale_stages(kind: str, stages: int, blocks: int, seconds: np.ndarray) -> Timeline:
    """Updates that end at these `seconds`, (steps,), each block with slots in a ring."""
    late, steps = delays(kind, stages, blocks), len(seconds)
    t = np.arange(steps)[:, None]
    staleness = np.minimum(late, t).astype(np.int32)
    slots = int(late.max()) + 1 + (kind == "predict")
    versions = {"read": t - staleness, "write": t + 1 + 0 * late}
    if kind == "predict":
        versions["before"] = np.maximum(t - staleness - 1, 0)
    choice = Stages(**{name: (v % slots).astype(np.int32) for name, v in versions.items()})
    return Timeline(np.zeros(steps, np.int32), staleness, seconds, slots, choice)
