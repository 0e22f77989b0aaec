"""Nodes that train by themselves and meet every H updates: local SGD, DiLoCo, SlowMo and their kin.

    D     = theta - mean_p x_p(sent)          what the P nodes sent, `waited` updates before
    theta <- theta - outer(D)                 any optax optimizer; by default sgd(1), the mean
    x     <- (w x + v P theta) / (w + v P)    w, v: weights of a node's parameters, of each message

Without an outer optimizer theta is that mean and is not kept. With merging 'correct' the last line
is x <- theta + (x - x(sent)), which keeps all that a node did meanwhile (CO2; LOSCAR-SGD, arXiv
2605.20866). As in streaming DiLoCo (arXiv 2501.18512) the rule holds for each fragment of the
parameters, of which at most one message is in flight. Over a graph (`gossip.py`) the mean is over a
node's neighbours, and nodes have different theta.

`Outer` is the rule of all methods but `eager`. A `Meeting` says when nodes send and receive, and
`clock.meetings.meeting_seconds` makes seconds of it.
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
from optdyn.methods.kept import with_opt_state
from optdyn.methods.messages import (
    FULL_BITS,
    SIMULATED,
    Collectives,
    Messages,
    add_sent_bytes,
    event_of_node,
    messages_to_others,
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


def split_fragments(tree: Tree, fragments: int) -> tuple[Tree, ...]:
    """Returns a tree for each fragment, with None in place of the leaves of all others.

    A fragment, one leaf or several in a row, is at most as large as an equal part and the largest
    leaf together. Raises `ConfigError` for more fragments than leaves.
    """
    leaves, treedef = jax.tree.flatten(tree)
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
        jax.tree.unflatten(treedef, [leaf if a <= i < b else None for i, leaf in enumerate(leaves)])
        for a, b in pairwise([*ends, len(leaves)])
    )


def join_fragments(trees: Sequence[Tree]) -> Tree:
    return jax.tree.map(
        lambda *leaves: next(leaf for leaf in leaves if leaf is not None),
        *trees,
        is_leaf=lambda leaf: leaf is None,
    )


def moments(opt_state: Tree) -> tuple[list[jax.Array], list[jax.Array]]:
    """Returns an optimizer's first and second moments; the second are optax's `nu`."""
    leaves = jax.tree.leaves(opt_state)
    first, second = _moment_indices(opt_state)
    return [leaves[i] for i in first], [leaves[i] for i in second]


def average_moments(
    opt_state: Tree, due: tuple[jax.Array, jax.Array], mean: Callable[[Tree], Tree]
) -> Tree:
    """Returns the state with means of first, and of second moments, where they are `due`."""
    leaves, treedef = jax.tree.flatten(opt_state)
    for is_due, indices in zip(due, _moment_indices(opt_state), strict=True):
        if indices:
            floats = [leaves[i] for i in indices]
            means = lax.cond(is_due, mean, lambda floats: floats, floats)
            for i, leaf in zip(indices, means, strict=True):
                leaves[i] = leaf
    return jax.tree.unflatten(treedef, leaves)


def _moment_indices(opt_state: Tree) -> tuple[list[int], list[int]]:
    first, second = list[int](), list[int]()
    for i, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(opt_state)):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            is_second = any(getattr(key, "name", "") == "nu" for key in path)
            (second if is_second else first).append(i)
    return first, second


class OuterState(NamedTuple):
    """The state of a node; where all nodes meet, `in_flight` and `outer` are the same on all."""

    inner: Tree  # the state of the inner rule
    in_flight: Params  # sum_p x_p(sent), in the type it travels in
    outer: Tree = ()  # theta and the outer optimizer's state, for each fragment
    errors: Tree = ()  # e and the compression's state, for each fragment
    sent: Tree = ()  # x(sent), if merges correct

    @property
    def params(self) -> Params:
        return self.inner.params


@dataclass(frozen=True, eq=False)
class Outer:
    """The rule of a node (one device over the axis `node`) around its `inner` rule.

    `event.plan` is a `Meeting`, the same for all nodes but for `inner`, the plan of a node's own
    devices. The outer optimizer gets the hyperparameters `plan.outer` beside those of the event;
    `error_decay` among them decays what messages left out. `weights(waited)` is (w, v), unused if
    merges correct. `plan.states`, if there, says which moments are averaged. Only `_exchange`
    reaches other nodes, and `_merge` if it averages optimizers' states.
    """

    inner: Rule
    weights: Weights
    optimizer: optax.GradientTransformation | None = None
    messages: Messages = Messages()
    fragments: int = 1
    inner_state: str = "kept"
    corrects: bool = False

    def rule(self) -> Rule[OuterState]:
        """Returns the rule, whose `init` raises `ConfigError` with more fragments than leaves."""
        split = SplitStep(
            self.update, self.message, self.on_receive, self.merge_received, self.fragments
        )
        can_split = not (
            self.messages.compression or self.corrects or self.inner_state == "averaged"
        )
        return Rule(self.init, self.step, split if can_split else None)

    @cached_property
    def outer_optimizer(self) -> optax.GradientTransformationExtraArgs | None:
        """The outer optimizer. Compressed messages have one, as they are differences from theta."""
        optimizer = self.optimizer or (optax.sgd(1.0) if self.messages.compression else None)
        return optax.with_extra_args_support(optimizer) if optimizer else None

    def init(self, params: Params) -> OuterState:
        zeros = jax.tree.map(jnp.zeros_like, self.messages.cast(params))
        parts, optimizer = self._fragments(params), self.outer_optimizer
        theta = tuple((x, optimizer.init(x)) if optimizer else () for x in parts)
        errors = tuple(map(self.messages.init_errors, parts))
        sent = params if self.corrects else ()
        return OuterState(self.inner.init(params), zeros, theta, errors, sent)

    def step(self, state: OuterState, event: Event, batch: Batch) -> tuple[OuterState, Info]:
        after, info = self.update(state, event, batch)
        return self._merge(self._exchange(after, event), event, state.in_flight), info

    def update(self, state: OuterState, event: Event, batch: Batch) -> tuple[OuterState, Info]:
        """Makes the node's update by itself; `info` counts the bytes that it is about to send."""
        after, info = self.inner.step(state.inner, event_of_node(event), batch)
        send, receive, waited = self._schedule(event)
        pairs = zip(self._fragments(after.params), receive & (waited == 0), strict=True)
        sizes = [self.messages.size(part, blocking) for part, blocking in pairs]
        sent_bytes = jnp.where(send, jnp.stack(sizes), 0.0).sum() * _message_count(event.plan)
        if self.inner_state == "averaged":
            due = zip(self._moments_due(event), moments(after.opt_state), strict=True)
            for is_due, floats in due:
                sent_bytes += jnp.where(is_due, size(floats), 0.0)
        return state._replace(inner=after), add_sent_bytes(info, sent_bytes)

    def message(self, state: OuterState, fragment: int, blocking: bool) -> jax.Array:
        part = self._fragments(state.params)[fragment]
        return ravel_pytree(self.messages.cast(part, blocking))[0]

    def on_receive(self, state: OuterState, fragment: int, total: jax.Array) -> OuterState:
        in_flight = list(self._fragments(state.in_flight))
        vector, unravel = ravel_pytree(in_flight[fragment])
        in_flight[fragment] = unravel(total.astype(vector.dtype))
        return state._replace(in_flight=join_fragments(in_flight))

    def merge_received(self, state: OuterState, event: Event) -> OuterState:
        return self._merge(state, event, state.in_flight)

    def _fragments(self, tree: Params) -> tuple[Params, ...]:
        return split_fragments(tree, self.fragments)

    def _schedule(self, event: Event) -> tuple[jax.Array, ...]:
        """Returns `send`, `receive` and `waited`, (fragments,) each."""
        plan = event.plan
        flags = plan.send, plan.receive, plan.waited
        return tuple(jnp.broadcast_to(flag, self.fragments) for flag in flags)

    def _moments_due(self, event: Event) -> tuple[jax.Array, jax.Array]:
        receives, states = self._schedule(event)[1].any(), event.plan.states
        if states is None:
            return receives, receives
        return receives & states[0], receives & states[1]

    def _exchange(self, state: OuterState, event: Event) -> OuterState:
        send, receive, waited = self._schedule(event)
        decay = dict(event.plan.outer).get("error_decay")
        total = partial(self.messages.total, to=event.plan.to, decay=decay)

        def exchange_fragment(
            send: jax.Array, earlier: Params, *parts: Tree
        ) -> tuple[Params, Tree]:
            return lax.cond(send, total, lambda x, theta, errors, _: (earlier, errors), *parts)

        x, present = state.params, event.plan.present
        if present is not None:
            weight = present[lax.axis_index("node")]
            x = jax.tree.map(lambda leaf: (weight * leaf).astype(leaf.dtype), x)
        parts = self._fragments(x), state.outer, state.errors, receive & (waited == 0)
        exchanged = map(exchange_fragment, send, self._fragments(state.in_flight), *parts)
        in_flight, errors = zip(*exchanged, strict=True)
        state = state._replace(in_flight=join_fragments(in_flight), errors=errors)
        if not self.corrects:
            return state
        both = self._fragments(state.sent), self._fragments(state.params)
        newest = [
            jax.tree.map(partial(jnp.where, is_sent), new, old)
            for is_sent, old, new in zip(send, *both, strict=True)
        ]
        return state._replace(sent=join_fragments(newest))

    def _merge(self, state: OuterState, event: Event, earlier: Params) -> OuterState:
        """Merges the received fragments; `earlier` was in flight before this update."""
        _, receive, waited = self._schedule(event)
        merge = partial(self._merge_fragment, {**event.hyper, **dict(event.plan.outer)})

        def merge_if_received(receive: jax.Array, *parts: Tree) -> tuple[Params, Tree]:
            return lax.cond(receive, merge, lambda x, theta, *_: (x, theta), *parts)

        after, cut = state.inner, self._fragments
        sent = cut(state.sent) if self.corrects else ((),) * self.fragments
        parts = cut(after.params), state.outer, cut(earlier), cut(state.in_flight), waited, sent
        x, theta = zip(*map(merge_if_received, receive, *parts), strict=True)
        if self.inner_state == "averaged":
            mean = self.messages.collectives.mean
            opt_state = average_moments(after.opt_state, self._moments_due(event), mean)
            after = with_opt_state(after, opt_state)
        elif self.inner_state == "reset":

            def fresh(inner: Tree) -> Tree:
                return self.inner.init(inner.params).opt_state

            opt_state = lax.cond(receive.any(), fresh, lambda inner: inner.opt_state, after)
            after = with_opt_state(after, opt_state)
        return state._replace(inner=after.moved_to(join_fragments(x)), outer=theta)

    def _merge_fragment(
        self,
        hyper: Hyper,
        x: Params,
        theta: Tree,
        earlier: Params,
        new: Params,
        waited: jax.Array,
        sent: Params,
    ) -> tuple[Params, Tree]:
        """Returns x and theta after the merge of a sum over the nodes.

        That is the sum sent `earlier` if waited > 0, else the `new` one, sent after this update.
        """
        nodes = lax.axis_size("node")

        def received(x: jax.Array, earlier: jax.Array, new: jax.Array) -> jax.Array:
            return jnp.where(waited > 0, earlier, new).astype(x.dtype)

        total = jax.tree.map(received, x, earlier, new)
        if self.outer_optimizer:
            center, opt_state = theta
            gap = jax.tree.map(lambda center, total: center - total / nodes, center, total)
            updates, opt_state = self.outer_optimizer.update(gap, opt_state, center, **hyper)
            center = optax.apply_updates(center, updates)
            theta, total = (center, opt_state), jax.tree.map(lambda leaf: nodes * leaf, center)

        def corrected(x: jax.Array, total: jax.Array, sent: jax.Array) -> jax.Array:
            return total / nodes + (x - sent)

        def mixed(x: jax.Array, total: jax.Array) -> jax.Array:
            w, v = (jnp.asarray(weight, x.dtype) for weight in self.weights(waited))
            return (w * x + v * total) / (w + v * nodes)

        if self.corrects:
            return jax.tree.map(corrected, x, total, sent), theta
        return jax.tree.map(mixed, x, total), theta


