"""DES-LOC (Iacob et al., arXiv 2505.22549): parameters and moments, averaged each in its own time.

    x_i <- 1/P sum_j x_j        every K_x updates, of P nodes that train by themselves
    u_i <- 1/P sum_j u_j        every K_u = 3 K_x, the first moment of a node's optimizer
    v_i <- 1/P sum_j v_j        every K_v = 6 K_x, the second

The rule of `outer.py` around what `model_averaging` does, by any optimizer of optax: its `nu` is v,
and all other floats of its state are u. With K_u = K_v = K_x it is model averaging with
`inner_state=averaged`, local Adam; moments change slowly, so that theirs may be fewer.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.clock.base import Meeting
from optdyn.methods.method import Methods
from optdyn.methods.mix.model_averaging import ALWAYS_THERE, ModelAveraging
from optdyn.methods.setup import Setup


@dataclass(frozen=True)
class DesLoc(ModelAveraging, name="des_loc"):
    first_moment_meetings: int = field(
        3, "K_u / K_x, meetings from one mean of first moments to the next.", at_least=1
    )
    second_moment_meetings: int = field(
        6, "K_v / K_x, meetings from one mean of second moments to the next.", at_least=1
    )

    over_graphs = False
    cluster = ALWAYS_THERE

    @property
    def cycle(self) -> int:
        return self.period * math.lcm(self.first_moment_meetings, self.second_moment_meetings)

    @property
    def state_where_met(self) -> str:
        return "averaged"

    def states(self, meeting: Meeting) -> np.ndarray:
        """Every so many meetings; after the last update, which is for the log, none besides."""
        count = np.asarray(meeting.receive).any(axis=1).cumsum()[:, None]
        return count % np.array([self.first_moment_meetings, self.second_moment_meetings]) == 0

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        for key, usual in (("inner_state", "kept"), ("fragments", 1), ("delay", 0)):
            said = f"must be {usual!r} with config.method.name = 'des_loc', whose nodes meet whole "
            said += "and at once, and whose moments have periods"
            yield Join(f"method.{key}", getattr(self, key) != usual, said)
