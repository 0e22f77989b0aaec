"""What nodes exchange by itself: fragments of the parameters, and moments of optimizers.

Nodes with parameters of their own that meet now and then: one rule for all such methods.

    D     = theta - mean_p x_p(sent)          what the P nodes sent, `waited` updates before
    theta <- theta - outer(D)                 any optax optimizer; by default sgd(1), the mean
    x     <- (w x + v P theta) / (w + v P)    w, v: weights of a node's own parameters, of each sent

The mixing is w / (w + v P): it is 0 where nodes take over theta, and 1 where they ignore it. In
between every node makes updates by itself, by any rule. A merge that corrects has

    x     <- theta + (x - x(sent))            what a node did meanwhile is kept, whole

in the place of the last line (CO2, LOSCAR-SGD: arXiv 2605.20866); nothing was done where it waits.

Over a graph (`over_graph.py`) the mean is over a node's neighbours, and theta is its own.

As in streaming DiLoCo (arXiv 2501.18512) the rule holds for every fragment of the parameters by
itself. Each has an outer optimizer of its own and may have its own times of meeting. At most one
message of a fragment is in flight. Nodes exchange nothing of a fragment that is not sent.

A step is three pieces, one after the other: `update`, the node by itself; `exchange`, the sum of
what the nodes send; `merge`, what a receipt does. Only the second hears of other nodes (and, where
the states of the nodes' optimizers are averaged, the third).

When nodes that train by themselves meet, and the seconds that it takes them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from optdyn import optimizers
from optdyn.base.errors import ConfigError, Join
from optdyn.base.fields import field
from optdyn.base.trees import Array, Hyper, Tree, bytes_of, numbers_in
from optdyn.clock import availability
from optdyn.clock.meetings import Within, meetings_timeline
from optdyn.clock.network import between_nodes, broadcast, to_all_nodes
from optdyn.clock.timeline import Meeting, Timeline, Together, undelayed
from optdyn.clock.trace import Held
from optdyn.core import Batch, Event, Info, Params, Rule, SplitStep
from optdyn.methods import nodes
from optdyn.methods.messages import (
    WHOLE,
    Compression,
    Messages,
    over_nodes,
    own_event,
    size,
    with_sent,
)
from optdyn.methods.method import (
    ABOVE_0,
    FRACTION,
    ClockInputs,
    Compressed,
    Fragmented,
    Methods,
    Mixes,
    OuterMomentum,
    Periodic,
)
from optdyn.methods.nodes import inside
from optdyn.methods.setup import Setup

Path = tuple[jax.tree_util.DictKey | jax.tree_util.GetAttrKey, ...]  # to a leaf


def cut(tree: Tree, fragments: int) -> tuple[Tree, ...]:
    """The tree once a fragment, with None in place of the leaves of all others.

    A fragment is of leaves that follow one another, one at least. It ends where what is before its
    end is nearest to equal parts, so that none is larger than an equal part and the largest leaf
    together. Raises `ConfigError` where there are fewer leaves than fragments.
    """
    leaves, tree_of = jax.tree.flatten(tree)
    if fragments > len(leaves):
        raise ConfigError(
            f"config.method.fragments = {fragments}: must be at most {len(leaves)}, the number "
            "of arrays that the network's parameters are in"
        )
    filled = np.cumsum([leaf.size for leaf in leaves])
    ends = [0]
    for q in range(1, fragments):
        nearest = 1 + int(np.abs(filled - filled[-1] * q / fragments).argmin())
        ends.append(min(max(nearest, ends[-1] + 1), len(leaves) - fragments + q))
    return tuple(
        jax.tree.unflatten(tree_of, [leaf if a <= i < b else None for i, leaf in enumerate(leaves)])
        for a, b in pairwise([*ends, len(leaves)])
    )


def join(trees: Sequence[Tree]) -> Tree:
    """The tree that was cut in these."""
    return jax.tree.map(
        lambda *own: next(leaf for leaf in own if leaf is not None),
        *trees,
        is_leaf=lambda leaf: leaf is None,
    )


def moments(opt_state: Tree) -> tuple[list[jax.Array], list[jax.Array]]:
    """Floats of an optimizer's state: optax's `nu`, means of squares, are second; others first."""
    leaves = jax.tree_util.tree_leaves_with_path(opt_state)
    floats = [(_is_second(path), leaf) for path, leaf in leaves if _is_float(leaf)]
    first, second = ([leaf for is_second, leaf in floats if is_second == kind] for kind in (0, 1))
    return first, second


def averaged(
    opt_state: Tree, now: tuple[jax.Array, jax.Array], mean: Callable[[Tree], Tree]
) -> Tree:
    """The state with `mean` of its first and second moments, of those whose turn it is `now`."""
    first, second = (
        iter(lax.cond(turn, mean, lambda own: own, own) if own else ())
        for turn, own in zip(now, moments(opt_state), strict=True)
    )

    def of(path: Path, leaf: jax.Array) -> jax.Array:
        if not _is_float(leaf):
            return leaf
        return next(second if _is_second(path) else first)

    return jax.tree_util.tree_map_with_path(of, opt_state)


def _is_second(path: Path) -> bool:
    return any(getattr(key, "name", "") == "nu" for key in path)


def _is_float(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


Weights = Callable[[jax.Array], tuple[ArrayLike, ArrayLike]]

INNER_STATES = ("kept", "averaged", "reset")


class OuterState(NamedTuple):
    inner: Tree  # of this node
    in_flight: Params  # sum_p x_p(sent), in the type it travels in
    outer: Tree = ()  # of each fragment theta and its optimizer's state, the same where all meet
    errors: Tree = ()  # of each fragment e and the compression's state, this node's
    sent: Tree = ()  # x(sent), this node's, where merges correct

    @property
    def params(self) -> Params:
        """x_t of this node."""
        return self.inner.params


def outer(
    inner: Rule,
    weights: Weights,
    optimizer: optax.GradientTransformation | None = None,
    messages: Messages | None = None,
    fragments: int = 1,
    inner_state: str = "kept",
    corrects: bool = False,
) -> Rule:
    """The rule of one device over the axis `node`, around the one that a node does by itself.

    `event.plan` is a `Meeting`, the same on all nodes but for what is `inner` there. The outer
    optimizer gets the hyperparameters of `outer` beside those of the event; `error_decay` is that
    of what messages left out. The order of a step:
    the node's own update, the sending of its result, the receipt and merge of what was sent
    `waited` updates before, which is what was just sent if that is 0. `weights(waited)` is (w, v);
    a merge that `corrects` has none. Raises `ConfigError` with more fragments than leaves.

    Where a node receives, the state of its inner optimizer is `kept`, `averaged` over the nodes
    (numbers that are no floats, such as counts, are the same in all) or `reset`. With the `states`
    of the event first and second moments are averaged where these say so (`des_loc.py`).
    """
    messages = messages or Messages()
    if messages.compression and not optimizer:  # theta is what messages are differences from
        optimizer = optax.sgd(1.0)
    transform = optax.with_extra_args_support(optimizer) if optimizer else None
    of = Outer(inner, weights, transform, messages, fragments, inner_state, corrects)
    is_sum = not (messages.compression or corrects or inner_state == "averaged")
    split = (
        SplitStep(of.update, of.message, of.on_receive, of.merge_received, fragments)
        if is_sum
        else None
    )
    return Rule(of.init, of.step, split)


@dataclass(frozen=True, eq=False)
class Outer:
    """The pieces of `outer`'s rule, and what they are made of."""

    inner: Rule
    weights: Weights
    transform: optax.GradientTransformationExtraArgs | None
    messages: Messages
    fragments: int
    inner_state: str
    corrects: bool

    def init(self, params: Params) -> OuterState:
        nothing = jax.tree.map(jnp.zeros_like, self.messages.travelling(params))
        parts, transform = self._parts(params), self.transform
        theta = tuple((x, transform.init(x)) if transform else () for x in parts)
        kept = tuple(map(self.messages.kept, parts))
        sent = params if self.corrects else ()
        return OuterState(self.inner.init(params), nothing, theta, kept, sent)

    def step(self, state: OuterState, event: Event, batch: Batch) -> tuple[OuterState, Info]:
        after, info = self.update(state, event, batch)
        return self._merge(self._exchange(after, event), event, state.in_flight), info

    def update(self, state: OuterState, event: Event, batch: Batch) -> tuple[OuterState, Info]:
        """What the node does by itself; `info` counts the bytes that it is about to send."""
        after, info = self.inner.step(state.inner, own_event(event), batch)
        send, receive, waited = self._turns(event)
        pairs = zip(self._parts(after.params), receive & (waited == 0), strict=True)
        each = [self.messages.size(part, blocking) for part, blocking in pairs]
        sent = jnp.where(send, jnp.stack(each), 0.0).sum() * _peers(event)
        if self.inner_state == "averaged":
            for now, own in zip(self._averages(event), moments(after.opt_state), strict=True):
                sent += jnp.where(now, size(own), 0.0)
        return state._replace(inner=after), with_sent(info, sent)

    def message(self, state: OuterState, fragment: int, blocking: bool) -> jax.Array:
        part = self._parts(state.params)[fragment]
        return ravel_pytree(self.messages.travelling(part, blocking))[0]

    def on_receive(self, state: OuterState, fragment: int, total: jax.Array) -> OuterState:
        in_flight = list(self._parts(state.in_flight))
        vector, tree_of = ravel_pytree(in_flight[fragment])
        in_flight[fragment] = tree_of(total.astype(vector.dtype))
        return state._replace(in_flight=join(in_flight))

    def merge_received(self, state: OuterState, event: Event) -> OuterState:
        return self._merge(state, event, state.in_flight)

    def _parts(self, tree: Params) -> tuple[Params, ...]:
        return cut(tree, self.fragments)

    def _turns(self, event: Event) -> tuple[jax.Array, ...]:
        """The `send`, `receive` and `waited` of every fragment."""
        choice = event.plan
        each = choice.send, choice.receive, choice.waited
        return tuple(jnp.broadcast_to(turn, self.fragments) for turn in each)

    def _averages(self, event: Event) -> tuple[jax.Array, jax.Array]:
        """Whether first and second moments are averaged after this update."""
        receives, states = self._turns(event)[1].any(), event.plan.states
        if states is None:
            return receives, receives
        return receives & states[0], receives & states[1]

    def _exchange(self, state: OuterState, event: Event) -> OuterState:
        """Puts what nodes have just sent in flight; fragments not sent stay as they were."""
        send, receive, waited = self._turns(event)
        decay = dict(event.plan.outer).get("error_decay")
        total = partial(self.messages.total, to=event.plan.to, decay=decay)

        def of(send: jax.Array, before: Params, *own: Tree) -> tuple[Params, Tree]:
            return lax.cond(send, total, lambda x, theta, kept, _: (before, kept), *own)

        x, present = state.params, event.plan.present
        if present is not None:
            part = present[lax.axis_index("node")]
            x = jax.tree.map(lambda leaf: (part * leaf).astype(leaf.dtype), x)
        own = self._parts(x), state.outer, state.errors, receive & (waited == 0)
        sent = map(of, send, self._parts(state.in_flight), *own)
        in_flight, errors = zip(*sent, strict=True)
        state = state._replace(in_flight=join(in_flight), errors=errors)
        if not self.corrects:
            return state
        ours = self._parts(state.sent), self._parts(state.params)
        newest = [
            jax.tree.map(partial(jnp.where, now), new, old)
            for now, old, new in zip(send, *ours, strict=True)
        ]
        return state._replace(sent=join(newest))

    def _merge(self, state: OuterState, event: Event, before: Params) -> OuterState:
        """Merges the fragments received; `before`: what was in flight before this update."""
        _, receive, waited = self._turns(event)
        merged = partial(self._merged, {**event.hyper, **dict(event.plan.outer)})

        def of(receive: jax.Array, *own: Tree) -> tuple[Params, Tree]:
            return lax.cond(receive, merged, lambda x, theta, *_: (x, theta), *own)

        after, flying = state.inner, self._parts(state.in_flight)
        sent = self._parts(state.sent) if self.corrects else ((),) * self.fragments
        own = self._parts(after.params), state.outer, self._parts(before), flying, waited, sent
        x, theta = zip(*map(of, receive, *own), strict=True)
        if self.inner_state == "averaged":
            mean = over_nodes(self.messages.senders).mean
            opt_state = averaged(after.opt_state, self._averages(event), mean)
            after = after._replace(opt_state=opt_state)
        elif self.inner_state == "reset":
            opt_state = lax.cond(receive.any(), self._fresh, lambda own: own.opt_state, after)
            after = after._replace(opt_state=opt_state)
        return state._replace(inner=after.moved_to(join(x)), outer=theta)

    def _fresh(self, own: Tree) -> Tree:
        return self.inner.init(own.params).opt_state

    def _merged(
        self,
        hyper: Hyper,
        x: Params,
        theta: Tree,
        before: Params,
        now: Params,
        waited: jax.Array,
        sent: Params,
    ) -> tuple[Params, Tree]:
        """The rule, of a fragment: what the node's parameters and theta become."""
        nodes = lax.axis_size("node")

        def due(x: jax.Array, before: jax.Array, now: jax.Array) -> jax.Array:
            return jnp.where(waited > 0, before, now).astype(x.dtype)

        arrived = jax.tree.map(due, x, before, now)
        if self.transform:
            center, opt_state = theta
            gap = jax.tree.map(lambda center, total: center - total / nodes, center, arrived)
            updates, opt_state = self.transform.update(gap, opt_state, center, **hyper)
            center = optax.apply_updates(center, updates)
            theta, arrived = (center, opt_state), jax.tree.map(lambda leaf: nodes * leaf, center)

        def corrected(x: jax.Array, total: jax.Array, sent: jax.Array) -> jax.Array:
            return total / nodes + (x - sent)

        def mixed(x: jax.Array, total: jax.Array) -> jax.Array:
            w, v = (jnp.asarray(weight, x.dtype) for weight in self.weights(waited))
            return (w * x + v * total) / (w + v * nodes)

        if self.corrects:
            return jax.tree.map(corrected, x, arrived, sent), theta
        return jax.tree.map(mixed, x, arrived), theta