def _message_count(plan: Meeting) -> ArrayLike:
    if plan.to is not None:
        return messages_to_others(plan.to)
    if plan.present is None:
        return 1
    weight = plan.present[lax.axis_index("node")]  # 0: it is away; P: no other node is there
    return ((weight > 0) & (weight < lax.axis_size("node"))).astype(jnp.float32)


def meeting_schedule(
    steps: int, period: int, fragments: int, delay: int, synchronous: int = 0
) -> Meeting:
    """Returns when nodes send and receive each fragment, (steps, fragments).

    After each of the first `synchronous` updates, and after the last, all fragments are sent and
    received at once. In between, counted from the end of the synchronous updates, fragment q = 0,
    1, ... is sent after updates k H + floor(q H / fragments) > 0, H = `period`, and received
    `delay` updates later. What would arrive with the last update or later is not sent.
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


def outer_schedule(
    method: Mixes, mean: Mapping[str, float], steps: int, synchronous: int = 0
) -> dict[str, np.ndarray]:
    """Returns the fields of the method that are hyperparameters of the outer step, (steps,) each.

    In the first `synchronous` updates they are as in `mean`, at which the outer step is the mean.
    """
    first = np.arange(steps) < synchronous
    return {
        name: np.where(first, value, getattr(method, name)).astype(np.float32)
        for name, value in mean.items()
    }


def fragment_bytes(inputs: ClockInputs, fragments: int) -> list[float]:
    """Returns the bytes of each fragment. Several fragments need `inputs.model_info`."""
    if fragments == 1:
        return [float(inputs.update_bytes)]
    sizes = np.array([numbers_in(part) for part in split_fragments(inputs.model.params, fragments)])
    return list(inputs.update_bytes * (sizes / sizes.sum()))


@dataclass(frozen=True)
class ModelAveraging(Mixes, Periodic, Fragmented, Compressed, name="model_averaging"):
    """Model averaging, also called local SGD: nodes train by themselves and average parameters.

        x_i <- 1/P sum_j x_j        every H updates, of P nodes

    H = 1 is synchronous SGD, but not with Adam. Post-local SGD (Lin et al., arXiv 1808.07217) has
    H = 1 in its first T_0 updates. Streaming (Douillard et al., arXiv 2501.18512) averages
    fragments of the parameters, which take turns, as they were tau updates before:

        x_i <- (1 - a) 1/P sum_j x_j(t - tau) + a x_i
        x_i <- 1/P sum_j x_j(t - tau) + (x_i - x_i(t - tau))      merging 'correct', as in CO2
    """

    synchronous_updates: int = field(
        0, "T_0, first updates, with an average after each.", at_least=0
    )
    mixing: float = field(
        0.0, "a, weight of a node's parameters in a merge.", **FRACTION, static=True
    )
    merging: str = field(
        "mix",
        "How a node merges, 'mix' of its parameters and the mean, or 'correct', the mean plus all "
        "that the node did since it sent.",
        one_of=("mix", "correct"),
        static=True,
    )
    inner_state: str = field(
        "kept",
        "State of a node's optimizer at a meeting: 'kept', 'averaged' or 'reset'.",
        one_of=INNER_STATES,
        static=True,
    )

    cluster: ClassVar[tuple[str, ...]] = (*nodes.LINKED, "diurnal", "presence")
    info = ("sent_bytes",)
    allows_graphs: ClassVar[bool] = True  # the mean may be over a node's neighbours
    # Fields that are hyperparameters of the outer step, with the values at which it is the mean.
    mean_hyper: ClassVar[Mapping[str, float]] = {}

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
        key = "fragments" if self.fragments > 1 else "delay" if self.delay else ""
        expected = f"'kept' with config.method.{key} = {getattr(self, key, None)}, as an "
        expected += "optimizer's state is merged whole and at once"
        self.require("inner_state", self.inner_state == "kept" or not key, expected)

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        a = self.mixing
        return Outer(
            inner,
            lambda waited: (a * lax.axis_size("node"), 1 - a),
            self.outer(),
            Messages(compression=self.compressor(), collectives=collectives),
            fragments=self.fragments,
            inner_state=self.state_at_meetings,
            corrects=self.merging == "correct",
        ).rule()

    @property
    def state_at_meetings(self) -> str:
        """One of `INNER_STATES`, also for members without such a choice."""
        return self.inner_state

    def outer(self) -> optax.GradientTransformation | None:
        """Returns the outer optimizer; None: theta is the mean."""
        return None

    def schedule(self, inputs: ClockInputs) -> Meeting:
        steps, first = inputs.setup.steps, self.synchronous_updates
        meeting = meeting_schedule(steps, self.period, self.fragments, self.delay, first)
        return meeting._replace(outer=outer_schedule(self, self.mean_hyper, steps, first) or ())

    def moment_schedule(self, meeting: Meeting) -> np.ndarray | None:
        """Returns whether first and second moments are averaged, (steps, 2); None: at each meeting.

        Updates without a meeting average nothing, whatever it says of them.
        """
        return None

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Returns the timeline of nodes that wait only for what they receive (`meeting_seconds`).

        A message takes an all-reduce over the nodes and is then handed on inside them. Outer steps
        and compression take no time. Raises `ConfigError` for more fragments than leaves.
        """
        setup, cluster = inputs.setup, inputs.setup.cluster
        local = nodes.local_times(inputs, methods, setup.steps)
        meeting = self.schedule(inputs)
        meeting = meeting._replace(states=self.moment_schedule(meeting))
        sizes = fragment_bytes(inputs, self.fragments)
        legs = [np.broadcast_to(self._exchange_seconds(inputs, sizes), meeting.send.shape)]
        if self.state_at_meetings == "averaged":
            legs.append(self._moment_seconds(inputs, meeting)[:, None])
        handed_on = np.array([broadcast(cluster, size) for size in sizes])
        load = availability.cluster_load(cluster)
        presence = availability.cluster_presence(cluster, setup.seed)
        seconds, here = meeting_seconds(meeting, local, AllReduce(legs), handed_on, load, presence)
        if cluster.presence:
            count = np.maximum(here.sum(axis=1, keepdims=True), 1)
            meeting = meeting._replace(present=(here * (cluster.nodes / count)).astype(np.float32))
        return meetings_timeline(meeting, local, seconds)

    def with_recorded(self, line: Timeline, trace: RecordedTrace, setup: Setup) -> Timeline:
        if not setup.cluster.presence:
            return line
        count = setup.cluster.nodes
        weights = trace.numbers("present", (count,))
        there = np.maximum((weights > 0).sum(axis=1, keepdims=True), 1)
        good = np.isclose(weights, np.where(weights > 0, count / there, 0.0), 1e-6, 0)
        trace.require("present", good, "0, or nodes over those that are there, of each node")
        return line._replace(plan=line.plan._replace(present=weights.astype(np.float32)))

    def _exchange_seconds(self, inputs: ClockInputs, sizes: list[float]) -> list[float]:
        """Returns the seconds of each fragment's exchange; `sizes`: their bytes, uncompressed."""
        cluster, params = inputs.setup.cluster, inputs.model.params
        compression, seconds = self.compressor(), []
        travel = all_gather if compression and compression.gathered else between_nodes
        for part, fragment in zip(split_fragments(params, len(sizes)), sizes, strict=True):
            shares = [sent / bytes_of(part) for sent in self.message_bytes(part)]
            seconds.append(sum(travel(cluster, fragment * share) for share in shares))
        return seconds

    def message_bytes(self, params: Params) -> tuple[int, ...]:
        """Returns the bytes of the messages in which a node sends these parameters."""
        compression = self.compressor()
        return compression.messages(params) if compression else (bytes_of(params),)

    def _moment_seconds(self, inputs: ClockInputs, meeting: Meeting) -> np.ndarray:
        """Returns the seconds of the all-reduce of optimizers' states, (steps,)."""
        whole, due = bytes_of(inputs.model.params), _moments_due(meeting)
        sizes = inputs.update_bytes * (due @ self._moment_bytes(inputs) / whole)
        cluster = inputs.setup.cluster
        seconds = {size: between_nodes(cluster, size) for size in set(sizes[sizes > 0].tolist())}
        return np.array([seconds.get(size, 0.0) for size in sizes.tolist()])

    def _moment_bytes(self, inputs: ClockInputs) -> np.ndarray:
        """Returns the bytes of an optimizer's first and of its second moments, (2,)."""
        setup, name = inputs.setup, inputs.setup.optimizer.name
        hyper = ("learning_rate", *(("momentum",) if optimizers.takes_momentum(name) else ()))
        options, chain = optimizers.options(setup, groups=1), optimizers.chain(setup)
        optimizer = optimizers.optimizer(name, hyper, options, chain)
        state = jax.eval_shape(optimizer.init, inputs.model.params)
        return np.array([bytes_of(floats) for floats in moments(state)])

    def sent_bytes(self, inputs: ClockInputs, meeting: Meeting) -> tuple[float, float]:
        """Returns the bytes a node sends per update: parameters, and its optimizer's state."""
        parts = split_fragments(inputs.model.params, self.fragments)
        sizes = [
            size * sum(self.message_bytes(part)) / bytes_of(part)
            for part, size in zip(parts, fragment_bytes(inputs, self.fragments), strict=True)
        ]
        send, receive = (
            np.asarray(flags).reshape(len(flags), -1) for flags in (meeting.send, meeting.receive)
        )
        sent = float((send @ np.array(sizes)).mean())
        if self.state_at_meetings != "averaged":
            return sent, 0.0
        states = _moments_due(meeting) @ self._moment_bytes(inputs)
        return sent, float((receive.any(axis=1) * states).mean())

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        averages = self.state_at_meetings == "averaged"
        bases = averages and optimizers.has_bases(setup.optimizer.name)
        reason = "must be another where nodes average their optimizers' states, as a mean of bases "
        yield Join("optimizer.name", bases, reason + "is no basis")
        if not setup.cluster.presence:
            return
        not_with_presence = {
            "method.delay": self.delay,
            "method.mixing": self.mixing,
            "method.compression": self.compression,
            "method.merging": self.merging == "correct",
            "method.compression_bits": self.compression_bits != FULL_BITS,
            "method.fragments": self.fragments > 1,
            "method.inner_state": averages,
            "parallel.api": setup.parallel.api == "overlap",
        }
        for key, wrong in not_with_presence.items():
            yield Join(key, wrong, "must be the default with config.cluster.presence")

    def why_no_overlap(self) -> str:
        if self.compression:
            return f"compresses its messages (config.method.compression = {self.compression!r})"
        if self.compression_bits != FULL_BITS:
            return f"sends numbers of config.method.compression_bits = {self.compression_bits}"
        if self.merging == "correct":
            return "keeps what nodes did meanwhile (config.method.merging = 'correct')"
        if self.state_at_meetings == "averaged":
            return "averages its optimizers' states too (config.method.inner_state = 'averaged')"
        return ""


