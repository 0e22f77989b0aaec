"""Pipelines that are never flushed: every stage has parameters of an age of its own.

    x^s_{t+1} = x^s_t - alpha grad_s f(x^1_{t - tau_1}, ..., x^S_{t - tau_S})      s = 1, ..., S

    stash      tau_s = S - s, forward and backward     PipeDream with weight stashing, 1806.03377
    2bw        tau_s = 1 of all stages                 PipeDream-2BW, 2006.09503
    no_stash   likewise forward, backward at x_t       PipeDream without stashing
    predict    as stash, of parameters predicted for   SpecTrain, 1809.02839; FTPipe
               tau_s updates later

The nodes of the cluster are the stages. This is asynchronous SGD whose blocks have a slot each,
which the clock decides, forward and backward alike. Each block has an optimizer of its own, with a
staleness of its own. What a stage computes with is in `never_flushed.py`.

Here one device computes all stages in turn; `methods/read/never_flushed.py` has them on
devices of their own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.base.trees import Array, Json
from optdyn.clock import pipeline
from optdyn.clock.base import Timeline
from optdyn.core import Batch, Event, Gradient, Info, Params, Rule, Update, whole
from optdyn.core.snapshots import SnapshotState
from optdyn.devices.layout import Layout, mesh
from optdyn.methods.gradient import local
from optdyn.methods.method import ClockInputs, Gradients, Methods, ModelInfo, Reads
from optdyn.methods.read.asynchronous import asynchronous
from optdyn.methods.read.never_flushed import distance, never_flushed, through
from optdyn.methods.setup import Setup
from optdyn.methods.shared_fields import MicroBatches
from optdyn.problem import models
from optdyn.problem.problem import Problem

KINDS = ("stash", "2bw", "no_stash", "predict")


class Stages(NamedTuple):
    """The version that each block is read at and that the new one is, (blocks,) int32 slots."""

    read: Array
    write: Array
    before: Array | None = None  # the version before that, which predictions ask for
    newest: Array | None = None  # x_t, whose derivatives `never_flushed.through` takes
    ahead: Array | None = None  # by how much parameters are predicted to move
    seen: Params | None = None


def cuts(stages: int, blocks: int) -> list[int]:
    """The first block of every stage."""
    return [(blocks - 1) * stage // stages for stage in range(stages)]


def delays(kind: str, stages: int, blocks: int) -> np.ndarray:
    """(blocks,) int32, tau of every block; the last is where the block before it is."""
    trunk = np.minimum(np.arange(blocks), max(blocks - 2, 0))
    behind = stages - np.searchsorted(cuts(stages, blocks), trunk, side="right")
    return np.minimum(behind.max(), 1) + 0 * behind if kind == "2bw" else behind


def stale_stages(kind: str, stages: int, blocks: int, seconds: np.ndarray) -> Timeline:
    """Updates that end at these `seconds`, (steps,), each block with slots in a ring."""
    late, steps = delays(kind, stages, blocks), len(seconds)
    t = np.arange(steps)[:, None]
    staleness = np.minimum(late, t).astype(np.int32)
    slots = int(late.max()) + 1 + (kind == "predict")
    versions = {"read": t - staleness, "write": t + 1 + 0 * late}
    if kind == "predict":
        versions["before"] = np.maximum(t - staleness - 1, 0)
    choice = Stages(**{name: (v % slots).astype(np.int32) for name, v in versions.items()})
    return Timeline(np.zeros(steps, np.int32), staleness, seconds, slots, choice)


def late(problem: Problem) -> Gradient:
    """The gradient at what was read; by `reading` also at the `newest`, or further `ahead`."""
    of = whole(problem.loss)

    def loss(new: Params, old: Params, batch: Batch) -> jax.Array:
        outputs = through(problem.blocks, new, old, problem.input(batch))
        return jnp.mean(problem.losses(outputs, batch))

    def gradient(params: Params, event: Event, batch: Batch) -> tuple[jax.Array, Params]:
        newest, further = event.choice.newest, event.choice.ahead
        if newest is not None:
            return jax.value_and_grad(loss)(newest, params, batch)
        if further is not None:
            params = jax.tree.map(jnp.add, params, further)
        return of(params, event, batch)

    return gradient


def reading(
    gradient: Gradient, update: Update, kind: str, slots: int, servers: Mapping[str, int]
) -> Rule:
    """The rule of `asynchronous.py`, a server a block; `event.choice` is of `Stages`."""
    inner = asynchronous(gradient, update, slots, servers=servers)

    def step(state: SnapshotState, event: Event, batch: Batch) -> tuple[SnapshotState, Info]:
        choice = event.choice
        if kind == "no_stash":
            choice = choice._replace(newest=state.params)
        if kind == "predict":
            choice = choice._replace(ahead=ahead(state, event))
        return inner.step(state, event._replace(choice=choice), batch)

    def ahead(state: SnapshotState, event: Event) -> Params:
        factor = distance(event.hyper["momentum"], event.staleness)
        read, before = (
            state.at({name: slots[block] for name, block in servers.items()})
            for slots in (event.choice.read, event.choice.before)
        )
        return {
            name: jax.tree.map(lambda x, old, b=b: factor[b] * (x - old), read[name], before[name])
            for name, b in servers.items()
        }

    return Rule(inner.init, step)


def work(setup: Setup, network: ModelInfo) -> pipeline.StageWork:
    """The work of backpropagation on the stages."""
    return local.costs(local.Local(variant="backprop"), setup, network)[1]


@dataclass(frozen=True)
class StalePipeline(Gradients, Reads, MicroBatches, name="stale_pipeline"):
    pipeline: str = field(
        "stash",
        "Which parameters stages use, 'stash', '2bw', 'no_stash' or 'predict'.",
        one_of=KINDS,
        static=True,
    )

    pieces = ("gradient", "read")
    staged = True
    laws = ("constant",)
    cluster = ("latencies", "bandwidths")

    def gradient(self, problem: Problem) -> Gradient:
        return late(problem)

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        assert servers
        return reading(gradient, update, self.pipeline, slots, servers)

    def servers(self, problem: Problem) -> dict[str, int]:
        """Every block is by itself."""
        return {name: place for place, (name, _) in enumerate(problem.blocks)}

    def parts(self, stages: int) -> int:
        return self.micro_batches if self.pipeline == "2bw" else 1

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """One forward and one backward in turn, without a flush (`clock/pipeline.py`).

        Of 2bw an update is of `micro_batches`, of the others of one batch as a whole.
        """
        setup = setting.setup
        blocks, stages = len(setting.model.problem.blocks), setup.cluster.nodes
        size = {"steps": setup.steps, "batch_size": setup.batch_size}
        own = work(setup, setting.model)
        seconds = pipeline.never_flushed(setup.cluster, self.parts(stages), own, **size)
        return stale_stages(self.pipeline, stages, blocks, seconds)

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        cluster = setup.cluster
        blocks = len(models.make(setup.model, classes=2)) - 1
        said = (
            f"stages of a pipeline, must be from 1 to the model's {blocks} blocks before its last"
        )
        yield Join("cluster.nodes", not 1 <= cluster.nodes <= blocks, said)
        light = self.pipeline == "predict" and setup.optimizer.name != "sgd"
        yield Join("optimizer.name", light, "'predict' is of heavy ball, must be 'sgd'")
        few = self.pipeline == "2bw" and self.micro_batches < cluster.nodes
        said = f"must be at least the {cluster.nodes} stages, or '2bw' is later than by one update"
        yield Join("method.micro_batches", few, said)
        parts = cluster.devices_per_node * self.parts(cluster.nodes)
        said = f"must be a multiple of {parts} (config.cluster.devices_per_node, of '2bw' x config."
        yield Join("batch_size", setup.batch_size % parts, f"{said}method.micro_batches)")

    def report(self, setup: Setup, network: ModelInfo) -> Json:
        """Bytes of an update between stages, activations forward and their gradients back."""
        return {"communicated_bytes": int(2 * work(setup, network).sent.sum())}

    def layout(
        self,
        problem: Problem,
        optimizer: optax.GradientTransformationExtraArgs,
        nodes: int,
        devices: int,
    ) -> "Layout":
        """A stage a device, or several that share its batches."""
        on = mesh(("stage", "data"), (nodes, devices))
        blocks = cuts(nodes, len(problem.blocks))
        return never_flushed(problem, optimizer, self.pipeline, blocks, on, self.parts(nodes))
