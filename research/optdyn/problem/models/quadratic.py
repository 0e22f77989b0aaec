"""Noisy quadratic: examples with different minima of a quadratic loss.

    f(x) = E 1/2 (x - xi)' H (x - xi),     H = diag(h),  h from 1/kappa to 1,  E xi = 0

so the gradient of a batch is H (x - mean xi). With noise 0 all batches have the gradient H x.

All examples have one curvature, so local SGD with averaging is synchronous SGD with any period.
With a spread examples have H_e = H diag(s), s of gamma laws, E s = 1 and E s xi = 0: f is
the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base import seeds
from optdyn.base.fields import field
from optdyn.base.ranges import WIDE
from optdyn.problem.data.arrays import Dataset
from optdyn.problem.models.base import Model, Networks


class Displacement(nn.Module):
    """(B, dimension) minima of the examples -> (B, dimension) x - xi; x starts at all ones."""

    dimension: int

    @nn.compact
    def __call__(self, xi: jax.Array) -> jax.Array:
        return self.param("x", nn.initializers.ones, (self.dimension,)) - xi


@dataclass(frozen=True)
class Quadratic(Model, name="quadratic"):
    """Noisy quadratic: examples with different minima of a quadratic loss."""

    dimension: int = field(16, "Dimension.", **WIDE)
    condition: float = field(10.0, "Largest over smallest curvature; the largest is 1.", at_least=1)
    noise: float = field(0.0, "Standard deviation of an example's minimum.", at_least=0)
    spread: float = field(
        0.0, "Standard deviation of an example's curvatures, over their mean.",
        at_least=0, at_most=10,
    )  # fmt: skip

    def blocks_for(self, classes: int) -> Networks:
        return (("x", Displacement(self.dimension)),)

    def losses(self, displacement: jax.Array, batch: Mapping[str, jax.Array]) -> jax.Array:
        h = jnp.asarray(curvatures(self.dimension, self.condition))
        h = h * batch["curvature"] if "curvature" in batch else h
        return jnp.sum(h * displacement**2, -1) / 2

    def dataset(self, examples: int, seed: int) -> Dataset:
        """Returns the data set that a seed draws, with one noiseless example to test on."""
        rng = seeds.generator(seed, "quadratic")
        count = examples if self.noise or self.spread else 1
        train = {"optimum": optima(rng, count, self.dimension, self.noise)}
        test = {"optimum": np.zeros((1, self.dimension), np.float32)}
        if self.spread:
            s = rng.gamma(self.spread**-2, self.spread**2, (count, self.dimension))
            s = (s / s.mean(axis=0)).astype(np.float32)
            xi = train["optimum"]
            shift = np.mean(s.astype(np.float64) * xi, axis=0) / s.mean(axis=0, dtype=np.float64)
            train = {"optimum": (xi - shift).astype(np.float32), "curvature": s}
            test |= {"curvature": np.ones_like(test["optimum"])}
        return Dataset(train, test, 0)


def curvatures(dimension: int, condition: float) -> np.ndarray:
    """Returns h, geometrically spaced from 1 / condition to 1, (dimension,)."""
    return np.geomspace(1 / condition, 1, dimension).astype(np.float32)


def optima(rng: np.random.Generator, examples: int, dimension: int, noise: float) -> np.ndarray:
    """Returns xi with standard deviation `noise` and mean exactly 0, (examples, dimension)."""
    xi = noise * rng.standard_normal((examples, dimension))
    return (xi - xi.mean(axis=0)).astype(np.float32)
