"""Local parallelism (arXiv 2012.03837): groups of blocks learn from losses of their own.

Two measurements, in float32, say what the blocks of a network learn:

    cos_j = <g_j, grad_j f> / (|g_j| |grad_j f|)       g_j: local gradient of block j
    W_j = argmin E |y - E y - W' (h_j - E h_j) / s|^2 + lambda |W|^2     s^2 = tr Cov(h_j) / D

cos_j compares a block's local gradient with backpropagation of the model's own loss f. W_j is a
linear probe of the label y, in one-hot form, from the block's features h_j, of D components.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from optdyn.base.errors import ConfigError, Join
from optdyn.base.fields import field
from optdyn.base.trees import Json, Tree
from optdyn.clock import pipeline
from optdyn.clock.meetings import equal_part_seconds
from optdyn.clock.timeline import Timeline
from optdyn.core import Batch, Event, Gradient, Params
from optdyn.devices.layout import Layout, mesh
from optdyn.methods.local_losses import VARIANTS, gradients, groups, heads
from optdyn.methods.method import ClockInputs, Gradients, MethodStack, MicroBatches, ModelInfo
from optdyn.methods.setup import Setup
from optdyn.methods.stages import stages
from optdyn.problem import models
from optdyn.problem.costs import Groups, UpdateCost, block_costs, stage_work, update_cost
from optdyn.problem.models import base
from optdyn.problem.models.base import Blocks
from optdyn.problem.problem import Examples, Problem

RIDGE = 1e-3  # lambda; of the mean variance of a feature, whatever the features' scale
POSITIONS = 4096  # of a text's positions, this many, evenly spread, are examples of the probe

Measure = Callable[..., dict[str, jax.Array]]  # of (params, batch, ...)


@dataclass(frozen=True)
class Local(Gradients, MicroBatches, name="local"):
    """Local parallelism (arXiv 2012.03837): groups of blocks learn from losses of their own.

        grad theta_j = sum over the groups (a, b) with a <= j < b of d L_ab / d theta_j

    L_ab is the loss of a head at the end of the group (`local_losses.py`). Blocks are updated one
    by one, so with several servers (`asynchronous.py`) none waits for another. The seconds are
    those of the stages that the blocks are spread over (`clock/pipeline.py`).
    """

    variant: str = field(
        "greedy",
        "Groups of blocks: 'greedy', 'overlapping', 'chunked' or 'backprop'.",
        one_of=VARIANTS,
        static=True,
    )
    window: int = field(2, "overlapping: blocks of a group.", at_least=1, static=True)
    chunks: int = field(2, "chunked: number of groups.", at_least=1, static=True)
    shared_heads: bool = field(
        False, "Whether every head is the model's own last block.", static=True
    )
    probes: bool = field(
        False,
        "Whether the log has gradient cosines and linear probes of the blocks.",
        static=True,
    )

    laws = ("constant",)
    cluster = ("latencies", "bandwidths")

    def over(self, blocks: int) -> Groups:
        """Returns the groups over so many trunk blocks. Raises `ValueError`."""
        return groups(self.variant, blocks, self.window, self.chunks)

    def gradient(self, problem: Problem) -> Gradient:
        return local(problem, self.over(len(problem.blocks) - 1), self.shared_heads)

    def servers(self, problem: Problem) -> dict[str, int]:
        names = [name for name, _ in problem.blocks]
        servers = {name: place for place, name in enumerate(names)}
        return servers | {base.head_of(name): servers[name] for name in problem.heads}

    def heads(self, blocks: Blocks) -> Sequence[str]:
        return heads(blocks, self.over(len(blocks) - 1), self.shared_heads)

    def parts(self, stages: int) -> int:
        return self.micro_batches if self.variant == "backprop" and stages > 1 else 1

    def relative_cost(self, setup: Setup, model_info: ModelInfo) -> float:
        """Returns the operations of an update on one device over those of backpropagation."""
        _, work = costs(self, setup.with_({"cluster.nodes": 1}), model_info)
        return float(work.forward.sum() + work.backward.sum())

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        setup = inputs.setup
        _, work = costs(self, setup, inputs.model)
        filled = self.variant == "backprop" and setup.cluster.nodes > 1
        size = {"steps": setup.steps, "batch_size": setup.batch_size}
        return pipeline.pipeline_timeline(setup.cluster, self.micro_batches * filled, work, **size)

    def work(self, inputs: ClockInputs, draws: np.ndarray) -> tuple[np.ndarray, tuple[()]]:
        """Returns the seconds of each device that computes all blocks, (steps, nodes, k)."""
        setup = inputs.setup
        means = equal_part_seconds(setup.cluster, setup.batch_size)
        return draws * means * self.relative_cost(setup, inputs.model), ()

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        cluster = setup.cluster
        blocks = len(models.make(setup.model, classes=2)) - 1
        try:
            trunk_groups = self.over(blocks)
        except ValueError as error:
            yield Join("method", True, str(error))
            return
        if methods.read or methods.mix:  # each device has all blocks
            return
        reason = f"must divide the model's {blocks} blocks"
        yield Join("cluster.nodes", blocks % cluster.nodes, reason)
        shared = self.shared_heads and cluster.nodes > 1
        yield Join("method.shared_heads", shared, "must be False on several nodes")
        parts = cluster.devices_per_node * self.parts(cluster.nodes)
        reason = (
            f"must be a multiple of {parts} (config.cluster.devices_per_node, with backprop on "
        )
        reason += "several nodes x method.micro_batches)"
        yield Join("batch_size", setup.batch_size % parts, reason)
        cuts = {blocks * i // cluster.nodes for i in range(cluster.nodes + 1)}
        crossing = [(a, b) for a, b in trunk_groups if any(a < cut < b for cut in cuts)]
        for a, b in crossing[: self.variant != "backprop"]:
            reason = f"blocks {a} to {b - 1} learn together and must be on one node; on several, "
            reason += "variants are 'greedy', 'backprop', or 'chunked' with chunks that end where "
            yield Join("cluster.nodes", True, f"{reason}nodes do")

    def report(self, setup: Setup, model_info: ModelInfo) -> Json:
        """Returns operations, bytes and memory of an update. Raises `ConfigError`."""
        problem, params, examples = model_info
        if self.shared_heads:
            through = partial(base.activations, problem.blocks)
            hs = jax.eval_shape(through, params, problem.input(examples))
            if any(hs[end].shape != hs[-2].shape for _, end in self.over(len(hs) - 2)):
                raise ConfigError(
                    "config.method.shared_heads: the groups of this model's blocks end in "
                    "outputs of different shapes, which one head cannot take"
                )
        cost, _ = costs(self, setup, model_info)
        return {
            "total_flops": cost.total,
            "sequential_flops": cost.sequential,
            "latency_flops": cost.latency,
            "communicated_bytes": cost.communicated_bytes,
            "group_memory_bytes": list(cost.memory),
        }

    def layout(
        self,
        problem: Problem,
        optimizer: optax.GradientTransformationExtraArgs,
        nodes: int,
        devices: int,
    ) -> Layout:
        devices_mesh = mesh(("stage", "data"), (nodes, devices))
        trunk_groups = self.over(len(problem.blocks) - 1)
        return stages(problem, optimizer, trunk_groups, devices_mesh, self.parts(nodes))

    def extra_metrics(self, problem: Problem) -> Measure | None:
        if not self.probes:
            return None
        trunk_groups = self.over(len(problem.blocks) - 1)
        cosine = cosines(problem, trunk_groups, self.shared_heads)
        linear = linear_probe(problem)

        def measure(params: Params, train: Batch, test: Batch) -> dict[str, jax.Array]:
            values = {
                "cosine": cosine(params, train),
                "probe_accuracy": linear(params, train, test),
            }
            return {
                f"{name}_{block}": value
                for name, by_block in values.items()
                for block, value in by_block.items()
            }

        return measure


def local(problem: Problem, groups: Groups, shared: bool = False) -> Gradient:
    """Returns the sum of the groups' gradients; its loss is that of the last group, the model's.

    Shared heads need trunk blocks whose outputs have the shape of the last one's.
    """
    local_gradients = gradients(problem, groups, shared)

    def gradient(params: Params, event: Event, batch: Batch) -> tuple[jax.Array, Params]:
        grads, _, value = local_gradients(params, problem.input(batch), batch)
        return value, grads

    return gradient


def costs(
    method: "Local", setup: Setup, model_info: ModelInfo
) -> tuple[UpdateCost, pipeline.StageWork]:
    """Returns the cost of an update, in all and on the cluster's stages."""
    problem, params, examples = model_info

    def shape(leaf: Tree) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((setup.batch_size, *leaf.shape[1:]), leaf.dtype)

    blocks = block_costs(problem, params, jax.tree.map(shape, dict(examples)))
    trunk_groups, stages = method.over(len(blocks.trunk)), setup.cluster.nodes
    cuts = [len(blocks.trunk) * i // stages for i in range(stages)]
    placed = cuts if stages > 1 else ()  # on one node as if every group had a device
    return update_cost(blocks, trunk_groups, method.shared_heads, placed), stage_work(
        blocks, trunk_groups, cuts
    )


def cosines(problem: Problem, groups: Groups, shared: bool = False) -> Measure:
    """Returns `(params, batch) -> {trunk block: cos_j}`; 0 where a gradient vanishes."""
    local_gradients = gradients(problem, groups, shared)

    def measure(params: Params, batch: Examples) -> dict[str, jax.Array]:
        local_grads, _, _ = local_gradients(params, problem.input(batch), batch)
        full_grads = jax.grad(problem.loss)(params, batch)
        return {
            name: _cosine(local_grads[name], full_grads[name]) for name, _ in problem.blocks[:-1]
        }

    return measure


def _cosine(one: Params, other: Params) -> jax.Array:
    x, y = (ravel_pytree(tree)[0] for tree in (one, other))
    x, y = (v / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny) for v in (x, y))
    return jnp.sum(x * y)


