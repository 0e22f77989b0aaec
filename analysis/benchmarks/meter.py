"""What the momentum meter costs, as ratios in turn: `python -m analysis.benchmarks.meter`.

    update   one update of a window over one outside
    run      a run measured on a tenth of its updates, in windows of 100 with their fit, over none
    memory   of the program of windows over the plain one: its results and what it needs besides

MLP 784-256-256-10 and LeNet-5 on MNIST, batch 64, 16 memoryless groups, plain SGD. Every round runs
both programs once, in random order; the table has medians and quartiles of the ratios.
"""

import argparse
import contextlib
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from analysis.benchmarks.record import publish
from analysis.benchmarks.step_time import Timer, config_of, in_turn, spread
from optdyn.experiment import Experiment
from optdyn.momentum.moments import NotIdentified, fit
from optdyn.train import loop, single, trainer
from optdyn.train.program import CHUNK

WINDOW, SHARE = 100, 0.1


def metered_config(model: str) -> Experiment:
    return config_of(model, 16).with_({"optimizer.momentum": 0.0, "probes.momentum": True})


def programs(model: str) -> tuple[dict[str, Timer], float]:
    """Seconds of an update by each program, and the ratio of their memories."""
    run = trainer.prepare(metered_config(model))
    assert run.program.metered
    state, examples, events, indices, _ = loop.first(run, CHUNK)
    n = loop.METERED_CHUNK
    few, chosen, second = jax.tree.map(
        lambda leaf: leaf[:n], (events, indices, trainer.batches_of(run, independent=True)(0, n))
    )
    both = {
        "plain": (run.program.advance, examples, events, indices, CHUNK),
        "metered": (run.program.metered.advance, (examples, examples), few, (chosen, second), n),
    }
    sizes = {
        name: _bytes(advance.lower(state, *given).compile())
        for name, (advance, *given) in both.items()
    }

    def timer(name: str) -> Timer:
        advance, *given = both[name]

        def once() -> float:
            nonlocal state
            begun = time.perf_counter()
            state, infos = jax.block_until_ready(advance(state, *given))
            jax.device_get(infos)
            return (time.perf_counter() - begun) / given[-1]

        return once

    return {name: timer(name) for name in both}, sizes["metered"] / sizes["plain"]


def _bytes(compiled: Any) -> int:
    found = compiled.memory_analysis()
    return found.output_size_in_bytes + found.temp_size_in_bytes


def fitting(model: str) -> Timer:
    """Seconds of the fit of one window."""
    recorded = single.record(metered_config(model))
    window = recorded.raw_steps[:WINDOW], recorded.gradients[:WINDOW]

    def once() -> float:
        begun = time.perf_counter()
        with contextlib.suppress(NotIdentified):  # raised in the end, after all its work
            fit([window])
        return time.perf_counter() - begun

    return once


def measure(model: str, rounds: int) -> list[dict[str, Any]]:
    """A row a ratio."""
    timers, memory = programs(model)
    seconds = in_turn({**timers, "fit": fitting(model)}, rounds)
    update = seconds["metered"] / seconds["plain"]
    fits = seconds["fit"] / WINDOW / seconds["plain"]
    rows = [
        {"model": model, "ratio": "update", **spread(update)},
        {"model": model, "ratio": "run", **spread(1 + SHARE * (update - 1 + fits))},
        {"model": model, "ratio": "memory", "median": memory, "quartiles": ""},
    ]
    wanted = {"run": 1.15, "memory": 1.3}
    return [{**row, "wanted at most": wanted.get(str(row["ratio"]), np.nan)} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("workdirs/meter.json"))
    arguments = parser.parse_args()
    table = pd.DataFrame(
        [row for model in ("mlp", "cnn") for row in measure(model, arguments.rounds)]
    )
    publish(table, arguments.out, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
