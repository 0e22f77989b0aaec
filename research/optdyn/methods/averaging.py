"""Nodes with parameters of their own that meet now and then: one rule and one clock for all.

    D     = theta - mean_p x_p(sent)          what the P nodes sent, `waited` updates before
    theta <- theta - outer(D)                 any optax optimizer; by default sgd(1), the mean
    x     <- (w x + v P theta) / (w + v P)    w, v: weights of a node's own parameters, of each sent

In between every node makes updates by itself, by any rule. The mixing is w / (w + v P): it is 0
where nodes take over theta, and 1 where they ignore it. A merge that corrects has, in the place of
the last line, x <- theta + (x - x(sent)): what a node did meanwhile is kept whole (CO2, LOSCAR-SGD:
arXiv 2605.20866). Over a graph (`gossip.py`) the mean is over a node's neighbours, and theta is its
own.

As in streaming DiLoCo (arXiv 2501.18512) the rule holds for every fragment of the parameters by
itself. Each has an outer optimizer of its own and may have its own times of meeting. At most one
message of a fragment is in flight. Nodes exchange nothing of a fragment that is not sent.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from types import MappingProxyType
from typing import ClassVar, NamedTuple

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
from optdyn.clock.meetings import AllReduce, meeting_seconds, meetings_timeline
from optdyn.clock.network import all_gather, between_nodes, broadcast
from optdyn.clock.timeline import Meeting, Timeline
from optdyn.clock.trace import RecordedTrace
from optdyn.core import Batch, Event, Info, Params, Rule, SplitStep
from optdyn.methods import nodes
from optdyn.methods.messages import (
    SIMULATED,
    WHOLE,
    Collectives,
    Messages,
    add_sent_bytes,
    event_of_node,
    sent_to_others,
    size,
)
from optdyn.methods.method import (
    ABOVE_0,
    FRACTION,
    ClockInputs,
    Compressed,
    Fragmented,
    MethodStack,
    Mixes,
    OuterMomentum,
    Periodic,
)
from optdyn.methods.setup import Setup

Weights = Callable[[jax.Array], tuple[ArrayLike, ArrayLike]]

INNER_STATES = ("kept", "averaged", "reset")
MERGINGS = ("mix", "correct")
# Of the cluster's keys (`method.OPTIONAL`), those that the clock knows of nodes that never leave.
ALWAYS_THERE = ("overlap", "speeds", "latencies", "bandwidths", "regions", "diurnal")


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
        lambda *leaves: next(leaf for leaf in leaves if leaf is not None),
        *trees,
        is_leaf=lambda leaf: leaf is None,
    )


def moments(opt_state: Tree) -> tuple[list[jax.Array], list[jax.Array]]:
    """Floats of an optimizer's state: optax's `nu`, means of squares, are second; others first."""
    leaves = jax.tree.leaves(opt_state)
    first, second = _moment_places(opt_state)
    return [leaves[i] for i in first], [leaves[i] for i in second]


def averaged(
    opt_state: Tree, now: tuple[jax.Array, jax.Array], mean: Callable[[Tree], Tree]
) -> Tree:
    """The state with `mean` of its first and second moments, of those whose turn it is `now`."""
    leaves, tree_of = jax.tree.flatten(opt_state)
    for turn, places in zip(now, _moment_places(opt_state), strict=True):
        if places:
            floats = [leaves[i] for i in places]
            means = lax.cond(turn, mean, lambda floats: floats, floats)
            for i, leaf in zip(places, means, strict=True):
                leaves[i] = leaf
    return jax.tree.unflatten(tree_of, leaves)


def _moment_places(opt_state: Tree) -> tuple[list[int], list[int]]:
    """Numbers of the leaves that are first and second moments."""
    first, second = list[int](), list[int]()
    for i, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(opt_state)):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            is_second = any(getattr(key, "name", "") == "nu" for key in path)
            (second if is_second else first).append(i)
    return first, second


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


@dataclass(frozen=True, eq=False)
class Outer:
    """The rule of one device over the axis `node`, around the one that a node does by itself.

    `event.plan` is a `Meeting`, the same on all nodes but for what is `inner` there. The outer
    optimizer gets the hyperparameters of `outer` beside those of the event; `error_decay` is that
    of what messages left out. `weights(waited)` is (w, v); a merge that `corrects` has none.

    Where a node receives, the state of its inner optimizer is `kept`, `averaged` over the nodes
    (numbers that are no floats, such as counts, are the same in all) or `reset`. With the `states`
    of the plan first and second moments are averaged where these say so.

    A step is three pieces, one after the other: `update`, the node by itself; the exchange, the sum
    of what the nodes send; the merge, what a receipt does, of what was sent `waited` updates before
    or, if that is 0, just now. Only the second asks other nodes, and where the states of optimizers
    are averaged the third.
    """

    inner: Rule
    weights: Weights
    optimizer: optax.GradientTransformation | None = None
    messages: Messages = Messages()
    fragments: int = 1
    inner_state: str = "kept"
    corrects: bool = False

    def rule(self) -> Rule[OuterState]:
        """The rule. Raises `ConfigError` at its `init` with more fragments than leaves."""
        split = SplitStep(
            self.update, self.message, self.on_receive, self.merge_received, self.fragments
        )
        is_sum = not (self.messages.compression or self.corrects or self.inner_state == "averaged")
        return Rule(self.init, self.step, split if is_sum else None)

    @cached_property
    def transform(self) -> optax.GradientTransformationExtraArgs | None:
        """The outer optimizer; compressed messages are differences from a theta, so have one."""
        optimizer = self.optimizer or (optax.sgd(1.0) if self.messages.compression else None)
        return optax.with_extra_args_support(optimizer) if optimizer else None

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
        after, info = self.inner.step(state.inner, event_of_node(event), batch)
        send, receive, waited = self._schedule(event)
        pairs = zip(self._parts(after.params), receive & (waited == 0), strict=True)
        sizes = [self.messages.size(part, blocking) for part, blocking in pairs]
        sent = jnp.where(send, jnp.stack(sizes), 0.0).sum() * _peers(event.plan)
        if self.inner_state == "averaged":
            due = zip(self._moments_due(event), moments(after.opt_state), strict=True)
            for now, floats in due:
                sent += jnp.where(now, size(floats), 0.0)
        return state._replace(inner=after), add_sent_bytes(info, sent)

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

    def _schedule(self, event: Event) -> tuple[jax.Array, ...]:
        """The `send`, `receive` and `waited` of every fragment."""
        plan = event.plan
        flags = plan.send, plan.receive, plan.waited
        return tuple(jnp.broadcast_to(flag, self.fragments) for flag in flags)

    def _moments_due(self, event: Event) -> tuple[jax.Array, jax.Array]:
        """Whether first and second moments are averaged after this update."""
        receives, states = self._schedule(event)[1].any(), event.plan.states
        if states is None:
            return receives, receives
        return receives & states[0], receives & states[1]

    def _exchange(self, state: OuterState, event: Event) -> OuterState:
        """Puts what nodes have just sent in flight; fragments not sent stay as they were."""
        send, receive, waited = self._schedule(event)
        decay = dict(event.plan.outer).get("error_decay")
        total = partial(self.messages.total, to=event.plan.to, decay=decay)

        def sent_part(send: jax.Array, before: Params, *parts: Tree) -> tuple[Params, Tree]:
            return lax.cond(send, total, lambda x, theta, kept, _: (before, kept), *parts)

        x, present = state.params, event.plan.present
        if present is not None:
            part = present[lax.axis_index("node")]
            x = jax.tree.map(lambda leaf: (part * leaf).astype(leaf.dtype), x)
        parts = self._parts(x), state.outer, state.errors, receive & (waited == 0)
        sent = map(sent_part, send, self._parts(state.in_flight), *parts)
        in_flight, errors = zip(*sent, strict=True)
        state = state._replace(in_flight=join(in_flight), errors=errors)
        if not self.corrects:
            return state
        both = self._parts(state.sent), self._parts(state.params)
        newest = [
            jax.tree.map(partial(jnp.where, now), new, old)
            for now, old, new in zip(send, *both, strict=True)
        ]
        return state._replace(sent=join(newest))

    def _merge(self, state: OuterState, event: Event, before: Params) -> OuterState:
        """Merges the fragments received; `before`: what was in flight before this update."""
        _, receive, waited = self._schedule(event)
        merged = partial(self._merged, {**event.hyper, **dict(event.plan.outer)})

        def merged_part(receive: jax.Array, *parts: Tree) -> tuple[Params, Tree]:
            return lax.cond(receive, merged, lambda x, theta, *_: (x, theta), *parts)

        after, flying = state.inner, self._parts(state.in_flight)
        sent = self._parts(state.sent) if self.corrects else ((),) * self.fragments
        parts = self._parts(after.params), state.outer, self._parts(before), flying, waited, sent
        x, theta = zip(*map(merged_part, receive, *parts), strict=True)
        if self.inner_state == "averaged":
            mean = self.messages.collectives.mean
            opt_state = averaged(after.opt_state, self._moments_due(event), mean)
            after = after._replace(opt_state=opt_state)
        elif self.inner_state == "reset":

            def fresh(inner: Tree) -> Tree:
                return self.inner.init(inner.params).opt_state

            opt_state = lax.cond(receive.any(), fresh, lambda inner: inner.opt_state, after)
            after = after._replace(opt_state=opt_state)
        return state._replace(inner=after.moved_to(join(x)), outer=theta)

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


def _peers(plan: Meeting) -> ArrayLike:
    """How many messages a node sends: one to all who are there, or one to each neighbour."""
    if plan.to is not None:
        return sent_to_others(plan.to)
    if plan.present is None:
        return 1
    part = plan.present[lax.axis_index("node")]  # 0 of who is away, P of who is there alone
    return ((part > 0) & (part < lax.axis_size("node"))).astype(jnp.float32)


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


def outer_numbers(
    method: Mixes, mean: Mapping[str, float], steps: int, synchronous: int = 0
) -> dict[str, np.ndarray]:
    """(steps,) of each number of the outer optimizer; in the first updates those of the mean."""
    first = np.arange(steps) < synchronous
    return {
        name: np.where(first, value, getattr(method, name)).astype(np.float32)
        for name, value in mean.items()
    }


def fragment_bytes(inputs: ClockInputs, fragments: int) -> list[float]:
    """Bytes of the fragments, of a setting that has its network if they are several."""
    if fragments == 1:
        return [float(inputs.update_bytes)]
    sizes = np.array([numbers_in(part) for part in cut(inputs.model.params, fragments)])
    return list(inputs.update_bytes * (sizes / sizes.sum()))


@dataclass(frozen=True)
class ModelAveraging(Mixes, Periodic, Fragmented, Compressed, name="model_averaging"):
    """Model averaging, also called local SGD: nodes train by themselves and average what they have.

        x_i <- 1/P sum_j x_j        every H updates, of P nodes

    This is the rule with the weights 0 and 1, and nodes wait for it. H = 1 is synchronous SGD, but
    not with Adam. Post-local SGD (Lin et al., arXiv 1808.07217) has H = 1 in its first T_0 updates.
    Streaming (Douillard et al., arXiv 2501.18512) does the same with fragments of the parameters,
    which take turns, and with what was sent tau updates before:

        x_i <- (1 - a) 1/P sum_j x_j(t - tau) + a x_i
        x_i <- 1/P sum_j x_j(t - tau) + (x_i - x_i(t - tau))      where merges correct, as in CO2
    """

    synchronous_updates: int = field(
        0, "T_0, the first updates, with an average after each.", at_least=0
    )
    mixing: float = field(
        0.0, "a, the part that nodes keep of their own parameters.", **FRACTION, static=True
    )
    merging: str = field(
        "mix",
        "What nodes make of what arrives and their own, 'mix', or 'correct', which keeps all that "
        "they did since the sending.",
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
        expected = f"from 1 to config.method.period = {self.period}"
        self.require("fragments", 1 <= self.fragments <= self.period, expected)
        turn = self.period // self.fragments
        expected = f"from 0 to {turn - 1}, less than config.method.period // config.method."
        self.require("delay", 0 <= self.delay < turn, expected + "fragments")
        mixes = self.merging == "mix" or not self.mixing
        self.require("mixing", mixes, "0 with config.method.merging = 'correct'")
        apart = "fragments" if self.fragments > 1 else "delay" if self.delay else ""
        expected = f"'kept' with config.method.{apart} = {getattr(self, apart, None)}, as the state"
        expected += " of an optimizer is of all parameters and of now"
        self.require("inner_state", self.inner_state == "kept" or not apart, expected)

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        """The rule with the mean, or with the `outer` optimizer."""
        a = self.mixing
        return Outer(
            inner,
            lambda waited: (a * lax.axis_size("node"), 1 - a),
            self.outer(),
            Messages(compression=self.compressed(), collectives=collectives),
            fragments=self.fragments,
            inner_state=self.state_where_met,
            corrects=self.merging == "correct",
        ).rule()

    @property
    def state_where_met(self) -> str:
        """What becomes of a node's optimizer state where it receives: one of `INNER_STATES`."""
        return self.inner_state

    def outer(self) -> optax.GradientTransformation | None:
        """The optimizer of the outer step; None is the mean."""
        return None

    def schedule(self, inputs: ClockInputs) -> Meeting:
        """When nodes meet, with the numbers of the outer optimizer."""
        steps, first = inputs.setup.steps, self.synchronous_updates
        meeting = meeting_schedule(steps, self.period, self.fragments, self.delay, first)
        return meeting._replace(outer=outer_numbers(self, self.mean, steps, first) or ())

    def states(self, meeting: Meeting) -> np.ndarray | None:
        """(steps, 2) whether first and second moments are averaged; None: at every meeting."""
        return None

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Nodes run apart until they receive (`meeting_seconds`).

        A message takes an all-reduce over the nodes and is handed on inside them. So with delay 0
        all wait for the last node and for the all-reduce. Computing what is sent takes no time.
        Raises `ConfigError` as `cut` does.
        """
        setup, cluster = inputs.setup, inputs.setup.cluster
        local = nodes.inside(inputs, methods)(setup.steps)
        meeting = self.schedule(inputs)
        meeting = meeting._replace(states=self.states(meeting))
        sizes = fragment_bytes(inputs, self.fragments)
        legs = [np.broadcast_to(self._transfers(inputs, sizes), meeting.send.shape)]
        if self.state_where_met == "averaged":
            legs.append(self._moment_transfers(inputs, meeting)[:, None])
        handed_on = np.array([broadcast(cluster, size) for size in sizes])
        habits = (
            availability.cluster_load(cluster),
            availability.cluster_presence(cluster, setup.seed),
        )
        seconds, here = meeting_seconds(meeting, local, AllReduce(legs), handed_on, *habits)
        if cluster.presence:
            count = np.maximum(here.sum(axis=1, keepdims=True), 1)
            meeting = meeting._replace(present=(here * (cluster.nodes / count)).astype(np.float32))
        return meetings_timeline(meeting, local, seconds)

    def with_recorded(self, line: Timeline, trace: RecordedTrace, setup: Setup) -> Timeline:
        """The timeline with the parts that nodes had in the meetings of a run that a trace holds.

        Raises `TimelineError`.
        """
        if not setup.cluster.presence:
            return line
        count = setup.cluster.nodes
        parts = trace.numbers("present", (count,))
        there = np.maximum((parts > 0).sum(axis=1, keepdims=True), 1)
        good = np.isclose(parts, np.where(parts > 0, count / there, 0.0), 1e-6, 0)
        trace.require("present", good, "0, or nodes over those that are there, of each node")
        return line._replace(plan=line.plan._replace(present=parts.astype(np.float32)))

    def _transfers(self, inputs: ClockInputs, sizes: list[float]) -> list[float]:
        """Seconds of every fragment's exchange; `sizes`: bytes of the fragments.

        Compressed messages that cannot be added up go from every node to all others.
        """
        cluster, params = inputs.setup.cluster, inputs.model.params
        small, seconds = self.compressed(), []
        travel = all_gather if small and small.gathered else between_nodes
        for part, fragment in zip(cut(params, len(sizes)), sizes, strict=True):
            shares = [sent / bytes_of(part) for sent in self.message_bytes(part)]
            seconds.append(sum(travel(cluster, fragment * share) for share in shares))
        return seconds

    def message_bytes(self, params: Params) -> tuple[int, ...]:
        """Bytes of the messages, one after the other, that a node sends of these parameters."""
        small = self.compressed()
        return small.messages(params) if small else (bytes_of(params),)

    def _moment_transfers(self, inputs: ClockInputs, meeting: Meeting) -> np.ndarray:
        """(steps,) seconds of the message of the optimizers' states."""
        whole, due = bytes_of(inputs.model.params), _moments_due(meeting)
        size = inputs.update_bytes * (due @ self._moment_bytes(inputs) / whole)
        cluster, some = inputs.setup.cluster, set(size[size > 0].tolist())
        seconds = {number: between_nodes(cluster, number) for number in some}
        return np.array([seconds.get(number, 0.0) for number in size.tolist()])

    def _moment_bytes(self, inputs: ClockInputs) -> np.ndarray:
        """Bytes of the floats in an optimizer's state, (2,): of first and of second moments."""
        setup, name = inputs.setup, inputs.setup.optimizer.name
        hyper = ("learning_rate", *(("momentum",) if optimizers.takes_momentum(name) else ()))
        options, chain = optimizers.options(setup, groups=1), optimizers.chain(setup)
        optimizer = optimizers.optimizer(name, hyper, options, chain)
        state = jax.eval_shape(optimizer.init, inputs.model.params)
        return np.array([bytes_of(floats) for floats in moments(state)])

    def sent_bytes(self, inputs: ClockInputs, meeting: Meeting) -> tuple[float, float]:
        """Bytes that a node sends, an update: of its parameters, and of its optimizer's state."""
        parts = cut(inputs.model.params, self.fragments)
        sizes = [
            size * sum(self.message_bytes(part)) / bytes_of(part)
            for part, size in zip(parts, fragment_bytes(inputs, self.fragments), strict=True)
        ]
        send, receive = (
            np.asarray(flags).reshape(len(flags), -1) for flags in (meeting.send, meeting.receive)
        )
        sent = float((send @ np.array(sizes)).mean())
        if self.state_where_met != "averaged":
            return sent, 0.0
        states = _moments_due(meeting) @ self._moment_bytes(inputs)
        return sent, float((receive.any(axis=1) * states).mean())

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)
        averages = self.state_where_met == "averaged"
        said = "must be another where nodes average their optimizers' states, as the mean of "
        bases = averages and optimizers.has_bases(setup.optimizer.name)
        yield Join("optimizer.name", bases, f"{said}several bases is none")
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
        said = "must be as it is by default with config.cluster.presence, where nodes meet whole "
        for key, wrong in changed.items():
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