def _moments_due(meeting: Meeting) -> np.ndarray:
    """Returns 1 where first, and where second moments are averaged if nodes meet, (steps, 2)."""
    if meeting.states is None:
        return np.ones((len(np.asarray(meeting.send)), 2))
    return np.asarray(meeting.states, float)


def nesterov() -> optax.GradientTransformationExtraArgs:
    """Returns optax's Nesterov SGD whose rate and momentum are arguments of each update."""

    def update(
        gap: Tree, state: Tree, params: Params | None = None, **hyper: Array
    ) -> tuple[Params, Tree]:
        rate, momentum = hyper["outer_learning_rate"], hyper["outer_momentum"]
        return optax.sgd(rate, momentum, nesterov=True).update(gap, state, params)

    return optax.GradientTransformationExtraArgs(optax.sgd(0.0, 0.0, nesterov=True).init, update)


@dataclass(frozen=True)
class DiLoCo(ModelAveraging, OuterMomentum, name="diloco"):
    """DiLoCo (Douillard et al., arXiv 2311.08105): model averaging with an outer Nesterov momentum.

        D     = theta - 1/P sum_i x_i             every H updates, of P nodes
        m     <- mu m + D
        theta <- theta - eta (D + mu m)           x_i <- theta

    With eta = 1 and mu = 0 it is model averaging, with one node and mu = 0 Lookahead, and with
    `fragments` streaming DiLoCo (arXiv 2501.18512).
    """

    mean_hyper = MappingProxyType({"outer_learning_rate": 1.0, "outer_momentum": 0.0})

    def outer(self) -> optax.GradientTransformationExtraArgs:
        return nesterov()