def _peers(event: Event) -> ArrayLike:
    """How many messages a node sends: one to all who are there, or one to each neighbour."""
    node, choice = lax.axis_index("node"), event.plan
    if choice.to is not None:
        return (choice.to[node] != node).sum().astype(jnp.float32)
    if choice.present is None:
        return 1
    part = choice.present[node]  # 0 of who is away, P of who is there alone
    return ((part > 0) & (part < lax.axis_size("node"))).astype(jnp.float32)


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


def meeting_schedule(
    steps: int, period: int, fragments: int, delay: int, synchronous: int = 0
) -> Meeting:
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


def meeting_clock(of: Averages, setting: ClockInputs, methods: Methods) -> Timeline:
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
    meeting = meeting_schedule(steps, of.period, of.fragments, of.delay, of.synchronous_updates)
    meeting = meeting._replace(states=of.states(meeting))
    if held := setting.held:
        parts = _recorded(held, setup.cluster.nodes) if setup.cluster.presence else None
        return meetings_timeline(meeting._replace(present=parts), within, held.seconds)
    seconds, parts = _meeting_seconds(of, setting, within, meeting)
    return meetings_timeline(meeting._replace(present=parts), within, seconds)


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
    choice = Together(within.plan)
    return Timeline(none, staleness, held.seconds if held else seconds, within.slots, choice)