def _moments_due(meeting: Meeting) -> np.ndarray:
    """(steps, 2) of first and second moments, 1 where they are averaged at a meeting."""
    if meeting.states is None:
        return np.ones((len(np.asarray(meeting.send)), 2))
    return np.asarray(meeting.states, float)


def nesterov() -> optax.GradientTransformationExtraArgs:
    """optax's SGD of the outer gradient D, its rate and momentum arguments of every update."""

    def update(
        gap: Tree, state: Tree, params: Params | None = None, **numbers: Array
    ) -> tuple[Params, Tree]:
        rate, momentum = numbers["outer_learning_rate"], numbers["outer_momentum"]
        return optax.sgd(rate, momentum, nesterov=True).update(gap, state, params)

    return optax.GradientTransformationExtraArgs(optax.sgd(0.0, 0.0, nesterov=True).init, update)


@dataclass(frozen=True)
class DiLoCo(ModelAveraging, OuterMomentum, name="diloco"):
    """DiLoCo (Douillard et al., arXiv 2311.08105): model averaging with an outer Nesterov momentum.

        D     = theta - 1/P sum_i x_i             every H updates, of P nodes on their own
        m     <- mu m + D
        theta <- theta - eta (D + mu m)           x_i <- theta

    With eta = 1 and mu = 0 it is model averaging. With H = 1 and SGD inside it is Nesterov SGD of
    rate eta gamma, with one node and mu = 0 Lookahead. Streaming DiLoCo (arXiv 2501.18512) has the
    same of every fragment by itself: `fragments`, `delay` and `mixing` are those of
    `model_averaging`, and so is all else that they share.
    """

    mean = MappingProxyType({"outer_learning_rate": 1.0, "outer_momentum": 0.0})

    def outer(self) -> optax.GradientTransformationExtraArgs:
        return nesterov()


