"""One offline page about a run or a sweep: `python -m analysis.report --workdir=DIR`.

Reads workdirs only and writes `DIR/report.html`, with its pictures inside it, and the pictures once
more as SVG files in `DIR/pictures`.
"""

import argparse
import base64
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import efficiency, figures, page, sections, tables
from analysis.page import Cell, Column, Picture, Table, cell, number
from analysis.sections import GROUPS, NAME
from analysis.tables import Point, TableError

SIMULATED = (
    "Gradients, updates and losses are real: they were computed. Staleness and seconds are "
    "simulated: the order of arrivals and the clock come from the simulated cluster of the "
    "configuration (cluster.*), and no wall-clock time enters them."
)
MEMORYLESS = ("exponential", "geometric")  # services with a geometric law of staleness


def write(workdir: Path, target: float = np.nan) -> Path:
    """Writes `report.html` into a run's or a sweep's workdir and returns its path.

    `target` is the training loss that efficiency is measured to; NaN: the lowest that every method
    reaches. Raises `TableError` if there is no run in the workdir.
    """
    points = tables.points(workdir)
    title = f"Optimization dynamics: {workdir.resolve().name}"
    recorded = [point for point in points if point.config.get("replicas.count")]
    trained = [point for point in points if not point.config.get("replicas.count")]
    # Recordings are short and start with nothing stale: their staleness is below its law.
    content = _trained(trained, target) | _staleness(trained) | _fits(points)
    if recorded:
        several = "s" if len(recorded) > 1 else ""
        line = f"{len(recorded)} recording{several} of replicas, for implicit momentum"
        fitted = all(point.fit for point in recorded)
        how = f" (not fitted yet: python -m analysis.implicit_momentum --workdir={workdir})"
        content["lead"] += [f"{line}{'' if fitted else how}."]
    for name in ("losses", "staleness", "fits_pictures"):
        for i, picture in enumerate(content[name], start=1):
            (workdir / "pictures").mkdir(exist_ok=True)
            file = workdir / "pictures" / f"{name.removesuffix('_pictures')}-{i}.svg"
            tables.replace(file, base64.b64decode(picture.src.partition(",")[2]).decode())
    path = workdir / "report.html"
    tables.replace(path, page.render(title=title, **content, **_provenance(points, workdir)))
    return path


def _trained(points: Sequence[Point], target: float) -> dict[str, Any]:
    """What was run, and its losses."""
    if not points:
        return {"lead": [], "headline": None, "notes": [], "losses": [], "losses_note": ""}
    keys, log = tables.columns(points), tables.metrics(points)
    runs = tables.runs(points, keys)
    # Only asynchronous runs have groups that arrive by themselves.
    runs[GROUPS] = pd.to_numeric(runs[GROUPS]).where(runs[NAME] == "asynchronous")
    runs = efficiency.named(runs, keys)
    given = not np.isnan(target)
    target = target if given else efficiency.common_target(runs, log)
    runs = efficiency.with_target(runs, log, target)
    note, pictures = sections.losses(runs, log, keys, target)
    lead = [f"{len(runs)} run{'s' * (len(runs) > 1)}: {sections.counted(runs['status'])}."]
    return {
        "lead": lead + sections.conclusions(runs, keys, target, given),
        "headline": sections.headline(runs, keys),
        "notes": sections.notes(runs, target),
        "losses": pictures,
        "losses_note": note,
    }


