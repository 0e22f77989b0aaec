"""Updates of several arrivals (`buffered.py`): when they are, and what they ask of a config."""

from optdyn.experiment import Experiment
from optdyn.strategies import groups
from optdyn.strategies.method import Chosen, Setting, devices_of
from optdyn.timeline.base import Timeline
from optdyn.timeline.versions import WAITING, Versions
from optdyn.values import ConfigError, one_of, require


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """Groups compute a Kth of the batch, and send a gradient and read parameters for it.

    Whoever is dropped stops at once. Where the gradient is local a group sends all blocks together.
    """
    strategy = setting.config.strategy
    return groups.together(
        setting,
        methods,
        batch_size=setting.config.batch_size // strategy.arrivals,
        several_of=(strategy.arrivals, strategy.waiting),
    )


def order(config: Experiment, line: Timeline) -> Versions:
    """Who reads when in a race."""
    of = config.strategy
    return Versions(line, of.groups, arrivals=of.arrivals, waiting=of.waiting)


def values(config: Experiment) -> None:
    """Raises `ConfigError`."""
    require(config, "strategy.arrivals", lambda v: v >= 1, "at least 1")
    one_of(config, "strategy.waiting", WAITING)


def check(config: Experiment, methods: Chosen) -> None:
    """Raises `ConfigError`."""
    groups.check(config, methods)
    strategy, (nodes, devices) = config.strategy, devices_of(config)
    if strategy.arrivals > strategy.groups and "batch" not in strategy.waiting:
        raise ConfigError(
            f"config.strategy.arrivals = {strategy.arrivals}: must be at most config.strategy."
            f"groups = {strategy.groups}, of which each delivers once with {strategy.waiting!r}"
        )
    if strategy.fresh:
        raise ConfigError(f"config.strategy.fresh: no block is merged of {methods.name!r}")
    parts = strategy.arrivals * config.parallel.accumulation
    parts *= nodes * devices if methods.mix else devices if config.parallel.api else 1
    if config.batch_size % parts:
        raise ConfigError(
            f"config.batch_size = {config.batch_size}: must be a multiple of {parts} "
            "(config.strategy.arrivals x devices that share it x config.parallel.accumulation)"
        )
