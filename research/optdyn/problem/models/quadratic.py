"""Noisy quadratic: a bowl whose examples disagree about where its bottom is.

    f(x) = E 1/2 (x - xi)' H (x - xi),     H = diag(h),  h from 1/kappa to 1,  E xi = 0

so the gradient of a batch is H (x - mean xi). With noise 0 every batch has the gradient H x.

Then all parts of the data have one curvature, and the mean of nodes that train apart and average is
synchronous SGD, however seldom they do. With a spread examples have H_e = H diag(s), E s = 1 and
E s xi = 0, so the bowl is the same and its parts are not.
"""

from dataclasses import dataclass

import flax.linen as nn
import jax
import numpy as np

from optdyn.base.fields import field
from optdyn.base.ranges import WIDE
from optdyn.problem.models.base import Blocks, Model


class Displacement(nn.Module):
    """(B, dimension) optima of the examples -> (B, dimension) x - xi; x starts at all ones."""

    dimension: int

    @nn.compact
    def __call__(self, xi: jax.Array) -> jax.Array:
        return self.param("x", nn.initializers.ones, (self.dimension,)) - xi


def quadratic(dimension: int, classes: int = 0) -> Blocks:
    """One block, `x`; it has no classes."""
    return (("x", Displacement(dimension)),)


def curvatures(dimension: int, condition: float) -> np.ndarray:
    """h, (dimension,), geometrically spaced from 1 / condition to 1."""
    return np.geomspace(1 / condition, 1, dimension).astype(np.float32)


def optima(rng: np.random.Generator, examples: int, dimension: int, noise: float) -> np.ndarray:
    """xi, (examples, dimension): standard deviation `noise`, mean exactly zero over the set."""
    xi = noise * rng.standard_normal((examples, dimension))
    return (xi - xi.mean(axis=0)).astype(np.float32)


def factors(rng: np.random.Generator, examples: int, dimension: int, spread: float) -> np.ndarray:
    """s, (examples, dimension), of gamma laws: mean 1 over the set, standard deviation `spread`."""
    s = rng.gamma(spread**-2, spread**2, (examples, dimension))
    return (s / s.mean(axis=0)).astype(np.float32)


def centred(xi: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The optima moved so that the bottom of the whole bowl is 0, E s xi = 0."""
    weighted = np.mean(s.astype(np.float64) * xi, axis=0) / s.mean(axis=0, dtype=np.float64)
    return (xi - weighted).astype(np.float32)


@dataclass(frozen=True)
class Quadratic(Model, name="quadratic"):
    """Noisy quadratic: a bowl whose examples disagree about where its bottom is."""

    dimension: int = field(16, "Its dimension.", **WIDE)
    condition: float = field(10.0, "Largest over smallest curvature; the largest is 1.", at_least=1)
    noise: float = field(0.0, "Standard deviation of an example's optimum.", at_least=0)
    spread: float = field(
        0.0, "Standard deviation of an example's curvatures, over their mean.",
        at_least=0, at_most=10,
    )  # fmt: skip

    def blocks_for(self, classes: int) -> Blocks:
        return quadratic(self.dimension, classes)
