"""The steps of all notebooks: make their runs, compare them, show a picture."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from optdyn.report import figures
from optdyn.report.figures import DASHES, OKABE_ITO, LossCurve

ROOT = Path(__file__).parents[2]
FOLDER = "OPTDYN_NOTEBOOKS"  # environment variable: where the runs lie, if elsewhere


class Shown(NamedTuple):
    png: bytes

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return "a picture"


def sweep(table: str) -> Path:
    """Runs the missing points of a table of `grids.py`, and returns its workdir.

    Raises `subprocess.CalledProcessError`, after the sweep's error lines.
    """
    workdir = Path(os.environ.get(FOLDER, ROOT / "workdirs" / "notebooks")) / table
    config = f"--config=analysis/notebooks/grids.py:{table}"
    arguments = [config, f"--workdir={workdir.resolve()}"]
    command = [sys.executable, "-m", "optdyn.cli.sweep", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr)
        done.check_returncode()
    return workdir


def show(figure: Figure) -> Shown:
    return Shown(figures.png(figure))


def curves(
    runs: pd.DataFrame,
    log: pd.DataFrame,
    name: Callable[[Any], str],
    looks: Mapping[str, tuple[Any, str]] | None = None,
) -> list[LossCurve]:
    """Returns the runs of equal `name(row of runs)` as one curve; `looks`: colour and line."""
    grouped = dict(list(runs.groupby(runs.apply(name, axis=1), sort=False)))
    if looks is None:
        looks = dict(zip(grouped, zip(OKABE_ITO, cycle(DASHES), strict=False), strict=False))
    return [
        LossCurve(label, *looks[label], log[log["point"].isin(members["point"])], members)
        for label, members in grouped.items()
    ]
