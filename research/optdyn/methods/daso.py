"""DASO: nodes average every B batches, with a delay of W, both decided by the epochs' losses.

The rule is that of `averaging.py`. The losses so far decide B and W of the next epoch
(`after_epoch`), so the timeline gets an epoch longer whenever another loss is known.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from optdyn.base.fields import field
from optdyn.base.ranges import FINITE
from optdyn.clock.cluster import Cluster
from optdyn.clock.meetings import (
    AllReduce,
    LocalClock,
    LocalTimes,
    meeting_seconds,
    meetings_timeline,
    node_seconds,
)
from optdyn.clock.network import between_nodes, broadcast
from optdyn.clock.timeline import Meeting, Timeline
from optdyn.clock.trace import RecordedTrace
from optdyn.core import Rule
from optdyn.methods import nodes
from optdyn.methods.averaging import Outer
from optdyn.methods.messages import SIMULATED, Collectives, Messages
from optdyn.methods.method import ClockInputs, MethodStack, Mixes
from optdyn.methods.setup import Setup


@dataclass(frozen=True)
class DASO(Mixes, name="daso"):
    """Distributed asynchronous and selective optimization (DASO, arXiv 2104.05588).

        x <- (2 S x + sum_p x_p(sent)) / (2 S + P)

    x are the parameters of a node, and x_p(sent) what the P nodes sent S batches before. S = 0 is
    the blocking synchronization of warm-up and cool-down, the plain mean (heat, the authors'
    implementation, gives x the weight 1 there if it is received as the others are).

    Warm-up and cool-down epochs synchronize after every batch and wait for it. In between, every B
    batches the nodes send their parameters and receive the sum W batches later, computing
    meanwhile. When the epoch loss is stable B is halved and W lowered by one, neither below 1; when
    it is stable at B = 1 both return to `reset_batches` and `reset_wait`, or where these are 0 to
    what they started at (heat starts at 4 and 1 and returns to 8 and 2). The last batch of every
    epoch blocks, too.
    """

    max_batches: int = field(
        4, "B, batches from one exchange between nodes to the next.", at_least=1
    )
    wait: int = field(1, "W, batches from sending to receipt.")
    reset_batches: int = field(0, "B after a plateau at B = 1; 0: max_batches (heat: 8).", **FINITE)
    reset_wait: int = field(0, "W after a plateau at B = 1; 0: wait (heat: 2).")
    warmup_epochs: int = field(4, "First epochs, which synchronize after every batch.", **FINITE)
    cooldown_epochs: int = field(4, "Last epochs, which synchronize after every batch.", **FINITE)
    patience: int = field(2, "Epochs without improvement before B and W change.", **FINITE)
    threshold: float = field(
        0.05, "Fraction by which an improvement lowers the loss.", at_least=0, below=1
    )
    transfer_dtype: str = field(
        "",
        "Type of messages; 'bfloat16' halves their bytes.",
        one_of=("", "bfloat16"),
        static=True,
    )
    blocking_dtype: str = field(
        "",
        "Type of messages for which nodes wait; '': transfer_dtype.",
        one_of=("", "bfloat16"),
        static=True,
    )

    cluster = ("overlap", "speeds", "latencies", "bandwidths")
    info = ("sent_bytes",)

    def __post_init__(self) -> None:
        super().__post_init__()
        most, reset = self.max_batches, self.reset_batches or self.max_batches
        expected = f"from 0 to config.method.max_batches = {most}"
        self.require("wait", 0 <= self.wait <= most, expected)
        self.require("reset_wait", 0 <= self.reset_wait <= reset, f"from 0 to {reset}")
        # One message at a time: the next is not sent before the last has arrived.
        expected = f"{self.wait} or more, W = config.method.wait, as config.method.reset_wait is 0"
        self.require("reset_batches", (self.reset_wait or self.wait) <= reset, expected)

    @property
    def cycle(self) -> int:
        return self.max_batches

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        """Returns the rule; each device of a node sends a part, where in the paper one sends it."""
        sent = Messages(self.transfer_dtype, self.blocking_dtype, collectives=collectives)
        return Outer(inner, lambda waited: (2 * waited, 1), messages=sent).rule()

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        setup = inputs.setup
        if inputs.trace:  # has the phases, and not the losses that decided them
            local = nodes.local_times(inputs, methods, setup.steps)
            return meetings_timeline(_recorded(inputs.trace), local, inputs.trace.seconds)
        return clock(
            setup.cluster,
            self,
            steps=setup.steps,
            steps_per_epoch=inputs.steps_per_epoch,
            batch_size=setup.batch_size,
            update_bytes=inputs.update_bytes,
            seed=setup.seed,
            epoch_losses=[row["train_loss"] for row in inputs.epochs],
            local_times=partial(nodes.local_times, inputs, methods),
        )

    def timeline_depends_on_log(self, setup: Setup) -> bool:
        return setup.cluster.service.name != "trace"

    def why_no_overlap(self) -> str:
        return ""


class Phase(NamedTuple):
    epoch: int
    batches: int  # B
    wait: int  # W
    best: float = math.inf  # least epoch loss so far
    bad: int = 0  # epochs since then, or since the last plateau


def after_epoch(phase: Phase, loss: float, method: DASO) -> Phase:
    """Returns the phase of the next epoch, from the log's training loss after this one.

    A loss is an improvement if it is less than the best by the fraction `threshold`; more than
    `patience` epochs without one are a plateau. Losses count from the last warm-up epoch's on.
    """
    epoch, batches, wait, best, bad = phase._replace(epoch=phase.epoch + 1)
    if epoch < method.warmup_epochs:
        return Phase(epoch, batches, wait)
    if loss < best * (1 - math.copysign(method.threshold, best)):
        return Phase(epoch, batches, wait, loss)
    if bad < method.patience:
        return Phase(epoch, batches, wait, best, bad + 1)
    if batches == 1:
        more, longer = method.reset_batches, method.reset_wait
        return Phase(epoch, more or method.max_batches, longer or method.wait, best)
    batches //= 2
    return Phase(epoch, batches, min(wait, batches, max(wait - 1, 1)), best)


def clock(
    cluster: Cluster,
    method: DASO,
    *,
    steps: int,
    steps_per_epoch: int,
    batch_size: int,
    update_bytes: int,
    seed: int = 0,
    epoch_losses: Sequence[float] = (),
    local_times: LocalClock | None = None,
) -> Timeline:
    """Returns the timeline of the epochs whose phases are decided by the losses before them.

    With k `epoch_losses` it covers k + 1 epochs, at most `steps` updates. `staleness` is `waited`,
    or that inside the nodes. A node is done with a batch when its slowest device is and the
    gradients are averaged. Nodes do not wait for one another until a receipt: the message leaves
    with the last node, takes an all-reduce over the nodes by one device of each, in bfloat16 with
    half the bytes, and is then handed on inside. `local_times` replaces a node's times by itself.
    """
    meeting = _meetings(method, steps, steps_per_epoch, epoch_losses)
    epochs, known = len(meeting.send), min(meeting.send.size, steps)
    most = epochs * steps_per_epoch
    if local_times:
        local = local_times(most)
    else:
        local = LocalTimes(*node_seconds(cluster, most, batch_size, update_bytes, seed))
    delayed_seconds, blocking_seconds = (
        between_nodes(cluster, update_bytes / (2 if dtype == "bfloat16" else 1))
        for dtype in (method.transfer_dtype, method.blocking_dtype or method.transfer_dtype)
    )
    blocking = meeting.receive & (meeting.waited == 0)
    transfer = np.where(blocking, blocking_seconds, delayed_seconds)
    # Nodes leave every epoch together, so that the epochs are clocked side by side, each from 0.
    flags = Meeting(*(np.asarray(part).T[..., None] for part in meeting[:3]))
    shape = (epochs, steps_per_epoch, cluster.nodes)
    ready, done = (part.reshape(shape).swapaxes(0, 1) for part in (local.ready, local.done))
    exchange, handed_on = AllReduce([transfer.T[..., None]]), broadcast(cluster, update_bytes)
    seconds, _ = meeting_seconds(flags, LocalTimes(ready, done), exchange, handed_on)
    starts = np.concatenate([[0.0], np.cumsum(seconds[-1, :-1])])
    flat = Meeting(*(part.reshape(-1)[:known] for part in meeting[:3]))
    return meetings_timeline(flat, local, (starts[:, None] + seconds.T).reshape(-1)[:known])


def _meetings(method: DASO, steps: int, steps_per_epoch: int, losses: Sequence[float]) -> Meeting:
    """Returns when nodes send and receive, (epochs, steps_per_epoch)."""
    epochs = -(-steps // steps_per_epoch)
    phase = Phase(0, method.max_batches, method.wait)
    send = np.zeros((min(len(losses) + 1, epochs), steps_per_epoch), bool)
    receive, waited = np.zeros_like(send), np.zeros(send.shape, np.int32)
    for epoch in range(len(send)):
        if epoch:
            phase = after_epoch(phase, losses[epoch - 1], method)
        blocking = not method.warmup_epochs <= epoch < epochs - method.cooldown_epochs
        batches, wait = (1, 0) if blocking else (phase.batches, phase.wait)
        last = min(steps_per_epoch, steps - epoch * steps_per_epoch) - 1
        # The last batch blocks: what would arrive with it or later is not sent.
        sent = np.arange(0, last - wait, batches)
        send[epoch, sent] = receive[epoch, sent + wait] = True
        send[epoch, last] = receive[epoch, last] = True
        waited[epoch, sent + wait] = wait
    return Meeting(send, receive, waited)


def _recorded(trace: RecordedTrace) -> Meeting:
    """Returns when nodes met in a recorded run. Raises `TimelineError`."""
    send, receive = trace.flags("send"), trace.flags("receive")
    t = np.arange(len(send))
    waited = trace.integers("waited", (), 0, len(send))
    trace.require("waited", receive | (waited == 0), "0 where nothing is received")
    sent = t - waited
    trace.require("waited", ~receive | (sent >= 0) & send[sent], "the updates since a sending")
    number = np.cumsum(send) - 1  # of the last message sent so far
    received = np.where(receive, number[sent], -1)
    newest = np.where(waited > 0, np.append(-1, number)[:-1], number)
    trace.require("waited", ~receive | (received == newest), "the updates since the last sending")
    trace.require(
        "receive",
        ~receive | (received == np.cumsum(receive) - 1),
        "1 once for every message that was sent",
    )
    trace.require("send", ~send | (np.cumsum(receive) >= number), "1 when none is under way")
    return Meeting(send, receive, waited)
