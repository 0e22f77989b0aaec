"""How alike the gradients are of replicas that have drifted apart.

    1 / (P (P - 1)) sum over p != q of cos(grad f(x_p), grad f(x_q))

on the same examples: 1 where all replicas agree where to go, 0 where they have nothing in common.
"""

import jax
import jax.numpy as jnp
import optax

from optdyn.problem import Examples, Params, Problem


def alignment(problem: Problem, replicas: Params, examples: Examples) -> jax.Array:
    """A scalar, of the parameters of P replicas, leaves (P, ...); NaN of one replica."""

    def direction(params: Params) -> Params:
        gradient = jax.grad(problem.loss)(params, examples)
        length = optax.tree.norm(gradient)
        return optax.tree.scale(1 / jnp.maximum(length, jnp.finfo(jnp.float32).tiny), gradient)

    each = jax.lax.map(direction, replicas)
    p = len(jax.tree.leaves(each)[0])
    total = optax.tree.norm(jax.tree.map(lambda leaf: leaf.sum(axis=0), each), squared=True)
    return (total - p) / jnp.where(p > 1, p * (p - 1), jnp.nan)
