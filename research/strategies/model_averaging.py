"""Model averaging, also called local SGD: nodes train by themselves and average what they have.

    x_i <- 1/P sum_j x_j        every H updates, of P nodes

This is the rule of `outer.py` with the weights 0 and 1, and nodes wait for it. H = 1 is synchronous
SGD, but not with Adam. Post-local SGD (Lin et al., arXiv 1808.07217) has H = 1 in its first T_0
updates. Streaming (Douillard et al., arXiv 2501.18512) does the same with fragments of the
parameters, which take turns, and with what was sent tau updates before:

    x_i <- (1 - a) 1/P sum_j x_j(t - tau) + a x_i
"""

from collections.abc import Sequence

import optax
from jax import lax
from ml_collections import ConfigDict

from research.strategies import compression, nodes
from research.strategies.base import Strategy
from research.strategies.meetings import clock
from research.strategies.messages import Messages
from research.strategies.method import Chosen, Keys, Method
from research.strategies.outer import INNER_STATES, outer
from research.timeline.service import DRAWN
from research.values import ConfigError, one_of, require


def averaging(
    inner: Strategy,
    keys: Keys,
    senders: str | None = None,
    optimizer: optax.GradientTransformation | None = None,
    numbers: Sequence[str] = (),
) -> Strategy:
    """The rule around what a node does by itself, with an outer `optimizer` and its `numbers`.

    Without one nodes take the mean. `numbers` are those of `event.control` that it gets as further
    arguments.
    """
    keys = {**METHOD.keys, **keys}
    a = keys["mixing"]
    return outer(
        inner,
        lambda waited: (a * lax.axis_size("node"), 1 - a),
        optimizer,
        Messages(compression=compression.make(keys), senders=senders),
        fragments=keys["fragments"],
        inner_state=keys["inner_state"],
        numbers=numbers,
    )


def values(config: ConfigDict) -> None:
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
            f"config.strategy.{apart} = {strategy[apart]}, as the state of an optimizer is of all "
            "parameters and of now"
        )


def check(config: ConfigDict, methods: Chosen) -> None:
    """Raises `ConfigError`."""
    nodes.check(config, methods)
    if not config.cluster.presence:
        return
    strategy = config.strategy
    more = [key for key in ("delay", "mixing", "compression") if strategy[key]]
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


METHOD = Method(
    keys={
        "period": 8,  # H, updates from one average of a fragment to the next
        "synchronous_updates": 0,  # T_0, the first updates, with an average after each
        "fragments": 1,  # of the parameters, which take turns; at most the period
        "delay": 0,  # tau, updates from the sending of a fragment to its receipt
        "mixing": 0.0,  # a, the part that nodes keep of their own parameters
        "inner_state": "kept",  # 'averaged', 'reset': of a node's optimizer where it receives
        "compression": "",  # of messages: 'bfloat16', 'top_k', 'sign', 'powersgd'
        "compression_share": 0.01,  # top_k: of an array's numbers that are sent
        "compression_rank": 2,  # powersgd: r, columns of the two factors of a matrix
    },
    compiled=(
        "fragments",
        "mixing",
        "inner_state",
        "compression",
        "compression_share",
        "compression_rank",
    ),
    mix=averaging,
    clock=clock,
    laws=DRAWN,
    cluster=(
        *("overlap", "speeds", "latencies", "bandwidths"),
        *("regions", "diurnal", "presence"),
    ),
    info=("sent_bytes",),
    kept_inside=kept_inside,
    values=values,
    check=check,
)
