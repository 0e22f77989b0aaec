"""Decoupled DiLoCo (Douillard et al., arXiv 2604.21428): learners that wait for nobody.

    D_m     = Theta_m - x_m           after every H-th local step of learner m, sent to the syncer
    Delta   = sum_{m in M} w_m D_m / sum_{m in M} w_m       w_m = tokens_m (tokens_m / steps_m)
    v       <- mu v + Delta
    Theta   <- Theta - eta (Delta + mu v)
    x_m, Theta_m <- Theta             of m in M, at the end of its local step by which it is back

Theta_m is what learner m took over last, and tokens_m, steps_m are counted from then; batches are
of one size, so that w_m is as steps_m. M are the learners whose message is there at a merge, K at
least (`timeline/syncer.py`). They go on meanwhile, and what they did since the sending is lost.
This holds for every fragment of the parameters by itself, and their turns are H / P steps apart.

With K = all, no window, equal speeds and prompt messages it is streaming DiLoCo with a delay of one
update. A learner that is away keeps what it has, and loses the step that it was at.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from optdyn.basics.fields import field
from optdyn.basics.trees import Array, Tree
from optdyn.core import Batch, Event, Gradient, Info, Params, Rule, Update
from optdyn.strategies.method import Methods, Setting
from optdyn.strategies.mix.averaging_clock import fragment_bytes
from optdyn.strategies.mix.diloco import nesterov
from optdyn.strategies.mix.fragments import cut, join
from optdyn.strategies.mix.messages import size
from optdyn.strategies.read import local_steps
from optdyn.strategies.read import workers as own
from optdyn.strategies.shared_fields import Fragmented, OuterMomentum, Periodic
from optdyn.timeline.base import Timeline
from optdyn.timeline.network import to_server
from optdyn.timeline.syncer import Rounds, ages, merges, rounds


class Learning(NamedTuple):
    """A local step of learner m and what follows it, of every fragment (P,)."""

    worker: Array  # int32, m
    receive: Array  # these four as in `Rounds`
    send: Array
    into: Array
    merge: Array
    merges: Array  # int32, how many are made then; `merge` is the last
    steps: Array  # float32, local steps of m since it took over: w_m
    part: Array  # float32, of all parameters, there and back, that are sent and taken over
    rate: Array  # float32, eta
    momentum: Array  # float32, mu


class State(NamedTuple):
    params: Params  # Theta
    outer: tuple[Tree, ...]  # the outer optimizer's, of each fragment
    workers: own.Table  # x_m
    read: own.Table  # Theta_m
    opt_state: own.Table
    mail: own.Table  # D_m, as it was sent; when it was merged Theta, on its way back
    into: jax.Array  # (learners, P) int32, the merge that D_m is for
    steps: jax.Array  # (learners, P) float32, w_m

    def moved_to(self, params: Params) -> "State":
        """Theta is other parameters, which learners hear of with their next merge."""
        return self._replace(params=params)

    def logged(self) -> dict[str, float]:
        """The distance of learners from their mean, for the log."""
        return own.logged(self.workers)


def decoupled(gradient: Gradient, update: Update, learners: int, fragments: int = 1) -> Rule:
    """Rule of a table of `learners`; `event.choice` is a `Learning`."""
    local, rule = local_steps.local_step(gradient, update), nesterov()

    def init(params: Params) -> State:
        every, opt_state = own.table((params, update.init(params)), learners)
        outer = tuple(rule.init(part) for part in cut(params, fragments))
        none = jnp.zeros((learners, fragments), jnp.int32)
        mail = jax.tree.map(jnp.zeros_like, every)
        return State(params, outer, every, every, opt_state, mail, none, none + jnp.float32(0))

    def where(flags: Array, tree: Tree, other: Tree) -> Tree:
        """The fragments of `tree` whose flag is set, (P,), and of `other` the rest."""
        each = zip(flags, cut(tree, fragments), cut(other, fragments), strict=True)
        return join([own.where(*one) for one in each])

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        c = event.choice
        m = c.worker
        x, read, mail = (own.row(table, m) for table in (state.workers, state.read, state.mail))
        loss, x, opt_state, _ = local(x, own.row(state.opt_state, m), event, batch)
        x, read = (where(c.receive, mail, before) for before in (x, read))
        mail = where(c.send, jax.tree.map(jnp.subtract, read, x), mail)
        now = x, read, opt_state, mail
        every, reads, opt_states, mails = own.put(state[2:6], m, now)
        into, steps = (
            table.at[m].set(jnp.where(c.send, new, table[m]))
            for table, new in ((state.into, c.into), (state.steps, c.steps))
        )
        after = State(state.params, state.outer, every, reads, opt_states, mails, into, steps)
        most = jnp.max(c.merges)
        after = lax.fori_loop(0, most, lambda n, after: merged(after, event, n), after)
        return after, {"loss": loss, "sent_bytes": 2 * c.part * size(x)}

    def merged(state: State, event: Event, n: Array) -> State:
        """After merge n, from 0 on, of those of every fragment that are made then."""
        c = event.choice
        hyper = {"outer_learning_rate": c.rate, "outer_momentum": c.momentum}
        theta, outer, mail = cut(state.params, fragments), list(state.outer), []
        made = list(theta)
        for p, letters in enumerate(cut(state.mail, fragments)):
            is_made = n < c.merges[p]
            members = is_made & (state.into[:, p] == c.merge[p] - c.merges[p] + 1 + n)
            w = members * state.steps[:, p] / jnp.maximum((members * state.steps[:, p]).sum(), 1.0)

            def mean(rows: jax.Array, w: jax.Array = w) -> jax.Array:
                own = w.astype(rows.dtype)
                return jnp.tensordot(own, rows, axes=1, precision=lax.Precision.HIGHEST)

            def back(rows: jax.Array, new: jax.Array, who: jax.Array = members) -> jax.Array:
                return jnp.where(who.reshape(-1, *[1] * new.ndim), new, rows)

            gap = jax.tree.map(mean, letters)
            updates, after = rule.update(gap, outer[p], theta[p], **hyper)
            new = own.where(is_made, optax.apply_updates(theta[p], updates), theta[p])
            made[p], outer[p] = new, own.where(is_made, after, outer[p])
            mail.append(jax.tree.map(back, letters, new))
        return state._replace(params=join(made), outer=tuple(outer), mail=join(mail))

    return Rule(init, step)


@dataclass(frozen=True)
class Decoupled(own.Workers, Periodic, Fragmented, OuterMomentum):
    quorum: int = field(
        0, "decoupled: K, learners that a merge needs at least; 0: all of them.", at_least=0
    )
    grace: float = field(
        0.0, "decoupled: seconds from the message of the K-th to the merge.", at_least=0
    )

    cluster = (*own.Workers.cluster, "latencies", "bandwidths", "regions", "diurnal", "presence")

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = f"from 1 to config.strategy.period = {self.period}"
        self.require("fragments", 1 <= self.fragments <= self.period, wanted)
        self.require("delay", self.delay >= 0, "at least 0")
        wanted = f"at most config.strategy.groups = {self.groups}, or 0 for all"
        self.require("quorum", self.quorum <= self.groups, wanted)

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return decoupled(gradient, update, self.groups, self.fragments)

    def clock(self, setting: Setting, methods: Methods) -> Timeline:
        """Local steps as in `asynchronous`, whose messages take no time of a learner's.

        The staleness is how many merges the fragment that lags most has not seen.
        """
        line, cluster = own.unhindered(self, setting, methods), setting.setup.cluster
        shares = np.array(fragment_bytes(setting._replace(update_bytes=1), self.fragments))
        sizes = shares * setting.update_bytes
        places = np.arange(self.groups) * cluster.nodes // self.groups
        message = np.stack([to_server(cluster, size)[places] for size in sizes], axis=1)
        if (held := setting.held) and held.has("merge"):
            told = (held.whole(name, shares.shape, 0, len(line.worker)) for name in Rounds._fields)
            receive, send, into, merge = told
            made = Rounds(receive.astype(bool), send.astype(bool), into, merge)
        else:
            numbers = self.period, self.delay, self.quorum, self.grace
            made = rounds(line.worker, line.seconds, message, *numbers)
        steps, late = ages(line.worker, self.groups, made)
        choice = Learning(
            line.worker,
            *made,
            merges=merges(made.merge),
            steps=steps.astype(np.float32),
            part=((made.send * 0.5 + made.receive * 0.5) @ shares).astype(np.float32),
            rate=np.full(len(steps), self.outer_learning_rate, np.float32),
            momentum=np.full(len(steps), self.outer_momentum, np.float32),
        )
        return line._replace(choice=choice, staleness=late.max(axis=1))


METHOD = Decoupled
