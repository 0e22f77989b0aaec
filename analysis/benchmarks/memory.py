"""Memory of an update of local parallelism on one device: `python -m analysis.benchmarks.memory`.

The program is a whole update, SGD with momentum, of residual MLPs of 4 to 32 blocks of width 128 on
4,096 images of 28 x 28, so large a batch that activations dominate: one of them is 2 MiB, all
parameters of a block 0.13 MiB. Nothing runs: the figures are the compiler's own, in MiB.

    temporary   all but arguments and outputs, which share their place: activations and scratch
    ratio       that over backpropagation's, compiled in the same way
    counted     the same ratio by `research.costs`, for a device of the largest group alone

Chunked are 4 chunks. On a CPU all is compiled once more without calls to the library that takes
over matrix products: it is given each layer normalization's scale as an array as large as the
batch, and those of all heads are made at the very start, which looks like an activation a block.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd

from analysis.benchmarks.record import publish
from optdyn import optimizers
from optdyn.core import Event, per_block_optimizer
from optdyn.methods.local import local
from optdyn.methods.local_losses import groups, heads
from optdyn.methods.sync import sync
from optdyn.problem import models, problem
from optdyn.problem.costs import block_costs, of_groups
from optdyn.problem.models import ResMLP

BATCH, WIDTH, CLASSES, CHUNKS = 4096, 128, 10, 4
VARIANTS = ("greedy", "chunked", "backprop")
WITHOUT_LIBRARY = {"xla_cpu_experimental_ynn_fusion_type": ""}


def update(depth: int, variant: str) -> tuple[jax.stages.Lowered, int]:
    """The program of one update, and the bytes of its largest group by `research.costs`."""
    model, parts = ResMLP(blocks=depth, width=WIDTH), groups(variant, depth, 0, CHUNKS)
    whole = problem.make(model, CLASSES, heads(models.make(model, CLASSES), parts, False))
    batch = {
        "image": jax.ShapeDtypeStruct((BATCH, 28, 28, 1), jnp.uint8),
        "label": jax.ShapeDtypeStruct((BATCH,), jnp.int32),
    }
    params = jax.eval_shape(whole.init, jax.random.key(0), batch)
    hyper = ("learning_rate", "momentum")
    method = sync(local(whole, parts), per_block_optimizer(optimizers.optimizer("sgd", hyper)))
    event = Event((), dict.fromkeys(hyper, jnp.float32(0)))
    state = jax.eval_shape(method.init, params)
    program = jax.jit(method.step, donate_argnums=0).lower(state, event, batch)
    return program, max(of_groups(block_costs(whole, params, batch), parts).memory)


def measure(depths: list[int]) -> pd.DataFrame:
    """One row a program: a depth, a variant, and with or without the library."""
    compilers: dict[str, dict] = {"default": {}}
    if jax.default_backend() == "cpu":
        compilers["no library"] = WITHOUT_LIBRARY
    rows = []
    for depth in depths:
        programs = {variant: update(depth, variant) for variant in VARIANTS}
        for compiler, options in compilers.items():
            sizes: dict[str, Any] = {
                variant: program.compile(options).memory_analysis()
                for variant, (program, _) in programs.items()
            }
            for variant, size in sizes.items():
                whole = sizes["backprop"].temp_size_in_bytes
                rows.append(
                    {
                        "depth": depth,
                        "compiled": compiler,
                        "variant": variant,
                        "temporary": size.temp_size_in_bytes / 2**20,
                        "arguments": size.argument_size_in_bytes / 2**20,
                        "outputs": size.output_size_in_bytes / 2**20,
                        "ratio": size.temp_size_in_bytes / whole,
                        "counted": programs[variant][1] / programs["backprop"][1],
                    }
                )
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--depths", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--out", type=Path, default=Path("workdirs/memory.json"))
    arguments = parser.parse_args()
    table = measure(arguments.depths)
    publish(table, arguments.out, batch=BATCH, width=WIDTH)


if __name__ == "__main__":
    main()
