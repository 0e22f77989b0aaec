"""What `config.tune` says."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Rules(NamedTuple):
    """Of the automatic optimizer (`automatic.py`). All seconds are simulated ones."""

    momenta: Sequence[float]
    learning_rates: Sequence[float]  # of one group
    seeds: int  # initializations
    cold_seconds: float  # of a probe of the cold start
    steady_seconds: float  # of a probe of steady state
    epoch_seconds: float
    seconds: float  # of all training, at most


def rules(tune: Any) -> Rules:
    """Those of `config.tune`."""
    return Rules(
        momenta=tuple(tune.momenta),
        learning_rates=tuple(tune.learning_rates),
        seeds=tune.seeds,
        cold_seconds=tune.probe_seconds[0],
        steady_seconds=tune.probe_seconds[1],
        epoch_seconds=tune.epoch_seconds,
        seconds=tune.seconds,
    )
