"""Measures of the parameters at log points: `config.probes`.

noise_scale: the gradient noise scale (arXiv 1812.06162, section 2.2 and appendix A.1), below which
a larger batch saves as many updates as it has examples. Unbiased from gradients of two batch sizes
b < n:

    B_simple  = tr(Sigma) / |G|^2      G = grad f(x),  Sigma = Cov of one example's gradient
    |G|^2     = (n |G_n|^2 - b |G_b|^2) / (n - b)
    tr(Sigma) = (|G_b|^2 - |G_n|^2) / (1/b - 1/n)

sharpness: the largest eigenvalue of the Hessian H of the training loss, by power iteration

    v <- H v / |H v|,   lambda = v' H v          H v = d/de grad f(x + e v) at e = 0

gradient_similarity: how alike the gradients are of P replicas that have drifted apart

    1 / (P (P - 1)) sum over p != q of cos(grad f(x_p), grad f(x_q))

mean_loss: the loss of the mean of those replicas' parameters
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from optdyn.base.trees import examples_in, head
from optdyn.problem.problem import Examples, Params, Problem

ITERATIONS = 20
SMALL = 8  # examples: the smaller batch of the noise scale
CURVED = 256  # examples of the sharpness and the similarity, at most

Found = dict[str, jax.Array]
# (problem, params, those of all nodes, training examples) -> what is logged
Measure = Callable[[Problem, Params, Params, Examples], Found]


class GradientMoments(NamedTuple):
    """A gradient's moments at some parameters; both unbiased, so |G|^2 may be below zero."""

    square: jax.Array  # |G|^2
    trace: jax.Array  # tr(Sigma), of one example


def moments(problem: Problem, small: int, params: Params, examples: Examples) -> GradientMoments:
    """Returns moments from n examples and their n // small batches. Raises ValueError below two."""
    n = examples_in(examples)
    if n < 2 * small:
        raise ValueError(f"{n} examples: must be at least two batches of {small}")
    count = n // small
    batches = {
        k: v[: count * small].reshape(count, small, *v.shape[1:]) for k, v in examples.items()
    }

    def add(total: Params, batch: Examples) -> tuple[Params, jax.Array]:
        gradient = jax.grad(problem.loss)(params, batch)
        return jax.tree.map(jnp.add, total, gradient), optax.tree.norm(gradient, squared=True)

    total, squares = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), batches)
    whole, part = optax.tree.norm(total, squared=True) / count**2, squares.mean()
    large = count * small
    trace = (part - whole) / (1 / small - 1 / large)
    return GradientMoments(whole - trace / large, trace)


def sharpness(
    problem: Problem, params: Params, examples: Examples, iterations: int = ITERATIONS
) -> jax.Array:
    """Returns lambda of the mean loss of all examples, from below, after so many iterations."""

    def hessian(v: Params) -> Params:
        return jax.jvp(lambda x: jax.grad(problem.loss)(x, examples), (params,), (v,))[1]

    start = _unit(jax.grad(problem.loss)(params, examples))
    v = jax.lax.fori_loop(0, iterations, lambda _, v: _unit(hessian(v)), start)
    return optax.tree.vdot(v, hessian(v))


def _unit(v: Params) -> Params:
    return optax.tree.scale(1 / jnp.maximum(optax.tree.norm(v), jnp.finfo(jnp.float32).tiny), v)


def alignment(problem: Problem, replicas: Params, examples: Examples) -> jax.Array:
    """Returns the mean cosine of P replicas' gradients, leaves (P, ...); NaN of one replica."""
    gradient = jax.grad(problem.loss)
    directions = jax.lax.map(lambda params: _unit(gradient(params, examples)), replicas)
    p = len(jax.tree.leaves(directions)[0])
    total = optax.tree.norm(jax.tree.map(lambda leaf: leaf.sum(axis=0), directions), squared=True)
    return (total - p) / jnp.where(p > 1, p * (p - 1), jnp.nan)


def noise_of(problem: Problem, params: Params, _: Params, examples: Examples) -> Found:
    small = min(SMALL, len(jax.tree.leaves(examples)[0]) // 2)
    found = moments(problem, small, params, examples)
    named = {"gradient_square": found.square, "gradient_trace": found.trace}
    return named | {"noise_scale": found.trace / found.square}


def sharpness_of(problem: Problem, params: Params, _: Params, examples: Examples) -> Found:
    return {"sharpness": sharpness(problem, params, head(examples, CURVED))}


def similarity_of(problem: Problem, _: Params, replicas: Params, examples: Examples) -> Found:
    return {"gradient_similarity": alignment(problem, replicas, head(examples, CURVED))}


def mean_of(problem: Problem, _: Params, replicas: Params, examples: Examples) -> Found:
    mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), replicas)
    return {"mean_loss": problem.loss(mean, examples)}


PROBES: Mapping[str, Measure] = {
    "noise_scale": noise_of,
    "sharpness": sharpness_of,
    "similarity": similarity_of,
    "mean": mean_of,
}
