"""Gradient noise scale (arXiv 1812.06162, section 2.2 and appendix A.1).

    B_simple = tr(Sigma) / |G|^2       G = grad f(x),  Sigma = Cov of one example's gradient

Below it a larger batch saves as many updates as it has examples; above it, none. Unbiased from the
squared norms of gradients of two batch sizes b < n, as E |G_b|^2 = |G|^2 + tr(Sigma) / b:

    |G|^2     = (n |G_n|^2 - b |G_b|^2) / (n - b)
    tr(Sigma) = (|G_b|^2 - |G_n|^2) / (1/b - 1/n)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from optdyn.problem import Examples, Params, Problem


class Moments(NamedTuple):
    """A gradient's moments at some parameters; both unbiased, so |G|^2 may be below zero."""

    square: jax.Array  # |G|^2
    trace: jax.Array  # tr(Sigma), of one example


def moments(problem: Problem, small: int, params: Params, examples: Examples) -> Moments:
    """From all n examples, and from each of the n // small batches of `small` that they make.

    Raises ValueError unless there are at least two such batches.
    """
    n = len(next(iter(examples.values())))
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
    return Moments(whole - trace / large, trace)