def _meeting_seconds(
    of: Averages, setting: ClockInputs, within: Within, meeting: Meeting
) -> tuple[np.ndarray, np.ndarray | None]:
    """(steps,) seconds of the updates, and the parts that nodes have in meetings (`Meeting`)."""
    setup, cluster = setting.setup, setting.setup.cluster
    (steps, fragments), (ready, done) = meeting.send.shape, within[:2]
    sizes = fragment_bytes(setting, fragments)
    transfer, more = _transfers(of, setting, sizes), _state_transfers(of, setting, meeting)
    handed_on = np.array([broadcast(cluster, size) for size in sizes])
    load, there = availability.load(cluster), availability.presence(cluster, setup.seed)
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
    for part, fragment in zip(cut(params, len(sizes)), sizes, strict=True):
        whole = bytes_of(part)
        travel = to_all_nodes if small and small.gathered else between_nodes
        messages = small.messages(part) if small else (whole,)
        seconds.append(sum(travel(cluster, fragment * (sent / whole)) for sent in messages))
    return seconds


def _state_transfers(of: Averages, setting: ClockInputs, meeting: Meeting) -> np.ndarray:
    """(steps,) seconds of a message more where the optimizers' states are averaged too."""
    whole, sizes = bytes_of(setting.model.params), _of_states(of, setting)
    size = setting.update_bytes * (_moments_due(meeting) @ np.array(sizes) / whole)
    every = {own: between_nodes(setting.setup.cluster, own) for own in set(size[size > 0].tolist())}
    return np.array([every.get(own, 0.0) for own in size.tolist()])


