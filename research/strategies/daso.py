"""Distributed asynchronous and selective optimization (DASO, arXiv 2104.05588).

    x <- (2 S x + sum_p x_p(sent)) / (2 S + P)

x are the parameters of a node, and x_p(sent) what the P nodes sent S batches before. The devices of
a node average their gradients at every batch; nodes meet only in this merge, which is the rule of
`outer.py` with the weights 2 S and 1. The timeline decides when they send and receive. S = 0 is the
blocking synchronization of warm-up and cool-down, the plain mean (heat, the authors'
implementation, gives x the weight 1 there if it is received as the others are).
"""

import numpy as np

from optdyn.experiment import Experiment
from optdyn.strategies import nodes
from optdyn.strategies.base import Strategy
from optdyn.strategies.messages import Messages
from optdyn.strategies.method import Chosen, Keys, Method, Setting
from optdyn.strategies.outer import outer
from optdyn.timeline import daso as phases
from optdyn.timeline.base import Meeting, Timeline
from optdyn.timeline.service import DRAWN
from optdyn.timeline.trace import Held
from optdyn.values import one_of, require


def daso(inner: Strategy, keys: Keys, senders: str | None = None) -> Strategy:
    """The rule around what a node does by itself; `keys`: the types that messages travel in.

    *Selective*: of a node's devices one sends. Here each of `senders` sends its part, so that as
    many bytes go between nodes and none of them waits.
    """
    return outer(
        inner,
        lambda waited: (2 * waited, 1),
        messages=Messages(keys["transfer_dtype"], keys["blocking_dtype"], senders=senders),
    )


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """Phases that follow the losses (`timeline/daso.py`), over nodes that do what `methods` say."""
    config = setting.config
    if held := setting.held:
        within = nodes.inside(setting, methods)(config.steps)
        return phases.timeline(_recorded(held), within, held.seconds)
    return phases.daso(
        config.cluster,
        config.strategy,
        steps=config.steps,
        steps_per_epoch=setting.steps_per_epoch,
        batch_size=config.batch_size,
        update_bytes=setting.update_bytes,
        seed=config.seed,
        epoch_losses=[row["train_loss"] for row in setting.epochs],
        inside=nodes.inside(setting, methods),
    )


def _recorded(held: Held) -> Meeting:
    """When nodes met in the run that a trace holds, which followed losses. Raises `TimelineError`.

    Every receipt is of the last message that was sent, and every message but the last is received.
    """
    send, receive = held.flags("send"), held.flags("receive")
    t = np.arange(len(send))
    waited = held.whole("waited", (), 0, len(send))
    held.require("waited", receive | (waited == 0), "0 where nothing is received")
    sent = t - waited
    held.require("waited", ~receive | (sent >= 0) & send[sent], "the updates since a sending")
    number = np.cumsum(send) - 1  # of the last message sent so far
    received = np.where(receive, number[sent], -1)
    newest = np.where(waited > 0, np.append(-1, number)[:-1], number)
    held.require("waited", ~receive | (received == newest), "the updates since the last sending")
    held.require(
        "receive",
        ~receive | (received == np.cumsum(receive) - 1),
        "1 once for every message that was sent",
    )
    held.require("send", ~send | (np.cumsum(receive) >= number), "1 when none is under way")
    return Meeting(send, receive, waited)


def values(config: Experiment) -> None:
    """Raises `ConfigError`."""
    strategy = config.strategy
    for name in ("transfer_dtype", "blocking_dtype"):
        one_of(config, f"strategy.{name}", ("", "bfloat16"))
    require(config, "strategy.max_batches", lambda v: v >= 1, "at least 1")
    for name in ("reset_batches", "warmup_epochs", "cooldown_epochs", "patience"):
        require(config, f"strategy.{name}", lambda v: 0 <= v < np.inf, "finite and at least 0")
    require(config, "strategy.threshold", lambda v: 0 <= v < 1, "at least 0 and less than 1")
    most = strategy.max_batches
    wanted = f"from 0 to config.strategy.max_batches = {most}"
    require(config, "strategy.wait", lambda v: 0 <= v <= most, wanted)
    reset = strategy.reset_batches or most
    require(config, "strategy.reset_wait", lambda v: 0 <= v <= reset, f"from 0 to {reset}")


def check(config: Experiment, methods: Chosen) -> None:
    """Raises `ConfigError`."""
    nodes.check(config, methods)


METHOD = Method(
    keys={
        "max_batches": 4,  # batches from one exchange between nodes to the next (B)
        "wait": 1,  # batches from its sending to its receipt (W)
        "reset_batches": 0,  # B after a plateau at B = 1; 0: max_batches (heat: 8)
        "reset_wait": 0,  # and W; 0: wait (heat: 2)
        "warmup_epochs": 4,  # epochs that synchronize after every batch, first
        "cooldown_epochs": 4,  # and last
        "patience": 2,  # epochs without improvement before B and W change
        "threshold": 0.05,  # fraction by which an improvement lowers the loss
        "transfer_dtype": "",  # 'bfloat16' halves what nodes exchange
        "blocking_dtype": "",  # 'bfloat16': only where they wait for it, as heat does
    },
    compiled=("transfer_dtype", "blocking_dtype"),
    mix=daso,
    clock=clock,
    laws=DRAWN,
    cluster=("overlap", "speeds", "latencies", "bandwidths"),
    info=("sent_bytes",),
    kept_inside=lambda keys: "",
    follows=lambda config: config.cluster.service != "trace",
    values=values,
    check=check,
)
