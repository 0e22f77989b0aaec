"""Distributed asynchronous and selective optimization (DASO, arXiv 2104.05588).

    x <- (2 S x + sum_p x_p(sent)) / (2 S + P)

x are the parameters of a node, and x_p(sent) what the P nodes sent S batches before. The devices of
a node average their gradients at every batch; nodes meet only in this merge, which is the rule of
`outer.py` with the weights 2 S and 1. The timeline decides when they send and receive. S = 0 is the
blocking synchronization of warm-up and cool-down, the plain mean (heat, the authors'
implementation, gives x the weight 1 there if it is received as the others are).
"""

from dataclasses import dataclass

import numpy as np

from optdyn.experiment import FINITE, Experiment
from optdyn.fields import field
from optdyn.strategies import nodes
from optdyn.strategies.base import Rule
from optdyn.strategies.messages import Messages
from optdyn.strategies.method import Methods, Mixes, Setting
from optdyn.strategies.outer import outer
from optdyn.timeline import daso as phases
from optdyn.timeline.base import Meeting, Timeline
from optdyn.timeline.service import DRAWN
from optdyn.timeline.trace import Held


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


@dataclass(frozen=True)
class DASO(Mixes):
    max_batches: int = field(
        4, "daso: B, batches from one exchange between nodes to the next.", at_least=1
    )
    wait: int = field(1, "daso: W, batches from the sending of an exchange to its receipt.")
    reset_batches: int = field(
        0, "daso: B after a plateau at B = 1; 0: max_batches (heat: 8).", **FINITE
    )
    reset_wait: int = field(0, "daso: W after a plateau at B = 1; 0: wait (heat: 2).")
    warmup_epochs: int = field(
        4, "daso: first epochs, which synchronize after every batch.", **FINITE
    )
    cooldown_epochs: int = field(
        4, "daso: last epochs, which synchronize after every batch.", **FINITE
    )
    patience: int = field(2, "daso: epochs without improvement before B and W change.", **FINITE)
    threshold: float = field(
        0.05, "daso: fraction by which an improvement lowers the loss.", at_least=0, below=1
    )
    transfer_dtype: str = field(
        "",
        "daso: type of what nodes exchange; 'bfloat16' halves it.",
        one_of=("", "bfloat16"),
        static=True,
    )
    blocking_dtype: str = field(
        "",
        "daso: likewise, only where they wait for it, as heat does.",
        one_of=("", "bfloat16"),
        static=True,
    )

    laws = DRAWN
    cluster = ("overlap", "speeds", "latencies", "bandwidths")
    info = ("sent_bytes",)

    def __post_init__(self) -> None:
        super().__post_init__()
        most, reset = self.max_batches, self.reset_batches or self.max_batches
        wanted = f"from 0 to config.strategy.max_batches = {most}"
        self.require("wait", 0 <= self.wait <= most, wanted)
        self.require("reset_wait", 0 <= self.reset_wait <= reset, f"from 0 to {reset}")

    def mix(self, inner: Rule, senders: str | None = None) -> Rule:
        """The rule around what a node does by itself.

        *Selective*: of a node's devices one sends. Here each of `senders` sends its part, so that
        as many bytes go between nodes and none of them waits.
        """
        sent = Messages(self.transfer_dtype, self.blocking_dtype, senders=senders)
        return outer(inner, lambda waited: (2 * waited, 1), messages=sent)

    def clock(self, setting: Setting, methods: Methods) -> Timeline:
        """Phases that follow the losses (`timeline/daso.py`), over what nodes do by themselves."""
        config = setting.config
        if held := setting.held:
            within = nodes.inside(setting, methods)(config.steps)
            return phases.timeline(_recorded(held), within, held.seconds)
        return phases.daso(
            config.cluster,
            self,
            steps=config.steps,
            steps_per_epoch=setting.steps_per_epoch,
            batch_size=config.batch_size,
            update_bytes=setting.update_bytes,
            seed=config.seed,
            epoch_losses=[row["train_loss"] for row in setting.epochs],
            inside=nodes.inside(setting, methods),
        )

    def follows(self, config: Experiment) -> bool:
        return config.cluster.service != "trace"

    def check(self, config: Experiment, methods: Methods) -> None:
        nodes.check(config, methods)

    def why_no_overlap(self) -> str:
        return ""


METHOD = DASO
