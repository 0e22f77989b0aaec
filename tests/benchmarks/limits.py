"""What bounds an update on CPUs, in 4 minutes: `python -m tests.benchmarks.limits`.

    peak      operations a second of a large product of float32 matrices, and the share of it that
              an update of the MLP and of LeNet-5 reaches
    flags     the trainer's update with flags of XLA over the one without, processes in turn
    leaves    an iteration of a scan whose carry of 4 MB has 60 or 300 leaves, over one with 4
    unrolled  two and four updates an iteration of the scan, over one; plain JAX, the MLP
    layouts   dense weights held as (outputs, inputs), over (inputs, outputs); the same MLP

Every round runs all once, in random order. The models are those of `step_time.py`. Floats differ
with the flags of fused operations.
"""

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from tests.benchmarks.accelerator import operations_of
from tests.benchmarks.peaks import product
from tests.benchmarks.record import publish
from tests.benchmarks.step_time import BATCH, Timer, config_of, in_turn, ours, spread

SIZE, BYTES = 1536, 4_000_000  # of a matrix that is multiplied, of a carry
UPDATES = {"mlp": 200, "cnn": 60}
PROGRAMS = {"MLP": ("mlp", 1), "MLP, 16 groups": ("mlp", 16), "LeNet-5": ("cnn", 1)}
FLAGS = {
    "none": "",
    "ynn, but reductions": "--xla_cpu_experimental_ynn_fusion_type=-reduce",
    "ynn, none": "--xla_cpu_experimental_ynn_fusion_type=",
    "one queue": "--xla_cpu_enable_concurrency_optimized_scheduler=false",
}
WIDTHS = (784, 256, 256, 10)
Row = dict[str, Any]


def trained(rounds: int) -> dict[str, np.ndarray]:
    """Seconds an update of the trainer's own programs, (rounds,) each."""
    timers = {
        name: ours(config_of(model, g), UPDATES[model]) for name, (model, g) in PROGRAMS.items()
    }
    return in_turn(timers, rounds)


def peak(seconds: dict[str, np.ndarray]) -> Iterator[Row]:
    most = product(SIZE, "float32")
    yield {"what": f"product of {SIZE} x {SIZE}, GFLOP/s", "median": most / 1e9}
    for name, (model, groups) in PROGRAMS.items():
        if groups == 1:
            done = operations_of(config_of(model, 1)) / seconds[name]
            yield {"what": f"{name}: share of that", **spread(done / most)}


def flags(rounds: int, each: int) -> Iterator[Row]:
    """Over the least seconds of no flag in the same round, which others disturb least."""
    found: dict[str, list[list[float]]] = {name: [] for name in FLAGS}
    order = np.random.default_rng(0)
    for _ in range(rounds):
        for name in order.permutation(list(FLAGS)):
            command = [sys.executable, "-m", __spec__.name, "--one", str(each)]
            env = os.environ | {"XLA_FLAGS": FLAGS[name]}
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
            found[name].append([float(word) for word in done.stdout.split()[-len(PROGRAMS) :]])
    for name, program in itertools.product(FLAGS, PROGRAMS):
        if name != "none":
            at = list(PROGRAMS).index(program)
            ratios = np.array(found[name])[:, at] / np.array(found["none"])[:, at]
            yield {"what": f"flags, {name}: {program}", **spread(ratios)}


def timer(step: Callable[[Any, Any], Any], state: Any, inputs: Any, unroll: int = 1) -> Timer:
    """Seconds an iteration of a scan; the state is donated."""
    loop = jax.jit(
        lambda state, inputs: jax.lax.scan(step, state, inputs, unroll=unroll), donate_argnums=0
    )
    length = len(jax.tree.leaves(inputs)[0])

    def once() -> float:
        nonlocal state
        start = time.perf_counter()
        state, _ = jax.block_until_ready(loop(state, inputs))
        return (time.perf_counter() - start) / length

    return once


def of_leaves(count: int) -> Timer:
    carry = [jnp.ones(BYTES // 4 // count) for _ in range(count)]
    return timer(lambda c, x: ([leaf * x for leaf in c], None), carry, jnp.ones(200))


def mlp(unroll: int = 1, turned: bool = False) -> Timer:
    """SGD with momentum; turned weights are (outputs, inputs)."""
    rng = np.random.default_rng(0)

    def weights(scale: float) -> list[jax.Array]:
        shapes = [pair[::-1] if turned else pair for pair in itertools.pairwise(WIDTHS)]
        return [jnp.asarray(scale * rng.standard_normal(shape), jnp.float32) for shape in shapes]

    def loss(params: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        for i, w in enumerate(params):
            x = x @ (w.T if turned else w)
            x = jax.nn.relu(x) if i < len(params) - 1 else x
        return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()

    def step(state: Any, batch: Any) -> Any:
        params, trace = state
        value, grads = jax.value_and_grad(loss)(params, *batch)
        trace = [0.9 * t + g for t, g in zip(trace, grads, strict=True)]
        return ([p - 0.01 * t for p, t in zip(params, trace, strict=True)], trace), value

    x = jnp.asarray(rng.standard_normal((UPDATES["mlp"], BATCH, WIDTHS[0])), jnp.float32)
    y = jnp.asarray(rng.integers(WIDTHS[-1], size=x.shape[:2]))
    return timer(step, (weights(0.05), weights(0.0)), (x, y), unroll)


def tried(rounds: int) -> Iterator[Row]:
    pieces = {f"leaves of the carry, {n}": of_leaves(n) for n in (4, 60, 300)}
    seconds = in_turn(pieces, rounds)
    first, *rest = seconds
    for name in rest:
        ms = 1e3 * float(np.median(seconds[name]))
        yield {"what": f"{name} over 4", **spread(seconds[name] / seconds[first]), "ms": ms}
    ways = {
        "unrolled, 2": mlp(2),
        "unrolled, 4": mlp(4),
        "layouts, (outputs, inputs)": mlp(turned=True),
    }
    seconds = in_turn({"plain": mlp(), **ways}, rounds)
    for name in ways:
        yield {"what": f"{name}: MLP in plain JAX", **spread(seconds[name] / seconds["plain"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--processes", type=int, default=5, help="of each set of flags")
    parser.add_argument(
        "--one", type=int, help="rounds of this process, which prints least seconds"
    )
    parser.add_argument("--out", type=Path, default=Path("workdirs/limits.json"))
    given = parser.parse_args()
    if given.one:
        print(*(float(each.min()) for each in trained(given.one).values()))
        return
    seconds = trained(given.rounds)
    rows = [*peak(seconds), *tried(given.rounds), *flags(given.processes, given.rounds)]
    publish(pd.DataFrame(rows), given.out, rounds=given.rounds, processes=given.processes)


if __name__ == "__main__":
    main()