def _moments_due(meeting: Meeting) -> np.ndarray:
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
    return float((receive * (_moments_due(meeting) @ np.array(_of_states(of, setting)))).mean())


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


MERGINGS = ("mix", "correct")
# Of the cluster's keys (`method.OPTIONAL`), those that the clock knows of nodes that never leave.
ALWAYS_THERE = ("overlap", "speeds", "latencies", "bandwidths", "regions", "diurnal")


@dataclass(frozen=True)
class ModelAveraging(Mixes, Periodic, Fragmented, Compressed, name="model_averaging"):
    """Model averaging, also called local SGD: nodes train by themselves and average what they have.

        x_i <- 1/P sum_j x_j        every H updates, of P nodes

    This is the rule of `outer.py` with the weights 0 and 1, and nodes wait for it. H = 1 is
    synchronous SGD, but not with Adam. Post-local SGD (Lin et al., arXiv 1808.07217) has H = 1 in
    its first T_0 updates. Streaming (Douillard et al., arXiv 2501.18512) does the same with
    fragments of the parameters, which take turns, and with what was sent tau updates before:

        x_i <- (1 - a) 1/P sum_j x_j(t - tau) + a x_i
        x_i <- 1/P sum_j x_j(t - tau) + (x_i - x_i(t - tau))      where merges correct, as in CO2
    """

    synchronous_updates: int = field(
        0,
        "T_0, the first updates, with an average after each.",
        at_least=0,
    )
    mixing: float = field(
        0.0,
        "a, the part that nodes keep of their own parameters.",
        **FRACTION,
        static=True,
    )
    merging: str = field(
        "mix",
        "What nodes make of what arrives and their own, 'mix', or "
        "'correct', which keeps all that they did since the sending.",
        one_of=MERGINGS,
        static=True,
    )
    inner_state: str = field(
        "kept",
        "What a node's optimizer is where it receives, 'kept', 'averaged' or 'reset'.",
        one_of=INNER_STATES,
        static=True,
    )

    cluster: ClassVar[tuple[str, ...]] = (*ALWAYS_THERE, "presence")
    info = ("sent_bytes",)
    over_graphs: ClassVar[bool] = True  # its mean may be one of neighbours
    # Fields that the outer optimizer is given at every update, with the values that are the mean.
    mean: ClassVar[Mapping[str, float]] = {}

    @property
    def cycle(self) -> int:
        return self.period

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = f"from 1 to config.method.period = {self.period}"
        self.require("fragments", 1 <= self.fragments <= self.period, wanted)
        turn = self.period // self.fragments
        wanted = f"from 0 to {turn - 1}, less than config.method.period // config.method."
        self.require("delay", 0 <= self.delay < turn, wanted + "fragments")
        mixes = self.merging == "mix" or not self.mixing
        self.require("mixing", mixes, "0 with config.method.merging = 'correct'")
        apart = "fragments" if self.fragments > 1 else "delay" if self.delay else ""
        wanted = f"'kept' with config.method.{apart} = {getattr(self, apart, None)}, as the state"
        wanted += " of an optimizer is of all parameters and of now"
        self.require("inner_state", self.inner_state == "kept" or not apart, wanted)

    def mix(self, inner: Rule, senders: str | None = None) -> Rule:
        """The rule with the mean, or with the `outer` optimizer."""
        a = self.mixing
        return outer(
            inner,
            lambda waited: (a * lax.axis_size("node"), 1 - a),
            self.outer(),
            Messages(compression=self.compressed(), senders=senders),
            fragments=self.fragments,
            inner_state=self.state_where_met,
            corrects=self.merging == "correct",
        )

    @property
    def state_where_met(self) -> str:
        """What becomes of a node's optimizer state where it receives: of `outer.INNER_STATES`."""
        return self.inner_state

    def states(self, meeting: Meeting) -> np.ndarray | None:
        """(steps, 2) whether first and second moments are averaged; None: at every meeting."""
        return None

    def outer(self) -> optax.GradientTransformation | None:
        """The optimizer of the outer step; None is the mean."""
        return None

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """When nodes meet (`averaging_clock.py`); the first, synchronous updates take the mean."""
        return self.with_numbers(meeting_clock(self, setting, methods))

    def with_numbers(self, line: Timeline) -> Timeline:
        """The timeline with the numbers of the outer optimizer, which are its every update's."""
        first = np.arange(len(line.seconds)) < self.synchronous_updates
        numbers = {
            name: np.where(first, value, getattr(self, name)).astype(np.float32)
            for name, value in self.mean.items()
        }
        return line._replace(plan=line.plan._replace(outer=numbers)) if numbers else line

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)
        averages = self.state_where_met == "averaged"
        said = (
            "must be another where nodes average their optimizers' states, as the mean of several "
        )
        bases = averages and optimizers.has_bases(setup.optimizer.name)
        yield Join("optimizer.name", bases, f"{said}bases is none")
        if not setup.cluster.presence:
            return
        changed = {
            "method.delay": self.delay,
            "method.mixing": self.mixing,
            "method.compression": self.compression,
            "method.merging": self.merging == "correct",
            "method.compression_bits": self.compression_bits != WHOLE,
            "method.fragments": self.fragments > 1,
            "method.inner_state": averages,
            "parallel.api": setup.parallel.api == "overlap",
        }
        for key, wrong in changed.items():
            said = (
                "must be as it is by default with config.cluster.presence, where nodes meet whole "
            )
            yield Join(key, wrong, f"{said}and at once, those that are there")

    def why_no_overlap(self) -> str:
        """What takes more of the nodes than one sum of messages."""
        if self.compression:
            return f"compresses its messages (config.method.compression = {self.compression!r})"
        if self.compression_bits != WHOLE:
            return f"sends numbers of config.method.compression_bits = {self.compression_bits}"
        if self.merging == "correct":
            return "keeps what nodes did meanwhile (config.method.merging = 'correct')"
        if self.state_where_met == "averaged":
            return "averages its optimizers' states too (config.method.inner_state = 'averaged')"
        return ""


