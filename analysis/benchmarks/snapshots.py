"""Asynchronous updates as groups and parameters grow: `python -m analysis.benchmarks.snapshots`.

MLPs of 10^4 to 10^7 parameters on MNIST, batch 16, or (`--parameters 10m` or `124m`) those of
`configs/gpt.py` in float32, with 4 to 1,024 groups. A new process takes a way and a size, with
growing groups, so that its peak is that of the last. Per row:

    seconds     an update, the median of the rounds
    over sync   of the synchronous one that was run in turn, the median of ratios
    GiB         the process's peak, less that after a small run
    said        the need by `train/memory_checks.py` before the run

Exponents are slopes of logarithms, of the last three points of each line.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

import optdyn as od
from analysis.benchmarks.record import options, publish
from configs import gpt
from optdyn.train import loop, memory_checks, trainer
from optdyn.train.program import CHUNK

KEPT = {"device": "", "bfloat16": "bfloat16", "host": "host"}
SECONDS = 0.2  # of updates in a row that are timed together
FITTED = 3  # points of an exponent


def config_of(size: str, groups: int, kept: str = "") -> od.Experiment:
    """Returns the experiment of a number of parameters, or of a size of `configs/gpt.py`."""
    config = transformer(size) if size in gpt.SIZES else mlp(int(float(size)))
    return config.with_(
        steps=CHUNK,
        log_every=CHUNK,
        checkpoint_every=0,
        optimizer=od.SGD(learning_rate=0.01, momentum=0.9),
        cluster=od.Cluster(nodes=groups),
        method=od.Asynchronous(groups=groups, snapshots=kept) if groups > 1 else od.Sync(),
    )


def mlp(size: int) -> od.Experiment:
    """Returns the wider MLP of about `size` parameters.

    They are 795 h + 10 of one hidden layer, or h^2 + 796 h + 10 of two.
    """
    width = int((math.sqrt(796**2 + 4 * size) - 796) / 2)
    hidden = (size // 795,) if size < 2**18 else (width, width)
    return od.Experiment(model=od.MLP(hidden=hidden), batch_size=16)


def transformer(size: str) -> od.Experiment:
    whole = gpt.get_config(f"{size},synthetic")
    small = {"model.dtype": "float32", "data.options.length": 256, "data.train_examples": 256}
    return od.Experiment(model=whole.model, data=whole.data, batch_size=8).with_(small)


class Updates:
    def __init__(self, config: od.Experiment):
        self.run = trainer.prepare(config)
        self.state, *self.rest, _ = loop.advance_arguments(self.run, CHUNK)
        self.seconds(1)  # compiles

    def seconds(self, n: int) -> float:
        """Returns the mean seconds of the next n updates."""
        examples, *events = self.rest
        self.rest = examples, *jax.tree.map(lambda leaf: np.roll(leaf, -n, axis=0), events)
        start = time.perf_counter()
        self.state, infos = self.run.program.advance(self.state, *self.rest, n)
        np.asarray(infos["loss"])
        return (time.perf_counter() - start) / n


def in_turn(updates: Updates, plain: Updates, n: int, rounds: int) -> tuple[float, float]:
    """Returns the medians over rounds of n updates: seconds an update, and their ratio."""
    pairs = np.array([(updates.seconds(n), plain.seconds(n)) for _ in range(rounds)])
    return float(np.median(pairs[:, 0])), float(np.median(pairs[:, 0] / pairs[:, 1]))


def resident(kind: str) -> int:
    """Returns the bytes of this process by Linux's `VmRSS:` or `VmHWM:`."""
    return 1024 * int(Path("/proc/self/status").read_text().split(kind)[1].split()[0])


def rows_of(kept: str, size: str, groups: list[int], rounds: int, most: float) -> Iterator[dict]:
    plain = Updates(config_of(size, 1))
    Updates(config_of(size, 2, KEPT[kept]))
    before = resident("VmRSS:")
    n = int(np.clip(SECONDS / plain.seconds(4), 1, CHUNK))
    parameters = trainer.provenance(plain.run)["parameters"]
    for count in groups:
        if 4 * parameters * count / (2 if kept == "bfloat16" else 1) > most:
            return
        updates = Updates(config_of(size, count, KEPT[kept]))
        seconds, ratio = in_turn(updates, plain, n, rounds)
        need = memory_checks.need_of(
            updates.run.config, updates.run.program.rule, updates.run.params
        )
        yield {
            "kept": kept,
            "parameters": parameters,
            "groups": count,
            "seconds": seconds,
            "over sync": ratio,
            "GiB": (resident("VmHWM:") - before) / 2**30,
            "said": (need.device + need.host) / 2**30,
        }
        del updates


def exponents(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Returns exponents of seconds and memory, by groups and by parameters, the other fixed."""
    found = []
    for kept, lines in table.groupby("kept"):
        for along, at in (("groups", "parameters"), ("parameters", "groups")):
            for fixed, line in lines.groupby(at):
                line = line.sort_values(along)[-FITTED:]
                if len(line) == FITTED:
                    logs = np.log(line[[along, "seconds", "GiB"]].to_numpy().clip(1e-9))
                    slopes = np.polyfit(logs[:, 0], logs[:, 1:], 1)[0]
                    place = {"kept": kept, "of": along, at: int(fixed)}
                    found.append(place | {"seconds": slopes[0], "memory": slopes[1]})
    return found


def main() -> None:
    parser = options(__doc__, "workdirs/snapshots.json", rounds=5)
    parser.add_argument("--kept", nargs="+", choices=KEPT, default=list(KEPT))
    parser.add_argument("--parameters", nargs="+", default=["1e4", "1e5", "1e6", "1e7"])
    parser.add_argument("--groups", type=int, nargs="+", default=[4, 16, 64, 256, 1024])
    parser.add_argument("--memory", type=float, default=4.0, help="GiB of a table, at most")
    parser.add_argument("--here", action="store_true", help="the first way and size, as JSON")
    arguments = parser.parse_args()
    counts, rounds, most = sorted(arguments.groups), arguments.rounds, arguments.memory * 2**30
    if arguments.here:
        for row in rows_of(arguments.kept[0], arguments.parameters[0], counts, rounds, most):
            print(json.dumps(row), flush=True)
        return
    found = []
    for size in arguments.parameters:
        for kept in arguments.kept:
            options = ["--here", f"--kept={kept}", f"--parameters={size}", f"--rounds={rounds}"]
            options += [f"--memory={arguments.memory}", "--groups", *map(str, counts)]
            command = [sys.executable, "-m", "analysis.benchmarks.snapshots", *options]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found += [json.loads(line) for line in done.stdout.splitlines()]
    table = pd.DataFrame(found)
    slopes = exponents(table)
    print(pd.DataFrame(slopes).to_string(index=False, float_format="{:.2f}".format, na_rep=""))
    publish(table, arguments.out, rounds=rounds, exponents=slopes)


if __name__ == "__main__":
    main()
