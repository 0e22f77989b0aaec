"""Time that DASO saves, by the network between the nodes: `python -m analysis.network`.

    saved = 1 - seconds of DASO / seconds of synchronous SGD        (arXiv 2104.05588: up to 34 %)

Losses do not depend on the network, nor do the phases that they decide: the epoch losses of a
finished DASO run give its timeline at any bandwidth, size of model and speed of device. `--workdir`
is that run's, or a sweep's. Writes NAME.csv, a row a run and bandwidth, and NAME.svg there.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from optdyn import strategies
from optdyn.analysis import figures, tables
from optdyn.analysis.tables import Point, TableError
from optdyn.basics.arguments import Parser
from optdyn.basics.errors import InputError, print_error
from optdyn.basics.files import as_json
from optdyn.config import read
from optdyn.experiment import Experiment
from optdyn.problem.own_code import CLOCK
from optdyn.strategies.mix.daso import DASO, clock
from optdyn.timeline.nodes import synchronous
from optdyn.timeline.service import DRAWN

GIGABIT = 1e9 / 8  # bytes
TABLE = (100.0, 25.0, 10.0, 5.0, 1.0)  # Gb/s, printed
CURVE = sorted({*TABLE, *np.geomspace(0.1, 100, 61).round(4)}, reverse=True)
PAPER = 0.34  # most that the paper saved


class Recorded(NamedTuple):
    """What the clock of a finished DASO run depends on."""

    config: Experiment
    steps_per_epoch: int
    update_bytes: float  # of the model: 4 a parameter
    epoch_losses: list[float]  # training loss at the end of every epoch but the last


def recorded(point: Point, folder: Path) -> Recorded:
    """The DASO run in `folder`, read as `point`; `TableError` if it is not finished."""
    if point.summary["status"] != "completed":
        raise TableError(f"{folder}: the run is {point.summary['status']}, must be completed")
    path = folder / "config.json"
    config = read(json.loads(path.read_text()), path, CLOCK)
    if config.cluster.bandwidths:
        raise TableError(
            f"{folder}: config.cluster.bandwidths must be (), for the bandwidth of all links varies"
        )
    if config.cluster.service not in DRAWN:
        raise TableError(
            f"{folder}: config.cluster.service = {config.cluster.service!r} is of recorded times, "
            f"must be one of {', '.join(DRAWN)}"
        )
    last = point.log[-1]
    examples = round(last["step"] * config.batch_size / last["epoch"])
    per_epoch = max(examples // config.batch_size, 1)
    losses = {row["step"]: row["train_loss"] for row in point.log}
    ends = range(per_epoch, config.steps, per_epoch)
    if unknown := sorted({*ends} - {*losses}):
        raise TableError(f"{folder}: the log has no update {unknown[0]}, where an epoch ends")
    return Recorded(config, per_epoch, 4 * point.summary["parameters"], [losses[e] for e in ends])


def seconds(run: Recorded, bandwidths: Sequence[float]) -> pd.DataFrame:
    """Simulated seconds of the run at each bandwidth between nodes, in Gb/s.

    Columns `bandwidth`, `synchronous`, `daso`, `saved`: equal updates, epochs and draws.
    """
    config, rows = run.config, []
    common: dict[str, Any] = {
        name: getattr(config, name) for name in ("steps", "batch_size", "seed")
    }
    common["update_bytes"] = run.update_bytes
    epochs: Any = {"steps_per_epoch": run.steps_per_epoch, "epoch_losses": run.epoch_losses}
    for bandwidth in bandwidths:
        between = bandwidth * GIGABIT if np.isfinite(bandwidth) else 0.0  # which is free
        cluster = config.cluster.with_(bandwidth=between)
        waiting = float(synchronous(cluster, **common).seconds[-1])
        selective = float(clock(cluster, config.methods.of(DASO), **common, **epochs).seconds[-1])
        rows.append((bandwidth, waiting, selective, 1 - selective / waiting))
    return pd.DataFrame(rows, columns=["bandwidth", "synchronous", "daso", "saved"])


def crossings(bandwidths: Sequence[float], saved: Sequence[float], target: float) -> list[float]:
    """The bandwidths at which `saved` passes `target`, linear in the logarithm between neighbours.

    Two where the network is first slow enough to be worth hiding and then too slow to be hidden.
    """
    x, y = np.log(bandwidths), np.asarray(saved) - target
    passed = np.flatnonzero((y[:-1] < 0) != (y[1:] < 0))
    return [float(np.exp(x[i] - y[i] * (x[i + 1] - x[i]) / (y[i + 1] - y[i]))) for i in passed]


@matplotlib.rc_context(figures.STYLE)
def picture(table: pd.DataFrame, marks: Sequence[float]) -> str:
    """An SVG of the time saved against the bandwidth: median of the runs, and their range."""
    figure = Figure(figsize=(6.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    percent = 100 * table.groupby("bandwidth")["saved"].agg(["median", "min", "max"])
    axes.plot(percent.index, percent["median"], color=figures.BLUE, label="DASO, simulated")
    axes.fill_between(percent.index, percent["min"], percent["max"], color=figures.BLUE, alpha=0.2)
    axes.axhline(100 * PAPER, color=figures.GREY, ls=":", label=f"paper, up to {PAPER:.0%}")
    for mark in marks:
        axes.plot(mark, 100 * PAPER, "o", color=figures.VERMILION, label=f"at {mark:.3g} Gb/s")
    axes.set(xscale="log", xlabel="bandwidth between nodes (Gb/s)", ylabel="time saved (%)")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend()
    return figures.svg(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 2 and one line on standard error for input it cannot use."""
    parser = Parser(prog="analysis.network", description="Time that DASO saves.")
    parser.add_argument("--workdir", type=Path, required=True, help="of a run or a sweep")
    parser.add_argument("--update_bytes", type=positive, help="of another model than the run's")
    parser.add_argument("--seconds_per_example", type=positive, help="on a device of speed 1")
    parser.add_argument("--name", default="network", help="of the files written")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    flags = parser.read(arguments)
    try:
        table = pd.concat(_tables(flags), ignore_index=True)
        median = table.groupby("bandwidth")[["synchronous", "daso", "saved"]].median()
        marks = crossings(CURVE, median.loc[CURVE, "saved"].tolist(), PAPER)
        tables.replace(flags.workdir / f"{flags.name}.csv", table.to_csv(index=False))
        tables.replace(flags.workdir / f"{flags.name}.svg", picture(table, marks))
    except (InputError, OSError) as error:
        return print_error(error)
    if flags.json:
        print(as_json({"bandwidths": median.reset_index().to_dict("records"), "marks": marks}))
        return 0
    print(median.loc[list(TABLE)].to_string(float_format="{:.4g}".format))
    where = " and ".join(f"{mark:.3g}" for mark in marks) or f"none of {CURVE[-1]} to {CURVE[0]:g}"
    print(f"{PAPER:.0%}, the most in the paper: at {where} Gb/s")
    return 0


def _tables(flags: argparse.Namespace) -> list[pd.DataFrame]:
    """`seconds` of every DASO run in the workdir, with the column `point`."""
    found = []
    every = tables.points(flags.workdir)
    for point in every:
        methods = strategies.seen(point.config["strategy.name"])
        if not methods or len(methods.every) > 1 or not isinstance(methods.mix, DASO):
            continue  # others have other clocks
        swept = flags.workdir / "points" / point.name
        run = recorded(point, swept if swept.exists() else flags.workdir)
        if flags.update_bytes:
            run = run._replace(update_bytes=flags.update_bytes)
        if flags.seconds_per_example:
            seconds_per_example = {"cluster.seconds_per_example": flags.seconds_per_example}
            run = run._replace(config=run.config.with_(seconds_per_example))
        found.append(seconds(run, CURVE).assign(point=point.name))
    if not found:
        raise TableError(f"{flags.workdir}: no run of DASO by itself in it")
    return found


def positive(text: str) -> float:
    """The number in the text. Raises ValueError unless it is above 0 and finite."""
    if not 0 < float(text) < np.inf:
        raise ValueError
    return float(text)


if __name__ == "__main__":
    sys.exit(main())