def nesterov() -> optax.GradientTransformationExtraArgs:
    """optax's SGD of the outer gradient D, its rate and momentum arguments of every update."""

    def update(
        gap: Tree,
        state: Tree,
        params: Params | None = None,
        *,
        outer_learning_rate: ArrayLike,
        outer_momentum: ArrayLike,
        **_: Tree,
    ) -> tuple[Params, Tree]:
        rule = optax.sgd(outer_learning_rate, outer_momentum, nesterov=True)
        return rule.update(gap, state, params)

    return optax.GradientTransformationExtraArgs(optax.sgd(0.0, 0.0, nesterov=True).init, update)


@dataclass(frozen=True)
class DiLoCo(ModelAveraging, OuterMomentum, name="diloco"):
    """DiLoCo (Douillard et al., arXiv 2311.08105): model averaging with an outer Nesterov momentum.

        D     = theta - 1/P sum_i x_i             every H updates, of P nodes on their own
        m     <- mu m + D
        theta <- theta - eta (D + mu m)           x_i <- theta

    The rule of `outer.py` around what `model_averaging` does: eta = 1, mu = 0 is that. With H = 1
    and SGD inside it is Nesterov SGD of rate eta gamma, with one node and mu = 0 Lookahead.
    Streaming DiLoCo (arXiv 2501.18512) has the same of every fragment by itself: `fragments`,
    `delay` and `mixing` are those of `model_averaging`, and so is all else that they share.
    """

    mean = MappingProxyType({"outer_learning_rate": 1.0, "outer_momentum": 0.0})

    def outer(self) -> optax.GradientTransformationExtraArgs:
        return nesterov()


