"""The limits of an update on CPUs, in 4 minutes: `python -m analysis.benchmarks.limits`.

    peak      operations a second of a large product of float32 matrices, and the share of it that
              an update of the MLP and of LeNet-5 reaches
    flags     the trainer's update with flags of XLA over the one without, processes in turn
    leaves    an iteration of a scan whose carry of 4 MB has 60 or 300 leaves, over one with 4
    unrolled  two and four updates an iteration of the scan, over one; the MLP in plain JAX
    layouts   dense weights (outputs, inputs) over (inputs, outputs); the MLP in plain JAX

The models are those of `step_time.py`. Floats differ with the flags of fused operations.
"""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from analysis.benchmarks.record import Timer, in_turn, options, publish, spread
from analysis.benchmarks.step_time import by_hand, config_of, ours
from optdyn.experiment import Config
from optdyn.problem import costs
from optdyn.train import trainer
from optdyn.train.program import problem_of

SIZE, BYTES = 1536, 4_000_000  # of a matrix that is multiplied, of a carry
ITERATIONS = 200
UPDATES = {"mlp": 200, "cnn": 60}
PROGRAMS = {"MLP": ("mlp", 1), "MLP, 16 groups": ("mlp", 16), "LeNet-5": ("cnn", 1)}
FLAGS = {
    "none": "",
    "ynn, but reductions": "--xla_cpu_experimental_ynn_fusion_type=-reduce",
    "ynn, none": "--xla_cpu_experimental_ynn_fusion_type=",
    "one queue": "--xla_cpu_enable_concurrency_optimized_scheduler=false",
}
Row = dict[str, Any]


def time_programs(rounds: int) -> dict[str, np.ndarray]:
    """Returns the seconds an update of the trainer's programs, (rounds,) each."""
    timers = {
        name: ours(config_of(model, g), UPDATES[model]) for name, (model, g) in PROGRAMS.items()
    }
    return in_turn(timers, rounds)


def product() -> float:
    """Returns operations a second of a product of two float32 matrices, the best of five."""
    x = jnp.ones((SIZE, SIZE))
    multiply = jax.jit(lambda x: x @ x)
    jax.block_until_ready(multiply(x))
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(multiply(x))
        best = min(best, time.perf_counter() - start)
    return 2 * SIZE**3 / best


def operations_of(config: Config) -> float:
    """Returns the floating-point operations of one update, by the model."""
    run = trainer.prepare(config)
    batch = {
        name: jax.ShapeDtypeStruct((config.batch_size, *leaf.shape[1:]), leaf.dtype)
        for name, leaf in run.data.train.items()
    }
    problem = problem_of(config, run.data.classes)
    found = costs.block_costs(problem, run.params, batch)
    return costs.update_cost(found, ((0, len(found.trunk)),)).total


def peak(seconds: dict[str, np.ndarray]) -> Iterator[Row]:
    most = product()
    yield {"what": f"product of {SIZE} x {SIZE}, GFLOP/s", "median": most / 1e9}
    for name, (model, groups) in PROGRAMS.items():
        if groups == 1:
            done = operations_of(config_of(model, 1)) / seconds[name]
            yield {"what": f"{name}: share of that", **spread(done / most)}


def flags(processes: int, rounds: int) -> Iterator[Row]:
    """Yields ratios of least seconds, which other processes disturb least."""
    found: dict[str, list[list[float]]] = {name: [] for name in FLAGS}
    order = np.random.default_rng(0)
    for _ in range(processes):
        for name in order.permutation(list(FLAGS)):
            command = [sys.executable, "-m", __spec__.name, "--one", str(rounds)]
            env = os.environ | {"XLA_FLAGS": FLAGS[name]}
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
            found[name].append([float(word) for word in done.stdout.split()[-len(PROGRAMS) :]])
    for name, program in itertools.product(FLAGS, PROGRAMS):
        if name != "none":
            at = list(PROGRAMS).index(program)
            ratios = np.array(found[name])[:, at] / np.array(found["none"])[:, at]
            yield {"what": f"flags, {name}: {program}", **spread(ratios)}


def of_leaves(count: int) -> Timer:
    """Returns a timer of a loop's iteration that multiplies a carry of `count` leaves."""
    carry = [jnp.ones(BYTES // 4 // count) for _ in range(count)]
    factors = jnp.ones(ITERATIONS)

    def step(leaves: list[jax.Array], factor: jax.Array) -> tuple[list[jax.Array], None]:
        return [leaf * factor for leaf in leaves], None

    # Factors are an argument: of constants that are 1 XLA would make nothing at all.
    loop = jax.jit(lambda *arguments: jax.lax.scan(step, *arguments)[0], donate_argnums=0)

    def once() -> float:
        nonlocal carry
        start = time.perf_counter()
        carry = jax.block_until_ready(loop(carry, factors))
        return (time.perf_counter() - start) / ITERATIONS

    return once


def carries_and_layouts(rounds: int) -> Iterator[Row]:
    pieces = {f"leaves of the carry, {n}": of_leaves(n) for n in (4, 60, 300)}
    seconds = in_turn(pieces, rounds)
    first, *rest = seconds
    for name in rest:
        ms = 1e3 * float(np.median(seconds[name]))
        yield {"what": f"{name} over 4", **spread(seconds[name] / seconds[first]), "ms": ms}
    n = UPDATES["mlp"]
    ways = {
        "unrolled, 2": by_hand("mlp", n, unroll=2),
        "unrolled, 4": by_hand("mlp", n, unroll=4),
        "layouts, (outputs, inputs)": by_hand("mlp", n, turned=True),
    }
    seconds = in_turn({"plain": by_hand("mlp", n), **ways}, rounds)
    for name in ways:
        yield {"what": f"{name}: MLP in plain JAX", **spread(seconds[name] / seconds["plain"])}


def main() -> None:
    parser = options(__doc__, "workdirs/limits.json", rounds=15)
    parser.add_argument("--processes", type=int, default=5, help="of each set of flags")
    parser.add_argument("--one", type=int, help="rounds of this process, which prints its least")
    arguments = parser.parse_args()
    if arguments.one:
        print(*(float(seconds.min()) for seconds in time_programs(arguments.one).values()))
        return
    seconds = time_programs(arguments.rounds)
    rounds, processes = arguments.rounds, arguments.processes
    rows = [*peak(seconds), *carries_and_layouts(rounds), *flags(processes, rounds)]
    publish(pd.DataFrame(rows), arguments.out, rounds=rounds, processes=processes)


if __name__ == "__main__":
    main()
