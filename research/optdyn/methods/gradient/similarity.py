"""What the blocks of a network learn: two measurements of a model as it is, in float32.

    cos_j = <g_j, grad_j f> / (|g_j| |grad_j f|)       g_j: local gradient of block j
    W_j = argmin E |y - E y - W' (h_j - E h_j) / s|^2 + lambda |W|^2     s^2 = tr Cov(h_j) / D

cos_j says how nearly a block's local gradient (`local_losses.py`) points where backpropagation
of the model's own loss f would. W_j is a linear probe: its accuracy says how much of the label y,
in one-hot form, can be read off the block's features h_j, of D components.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from optdyn.methods.gradient.local_losses import gradients
from optdyn.problem.costs import Groups
from optdyn.problem.models import base
from optdyn.problem.problem import Examples, Params, Problem

RIDGE = 1e-3  # lambda; of the mean variance of a feature, whatever the features' scale
POSITIONS = 4096  # of a text's positions, this many, evenly spread, are examples of the probe

Cosines = Callable[[Params, Examples], dict[str, jax.Array]]
Probe = Callable[[Params, Examples, Examples], dict[str, jax.Array]]
Scores = Callable[[jax.Array], jax.Array]


def cosines(problem: Problem, groups: Groups, shared: bool = False) -> Cosines:
    """`(params, batch) -> {trunk block: cos_j}`, scalars; 0 where a gradient vanishes."""
    local = gradients(problem, groups, shared)

    def measure(params: Params, batch: Examples) -> dict[str, jax.Array]:
        own, _, _ = local(params, problem.input(batch), batch)
        whole = jax.grad(problem.loss)(params, batch)
        return {name: _cosine(own[name], whole[name]) for name, _ in problem.blocks[:-1]}

    return measure


def _cosine(one: Params, other: Params) -> jax.Array:
    x, y = (ravel_pytree(tree)[0] for tree in (one, other))
    x, y = (v / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny) for v in (x, y))
    return jnp.sum(x * y)


def linear_probe(problem: Problem) -> Probe:
    """`(params, training batch, test batch) -> {trunk block: accuracy of W_j on the test batch}`.

    Fitted on the training batch. Features: images, the mean over height and width, or all of a
    vector; texts, those of a position, whose label is the next symbol.
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


def ridge(x: jax.Array, labels: jax.Array, classes: int) -> Scores:
    """Ridge regression of one-hot labels, (n,), on features, (n, D), in closed form.

    The function returned maps features (m, D) to scores (m, classes).
    """
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
    """(n,), one an image or, of texts, one a chosen position."""
    return _chosen(batch["text"][:, 1:].reshape(-1)) if "text" in batch else batch["label"]


def _pooled(h: jax.Array, batch: Examples) -> jax.Array:
    """Features of a block, (n, D) float32."""
    h = h.astype(jnp.float32)
    if "text" in batch:
        return _chosen(h.reshape(-1, h.shape[-1]))
    return h.mean((1, 2)) if h.ndim == 4 else h.reshape(len(h), -1)


def _chosen(x: jax.Array) -> jax.Array:
    return x[np.linspace(0, len(x) - 1, min(len(x), POSITIONS)).astype(np.int32)]
