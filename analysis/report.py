"""One offline page about a run or a sweep: `python -m analysis.report --workdir=DIR`.

Reads workdirs only and writes `DIR/report.html`, with its pictures inside it.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import efficiency, figures, page, tables
from analysis.efficiency import MOMENTUM
from analysis.tables import Point, TableError

NAME, GROUPS = "strategy.name", "strategy.groups"
TITLES = {
    NAME: "strategy",
    GROUPS: "groups",
    MOMENTUM: "momentum",
    "optimizer.learning_rate": "learning rate",
    "train_loss": "final train loss",
    "test_accuracy": "test accuracy",
    "updates_to_target": "updates to target (statistical efficiency)",
    "simulated_seconds_per_step": "simulated seconds an update (hardware efficiency)",
    "seconds_to_target": "simulated seconds to target (the product)",
}


class Column(NamedTuple):
    title: str
    text: bool = False


class Cell(NamedTuple):
    shown: str
    sort: Any
    bad: bool = False
    range: str = ""


class Table(NamedTuple):
    label: str
    columns: list[Column]
    rows: list[list[Cell]]


class Picture(NamedTuple):
    src: str
    alt: str
    caption: str = ""


def write(workdir: Path, target: float = np.nan) -> Path:
    """Writes `report.html` into a run's or a sweep's workdir and returns its path.

    `target` is the training loss that efficiency is measured to; NaN: the lowest that every method
    reaches. Raises `TableError` if there is no run in the workdir.
    """
    points = tables.points(workdir)
    keys = tables.columns(points)
    log = tables.metrics(points)
    runs = tables.runs(points, keys)
    runs.loc[runs[NAME] != "asynchronous", GROUPS] = None  # the others take no notice of it
    runs = efficiency.named(runs, keys)
    given = not np.isnan(target)
    target = target if given else efficiency.common_target(runs, log)
    runs = efficiency.with_target(runs, log, target)
    content = {
        "title": f"Optimization dynamics: {workdir.resolve().name}",
        **_headline(runs, keys, target, given),
        **_losses(runs, log, keys, target),
        **_staleness(points),
        **_fits(points),
        **_provenance(points, keys, workdir),
    }
    path = workdir / "report.html"
    tables.replace(path, page.render(**content))
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 2 and one line on standard error for input it cannot use."""
    parser = argparse.ArgumentParser(description="Writes DIR/report.html.")
    parser.add_argument("--workdir", type=Path, required=True, help="of a run or a sweep")
    parser.add_argument("--target", type=float, default=np.nan, help="training loss to reach")
    flags = parser.parse_args(arguments)
    try:
        print(write(flags.workdir, flags.target))
    except (TableError, OSError) as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