def slow() -> optax.GradientTransformationExtraArgs:
    """The outer optimizer of D, its state u. Where gamma is 0, as before a warm-up, u gets no D."""

    def update(
        gap: Tree,
        u: Tree,
        params: Params | None = None,
        *,
        learning_rate: Array,
        slow_learning_rate: Array,
        slow_momentum: Array,
        **_: Tree,
    ) -> tuple[Params, Tree]:
        inverse = jnp.where(learning_rate == 0, 0.0, 1 / learning_rate)
        kept = jax.tree.map(lambda u: slow_momentum * u, u)
        step = jax.tree.map(lambda u, d: -slow_learning_rate * (learning_rate * u + d), kept, gap)
        u = jax.tree.map(lambda u, d: u + inverse * d, kept, gap)
        return step, u

    return optax.GradientTransformationExtraArgs(
        lambda params: jax.tree.map(jnp.zeros_like, params), update
    )


@dataclass(frozen=True)
class SlowMo(ModelAveraging, name="slowmo"):
    """SlowMo (Wang et al., arXiv 1910.00643): model averaging with slow momentum, of gradients.

        D     = theta - 1/P sum_i x_i             every H updates, of P nodes on their own
        u     <- beta u + D / gamma
        theta <- theta - a gamma u                x_i <- theta

    gamma: the nodes' learning rate at that update, so that u is a sum of gradients whatever their
    rate was. The rule of `outer.py` around what `model_averaging` does: beta = 0, a = 1 is that.
    With gamma constant it is DiLoCo with heavy ball in place of Nesterov's momentum.
    """

    slow_learning_rate: float = field(1.0, "a, learning rate of the slow step.", **ABOVE_0)
    slow_momentum: float = field(0.5, "beta, momentum of the slow step.", at_least=0, below=1)

    mean = MappingProxyType({"slow_learning_rate": 1.0, "slow_momentum": 0.0})

    def outer(self) -> optax.GradientTransformationExtraArgs:
        return slow()

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        yield nodes.has_rate(setup)


