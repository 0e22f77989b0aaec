"""Phases and network of DASO (arXiv 2104.05588; details as in heat, heat/optim/dp_optimizer.py).

Warm-up and cool-down epochs synchronize after every batch and wait for it. In between, every B
batches the nodes send their parameters and receive the sum W batches later, computing meanwhile.
When the epoch loss is stable B is halved and W lowered by one, neither below 1; when it is stable
at B = 1 both return to `reset_batches` and `reset_wait`, or where these are 0 to what they started
at (heat starts at 4 and 1 and returns to 8 and 2).

A blocking synchronization is sent and received in the same step, so blocking epochs have B = 1 and
W = 0. So does the last batch of every epoch: all epochs end with equal nodes and nothing in flight.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optdyn.experiment import Cluster
from optdyn.timeline.base import Meeting, Timeline, at
from optdyn.timeline.network import between_nodes, broadcast
from optdyn.timeline.nodes import Within, node_seconds

if TYPE_CHECKING:
    from optdyn.strategies.daso import DASO

Inside = Callable[[int], Within]  # of so many steps


class Phase(NamedTuple):
    """The place of training in the cycle of B and W."""

    epoch: int  # the epoch that this is the phase of
    batches: int  # B
    wait: int  # W
    best: float = math.inf  # least epoch loss, as the plateau detection sees it
    bad: int = 0  # epochs since then, or since the last plateau


def after_epoch(phase: Phase, loss: float, strategy: "DASO") -> Phase:
    """The phase of the next epoch, given the mean training loss of this one.

    A loss is an improvement if it is less than the best by the fraction `threshold`; more than
    `patience` epochs without one are a plateau. Losses count from the last warm-up epoch's on.
    """
    epoch, batches, wait, best, bad = phase._replace(epoch=phase.epoch + 1)
    if epoch < strategy.warmup_epochs:
        return Phase(epoch, batches, wait)
    if loss < best * (1 - math.copysign(strategy.threshold, best)):
        return Phase(epoch, batches, wait, loss)
    if bad < strategy.patience:
        return Phase(epoch, batches, wait, best, bad + 1)
    if batches == 1:
        more, longer = strategy.reset_batches, strategy.reset_wait
        return Phase(epoch, more or strategy.max_batches, longer or strategy.wait, best)
    batches //= 2
    return Phase(epoch, batches, min(wait, batches, max(wait - 1, 1)), best)


def daso(
    cluster: Cluster,
    strategy: "DASO",
    *,
    steps: int,
    steps_per_epoch: int,
    batch_size: int,
    update_bytes: int,
    seed: int = 0,
    epoch_losses: Sequence[float] = (),
    inside: Inside | None = None,
) -> Timeline:
    """The timeline of the epochs whose phases the losses of the ones before decide.

    With k `epoch_losses` it covers k + 1 epochs, at most `steps` updates; one loss more lengthens
    it and changes nothing before. Its choice is a `Meeting`; `staleness` is `waited`, or that
    inside the nodes.

    A node is done with a batch when its slowest device is and the gradients are averaged. The
    nodes' clocks run apart until a receipt, for which each waits if the message is not there yet:
    it leaves with the last node and takes an all-reduce over the nodes by one device of each. In
    bfloat16 it has half the bytes. The others of a node then get the merged parameters from that
    device. Averaging and sending start before the batch is done, by `overlap` (`node_seconds`).
    `seconds` is when the last node is done. `inside`: what a node does instead.
    """
    meeting = _meetings(strategy, steps, steps_per_epoch, epoch_losses)
    epochs, known = len(meeting.send), min(meeting.send.size, steps)
    most = epochs * steps_per_epoch
    if inside:
        within = inside(most)
    else:
        within = Within(*node_seconds(cluster, most, batch_size, update_bytes, seed))
    each = within.ready, within.done
    ready, done = (part.reshape(epochs, steps_per_epoch, cluster.nodes) for part in each)
    travelling, waited_for = (
        between_nodes(cluster, update_bytes / (2 if dtype == "bfloat16" else 1))
        for dtype in (strategy.transfer_dtype, strategy.blocking_dtype or strategy.transfer_dtype)
    )
    blocking = meeting.receive & (meeting.waited == 0)
    transfer = np.where(blocking, waited_for, travelling)
    clock = _clock(ready, done, meeting, transfer, broadcast(cluster, update_bytes))
    flat = Meeting(*(part.reshape(-1)[:known] for part in meeting[:3]))
    return timeline(flat, within, clock.reshape(-1)[:known])


def timeline(meeting: Meeting, within: Within, seconds: np.ndarray) -> Timeline:
    """The timeline of nodes that meet so, and do what they do inside, at these seconds."""
    known = len(seconds)
    staleness = within.staleness
    if staleness is None:
        staleness = np.asarray(meeting.waited).reshape(known, -1).max(axis=1)
    meeting = meeting._replace(inner=at(within.choice, slice(known)))
    none = np.zeros(known, np.int32)
    return Timeline(none, staleness[:known], seconds, within.slots, meeting)


def _meetings(
    strategy: "DASO", steps: int, steps_per_epoch: int, losses: Sequence[float]
) -> Meeting:
    """Arrays (epochs, steps_per_epoch); after the last step of all there is nothing."""
    epochs = -(-steps // steps_per_epoch)
    phase = Phase(0, strategy.max_batches, strategy.wait)
    send = np.zeros((min(len(losses) + 1, epochs), steps_per_epoch), bool)
    receive, waited = np.zeros_like(send), np.zeros(send.shape, np.int32)
    for epoch in range(len(send)):
        if epoch:
            phase = after_epoch(phase, losses[epoch - 1], strategy)
        blocking = not strategy.warmup_epochs <= epoch < epochs - strategy.cooldown_epochs
        batches, wait = (1, 0) if blocking else (phase.batches, phase.wait)
        last = min(steps_per_epoch, steps - epoch * steps_per_epoch) - 1
        # What would arrive with or after the last batch, which blocks, is not sent.
        sent = np.arange(0, last - wait, batches)
        send[epoch, sent] = receive[epoch, sent + wait] = True
        send[epoch, last] = receive[epoch, last] = True
        waited[epoch, sent + wait] = wait
    return Meeting(send, receive, waited)


def _clock(
    ready: np.ndarray,
    seconds: np.ndarray,
    meeting: Meeting,
    transfer: np.ndarray,
    broadcast: float,
) -> np.ndarray:
    """(epochs, steps) when the last node is done, from the two (epochs, steps, nodes) of batches.

    Nodes leave every epoch together, so the epochs are clocked side by side, each from 0, and then
    put one after the other.
    """
    now, arrival = np.zeros_like(seconds[:, 0]), np.zeros(len(seconds))
    done = np.zeros(seconds.shape[:2])
    for t in range(seconds.shape[1]):
        send, receive, waited = (part[:, t] for part in meeting[:3])
        first, now = now + ready[:, t], now + seconds[:, t]
        # One message at a time: a new one leaves when the one before has arrived.
        leaves = np.maximum(first.max(axis=1), arrival)
        there = np.maximum(leaves + transfer[:, t], now.max(axis=1))  # its last layer leaves last
        sent = np.where(send, there, arrival)
        due = np.where(waited > 0, arrival, sent)
        merged = np.maximum(now, due[:, None]) + broadcast
        now, arrival = np.where(receive[:, None], merged, now), sent
        done[:, t] = now.max(axis=1)
    starts = np.concatenate([[0.0], np.cumsum(done[:-1, -1])])
    return starts[:, None] + done
