"""Which version of its parameters every stage of a pipeline has that is never flushed.

tau_s = S - s        stash, no_stash, predict
tau_s = 1            2bw, of all stages but where there is one only
"""

import numpy as np

from research.timeline.base import Timeline

KINDS = ("stash", "2bw", "no_stash", "predict")


def cuts(stages: int, blocks: int) -> list[int]:
    """The first block of every stage."""
    return [(blocks - 1) * stage // stages for stage in range(stages)]


def delays(kind: str, stages: int, blocks: int) -> np.ndarray:
    """(blocks,) int32, tau of every block; the last is where the block before it is."""
    trunk = np.minimum(np.arange(blocks), max(blocks - 2, 0))
    behind = stages - np.searchsorted(cuts(stages, blocks), trunk, side="right")
    return np.minimum(behind.max(), 1) + 0 * behind if kind == "2bw" else behind


def stale_stages(kind: str, stages: int, blocks: int, seconds: np.ndarray) -> Timeline:
    """Of updates that end at these `seconds`, (steps,). By block, (steps, blocks), slots in a ring.

    `control` has `read` and `write`, and where parameters are predicted the version `before`.
    """
    late, steps = delays(kind, stages, blocks), len(seconds)
    t = np.arange(steps)[:, None]
    staleness = np.minimum(late, t).astype(np.int32)
    slots = int(late.max()) + 1 + (kind == "predict")
    versions = {"read": t - staleness, "write": t + 1 + 0 * late}
    if kind == "predict":
        versions["before"] = np.maximum(t - staleness - 1, 0)
    control = {name: (version % slots).astype(np.int32) for name, version in versions.items()}
    none = np.zeros(steps, np.int32)
    return Timeline(none, none, none, staleness, seconds, slots, control)