@dataclass(frozen=True)
class DesLoc(ModelAveraging, name="des_loc"):
    """DES-LOC (Iacob et al., arXiv 2505.22549): parameters and moments, each averaged at its time.

        x_i <- 1/P sum_j x_j        every K_x updates, of P nodes that train by themselves
        u_i <- 1/P sum_j u_j        every K_u = 3 K_x, the first moment of a node's optimizer
        v_i <- 1/P sum_j v_j        every K_v = 6 K_x, the second

    The rule of `outer.py` around what `model_averaging` does, by any optimizer of optax: its `nu`
    is v, and all other floats of its state are u. With K_u = K_v = K_x it is model averaging with
    `inner_state=averaged`, local Adam; moments change slowly, so that theirs may be fewer.
    """

    first_moment_meetings: int = field(
        3, "K_u / K_x, meetings from one mean of first moments to the next.", at_least=1
    )
    second_moment_meetings: int = field(
        6, "K_v / K_x, meetings from one mean of second moments to the next.", at_least=1
    )

    over_graphs = False
    cluster = ALWAYS_THERE

    @property
    def cycle(self) -> int:
        return self.period * math.lcm(self.first_moment_meetings, self.second_moment_meetings)

    @property
    def state_where_met(self) -> str:
        return "averaged"

    def states(self, meeting: Meeting) -> np.ndarray:
        """Every so many meetings; after the last update, which is for the log, none besides."""
        count = np.asarray(meeting.receive).any(axis=1).cumsum()[:, None]
        return count % np.array([self.first_moment_meetings, self.second_moment_meetings]) == 0

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        for key, usual in (("inner_state", "kept"), ("fragments", 1), ("delay", 0)):
            said = f"must be {usual!r} with config.method.name = 'des_loc', whose nodes meet whole "
            said += "and at once, and whose moments have periods"
            yield Join(f"method.{key}", getattr(self, key) != usual, said)


