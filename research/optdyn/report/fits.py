"""The report's section on replicas that were recorded: the momentum that was fitted to them."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from optdyn.base.arguments import called
from optdyn.report import figures, run_tables
from optdyn.report.figures import Series
from optdyn.report.page import Cell, Column, Picture, Section, Table, cell
from optdyn.report.run_tables import GROUPS
from optdyn.report.tables import Point, value

SPOKEN = 12  # fits that the picture's text names
FIGURES = (
    "groups g",
    "explicit momentum",
    "fitted momentum",
    "theory",
    "least squares",
    "instrument strength F",
    "effective learning rate",
    "α/g",
)


def section(points: Sequence[Point], workdirs: Sequence[Path]) -> Section | None:
    """Every recording's fit beside theory and least squares; None where there is no recording."""
    if not points:
        return None
    lead = [f"{len(points)} recording{'s' * (len(points) > 1)} of replicas."]
    lead += list(dict.fromkeys(_scope(point.config) for point in points))[: run_tables.ROWS]
    if not all(point.fit for point in points):
        where = shlex.join(f"--workdir={workdir}" for workdir in workdirs)
        command = called("momentum")
        lead += [f"Not all are fitted yet: {command} {where}"]
    fits = [(point.name, point.fit) for point in points if point.fit]
    if not fits:
        return Section("Implicit momentum", lead)
    columns = [Column("recording", text=True), *map(Column, FIGURES), Column("refused", text=True)]
    rows = [
        [
            cell(name),
            cell(fit["groups"]),
            cell(fit["explicit_momentum"]),
            _with_interval(fit, "momentum"),
            cell(fit["theory_momentum"]),
            cell(fit["least_squares_momentum"]),
            cell(fit["instrument_strength"]),
            _with_interval(fit, "learning_rate"),
            cell(fit["config_learning_rate"] / fit["groups"]),
            Cell(fit["reason"], fit["reason"], bad=True),
        ]
        for name, fit in fits[: run_tables.ROWS]
    ]
    note = (
        "E dₜ = μ E dₜ₋₁ − η E Gₜ, with d the step and G the gradient of the whole objective, "
        "fitted over replicas by instrumental variables, with 95 % intervals. For memoryless "
        "groups theory has μ = 1 − 1/g and η = α/g. Least squares is biased towards 0 by the noise "
        "of the means. With explicit momentum the figure is that of the one-term recursion of the "
        "same mean lag."
    )
    if not any(row[-1].shown for row in rows):  # nothing was refused
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Section(
        "Implicit momentum",
        lead,
        text=note,
        pictures=_pictures([fit for _, fit in fits]),
        table=Table("Implicit momentum", columns, rows),
    )


def _scope(config: Mapping[str, Any]) -> str:
    """How long, of what and on how much data the replicas of a recording were."""
    name, examples = config.get("model.name"), config.get("data.train_examples")
    data = f"{examples:,} examples" if examples else "all examples"
    return (
        f"g = {value(config, GROUPS) or 1}: {config['replicas.count']:,} replicas of the first "
        f"{config.get('steps', 0):,} updates of {name}, in batches of {config.get('batch_size')} "
        f"of {data}."
    )


def _pictures(fits: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """Momentum fitted, by least squares and of theory against g; [] if no fit was possible."""
    found = [fit for fit in fits if fit["momentum"] is not None]
    if not found:
        return []
    g = np.array([fit["groups"] for fit in found], float)
    low, high = np.array([fit["momentum_interval"] for fit in found], float).T
    momentum = [fit["momentum"] for fit in found]
    squares = [fit["least_squares_momentum"] for fit in found]
    tables = [
        pd.DataFrame({"x": g, "value": squares, "low": squares, "high": squares}),
        pd.DataFrame({"x": g, "value": momentum, "low": low, "high": high}),
    ]
    series = [
        Series("least squares", "#E69F00", "dash-dotted", tables[0], False),
        Series("fitted, 95 % interval", figures.BLUE, "solid", tables[1], False),
    ]
    at = np.geomspace(1, max(g.max(), 2), 200)
    theory = {"theory, 1 − 1/g": (at, 1 - 1 / at)}
    figure = figures.against(series, "compute groups g", "implicit momentum", theory, log=2)
    said = [
        "{:.3g} ({:.3g} to {:.3g})".format(fit["momentum"], *fit["momentum_interval"])
        + f" at g = {fit['groups']}"
        for fit in found[:SPOKEN]
    ]
    alt = "Fitted implicit momentum against the number of groups g: "
    return [Picture(figures.uri(figure), alt + "; ".join(said) + ".")]


def _with_interval(fit: Mapping[str, Any], name: str) -> Cell:
    if fit[name] is None:
        return cell(None)
    return cell(fit[name])._replace(
        range=" – ".join(cell(end).shown for end in fit[f"{name}_interval"])
    )
