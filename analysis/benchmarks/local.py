"""Local parallelism against backpropagation: `python -m analysis.benchmarks.local`.

    one device   an update of each variant, and its compilation, over backpropagation's; the
                 operations of its update over those, which its time should be in proportion to; and
                 the part of greedy's excess that its small heads are when they run alone
    schedules    four stages whose tasks last as long as they have operations (simulated): how busy
                 the stages are in the mean, the fill and drain of 100 updates included
    four stages  an update of greedy stages, and of a pipeline that is never flushed, over one of
                 backpropagation in micro-batches (GPipe), on four virtual devices of this CPU and
                 in four processes: from traces of real runs

Residual MLP of 8 blocks of width 256 on MNIST, batch 128, SGD with momentum. Every round runs all
programs once; the tables have medians and quartiles of the rounds' ratios.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from analysis.benchmarks.record import publish
from analysis.benchmarks.step_time import Timer, in_turn, ours, spread
from optdyn import optimizers
from optdyn.clock import pipeline
from optdyn.core import per_block_optimizer
from optdyn.experiment import Experiment
from optdyn.price import shapes
from optdyn.problem.models import base
from optdyn.train import program, trainer
from tests.clock.schedules import memory, sequential, utilization

STAGES, UPDATES = 4, 100
BASE: dict[str, Any] = {
    "steps": 2 * program.CHUNK,
    "log_every": 2 * program.CHUNK,
    "checkpoint_every": 0,
    "batch_size": 128,
    "model.name": "resmlp",
    "optimizer.learning_rate": 0.01,
    "optimizer.momentum": 0.9,
    "method.name": "local",
    "cluster.service.name": "constant",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "backprop": {"method.variant": "backprop"},
    "chunked, 4": {"method.variant": "chunked", "method.chunks": 4},
    "overlapping, 2": {"method.variant": "overlapping"},
    "greedy": {"method.variant": "greedy"},
}
ON_STAGES: dict[str, dict[str, Any]] = {
    "greedy": VARIANTS["greedy"],
    "never flushed": {"method.name": "stale_pipeline"},
    "GPipe": VARIANTS["backprop"],
}
FLAGS = "--xla_force_host_platform_device_count"
LAUNCHERS = {
    "4 virtual devices": ([], {"XLA_FLAGS": f"{FLAGS}={STAGES}"}),
    "4 processes": (["-m", "launch.local", f"--processes={STAGES}", "--", sys.executable], {}),
}


def config_of(values: dict[str, Any]) -> Experiment:
    return Experiment().with_(BASE | values)


def compilation(config: Experiment) -> Timer:
    """Seconds to trace and compile the step of a config's method."""
    run = trainer.prepare(config)
    step, state = run.program.rule.step, run.program.rule.init(run.params)
    event, batch = _first(run)

    def once() -> float:
        jax.clear_caches()  # or it is compiled but once
        start = time.perf_counter()
        jax.jit(step).lower(state, event, batch).compile()
        return time.perf_counter() - start

    return once


def heads_alone(config: Experiment) -> Timer:
    """Seconds of what greedy blocks do beyond backpropagation: gradient and step of their heads."""
    run = trainer.prepare(config)
    whole, params = run.program.problem, run.params
    (last, module), (event, batch) = whole.blocks[-1], _first(run)
    heads = {name: own for name, own in params.items() if name.endswith("_head")}

    def loss(own: Any, h: jax.Array) -> jax.Array:
        return jnp.mean(whole.losses(base.apply(((last, module),), {last: own}, h), batch))

    def update(_: int, carry: tuple[Any, Any, jax.Array]) -> tuple[Any, Any, jax.Array]:
        params, state, h = carry
        grads = {}
        for name, own in params.items():
            grads[name], delta = jax.grad(loss, (0, 1))(own, h)
            h = h - delta  # used, as the gradient of the block would use it
        return *rule.apply(grads, state, params, event, params), h

    names = tuple(run.hypers)
    optimizer = optimizers.optimizer(config.optimizer.name, names)
    rule = per_block_optimizer(optimizer)
    h = jnp.ones((config.batch_size, config.model.width))
    loop = jax.jit(lambda carry: jax.lax.fori_loop(0, UPDATES, update, carry))

    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(loop((heads, rule.init(heads), h)))
        return (time.perf_counter() - start) / UPDATES

    return once


