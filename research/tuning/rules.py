"""What `config.tune` says."""

from collections.abc import Sequence
from typing import NamedTuple

from optdyn.experiment import Tune


class Rules(NamedTuple):
    """The rules of both modes (`predictive.py`, `omnivore.py`); all seconds are simulated."""

    momenta: Sequence[float]
    learning_rates: Sequence[float]  # of one group
    seeds: int  # initializations
    probe_seconds: float  # of a probe of the cold start; of its longer ones, a multiple
    probe_share: float  # of a probe of steady state, of the seconds of the epoch it is for
    epoch_seconds: float  # of the first epoch
    seconds: float  # of all training, at most


def rules(tune: Tune) -> Rules:
    """The rules that `config.tune` asks for."""
    return Rules(
        momenta=tuple(tune.momenta),
        learning_rates=tuple(tune.learning_rates),
        seeds=tune.seeds,
        probe_seconds=tune.probe_seconds,
        probe_share=tune.probe_share,
        epoch_seconds=tune.epoch_seconds,
        seconds=tune.seconds,
    )
