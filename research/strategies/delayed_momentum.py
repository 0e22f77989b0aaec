"""When workers of asynchronous local SGD exchange, and which exchanges step the momentum.

A worker of speed v_i takes H_i = H v_i / max v local steps, rounded down and at least one, so that
slow workers are not the stalest (the dynamic local updates of Liu et al., arXiv 2401.09135). Every
N-th exchange of all workers together is a turn of the momentum (`async_local_sgd.py`).
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from optdyn.experiment import Experiment
from optdyn.strategies.method import Chosen, Setting, of_config
from optdyn.strategies.worker_clock import by_speed, timeline
from optdyn.timeline.base import Timeline
from optdyn.timeline.exchanges import Exchanges


class Turn(NamedTuple):
    """A local step of worker i, and what it does to theta where it exchanges."""

    worker: Any  # int32, i
    exchange: Any  # bool
    turn: Any  # bool, whether it is an N-th exchange
    momentum_part: Any  # float32, of b m that comes with it: c, or 1 - c N + c at a turn
    rate: Any  # float32, eta
    decay: Any  # float32, b
    delay: Any  # float32, N


def periods(setting: Setting, methods: Chosen) -> list[int]:
    """H_i."""
    strategy = setting.config.strategy
    if strategy.steps_by_speed:
        return by_speed(setting, methods, strategy.period)
    return [max(strategy.period, 1)] * strategy.groups


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """The staleness is how often theta was updated since the worker had read it."""
    strategy, steps = setting.config.strategy, setting.config.steps
    line, exchange = timeline(setting, methods, periods(setting, methods))
    choice = Turn(
        line.worker,
        exchange,
        **turns(strategy, exchange, np.cumsum(exchange)),
        rate=np.full(steps, strategy.outer_learning_rate, np.float32),
        decay=np.full(steps, strategy.outer_momentum, np.float32),
        delay=np.full(steps, delay(strategy), np.float32),
    )
    return line._replace(choice=choice)


def delay(strategy: Any) -> int:
    """N."""
    return strategy.momentum_delay or strategy.groups


def turns(strategy: Any, exchange: Any, count: Any) -> dict[str, np.ndarray]:
    """Which exchanges are N-th ones, by their count, and the part of b m that comes with each."""
    n = delay(strategy)
    turn, c = exchange & (count % n == 0), strategy.momentum_part / n
    return {"turn": turn, "momentum_part": np.where(turn, 1 - c * n + c, c).astype(np.float32)}


def order(config: Experiment, line: Timeline) -> Exchanges:
    """Who reads when in a race."""
    each = periods(Setting(config, 0, 0), of_config(config))
    return Exchanges(line, each, partial(turns, config.strategy))