def _first(run: trainer.Run) -> tuple[program.Event, dict[str, np.ndarray]]:
    """The first event and batch of a run."""
    hyper = {name: values[0] for name, values in run.hypers.items()}
    batch = {name: leaf[: run.config.batch_size] for name, leaf in run.data.train.items()}
    return program.Event((), hyper, np.int32(0)), batch


def one_device(rounds: int) -> pd.DataFrame:
    configs = {name: config_of(values) for name, values in VARIANTS.items()}
    flops = {
        name: trainer.prepare(config).report["total_flops"] for name, config in configs.items()
    }
    updates = {name: ours(config, UPDATES) for name, config in configs.items()}
    updates["greedy, its heads alone"] = heads_alone(configs["greedy"])
    seconds = in_turn(updates, rounds)
    compiling = in_turn({name: compilation(config) for name, config in configs.items()}, 5)
    flops["greedy, its heads alone"] = flops["greedy"] - flops["backprop"]
    rows = []
    for what, times in (("update", seconds), ("compilation", compiling)):
        for name in [name for name in times if name != "backprop"]:
            row = {"what": what, "variant": name, **spread(times[name] / times["backprop"])}
            row |= {
                "operations": flops[name] / flops["backprop"],
                "ms": 1e3 * np.median(times[name]),
            }
            rows.append(row)
    return pd.DataFrame(rows)


def schedules() -> pd.DataFrame:
    """Utilization and bubble of four stages, an update of backpropagation lasting one second."""
    work = {}
    for name in ("backprop", "greedy"):
        config = config_of(VARIANTS[name] | {"cluster.nodes": STAGES})
        work[name] = shapes.stages(config, shapes.of_model(config))
    greedy, back = work["greedy"], work["backprop"]
    made = {"greedy": pipeline.schedule("local", greedy.forward, greedy.backward, 0.0, UPDATES)}
    for m in (4, 16):
        parts = (back.forward / m, back.backward / m, 0.0, UPDATES, m)
        made[f"GPipe, {m} micro-batches"] = pipeline.schedule("gpipe", *parts)
        made[f"1F1B, {m} micro-batches"] = pipeline.schedule("1f1b", *parts)
    made["one device"] = sequential(back.forward, back.backward, 1, UPDATES)
    return pd.DataFrame(
        {
            "schedule": name,
            "utilization": utilization(schedule),
            "bubble": 1 - utilization(schedule),
            "an update": pipeline.seconds(schedule)[-1] / UPDATES,
            "held at most": int(memory(schedule).max()),
        }
        for name, schedule in made.items()
    )


def real(own: dict[str, Any], launcher: list[str], environment: dict[str, str]) -> float:
    """Median seconds an update of a run on four stages. Raises CalledProcessError if it fails."""
    values = BASE | own | {"cluster.nodes": STAGES, "parallel.api": "shard_map"}
    with tempfile.TemporaryDirectory() as folder:
        train = ["-m", "launch.train", "--config=configs/quickstart.py", f"--workdir={folder}"]
        flags = [f"--config.{name}={value}" for name, value in values.items()]
        subprocess.run(
            [sys.executable, *launcher, *train, *flags],
            env=os.environ | environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        seconds = pd.read_csv(Path(folder, "trace.csv"))["seconds"]
    return float(np.median(np.diff(seconds)[program.CHUNK :]))


def four_stages(rounds: int) -> pd.DataFrame:
    rows = []
    for on, launcher in LAUNCHERS.items():
        every = [[real(own, *launcher) for own in ON_STAGES.values()] for _ in range(rounds)]
        times = dict(zip(ON_STAGES, np.array(every).T, strict=True))
        for name in [name for name in times if name != "GPipe"]:
            row = {"on": on, "over GPipe": name, **spread(times[name] / times["GPipe"])}
            row |= {
                "ms": 1e3 * np.median(times[name]),
                "GPipe, ms": 1e3 * np.median(times["GPipe"]),
            }
            rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--real_rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("workdirs/local.json"))
    arguments = parser.parse_args()
    tables = {"schedules": schedules(), "four stages": four_stages(arguments.real_rounds)}
    for name, table in tables.items():
        print(name, table.to_string(index=False, float_format="{:.3f}".format), sep="\n")
    more = {name: table.to_dict("records") for name, table in tables.items()}
    publish(one_device(arguments.rounds), arguments.out, rounds=arguments.rounds, **more)


if __name__ == "__main__":
    main()