@dataclass(frozen=True)
class SlowMo(ModelAveraging, name="slowmo"):
    """SlowMo (Wang et al., arXiv 1910.00643): model averaging with slow momentum, of gradients.

        D     = theta - 1/P sum_i x_i             every H updates, of P nodes
        u     <- beta u + D / gamma
        theta <- theta - a gamma u                x_i <- theta

    gamma is the nodes' learning rate at that update, so that u is a sum of gradients. With beta = 0
    and a = 1 it is model averaging, and with gamma constant DiLoCo with heavy ball.
    """

    slow_learning_rate: float = field(1.0, "a, learning rate of the slow step.", **ABOVE_0)
    slow_momentum: float = field(0.5, "beta, momentum of the slow step.", at_least=0, below=1)

    mean_hyper = MappingProxyType({"slow_learning_rate": 1.0, "slow_momentum": 0.0})

    def outer(self) -> optax.GradientTransformationExtraArgs:
        """Returns an optimizer whose state is u; u gets no D where gamma is 0, as in a warm-up."""

        def update(
            gap: Tree, u: Tree, params: Params | None = None, **hyper: Array
        ) -> tuple[Params, Tree]:
            rate, slow_rate = hyper["learning_rate"], hyper["slow_learning_rate"]
            inverse = jnp.where(rate == 0, 0.0, 1 / rate)
            decayed = jax.tree.map(lambda u: hyper["slow_momentum"] * u, u)
            step = jax.tree.map(lambda u, d: -slow_rate * (rate * u + d), decayed, gap)
            u = jax.tree.map(lambda u, d: u + inverse * d, decayed, gap)
            return step, u

        zeros = partial(jax.tree.map, jnp.zeros_like)
        return optax.GradientTransformationExtraArgs(zeros, update)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        yield nodes.has_rate(setup)