@dataclass(frozen=True)
class SlowMo(ModelAveraging, name="slowmo"):
    """SlowMo (Wang et al., arXiv 1910.00643): model averaging with slow momentum, of gradients.

        D     = theta - 1/P sum_i x_i             every H updates, of P nodes on their own
        u     <- beta u + D / gamma
        theta <- theta - a gamma u                x_i <- theta

    gamma: the nodes' learning rate at that update, so that u is a sum of gradients whatever their
    rate was. With beta = 0 and a = 1 it is model averaging, and with gamma constant DiLoCo with
    heavy ball in place of Nesterov's momentum.
    """

    slow_learning_rate: float = field(1.0, "a, learning rate of the slow step.", **ABOVE_0)
    slow_momentum: float = field(0.5, "beta, momentum of the slow step.", at_least=0, below=1)

    mean = MappingProxyType({"slow_learning_rate": 1.0, "slow_momentum": 0.0})

    def outer(self) -> optax.GradientTransformationExtraArgs:
        """Its state is u, which gets no D where gamma is 0, as before a warm-up."""

        def update(
            gap: Tree, u: Tree, params: Params | None = None, **numbers: Array
        ) -> tuple[Params, Tree]:
            rate, slow_rate = numbers["learning_rate"], numbers["slow_learning_rate"]
            inverse = jnp.where(rate == 0, 0.0, 1 / rate)
            kept = jax.tree.map(lambda u: numbers["slow_momentum"] * u, u)
            step = jax.tree.map(lambda u, d: -slow_rate * (rate * u + d), kept, gap)
            u = jax.tree.map(lambda u, d: u + inverse * d, kept, gap)
            return step, u

        zeros = partial(jax.tree.map, jnp.zeros_like)
        return optax.GradientTransformationExtraArgs(zeros, update)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        yield nodes.has_rate(setup)


