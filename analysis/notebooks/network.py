"""Time that DASO saves, by the network between the nodes (`daso.ipynb`).

    saved = 1 - seconds of DASO / seconds of synchronous SGD        (arXiv 2104.05588: up to 34 %)

Neither losses nor the phases that they decide depend on the network, so a finished run serves all.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from optdyn.base.lookup import CLOCK
from optdyn.clock.meetings import synchronous
from optdyn.clock.service import DRAWN
from optdyn.experiment import Config, read
from optdyn.methods.daso import DASO, clock
from optdyn.report.tables import Point, TableError

GIGABIT = 1e9 / 8  # bytes
CURVE = np.geomspace(100, 0.1, 61).round(4).tolist()  # Gb/s


class DasoRun(NamedTuple):
    config: Config
    steps_per_epoch: int
    update_bytes: float  # of the model: 4 a parameter
    epoch_losses: list[float]  # training loss at the end of every epoch but the last


def read_daso(point: Point, folder: Path) -> DasoRun:
    """Returns the DASO run in `folder`, read as `point`; `TableError` if it is not finished."""
    if point.summary["status"] != "completed":
        raise TableError(f"{folder}: the run is {point.summary['status']}, must be completed")
    path = folder / "config.json"
    config = read(json.loads(path.read_text()), path, CLOCK)
    if config.cluster.bandwidths:
        raise TableError(
            f"{folder}: config.cluster.bandwidths must be (), for the bandwidth of all links varies"
        )
    if config.cluster.service.name not in DRAWN:
        raise TableError(
            f"{folder}: config.cluster.service.name = {config.cluster.service.name!r} is of "
            f"recorded times, must be one of {', '.join(DRAWN)}"
        )
    last = point.log[-1]
    examples = round(last["step"] * config.batch_size / last["epoch"])
    per_epoch = max(examples // config.batch_size, 1)
    losses = {row["step"]: row["train_loss"] for row in point.log}
    ends = range(per_epoch, config.steps, per_epoch)
    if unknown := sorted({*ends} - {*losses}):
        raise TableError(f"{folder}: the log has no update {unknown[0]}, where an epoch ends")
    return DasoRun(config, per_epoch, 4 * point.summary["parameters"], [losses[e] for e in ends])


def seconds(run: DasoRun, bandwidths: Sequence[float]) -> pd.DataFrame:
    """Returns simulated seconds by bandwidth between nodes, in Gb/s.

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
