"""Timelines: which worker reads and writes the parameters when. Plain seeded arrays.

A timeline knows speeds, stragglers and networks, and nothing of losses or gradients.
"""

from optdyn.clock.base import Timeline, TimelineError
from optdyn.clock.compute_groups import make

__all__ = ["Timeline", "TimelineError", "make"]
