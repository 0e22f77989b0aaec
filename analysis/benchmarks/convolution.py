"""Time convolutions by lowering and layer shape: `python -m analysis.benchmarks.convolution`.

    xla, gemm, fft, winograd   the lowering, called by itself, over XLA's own called by itself
    ..., in a loop             inside `lax.scan`, as the trainer runs it, over the same
    gemm, b_p = 1, 2, ...      the batch lowered b_p images at a time, over the whole batch at once

Omnivore (arXiv 1606.04487) gains at least 5.5 from the whole batch over systems with b_p = 1.

Seconds are those of the result and of both gradients, in float32; MiB those of the workspace, by
the compiler's own account. Layers are of LeNet-5, of Caffe's small network for CIFAR, of the stages
of a ResNet for CIFAR, and of AlexNet in one piece. Every round runs all programs of a layer once,
in random order; ratios have their medians and quartiles.
"""

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import lax

from analysis.benchmarks.record import publish
from analysis.benchmarks.step_time import Timer, in_turn, spread
from optdyn.problem.models.convolution import LOWERINGS, convolve, serves

UPDATES = 2  # in a loop


class LayerShape(NamedTuple):
    batch: int
    size: int
    channels: int
    window: int
    features: int
    strides: tuple[int, int] = (1, 1)
    padding: str = "SAME"

    @property
    def kernel(self) -> tuple[int, int, int, int]:
        return self.window, self.window, self.channels, self.features


LAYERS = {
    "LeNet conv0": LayerShape(64, 28, 1, 5, 6, padding="VALID"),
    "LeNet conv1": LayerShape(64, 12, 6, 5, 16, padding="VALID"),
    "CIFAR conv1": LayerShape(64, 32, 3, 5, 32),
    "CIFAR conv2": LayerShape(64, 16, 32, 5, 32),
    "CIFAR conv3": LayerShape(64, 8, 32, 5, 64),
    "ResNet stage 1": LayerShape(64, 32, 16, 3, 16),
    "ResNet stage 2": LayerShape(64, 16, 32, 3, 32),
    "ResNet stage 3": LayerShape(64, 8, 64, 3, 64),
    "AlexNet conv1": LayerShape(16, 227, 3, 11, 96, (4, 4), "VALID"),
    "AlexNet conv2": LayerShape(16, 27, 96, 5, 256),
    "AlexNet conv3": LayerShape(16, 13, 256, 3, 384),
    "AlexNet conv4": LayerShape(16, 13, 384, 3, 384),
    "AlexNet conv5": LayerShape(16, 13, 384, 3, 256),
}


def program(layer: LayerShape, updates: int = 0, **how: Any) -> tuple[Timer, float]:
    """Timer of a compiled result with both gradients, and its workspace in MiB.

    `updates` > 0 makes so many of them in a loop; the timer's seconds are of one.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(layer.batch, layer.size, layer.size, layer.channels))
    arguments = [jnp.asarray(a, jnp.float32) for a in (x, rng.normal(size=layer.kernel))]

    def gradients(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
        def layer_of(x, kernel):
            return convolve(x, kernel, strides=layer.strides, padding=layer.padding, **how)

        y, pullback = jax.vjp(layer_of, x, kernel)
        return pullback(y)

    def loop(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(carry, _):  # each depends on the one before, or the compiler would run one only
            return jax.tree.map(lambda a, da: a - 1e-9 * da, carry, gradients(*carry)), None

        return lax.scan(step, (x, kernel), length=updates)[0]

    compiled = jax.jit(loop if updates else gradients).lower(*arguments).compile()

    workspace: Any = compiled.memory_analysis()

    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        return (time.perf_counter() - start) / max(updates, 1)

    return once, workspace.temp_size_in_bytes / 2**20


def programs(name: str, layer: LayerShape) -> dict[str, tuple[Timer, float]]:
    """By what the table calls them. XLA's own would take minutes in a loop of AlexNet's layers."""
    made = {}
    for way in LOWERINGS:
        if serves(way, layer.kernel, layer.strides):
            made[way] = program(layer, lowering=way)
            if not name.startswith("AlexNet"):
                made[f"{way}, in a loop"] = program(layer, UPDATES, lowering=way)
    if name.startswith("AlexNet"):
        for b_p in (2**i for i in range(layer.batch.bit_length() - 1)):
            made[f"gemm, b_p = {b_p}"] = program(layer, lowering="gemm", lowering_batch=b_p)
    return made


def measure(rounds: int, names: list[str]) -> pd.DataFrame:
    """One row a layer and program: the ratio over `over`, milliseconds and MiB."""
    rows = []
    for name in names:
        made = programs(name, LAYERS[name])
        seconds = in_turn({key: timer for key, (timer, _) in made.items()}, rounds)
        for key, (_, workspace) in made.items():
            over = "gemm" if "b_p" in key else "xla"
            rows.append(
                {
                    "layer": name,
                    "program": key,
                    "over": over,
                    **spread(seconds[key] / seconds[over]),
                    "ms": 1e3 * np.median(seconds[key]),
                    "MiB": workspace,
                }
            )
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--out", type=Path, default=Path("workdirs/convolution.json"))
    arguments = parser.parse_args()
    publish(measure(arguments.rounds, arguments.layers), arguments.out, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
