"""One offline page about runs: `python -m analysis.report --workdir=DIR [DIR ...]`.

Reads workdirs only, each that of a run, of a sweep, or a folder above some. Writes `report.html`,
with its pictures inside it, and the pictures once more as SVG files in `pictures/`, into the folder
that holds them all: `DIR` itself, if it is one. The page stays of one size however many runs there
are: it names the best and the worst of them.
"""

import argparse
import base64
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import arms, curves, figures, metered, page, remains, sections, tables
from analysis.efficiency import MOMENTUM
from analysis.page import Cell, Column, Picture, Section, Table, cell, number
from analysis.sections import GROUPS, NAME
from analysis.tables import Point, TableError
from research import strategies
from research.outputs.figures import missing

SIMULATED = (
    "Gradients, updates and losses are real: they were computed. Staleness and seconds are "
    "simulated: the order of arrivals and the clock come from the simulated cluster of the "
    "configuration (cluster.*), and no wall-clock time enters them."
)
MEMORYLESS = ("exponential", "geometric")  # services with a geometric law of staleness
HISTOGRAMS = 6
WORKDIR = "workdir"  # a key of points whose configs do not tell them apart


def write(*workdirs: Path, target: float = np.nan, out: Path | None = None) -> Path:
    """Writes the page and returns its path.

    `target` is the training loss that efficiency is measured to; NaN: the lowest that every method
    reaches, or of many the better half. `out` is the page's path, if not `report.html` in the
    workdirs' common folder. Raises `TableError` if there is no run in a workdir.
    """
    points = _told_apart(tables.points(*workdirs))
    recorded = [point for point in points if point.config.get("replicas.count")]
    trained = [point for point in points if not point.config.get("replicas.count")]
    # Recordings are short and start with nothing stale: their staleness is below its law.
    # Metered runs beside others are there for the meter, and not to be compared.
    plain = [point for point in trained if not point.config.get("probes.momentum")]
    probed = [point for point in trained if point.config.get("probes.momentum")]
    found = [*_trained(plain or trained, target), _metered(probed), _staleness(trained)]
    found += [_fits(recorded, workdirs)]
    shown = [section for section in found if section]
    path = out or Path(os.path.commonpath([w.resolve() for w in workdirs])) / "report.html"
    _write_pictures(path.parent / "pictures", shown)
    names = ", ".join(workdir.resolve().name for workdir in workdirs[:3])
    more = f" and {len(workdirs) - 3} more" if len(workdirs) > 3 else ""
    title = f"Optimization dynamics: {names}{more}"
    notes = tables.notes(*workdirs)
    text = page.render(title=title, notes=notes, sections=shown, **_provenance(points, workdirs))
    tables.replace(path, text)
    return path


def _told_apart(points: Sequence[Point]) -> Sequence[Point]:
    """The points, with their workdir in the config if two of different workdirs agree in it."""
    homes: dict[str, set[Path]] = {}
    for point in points:
        homes.setdefault(repr(sorted(point.config.items())), set()).add(tables.home(point.folder))
    if all(len(its) == 1 for its in homes.values()):
        return points
    return [p._replace(config=p.config | {WORKDIR: str(tables.home(p.folder))}) for p in points]


def _trained(points: Sequence[Point], target: float) -> list[Section | None]:
    """What remains once all is tuned, what was run, and its comparisons."""
    if not points:
        return []
    for point in points:
        if why := missing(point.config, (NAME, MOMENTUM)):
            raise TableError(f"{point.folder / 'config.json'}: {why}")
    it = curves.compared(points, target)
    overview = sections.overview(it.runs, it.keys, it.target, it.why)
    if not it.curves:
        return [overview]
    tuned = remains.sections(arms.comparisons(it.runs, it.log, it.keys, target), it.log, it.keys)
    kinds = curves.kinds(it.runs, it.log, it.keys) if it.others else it.curves
    return [
        *tuned,
        overview,
        curves.losses(it.curves, it.others, it.note, it.target, sections.tuned(it.runs)),
        curves.plane(kinds, it.target, bool(it.others)),
        curves.pareto(it.runs, it.log),
    ]


def _metered(points: Sequence[Point]) -> Section | None:
    """What the momentum meter read, if any run had it on."""
    if not points:
        return None
    it = curves.compared(points, np.nan)
    return metered.section(points, it.runs, it.keys)


def _staleness(points: Sequence[Point]) -> Section | None:
    """A histogram for each arrangement of groups on a cluster, all its points together."""
    stale = [point for point in points if any(point.summary.get("staleness_histogram", [])[1:])]
    if not stale:
        return None
    keys = [k for k in tables.columns(stale) if k.startswith(("strategy.", "cluster."))]
    runs = tables.runs(stale, keys)
    note = (
        "Updates applied between a gradient's reading of the parameters and its arrival. For "
        "memoryless groups of one worker the law is geometric, of mean g − 1. A group of several "
        "workers delivers with its slowest, which is more regular: the mean is the same."
    )
    if len(runs.drop_duplicates(keys)) > HISTOGRAMS:
        keys = [key for key in keys if key in (NAME, GROUPS, "cluster.service")]
        note += " Each picture is of all clusters together."
    groups = [group for _, group in runs.groupby(keys, dropna=False)]
    if len(groups) > HISTOGRAMS:
        note += f" {HISTOGRAMS} of {len(groups)}."
        places = np.linspace(0, len(groups) - 1, HISTOGRAMS).round().astype(int)
        groups = [groups[place] for place in places]
    labels = [GROUPS, *sections.varying(runs, keys)]
    pictures = [_histogram([stale[i] for i in group.index], labels) for group in groups]
    return Section("Staleness", text=note, pictures=pictures, small=True)


