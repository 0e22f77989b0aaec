"""Settings that a tuner chooses, and their outcomes."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Choice(NamedTuple):
    groups: int  # g
    momentum: float  # mu, explicit
    learning_rate: float  # alpha


class EpochPoint(NamedTuple):
    """An initialization, and epochs trained from it."""

    seed: int = 0
    epoch: int = 0


class Outcome(NamedTuple):
    """The outcome of a setting that was run for a while, from some point."""

    loss: float  # of training, at its end (a probe's: of its mean); NaN if it diverged
    updates: int
    seconds: float  # simulated
    reached: bool = False  # whether the loss is at the target
    settled: bool = False  # whether only that of the mean of the latest parameters is
    curve: Sequence[Sequence[float]] = ()  # of training: (seconds so far, loss) at each log point


class Measures(NamedTuple):
    step: float  # long-run step of one group, predicted
    momentum: float  # total one, explicit and implicit, predicted
    penalties: dict[int, float]  # P_SE(g), predicted


Probe = Callable[[Choice], Outcome]


def loss_of(outcome: Outcome) -> float:
    """Returns the loss by which outcomes are compared, infinite if the run diverged."""
    return outcome.loss if math.isfinite(outcome.loss) else math.inf