@dataclass(frozen=True)
class DesLoc(ModelAveraging, name="des_loc"):
    """DES-LOC (Iacob et al., arXiv 2505.22549): parameters and moments are averaged at periods.

        x_i <- 1/P sum_j x_j        every K_x updates, of P nodes that train by themselves
        u_i <- 1/P sum_j u_j        every K_u = 3 K_x, the first moment of a node's optimizer
        v_i <- 1/P sum_j v_j        every K_v = 6 K_x, the second

    optax's `nu` is v, and all other floats of the optimizer's state are u. With K_u = K_v = K_x it
    is local Adam. Moments are one more all-reduce when they are due.
    """

    first_moment_meetings: int = field(
        3, "K_u / K_x, meetings from one mean of first moments to the next.", at_least=1
    )
    second_moment_meetings: int = field(
        6, "K_v / K_x, meetings from one mean of second moments to the next.", at_least=1
    )

    allows_graphs = False
    cluster = (*nodes.LINKED, "diurnal")

    @property
    def cycle(self) -> int:
        return self.period * math.lcm(self.first_moment_meetings, self.second_moment_meetings)

    @property
    def state_at_meetings(self) -> str:
        return "averaged"

    def moment_schedule(self, meeting: Meeting) -> np.ndarray:
        count = np.asarray(meeting.receive).any(axis=1).cumsum()[:, None]
        return count % np.array([self.first_moment_meetings, self.second_moment_meetings]) == 0

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        for key, default in (("inner_state", "kept"), ("fragments", 1), ("delay", 0)):
            reason = f"must be {default!r} with config.method.name = 'des_loc'"
            yield Join(f"method.{key}", getattr(self, key) != default, reason)