class EagerState(NamedTuple):
    inner: Tree  # of this node
    theta: Params
    outer: Tree  # the outer optimizer's
    others: Params  # sum_{j != i} D_j, of the last meeting

    @property
    def params(self) -> Params:
        return self.inner.params


def eager(
    inner: Rule, rule: optax.GradientTransformationExtraArgs, senders: str | None = None
) -> Rule:
    """The rule of one device over the axis `node`; `event.plan` is a `Meeting`."""

    def init(params: Params) -> EagerState:
        nothing = jax.tree.map(jnp.zeros_like, params)
        return EagerState(inner.init(params), params, rule.init(params), nothing)

    def step(state: EagerState, event: Event, batch: Batch) -> tuple[EagerState, Info]:
        after, info = inner.step(state.inner, own_event(event), batch)
        send = event.plan.send[0]
        hyper = {**event.hyper, **dict(event.plan.outer)}

        def met(state: EagerState) -> EagerState:
            count = lax.axis_size("node")
            own = jax.tree.map(jnp.subtract, state.theta, state.params)
            gap = jax.tree.map(lambda d, rest: (d + rest) / count, own, state.others)
            updates, outer = rule.update(gap, state.outer, state.theta, **hyper)
            theta = optax.apply_updates(state.theta, updates)
            others = jax.tree.map(jnp.subtract, over_nodes(senders).sums(own), own)
            return EagerState(state.inner.moved_to(theta), theta, outer, others)

        state = lax.cond(send, met, lambda state: state, state._replace(inner=after))
        sent = jnp.where(send, size(state.theta), 0.0)
        return state, with_sent(info, sent)

    return Rule(init, step)


@dataclass(frozen=True)
class Eager(Mixes, Periodic, OuterMomentum, name="eager"):
    """Eager updates of DiLoCo (Kale, Douillard and Donchev, arXiv 2502.12996).

        D_i     = theta_i - x_i                 every H updates, of P nodes; it is sent, and arrives
                                                one meeting later
        G_i     = 1/P D_i + 1/P sum_{j != i} D_j(the meeting before)
        m_i     <- mu m_i + G_i
        theta_i <- theta_i - eta (G_i + mu m_i)   x_i <- theta_i

    A node's own way counts at once, that of the others when it is there; at the first meeting these
    have sent nothing yet. So an all-reduce has H updates of time, and nodes are never quite equal.
    With one node it is DiLoCo's rule, and with mu = 0 Lookahead's.
    """

    cluster = ("overlap", "speeds", "latencies", "bandwidths", "regions")
    info = ("sent_bytes",)

    def mix(self, inner: Rule, senders: str | None = None) -> Rule:
        return eager(inner, nesterov(), senders)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """Nodes wait at a meeting for what was sent at the one before, and for nobody else."""
        steps = setting.setup.steps
        within = nodes.inside(setting, methods)(steps)
        meeting = meeting_schedule(steps, self.period, 1, 0)
        rate, momentum = self.outer_learning_rate, self.outer_momentum
        numbers = {"outer_learning_rate": rate, "outer_momentum": momentum}
        outer = {key: np.full(steps, value, np.float32) for key, value in numbers.items()}
        late = np.where(meeting.send, np.int32(self.period), np.int32(0))
        meeting = meeting._replace(outer=outer, waited=late)
        seconds = setting.held.seconds if setting.held else _eager_seconds(setting, within, meeting)
        return meetings_timeline(meeting, within, seconds)

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)


def _eager_seconds(setting: ClockInputs, within: Within, meeting: Meeting) -> np.ndarray:
    """(steps,) at which the last node is done with each update; a message leaves with the last."""
    cluster, size = setting.setup.cluster, setting.update_bytes
    transfer, handed_on = between_nodes(cluster, size), broadcast(cluster, size)
    now, arrival, seconds = np.zeros(cluster.nodes), 0.0, np.zeros(len(meeting.send))
    for t, send in enumerate(meeting.send[:, 0]):
        first, now = now + within.ready[t], now + within.done[t]
        if send:
            before, now = arrival, np.maximum(now, arrival)
            arrival = max(max(first.max(), before) + transfer, now.max()) + handed_on
        seconds[t] = now.max()
    return undelayed(seconds)
