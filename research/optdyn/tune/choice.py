"""What is chosen, and what a mode of `launch.tune` may do to choose it."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class Choice(NamedTuple):
    groups: int  # g
    momentum: float  # mu, explicit
    learning_rate: float  # alpha


class EpochPoint(NamedTuple):
    """A point of training: an initialization, and epochs trained from it."""

    seed: int = 0
    epoch: int = 0


class Outcome(NamedTuple):
    """What came of a setting tried for a while, from some point."""

    loss: float  # of training, at its end (a probe's: of its mean); NaN if it diverged
    updates: int
    seconds: float  # simulated
    reached: bool = False  # whether the target was
    settled: bool = False  # whether only by the mean of the latest parameters, without their noise
    curve: Sequence[Sequence[float]] = ()  # of training: (seconds so far, loss) at each log point


class Measures(NamedTuple):
    step: float  # long-run step of one group, predicted
    momentum: float  # total one, explicit and implicit, predicted
    penalties: dict[int, float]  # P_SE(g), predicted


Probe = Callable[[Choice], Outcome]


class Bench(Protocol):
    """A problem on a simulated cluster, on which settings are tried."""

    def pace(self, groups: int) -> float:
        """HE(g), seconds an update."""

    def start(self, point: EpochPoint) -> float:
        """The loss that a first epoch has to be below: of the initialization, or of chance."""

    def probe(self, point: EpochPoint, seconds: float, setting: Choice) -> Outcome:
        """Tries a setting from a point, and leaves no trace."""

    def train(
        self, point: EpochPoint, seconds: float, setting: Choice, loss: float, settle: bool = False
    ) -> Outcome:
        """Goes on to the next epoch's point, or stays if it does not lower the loss."""

    def measure(self, point: EpochPoint) -> Measures:
        """What limits steps at a point, which takes seconds too."""

    def note(self, what: str, setting: Choice) -> None:
        """Takes down a decision."""


def loss_of(outcome: Outcome) -> float:
    """The loss, by which outcomes are compared: what diverged is worse than anything."""
    return outcome.loss if math.isfinite(outcome.loss) else math.inf


def halved(groups: Sequence[int], g: int) -> int:
    """The most of the groups that are at most half of g; one where there are none."""
    return max((h for h in groups if 2 * h <= g), default=1)


def calmer(setting: Choice, by: float, groups: Sequence[int]) -> Choice:
    """Half as many groups, or the next fewer; of one, a rate that is smaller by this ratio."""
    if setting.groups > 1:
        return setting._replace(groups=halved(groups, setting.groups))
    return setting._replace(learning_rate=setting.learning_rate / by)
