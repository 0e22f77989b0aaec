"""Asynchronous SGD without what is too old: Ringmaster ASGD (arXiv 2501.16168).

    x_{t+1} = x_t - alpha grad f(x_{t - tau})      if tau < R
    x_t stays                                      otherwise

tau is how many updates were made since the arriving group had read. It reads the newest version in
either case. So an update is an update of asynchronous SGD, at parameters of the last R versions,
and only the clock is new (`clock/several.py`). With R = infinity nothing is dropped and it is
asynchronous SGD. With R = 1 an update is of who computes without being overtaken: of groups of
unlike constant speeds that is the fastest alone.

A gradient that is dropped took its group as long as any other, with its exchange. It changes
nothing, the optimizer's state included. It makes no row of the timeline, so `config.steps` counts
what is applied. Its examples are not lost: in a race the group takes the same batch again, and
elsewhere batch t is that of update t.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.clock.base import Timeline
from optdyn.clock.service import DRAWN
from optdyn.clock.versions import Versions
from optdyn.core import Gradient, Rule, Update
from optdyn.core.snapshots import is_rounded
from optdyn.methods.method import ClockInputs, Methods
from optdyn.methods.read import groups
from optdyn.methods.read.asynchronous import asynchronous
from optdyn.methods.setup import Setup


@dataclass(frozen=True)
class Ringmaster(groups.Grouped, name="ringmaster"):
    delay_bound: int = field(
        0,
        "R, a gradient that is R or more updates old is dropped; 0: none is.",
        wanted="at least 1, or 0 for none",
        holds=lambda v: v >= 0,
    )

    laws = (*DRAWN, "race")
    cluster = ("split", "overlap", "speeds", "regions")

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return asynchronous(gradient, update, slots, rounded=is_rounded(self.snapshots))

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """The arrivals of `asynchronous`; a group sends all blocks together, also local ones."""
        of = {"replicas": setting.replicas, "delay_bound": self.delay_bound}
        return groups.together(self, setting, methods, **of)

    def order(self, setup: Setup, methods: Methods, line: Timeline) -> Versions:
        """The order of arrivals in a race, which writes who reads when."""
        return Versions(line, self.groups, delay_bound=self.delay_bound or math.inf)

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        said = "only of runs, not of replicas"
        yield Join("method.delay_bound", self.delay_bound and setup.replicas.count, said)
        hosted = methods.gradient and self.snapshots == "host"
        yield Join("method.snapshots", hosted, f"not of config.method.name = {methods.name!r}")
