"""Decoupled DiLoCo (Douillard et al., arXiv 2604.21428): learners that wait for nobody.

    D_m     = Theta_m - x_m           after every H-th local step of learner m, sent to the syncer
    Delta   = sum_{m in M} w_m D_m / sum_{m in M} w_m       w_m = tokens_m (tokens_m / steps_m)
    v       <- mu v + Delta
    Theta   <- Theta - eta (Delta + mu v)
    x_m, Theta_m <- Theta             of m in M, at the end of its local step by which it is back

Theta_m is what learner m took over last; tokens_m and steps_m count from then. All batches are of
one size here, so that w_m is steps_m. M are the learners whose messages have arrived by a merge, at
least K of them (`clock/syncer.py` says when). They train on meanwhile, and lose what they did
between their sending and the receipt. All this holds for every fragment of the parameters by
itself, and the fragments' turns are H / P steps apart.

With K = all, no grace, equal speeds and prompt messages it is streaming DiLoCo with a delay of one
update. A learner that is away keeps its parameters and loses the local step that it was at.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from optdyn.base.fields import field
from optdyn.base.trees import Array, Tree
from optdyn.clock import syncer
from optdyn.clock.base import Timeline
from optdyn.clock.network import to_server
from optdyn.core import Batch, Event, Gradient, Info, Params, Rule, Update
from optdyn.methods.method import ClockInputs, Methods
from optdyn.methods.mix.averaging_clock import fragment_bytes
from optdyn.methods.mix.diloco import nesterov
from optdyn.methods.mix.fragments import cut, join
from optdyn.methods.mix.messages import mean_of, size
from optdyn.methods.read import local_steps
from optdyn.methods.read import workers as own
from optdyn.methods.shared_fields import Fragmented, OuterMomentum, Periodic


class Learning(NamedTuple):
    """A local step of learner m, and what follows it of every fragment, (P,)."""

    worker: Array  # int32, m
    receive: Array  # this and the next three as in `syncer.Rounds`
    send: Array
    into: Array
    merge: Array
    merges: Array  # int32, how many merges follow; `merge` is the last
    steps: Array  # float32, w_m
    part: Array  # float32, share of all parameters that travels there and back
    rate: Array  # float32, eta
    momentum: Array  # float32, mu


class DecoupledState(NamedTuple):
    params: Params  # Theta
    outer: tuple[Tree, ...]  # v of each fragment
    workers: own.Table  # x_m; from here on all are tables of the learners
    read: own.Table  # Theta_m
    opt_state: own.Table
    mail: own.Table  # D_m from its sending to its merge, and then Theta, on its way back
    into: jax.Array  # (learners, P) int32, the merge that D_m is for
    steps: jax.Array  # (learners, P) float32, w_m of that D_m

    def moved_to(self, params: Params) -> "DecoupledState":
        """Theta is other parameters, which learners hear of with their next merge."""
        return self._replace(params=params)

    def logged(self) -> dict[str, float]:
        """The distance of learners from their mean, for the log."""
        return own.logged(self.workers)


def decoupled(gradient: Gradient, update: Update, learners: int, fragments: int = 1) -> Rule:
    """Rule of a table of `learners`; `event.choice` is a `Learning`."""
    local, server = local_steps.local_step(gradient, update), nesterov()
    parts = partial(cut, fragments=fragments)

    def init(params: Params) -> DecoupledState:
        every, opt_state = own.table((params, update.init(params)), learners)
        none = jnp.zeros((learners, fragments), jnp.int32)
        mail = jax.tree.map(jnp.zeros_like, every)
        outer = tuple(map(server.init, parts(params)))
        return DecoupledState(
            params, outer, every, every, opt_state, mail, none, none + jnp.float32(0)
        )

    def where(flags: Array, tree: Tree, other: Tree) -> Tree:
        """The fragments of `tree` whose flag is set, (P,), and of `other` the rest."""
        return join(list(map(own.where, flags, parts(tree), parts(other))))

    def step(state: DecoupledState, event: Event, batch: Batch) -> tuple[DecoupledState, Info]:
        c = event.choice
        x, read, opt_state, mail, into, steps = own.row(state[2:], c.worker)
        loss, x, opt_state, _ = local(x, opt_state, event, batch)
        x, read = where(c.receive, mail, x), where(c.receive, mail, read)
        # What is dropped must not take the place of what is merged.
        sent = c.send & (c.into != syncer.DROPPED)
        mail = where(sent, jax.tree.map(jnp.subtract, read, x), mail)
        into, steps = jnp.where(sent, c.into, into), jnp.where(sent, c.steps, steps)
        tables = own.put(state[2:], c.worker, (x, read, opt_state, mail, into, steps))
        after = merged(c, DecoupledState(*state[:2], *tables))
        return after, {"loss": loss, "sent_bytes": 2 * c.part * size(x)}

    def merged(c: Learning, state: DecoupledState) -> DecoupledState:
        """After the merges that follow a local step."""
        each = zip(parts(state.params), state.outer, parts(state.mail), strict=True)
        after = [
            lax.fori_loop(0, c.merges[p], partial(merge, c, state, p), of_fragment)
            for p, of_fragment in enumerate(each)
        ]
        theta, outer, mail = zip(*after, strict=True)
        return state._replace(params=join(theta), outer=outer, mail=join(mail))

    def merge(c: Learning, state: DecoupledState, p: int, n: Array, of_fragment: Tree) -> Tree:
        """Theta, v and the mail of fragment p after merge n, from 0 on, of those that follow."""
        theta, v, mail = of_fragment
        in_M = state.into[:, p] == c.merge[p] - c.merges[p] + 1 + n
        w = in_M * state.steps[:, p]
        delta = jax.tree.map(partial(mean_of, weights=w / jnp.maximum(w.sum(), 1.0)), mail)
        numbers = {"outer_learning_rate": c.rate, "outer_momentum": c.momentum}
        updates, v = server.update(delta, v, theta, **numbers)
        theta = optax.apply_updates(theta, updates)
        return theta, v, jax.vmap(own.where, (0, None, 0))(in_M, theta, mail)

    return Rule(init, step)


@dataclass(frozen=True)
class Decoupled(own.WorkerMethod, Periodic, Fragmented, OuterMomentum, name="decoupled"):
    quorum: int = field(0, "K, learners that a merge needs at least; 0: all of them.", at_least=0)
    grace: float = field(0.0, "Seconds from the message of the K-th to the merge.", at_least=0)

    cluster = (
        *own.WorkerMethod.cluster,
        "latencies",
        "bandwidths",
        "regions",
        "diurnal",
        "presence",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = f"from 1 to config.method.period = {self.period}"
        self.require("fragments", 1 <= self.fragments <= self.period, wanted)
        self.require("delay", self.delay >= 0, "at least 0")
        wanted = f"at most config.method.groups = {self.groups}, or 0 for all"
        self.require("quorum", self.quorum <= self.groups, wanted)

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return decoupled(gradient, update, self.groups, self.fragments)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """Local steps as in `asynchronous`, but no learner waits for a message.

        The staleness is how many merges the fragment that lags most has not seen.
        """
        line, cluster = own.unhindered(self, setting, methods), setting.setup.cluster
        shares = np.array(fragment_bytes(setting._replace(update_bytes=1), self.fragments))
        if (held := setting.held) and held.has("merge"):
            made = syncer.recorded(held, self.fragments, len(line.worker))
        else:
            places = np.arange(self.groups) * cluster.nodes // self.groups
            message = [to_server(cluster, size)[places] for size in shares * setting.update_bytes]
            numbers = self.period, self.delay, self.quorum, self.grace
            made = syncer.rounds(line.worker, line.seconds, np.stack(message, axis=1), *numbers)
        steps, late = syncer.ages(line.worker, made)
        choice = Learning(
            line.worker,
            *made,
            merges=syncer.merges(made.merge),
            steps=steps.astype(np.float32),
            part=((made.send * 0.5 + made.receive * 0.5) @ shares).astype(np.float32),
            rate=np.full(len(steps), self.outer_learning_rate, np.float32),
            momentum=np.full(len(steps), self.outer_momentum, np.float32),
        )
        return line._replace(choice=choice, staleness=late.max(axis=1))
