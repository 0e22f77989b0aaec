"""Update rules, one a file. `make` is the one place that knows their names."""

import optax

from research.strategies.asynchronous import asynchronous
from research.strategies.base import Event, Loss, Strategy
from research.strategies.sync import sync

__all__ = ["NAMES", "Event", "Strategy", "asynchronous", "make", "sync"]

NAMES = ("sync", "asynchronous")


def make(
    name: str, loss: Loss, optimizer: optax.GradientTransformationExtraArgs, slots: int
) -> Strategy:
    """The strategy called `name`; `slots` is the number of snapshots its timeline addresses."""
    if name == "sync":
        return sync(loss, optimizer)
    if name == "asynchronous":
        return asynchronous(loss, optimizer, slots)
    raise ValueError(f"strategy {name!r}: one of {', '.join(NAMES)}")
