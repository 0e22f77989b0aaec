"""Plans against what they plan: `python -m tests.benchmarks.plan`.

For LeNet-5 within 128 MiB and a small residual network within 256 MiB (`configs/plan.py`), at the
config's mini-batch and at one four times as large:

    measured / predicted  the second from programs with one exchange each, the first afterwards
    xla / planned         all convolutions XLA's own, over the plan
    gemm / planned        all by one matrix product, the default on a CPU, over the plan
    gain                  that the plan was kept for, or not: measured before, on other rounds

Programs of a ratio run in turn; every round gives one of each, and the table has their median and
quartiles.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from optdyn.configs import plan as configs
from optdyn.launch import plan
from optdyn.tuning import layers, plans
from tests.benchmarks.record import publish
from tests.benchmarks.step_time import spread
from tests.values import as_experiment


def measure(model: str, rounds: int) -> list[dict]:
    """Rows of a model: one a ratio."""
    config = configs.get_config(model)
    config.plan.rounds = rounds
    config.plan.batches = (config.batch_size, 4 * config.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        made = plan.run(as_experiment(config), Path(folder))
    of = plans.prepare(as_experiment(config))
    every = layers.convolutions(of)
    update = layers.updates(of, every)
    (chosen,) = (row for row in made["batches"] if row["batch"] == made["batch"])
    names = {"planned": chosen["lowering"], "xla": "xla", "gemm": "gemm"}
    loops = {
        name: update(chosen["batch"], layers.own(lowering, every)).loop
        for name, lowering in names.items()
    }
    taken = layers.measure(loops, rounds)
    ratios = {
        "measured / predicted": taken["planned"] / chosen["predicted_seconds"],
        "xla / planned": taken["xla"] / taken["planned"],
        "gemm / planned": taken["gemm"] / taken["planned"],
    }
    largest = made["largest"]
    return [
        {
            "model": model,
            "largest": largest["batch"],
            "a quarter more, over the bound": largest["quarter_more"]["bytes"] / made["memory"],
            "batch": chosen["batch"],
            "lowering": chosen["lowering"],
            "planned": chosen["planned"],
            "gain": chosen["gain"] and chosen["gain"]["median"],
            "ratio": name,
            **spread(ratio),
            "ms": 1e3 * np.median(taken["planned"]),
        }
        for name, ratio in ratios.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["lenet", "resnet"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("workdirs/plan.json"))
    arguments = parser.parse_args()
    rows = [row for model in arguments.models for row in measure(model, arguments.rounds)]
    publish(pd.DataFrame(rows), arguments.out, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