def _histogram(members: Sequence[Point], labels: Sequence[str]) -> Picture:
    histograms = [point.summary["staleness_histogram"] for point in members]
    counts = np.zeros(max(map(len, histograms)))
    for its in histograms:
        counts[: len(its)] += its
    mean = np.average(np.arange(len(counts)), weights=counts)
    config = members[0].config
    services = {point.config.get("cluster.service") for point in members}
    memoryless = services <= set(MEMORYLESS) and strategies.arrives(config[NAME])
    groups = config[GROUPS] if memoryless else None
    caption = f"{sections.describe(config, labels)}: mean {mean:.3g}"
    alt = "Histogram of staleness. " + caption
    alt += f"; over it the geometric law of mean {groups - 1}." if groups else "."
    return Picture(figures.uri(figures.staleness(counts, groups)), alt, caption)


def _fits(points: Sequence[Point], workdirs: Sequence[Path]) -> Section | None:
    """Fitted implicit momentum beside theory and least squares."""
    if not points:
        return None
    lead = [f"{len(points)} recording{'s' * (len(points) > 1)} of replicas."]
    lead += list(dict.fromkeys(_scope(point.config) for point in points))[: sections.ROWS]
    if not all(point.fit for point in points):
        where = shlex.join(f"--workdir={workdir}" for workdir in workdirs)
        lead += [f"Not all are fitted yet: python -m analysis.implicit_momentum {where}"]
    fits = [(point.name, point.fit) for point in points if point.fit]
    if not fits:
        return Section("Implicit momentum", lead)
    columns = [Column("recording", text=True)]
    columns += [Column("groups g"), Column("explicit momentum"), Column("fitted momentum")]
    columns += [Column("theory"), Column("least squares"), Column("instrument strength F")]
    columns += [Column("effective learning rate"), Column("α/g")]
    columns += [Column("refused", text=True)]
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
        for name, fit in fits[: sections.ROWS]
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
        pictures=_fits_picture([fit for _, fit in fits]),
        table=Table("Implicit momentum", columns, rows),
    )


def _scope(config: Mapping[str, Any]) -> str:
    """How long, of what and on how much data the replicas of a recording were."""
    name, examples = config.get("model.name"), config.get("data.train_examples")
    data = f"{examples:,} examples" if examples else "all examples"
    return (
        f"g = {config[GROUPS]}: {config['replicas.count']:,} replicas of the first "
        f"{config.get('steps', 0):,} updates of {name}, in batches of {config.get('batch_size')} "
        f"of {data}."
    )


def _fits_picture(fits: Sequence[Mapping[str, Any]]) -> list[Picture]:
    figure = figures.implicit_momentum(fits)
    if figure is None:
        return []
    said = [
        "{:.3g} ({:.3g} to {:.3g})".format(fit["momentum"], *fit["momentum_interval"])
        + f" at g = {fit['groups']}"
        for fit in fits
        if fit["momentum"] is not None
    ]
    alt = "Fitted implicit momentum against the number of groups g: "
    return [Picture(figures.uri(figure), alt + "; ".join(said[: 2 * HISTOGRAMS]) + ".")]


def _with_interval(fit: Mapping[str, Any], name: str) -> Cell:
    if fit[name] is None:
        return cell(None)
    return cell(fit[name])._replace(
        range=" – ".join(cell(end).shown for end in fit[f"{name}_interval"])
    )


def _provenance(points: Sequence[Point], workdirs: Sequence[Path]) -> dict[str, Any]:
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
    command = shlex.join(["python", "-m", "analysis.report", "--workdir", *map(str, workdirs)])
    facts += [("this page again", command)]
    differing = tables.differing(points)
    shared = [(key, str(v)) for key, v in points[0].config.items() if key not in differing]
    return {"provenance": facts, "shared": shared, "simulated": SIMULATED}


def _write_pictures(folder: Path, shown: Sequence[Section]) -> None:
    for section in shown:
        for i, picture in enumerate(section.pictures, start=1):
            folder.mkdir(exist_ok=True)
            name = section.title.lower().replace(" ", "-")
            text = base64.b64decode(picture.src.partition(",")[2]).decode()
            tables.replace(folder / f"{name}-{i}.svg", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 2 and one line on standard error for input it cannot use."""
    parser = argparse.ArgumentParser(prog="analysis.report", description="Writes report.html.")
    parser.add_argument("--workdir", type=Path, required=True, help="of a run or a sweep")
    parser.add_argument("more", type=Path, nargs="*", help="workdirs that are compared with it")
    parser.add_argument("--target", type=float, default=np.nan, help="training loss to reach")
    parser.add_argument("--out", type=Path, help="the page; report.html in their common folder")
    flags = parser.parse_args(arguments)
    try:
        print(write(flags.workdir, *flags.more, target=flags.target, out=flags.out))
    except (TableError, OSError) as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