def linear_probe(problem: Problem) -> Measure:
    """Returns `(params, train, test) -> {trunk block: accuracy of W_j on the test batch}`.

    W_j is fitted on the training batch. Features are means over height and width for images, all
    numbers of vectors, and for texts those of a position, whose label is the next symbol.
    """

    def measure(params: Params, train: Examples, test: Examples) -> dict[str, jax.Array]:
        def features(batch: Examples) -> list[jax.Array]:
            return base.activations(problem.blocks, params, problem.input(batch))[1:]

        (*fitted, outputs), (*tested, _) = features(train), features(test)
        labels = _labels(test)
        accuracy = {}
        for (name, _), h, g in zip(problem.blocks[:-1], fitted, tested, strict=True):
            scores = ridge(_pooled(h, train), _labels(train), outputs.shape[-1])
            accuracy[name] = jnp.mean(scores(_pooled(g, test)).argmax(-1) == labels)
        return accuracy

    return measure


def ridge(x: jax.Array, labels: jax.Array, classes: int) -> Callable[[jax.Array], jax.Array]:
    """Returns features (m, D) -> scores (m, classes), by ridge regression on `x` (n, D)."""
    mean = x.mean(0)
    scale = jnp.maximum(jnp.sqrt(x.var(0).mean()), jnp.finfo(x.dtype).tiny)
    y = jax.nn.one_hot(labels, classes)
    x = (x - mean) / scale
    covariance = _product(x.T, x) / len(x) + RIDGE * jnp.eye(x.shape[1])
    w = jax.scipy.linalg.solve(covariance, _product(x.T, y) / len(x), assume_a="pos")
    return lambda x: _product((x - mean) / scale, w) + y.mean(0)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision="highest")  # by default accelerators round float32 factors


def _labels(batch: Examples) -> jax.Array:
    """Returns one label per image, or per chosen position of texts, (n,)."""
    return _chosen(batch["text"][:, 1:].reshape(-1)) if "text" in batch else batch["label"]


def _pooled(h: jax.Array, batch: Examples) -> jax.Array:
    """Returns the features of a block, (n, D) float32."""
    h = h.astype(jnp.float32)
    if "text" in batch:
        return _chosen(h.reshape(-1, h.shape[-1]))
    return h.mean((1, 2)) if h.ndim == 4 else h.reshape(len(h), -1)


def _chosen(x: jax.Array) -> jax.Array:
    return x[np.linspace(0, len(x) - 1, min(len(x), POSITIONS)).astype(np.int32)]