class EagerState(NamedTuple):
    inner: Tree  # the state of the inner rule
    theta: Params
    outer: Tree  # the outer optimizer's state
    others: Params  # sum_{j != i} D_j of the last meeting

    @property
    def params(self) -> Params:
        return self.inner.params


def eager(
    inner: Rule,
    optimizer: optax.GradientTransformationExtraArgs,
    collectives: Collectives = SIMULATED,
) -> Rule[EagerState]:
    """Returns the rule of a node around its `inner` rule; `event.plan` is a `Meeting`."""

    def init(params: Params) -> EagerState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return EagerState(inner.init(params), params, optimizer.init(params), zeros)

    def step(state: EagerState, event: Event, batch: Batch) -> tuple[EagerState, Info]:
        after, info = inner.step(state.inner, event_of_node(event), batch)
        send = event.plan.send[0]
        hyper = {**event.hyper, **dict(event.plan.outer)}

        def meet(state: EagerState) -> EagerState:
            count = lax.axis_size("node")
            difference = jax.tree.map(jnp.subtract, state.theta, state.params)
            gap = jax.tree.map(lambda d, rest: (d + rest) / count, difference, state.others)
            updates, outer = optimizer.update(gap, state.outer, state.theta, **hyper)
            theta = optax.apply_updates(state.theta, updates)
            others = jax.tree.map(jnp.subtract, collectives.sums(difference), difference)
            return EagerState(state.inner.moved_to(theta), theta, outer, others)

        state = lax.cond(send, meet, lambda state: state, state._replace(inner=after))
        sent = jnp.where(send, size(state.theta), 0.0)
        return state, add_sent_bytes(info, sent)

    return Rule(init, step)


