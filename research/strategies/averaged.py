"""What nodes that average their parameters (`model_averaging.py`) ask of a config."""

from optdyn.experiment import Experiment
from optdyn.strategies import compression, nodes
from optdyn.strategies.method import Chosen, Keys
from optdyn.strategies.outer import INNER_STATES
from optdyn.values import ConfigError, one_of, require


def values(config: Experiment) -> None:
    """Raises `ConfigError`."""
    strategy = config.strategy
    period = strategy.period
    require(config, "strategy.period", lambda v: v >= 1, "at least 1")
    wanted = f"from 1 to config.strategy.period = {period}"
    require(config, "strategy.fragments", lambda v: 1 <= v <= period, wanted)
    turn = period // strategy.fragments
    wanted = f"from 0 to {turn - 1}, less than config.strategy.period // config.strategy.fragments"
    require(config, "strategy.delay", lambda v: 0 <= v < turn, wanted)
    require(config, "strategy.mixing", lambda v: 0 <= v <= 1, "from 0 to 1")
    require(config, "strategy.synchronous_updates", lambda v: v >= 0, "at least 0")
    one_of(config, "strategy.inner_state", INNER_STATES)
    one_of(config, "strategy.compression", tuple(compression.NAMES))
    require(config, "strategy.compression_share", lambda v: 0 < v <= 1, "above 0 and at most 1")
    require(config, "strategy.compression_rank", lambda v: v >= 1, "at least 1")
    apart = "fragments" if strategy.fragments > 1 else "delay" if strategy.delay else ""
    if strategy.inner_state != "kept" and apart:
        raise ConfigError(
            f"config.strategy.inner_state = {strategy.inner_state!r}: must be 'kept' with "
            f"config.strategy.{apart} = {getattr(strategy, apart)}, as the state of an optimizer "
            "is of all parameters and of now"
        )


def check(config: Experiment, methods: Chosen) -> None:
    """Raises `ConfigError`."""
    nodes.check(config, methods)
    if not config.cluster.presence:
        return
    strategy = config.strategy
    more = [key for key in ("delay", "mixing", "compression") if getattr(strategy, key)]
    more += ["fragments"] * (strategy.fragments > 1)
    more += ["inner_state"] * (strategy.inner_state == "averaged")
    if more or config.parallel.api == "overlap":
        which = f"strategy.{more[0]}" if more else "parallel.api"
        raise ConfigError(
            f"config.{which}: must be as it is by default with config.cluster.presence, where "
            "nodes meet whole and at once, those that are there"
        )


def kept_inside(keys: Keys) -> str:
    """Of what takes more of the nodes than one sum of messages."""
    if keys["compression"]:
        return f"compresses its messages (config.strategy.compression = {keys['compression']!r})"
    if keys["inner_state"] == "averaged":
        return "averages its optimizers' states too (config.strategy.inner_state = 'averaged')"
    return ""
