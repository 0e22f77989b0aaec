"""What log points can measure of the parameters they find: `config.probes`.

Logged are

    gradient_square, gradient_trace   |grad f|^2 and tr Cov of one example's gradient, unbiased
    noise_scale                       their ratio, examples: a larger batch saves little beyond it
    sharpness                         largest eigenvalue of the Hessian of f
    gradient_similarity               mean cosine of the gradients of nodes that drifted apart
    mean_loss                         loss of the mean of those nodes' parameters
"""

from collections.abc import Callable, Mapping

import jax

from optdyn.dynamics.alignment import alignment
from optdyn.dynamics.noise import moments
from optdyn.dynamics.sharpness import sharpness
from optdyn.problem import Examples, Params, Problem

SMALL = 8  # examples: the smaller batch of the noise scale
CURVED = 256  # examples of the sharpness and the similarity, at most

Found = dict[str, jax.Array]
# (problem, params, those of all nodes, training examples) -> what is logged
Measure = Callable[[Problem, Params, Params, Examples], Found]


def noise_of(problem: Problem, params: Params, _: Params, examples: Examples) -> Found:
    """Unbiased, so a small |G|^2 may come out below zero, and the ratio with it."""
    small = min(SMALL, len(jax.tree.leaves(examples)[0]) // 2)
    found = moments(problem, small, params, examples)
    named = {"gradient_square": found.square, "gradient_trace": found.trace}
    return named | {"noise_scale": found.trace / found.square}


def sharpness_of(problem: Problem, params: Params, _: Params, examples: Examples) -> Found:
    return {"sharpness": sharpness(problem, params, _some(examples))}


def similarity_of(problem: Problem, _: Params, replicas: Params, examples: Examples) -> Found:
    return {"gradient_similarity": alignment(problem, replicas, _some(examples))}


def mean_of(problem: Problem, _: Params, replicas: Params, examples: Examples) -> Found:
    mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), replicas)
    return {"mean_loss": problem.loss(mean, examples)}


def _some(examples: Examples) -> Examples:
    return {name: leaf[:CURVED] for name, leaf in examples.items()}


PROBES: Mapping[str, Measure] = {
    "noise_scale": noise_of,
    "sharpness": sharpness_of,
    "similarity": similarity_of,
    "mean": mean_of,
}
