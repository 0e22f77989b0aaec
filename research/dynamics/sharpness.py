"""Sharpness: the largest eigenvalue of the Hessian H of the training loss, by power iteration.

    v <- H v / |H v|,   lambda = v' H v          H v = d/de grad f(x + e v) at e = 0

Gradient descent on a quadratic is stable for rates below 2 / lambda. The eigenvalue found is the
largest in size; of a loss in training it is the largest one.
"""

import jax
import jax.numpy as jnp
import optax

from optdyn.problem import Examples, Params, Problem

ITERATIONS = 20


def sharpness(
    problem: Problem, params: Params, examples: Examples, iterations: int = ITERATIONS
) -> jax.Array:
    """lambda, a scalar, of the mean loss of all examples; from below, after so many iterations.

    It starts from the gradient, which along a training run lies mostly in the sharpest directions.
    """

    def hessian(v: Params) -> Params:
        return jax.jvp(lambda x: jax.grad(problem.loss)(x, examples), (params,), (v,))[1]

    def unit(v: Params) -> Params:
        return optax.tree.scale(1 / jnp.maximum(optax.tree.norm(v), jnp.finfo(jnp.float32).tiny), v)

    def iterate(_: int, v: Params) -> Params:
        return unit(hessian(v))

    start = unit(jax.grad(problem.loss)(params, examples))
    v = jax.lax.fori_loop(0, iterations, iterate, start)
    return optax.tree.vdot(v, hessian(v))