@dataclass(frozen=True)
class Eager(Mixes, Periodic, OuterMomentum, name="eager"):
    """Eager updates of DiLoCo (Kale, Douillard and Donchev, arXiv 2502.12996).

        D_i     = theta_i - x_i                 every H updates, of P nodes; it is sent, and arrives
                                                one meeting later
        G_i     = 1/P D_i + 1/P sum_{j != i} D_j(the meeting before; 0 at the first)
        m_i     <- mu m_i + G_i
        theta_i <- theta_i - eta (G_i + mu m_i)   x_i <- theta_i

    An all-reduce has H updates of time, and nodes are never quite equal. With one node it is
    DiLoCo's rule.
    """

    cluster = nodes.LINKED
    info = ("sent_bytes",)

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        return eager(inner, nesterov(), collectives)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        cluster, steps, size = inputs.setup.cluster, inputs.setup.steps, inputs.update_bytes
        local = nodes.local_times(inputs, methods, steps)
        meeting = meeting_schedule(steps, self.period, 1, 0)
        # A meeting receives what the one before sent, and nodes wait for that alone.
        waited = np.where(meeting.send, np.int32(self.period), np.int32(0))
        meeting = meeting._replace(
            waited=waited, outer=outer_schedule(self, DiLoCo.mean_hyper, steps)
        )
        transfer = np.full(meeting.send.shape, between_nodes(cluster, size))
        exchange = AllReduce([transfer], broadcast(cluster, size))
        seconds, _ = meeting_seconds(meeting, local, exchange)
        return meetings_timeline(meeting, local, seconds)
