"""How many operations a second a device can do: dense products of bfloat16, as published.

NVIDIA's and AMD's data sheets (without sparsity), and Google's pages of TPU versions.
"""

import time

import jax
import jax.numpy as jnp

# By a part of `device_kind`; the first that is found counts.
PUBLISHED = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "MI300X": 1307e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v6": 918e12,
}
ROUNDS = 5


def published(device_kind: str) -> float | None:
    """Operations a second, if it is known."""
    return next((peak for part, peak in PUBLISHED.items() if part in device_kind), None)


def product(size: int, dtype: str) -> float:
    """Operations a second of size x size matrices, the best of some rounds."""
    x = jnp.ones((size, size), dtype)
    multiply = jax.jit(lambda x: x @ x)
    jax.block_until_ready(multiply(x))
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        jax.block_until_ready(multiply(x))
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best
