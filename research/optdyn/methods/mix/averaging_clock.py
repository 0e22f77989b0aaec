"""When nodes that train by themselves meet, and the seconds that it takes them."""

from typing import Protocol

import jax
import numpy as np

from optdyn import optimizers
from optdyn.base.trees import bytes_of, numbers_in
from optdyn.clock import habits
from optdyn.clock.base import Meeting, Timeline, Together, undelayed
from optdyn.clock.network import between_nodes, broadcast, to_all_nodes
from optdyn.clock.nodes import Within, of_meetings
from optdyn.clock.trace import Held
from optdyn.methods.method import ClockInputs, Methods
from optdyn.methods.mix.compression import Compression
from optdyn.methods.mix.fragments import cut, moments
from optdyn.methods.mix.nodes import inside


class Averages(Protocol):
    """What the clock of nodes that meet asks of their method: its numbers, and what is sent."""

    @property
    def period(self) -> int: ...
    @property
    def fragments(self) -> int: ...
    @property
    def delay(self) -> int: ...
    @property
    def synchronous_updates(self) -> int: ...
    @property
    def state_where_met(self) -> str: ...
    def states(self, meeting: Meeting) -> np.ndarray | None: ...
    def compressed(self) -> Compression | None: ...


def turns(steps: int, period: int, fragments: int, delay: int, synchronous: int = 0) -> Meeting:
    """When nodes meet, (steps, fragments).

    Fragment q is sent after update q H / fragments, rounded down, and then every H updates, counted
    from the first `synchronous` ones, after each of which all fragments are, at once and without
    delay. So they are after the last. What would arrive then or later is not sent.
    """
    send, waited = np.zeros((steps, fragments), bool), np.zeros((steps, fragments), np.int32)
    receive = np.zeros_like(send)
    first = min(synchronous, steps)
    send[:first] = receive[:first] = True
    updates = np.arange(1, max(steps - first - delay, 1))  # what is sent then arrives in time
    t, q = np.nonzero((updates[:, None] - np.arange(fragments) * period // fragments) % period == 0)
    send[first + t, q] = receive[first + t + delay, q] = True
    waited[first + t + delay, q] = delay
    send[-1] = receive[-1] = True
    return Meeting(send, receive, waited)


def clock(of: Averages, setting: ClockInputs, methods: Methods) -> Timeline:
    """Nodes run apart until they receive; then each waits for the message if it is not there.

    A fragment's message leaves when the last node has sent it and the message before has arrived,
    takes an all-reduce over the nodes, and is handed on inside them. So with delay 0 all wait for
    the last node and for the all-reduce. Compressed messages that cannot be added up go from every
    node to all others instead; computing what is sent takes no time. Raises `ConfigError` as `cut`
    does.

    Who comes and goes (`config.cluster.presence`) has a part in a meeting if it was there all the
    time since the one before. Nobody waits for the others; who is there when it ends goes on from
    what was agreed, like all. Where all were lost, the first to be back for long enough does its
    part again, and the updates since the meeting before are those that it then does.
    """
    setup, steps = setting.setup, setting.setup.steps
    within = inside(setting, methods)(steps)
    meeting = turns(steps, of.period, of.fragments, of.delay, of.synchronous_updates)
    meeting = meeting._replace(states=of.states(meeting))
    if held := setting.held:
        parts = _recorded(held, setup.cluster.nodes) if setup.cluster.presence else None
        return of_meetings(meeting._replace(present=parts), within, held.seconds)
    seconds, parts = _seconds(of, setting, within, meeting)
    return of_meetings(meeting._replace(present=parts), within, seconds)


def every_update(setting: ClockInputs, methods: Methods, transfer: float) -> Timeline:
    """The timeline of nodes that wait after every update for the last and for its exchange.

    It takes `transfer` seconds, from when the first layers' gradients are there on; then it is
    handed on inside the nodes. The choice is `Together`.
    """
    steps, held = setting.setup.steps, setting.held
    within = inside(setting, methods)(steps)
    last = np.maximum(within.ready.max(axis=1) + transfer, within.done.max(axis=1))
    seconds = np.cumsum(last + broadcast(setting.setup.cluster, setting.update_bytes))
    none = np.zeros(steps, np.int32)
    staleness = none if within.staleness is None else within.staleness
    choice = Together(within.choice)
    return Timeline(none, staleness, held.seconds if held else seconds, within.slots, choice)


def _seconds(
    of: Averages, setting: ClockInputs, within: Within, meeting: Meeting
) -> tuple[np.ndarray, np.ndarray | None]:
    """(steps,) seconds of the updates, and the parts that nodes have in meetings (`Meeting`)."""
    setup, cluster = setting.setup, setting.setup.cluster
    (steps, fragments), (ready, done) = meeting.send.shape, within[:2]
    sizes = fragment_bytes(setting, fragments)
    transfer, more = _transfers(of, setting, sizes), _state_transfers(of, setting, meeting)
    handed_on = np.array([broadcast(cluster, size) for size in sizes])
    load, there = habits.load(cluster), habits.presence(cluster, setup.seed)
    now, seconds, since = np.zeros(cluster.nodes), np.zeros(steps), 0.0
    arrival, last = np.zeros(fragments), 0.0
    counts, parts = np.ones(cluster.nodes, bool), np.ones((steps, cluster.nodes), np.float32)
    apart = list[np.ndarray]()  # when nodes were done with the updates since they met
    for t in range(steps):
        factor = load(now) if load else 1.0
        first, now = now + ready[t] * factor, now + done[t] * factor
        if there:
            counts &= now < there.left
            if not counts.any() and meeting.send[t].any():
                back, start = there.first_to_stay(now - since)
                late = start - since
                seconds[t - len(apart) : t] = [own[back] + late for own in apart]
                counts[back], first, now = True, first + late, now + late
                apart = [own + late for own in apart]
            apart.append(now)
            parts[t] = counts * (cluster.nodes / max(counts.sum(), 1))
        for q in np.flatnonzero(meeting.send[t]):
            whole = first[counts].max(), now[counts].max()
            arrival[q] = last = max(whole[1], max(whole[0], last) + transfer[q] + more[t])
        if (due := meeting.receive[t]).any():
            since = arrival[due].max() + handed_on[due].sum()
            now = np.maximum(now, arrival[due].max()) + handed_on[due].sum()
            if there:
                now, counts, apart = np.full_like(now, since), there.at(since), []
        seconds[t] = now[counts].max(initial=since)
    if not there:
        return seconds, None
    return undelayed(seconds), parts


def _recorded(held: Held, nodes: int) -> np.ndarray:
    """The parts that nodes had in the meetings of a run that a trace holds.

    Raises `TimelineError`.
    """
    parts = held.numbers("present", (nodes,))
    count = (parts > 0).sum(axis=1, keepdims=True)
    good = np.isclose(parts, np.where(parts > 0, nodes / np.maximum(count, 1), 0.0), 1e-6, 0)
    held.require("present", good, "0, or nodes over those that are there, of each node")
    return parts.astype(np.float32)


def fragment_bytes(setting: ClockInputs, fragments: int) -> list[float]:
    """Bytes of the fragments, of a setting that has its network if they are several."""
    if fragments == 1:
        return [float(setting.update_bytes)]
    sizes = np.array([numbers_in(part) for part in cut(setting.model.params, fragments)])
    return list(setting.update_bytes * (sizes / sizes.sum()))


def _transfers(of: Averages, setting: ClockInputs, sizes: list[float]) -> list[float]:
    """Seconds of every fragment's exchange; `sizes`: bytes of the fragments."""
    cluster, params = setting.setup.cluster, setting.model.params
    small = of.compressed()
    seconds = []
    for part, size in zip(cut(params, len(sizes)), sizes, strict=True):
        whole = bytes_of(part)
        travel = to_all_nodes if small and small.gathered else between_nodes
        messages = small.messages(part) if small else (whole,)
        seconds.append(sum(travel(cluster, size * (sent / whole)) for sent in messages))
    return seconds


def _state_transfers(of: Averages, setting: ClockInputs, meeting: Meeting) -> np.ndarray:
    """(steps,) seconds of a message more where the optimizers' states are averaged too."""
    whole, sizes = bytes_of(setting.model.params), _of_states(of, setting)
    size = setting.update_bytes * (_turns(meeting) @ np.array(sizes) / whole)
    every = {own: between_nodes(setting.setup.cluster, own) for own in set(size[size > 0].tolist())}
    return np.array([every.get(own, 0.0) for own in size.tolist()])


def _turns(meeting: Meeting) -> np.ndarray:
    """(steps, 2) of first and second moments, 1 where they are averaged at a meeting."""
    if meeting.states is None:
        return np.ones((len(np.asarray(meeting.send)), 2))
    return np.asarray(meeting.states, float)


def message_bytes(of: Averages, setting: ClockInputs) -> list[float]:
    """Bytes that a node sends of every fragment, as they are compressed."""
    sizes, small = fragment_bytes(setting, of.fragments), of.compressed()
    if not small:
        return sizes
    parts = cut(setting.model.params, of.fragments)
    return [
        size * sum(small.messages(part)) / bytes_of(part)
        for part, size in zip(parts, sizes, strict=True)
    ]


def state_bytes(of: Averages, setting: ClockInputs, meeting: Meeting) -> float:
    """Bytes that a node sends of its optimizer's state, in the mean of the updates."""
    receive = np.asarray(meeting.receive).reshape(len(meeting.receive), -1).any(axis=1)
    return float((receive * (_turns(meeting) @ np.array(_of_states(of, setting)))).mean())


def _of_states(of: Averages, setting: ClockInputs) -> tuple[int, int]:
    """Bytes of the floats in an optimizer's state that are averaged: first and second moments."""
    if of.state_where_met != "averaged":
        return 0, 0
    setup, name = setting.setup, setting.setup.optimizer.name
    hyper = ("learning_rate", *(("momentum",) if optimizers.takes_momentum(name) else ()))
    made = optimizers.optimizer(
        name, hyper, optimizers.options(setup, groups=1), optimizers.chain(setup)
    )
    first, second = moments(jax.eval_shape(made.init, setting.model.params))
    return bytes_of(first), bytes_of(second)