@dataclass(frozen=True)
class DesLoc(ModelAveraging, name="des_loc"):
    """DES-LOC (Iacob et al., arXiv 2505.22549): parameters and moments, each averaged at its time.

        x_i <- 1/P sum_j x_j        every K_x updates, of P nodes that train by themselves
        u_i <- 1/P sum_j u_j        every K_u = 3 K_x, the first moment of a node's optimizer
        v_i <- 1/P sum_j v_j        every K_v = 6 K_x, the second

    It is by any optimizer of optax: its `nu` is v, and all other floats of its state are u. With
    K_u = K_v = K_x it is model averaging with `inner_state=averaged`, local Adam; moments change
    slowly, so that theirs may be fewer.
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

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
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
    inner: Rule, rule: optax.GradientTransformationExtraArgs, collectives: Collectives = SIMULATED
) -> Rule[EagerState]:
    """The rule of one device over the axis `node`; `event.plan` is a `Meeting`."""

    def init(params: Params) -> EagerState:
        nothing = jax.tree.map(jnp.zeros_like, params)
        return EagerState(inner.init(params), params, rule.init(params), nothing)

    def step(state: EagerState, event: Event, batch: Batch) -> tuple[EagerState, Info]:
        after, info = inner.step(state.inner, event_of_node(event), batch)
        send = event.plan.send[0]
        hyper = {**event.hyper, **dict(event.plan.outer)}

        def met(state: EagerState) -> EagerState:
            count = lax.axis_size("node")
            own = jax.tree.map(jnp.subtract, state.theta, state.params)
            gap = jax.tree.map(lambda d, rest: (d + rest) / count, own, state.others)
            updates, outer = rule.update(gap, state.outer, state.theta, **hyper)
            theta = optax.apply_updates(state.theta, updates)
            others = jax.tree.map(jnp.subtract, collectives.sums(own), own)
            return EagerState(state.inner.moved_to(theta), theta, outer, others)

        state = lax.cond(send, met, lambda state: state, state._replace(inner=after))
        sent = jnp.where(send, size(state.theta), 0.0)
        return state, add_sent_bytes(info, sent)

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

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        return eager(inner, nesterov(), collectives)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Nodes wait at a meeting for what was sent at the one before, and for nobody else.

        A message is handed on inside the nodes while these compute.
        """
        cluster, steps, size = inputs.setup.cluster, inputs.setup.steps, inputs.update_bytes
        local = nodes.inside(inputs, methods)(steps)
        meeting = meeting_schedule(steps, self.period, 1, 0)
        late = np.where(meeting.send, np.int32(self.period), np.int32(0))
        meeting = meeting._replace(waited=late, outer=outer_numbers(self, DiLoCo.mean, steps))
        transfer = np.full(meeting.send.shape, between_nodes(cluster, size))
        exchange = AllReduce([transfer], broadcast(cluster, size))
        seconds, _ = meeting_seconds(meeting, local, exchange)
        return meetings_timeline(meeting, local, seconds)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)