def _staleness(points: Sequence[Point]) -> dict[str, Any]:
    """A histogram for each arrangement of groups on a cluster, all its points together."""
    stale = [point for point in points if any(point.summary.get("staleness_histogram", [])[1:])]
    keys = [k for k in tables.columns(stale) if k.startswith(("strategy.", "cluster."))]
    runs = tables.runs(stale, keys) if stale else pd.DataFrame(columns=keys)
    pictures = []
    for _, group in runs.groupby(keys, sort=False, dropna=False):
        members = [stale[i] for i in group.index]
        counts = _summed([point.summary["staleness_histogram"] for point in members])
        mean = np.average(np.arange(len(counts)), weights=counts)
        config = members[0].config
        memoryless = config.get("cluster.service") in MEMORYLESS
        groups = config[GROUPS] if memoryless and config.get(NAME) == "asynchronous" else None
        name = sections.describe(group.iloc[0], [GROUPS, *sections.varying(runs, keys)])
        caption = f"{name}: mean {mean:.3g}"
        alt = "Histogram of staleness. " + caption
        alt += f"; over it the geometric law of mean {groups - 1}." if groups else "."
        pictures.append(Picture(figures.staleness(counts, groups), alt, caption))
    note = (
        "Updates applied between a gradient's reading of the parameters and its arrival. For "
        "memoryless groups of one worker the law is geometric, of mean g − 1. A group of several "
        "workers delivers with its slowest, which is more regular: the mean is the same."
    )
    return {"staleness": pictures, "staleness_note": note}


def _summed(histograms: Sequence[Sequence[int]]) -> np.ndarray:
    total = np.zeros(max(map(len, histograms)))
    for counts in histograms:
        total[: len(counts)] += counts
    return total


def _fits(points: Sequence[Point]) -> dict[str, Any]:
    """Fitted implicit momentum beside theory and least squares."""
    fits = [(point.name, point.fit) for point in points if point.fit]
    if not fits:
        return {"fits": None, "fits_note": "", "fits_pictures": []}
    columns = [Column("recording", text=True)]
    columns += [Column("groups g"), Column("explicit momentum"), Column("fitted momentum")]
    columns += [Column("theory"), Column("least squares"), Column("instrument strength F")]
    columns += [
        Column("effective learning rate"),
        Column("α/g"),
        Column("refused", text=True),
    ]
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
        for name, fit in fits
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
    return {
        "fits": Table("Implicit momentum", columns, rows),
        "fits_note": note,
        "fits_pictures": _fits_picture([fit for _, fit in fits]),
    }


def _fits_picture(fits: Sequence[Mapping[str, Any]]) -> list[Picture]:
    table = pd.DataFrame(
        {
            "groups": fit["groups"],
            "momentum": fit["momentum"],
            "low": fit["momentum_interval"][0],
            "high": fit["momentum_interval"][1],
            "least_squares": fit["least_squares_momentum"],
        }
        for fit in fits
    ).astype(float)
    if table["momentum"].isna().all():
        return []
    alt = "Fitted implicit momentum against the number of groups g: " + "; ".join(
        f"{row.momentum:.3g} ({row.low:.3g} to {row.high:.3g}) at g = {row.groups:g}"
        for row in table.dropna(subset=["momentum"]).itertuples()
    )
    return [Picture(figures.implicit_momentum(table), alt + ".")]


def _with_interval(fit: Mapping[str, Any], name: str) -> Cell:
    if fit[name] is None:
        return cell(None)
    return cell(fit[name])._replace(
        range=" – ".join(cell(end).shown for end in fit[f"{name}_interval"])
    )


def _provenance(points: Sequence[Point], workdir: Path) -> dict[str, Any]:
    """What produced the numbers: libraries, devices, the configuration that all points share."""
    libraries, devices, seconds = set(), set(), 0.0
    for point in points:
        versions, device = (point.summary.get(key, {}) for key in ("versions", "device"))
        libraries.add(", ".join(f"{name} {version}" for name, version in versions.items()))
        devices.add(", ".join(f"{name} {value}" for name, value in device.items()))
        seconds += point.summary.get("wall_seconds") or 0.0
    found = {"libraries": libraries - {""}, "device": devices - {""}}
    facts = [(name, "; ".join(sorted(texts))) for name, texts in found.items() if texts]
    facts += [("wall-clock seconds of the runs", number(seconds))] if seconds else []
    facts += [("this page again", f"python -m analysis.report --workdir={workdir}")]
    differing = tables.differing(points)
    shared = [(key, str(v)) for key, v in points[0].config.items() if key not in differing]
    return {"provenance": facts, "shared": shared, "simulated": SIMULATED}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 2 and one line on standard error for input it cannot use."""
    parser = argparse.ArgumentParser(prog="analysis.report", description="Writes DIR/report.html.")
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
