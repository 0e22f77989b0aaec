"""Asynchronous SGD without what is too old: Ringmaster ASGD (arXiv 2501.16168).

    x_{t+1} = x_t - alpha grad f(x_{t - tau})      if tau < R
    x_t stays                                      otherwise

tau is how many updates were made since the arriving group had read. It reads the newest version in
either case. So an update is an update of asynchronous SGD, at parameters of the last R versions,
and only the clock is new (`timeline/several.py`). With R = infinity nothing is dropped and it is
asynchronous SGD. With R = 1 an update is of who computes without being overtaken: of groups of
unlike constant speeds that is the fastest alone.

A gradient that is dropped took its group as long as any other, with its exchange. It changes
nothing, the optimizer's state included. It makes no row of the timeline, so `config.steps` counts
what is applied. Its examples are not lost: in a race the group takes the same batch again, and
elsewhere batch t is that of update t.
"""

import math

from optdyn.experiment import Experiment
from optdyn.strategies import groups
from optdyn.strategies.asynchronous import asynchronous
from optdyn.strategies.base import alone
from optdyn.strategies.method import Chosen, Method, Racing, Setting
from optdyn.strategies.snapshots import is_rounded
from optdyn.timeline.base import Timeline
from optdyn.timeline.service import DRAWN
from optdyn.timeline.versions import Versions
from optdyn.values import ConfigError, require


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """Where the gradient is local a group sends all blocks together."""
    bound = setting.config.strategy.delay_bound
    return groups.together(setting, methods, replicas=setting.replicas, delay_bound=bound)


def order(config: Experiment, line: Timeline) -> Versions:
    """Who reads when in a race."""
    of = config.strategy
    return Versions(line, of.groups, delay_bound=of.delay_bound or math.inf)


def values(config: Experiment) -> None:
    """Raises `ConfigError`."""
    require(config, "strategy.delay_bound", lambda v: v >= 0, "at least 1, or 0 for none")


def check(config: Experiment, methods: Chosen) -> None:
    """Raises `ConfigError`."""
    groups.check(config, methods)
    strategy = config.strategy
    if strategy.fresh:
        raise ConfigError(f"config.strategy.fresh: no block is merged of {methods.name!r}")
    if strategy.delay_bound and config.replicas.count:
        raise ConfigError("config.strategy.delay_bound: only of runs, not of replicas")
    if methods.gradient and strategy.snapshots == "host":
        raise ConfigError(f"config.strategy.snapshots = 'host': not of {methods.name!r}")


METHOD = Method(
    keys={
        "groups": 1,  # compute groups, each synchronous inside
        "delay_bound": 0,  # R: a gradient that is R or more updates old is dropped; 0: none is
        "snapshots": "",  # versions: float32 on the device, rounded to 'bfloat16', or on the 'host'
    },
    compiled=("snapshots",),
    read=lambda gradient, update, keys, slots, servers: asynchronous(
        gradient, update, slots, rounded=is_rounded(keys)
    ),
    clock=clock,
    laws=(*DRAWN, "race"),
    cluster=("split", "overlap", "speeds", "regions"),
    barrier=False,
    values=values,
    check=check,
    race=Racing(order, alone),
)
