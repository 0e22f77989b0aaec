"""One offline page about runs: `python -m analysis.report --workdir=DIR [DIR ...]`.

Reads workdirs only, each that of a run, of a sweep, or a folder above some. Writes `report.html`,
with its pictures inside it, and the pictures once more as SVG files in `pictures/`, into the folder
that holds them all: `DIR` itself, if it is one. Those that the page of before had left there go.
The page stays of one size however many runs there are: it names the best and the worst of them.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from optdyn import strategies
from optdyn.analysis import (
    arms,
    charts,
    curves,
    figures,
    headline,
    kept_momentum,
    metered,
    page,
    run_tables,
    tables,
    workers,
)
from optdyn.analysis.arms import Comparison
from optdyn.analysis.curves import Compared
from optdyn.analysis.efficiency import MOMENTUM
from optdyn.analysis.page import Cell, Column, Picture, Section, Table, cell, number
from optdyn.analysis.relevant_keys import relevant
from optdyn.analysis.run_tables import GROUPS, NAME
from optdyn.analysis.tables import Point, TableError
from optdyn.basics.arguments import Parser, called
from optdyn.basics.errors import print_error
from optdyn.basics.files import as_json, missing

SIMULATED = (
    "Gradients, updates and losses are real: they were computed. Staleness and seconds are "
    "simulated: the order of arrivals and the clock come from the simulated cluster of the "
    "configuration (cluster.*), and no wall-clock time enters them."
)
MEMORYLESS = ("exponential", "geometric")  # services with a geometric law of staleness
HISTOGRAMS = 6
GANTTS = 2  # pictures of workers: of the fewest and of the most groups
NOTES = 6
RUNS = 2000  # whose configs can be told apart on the page
WORKDIR = "workdir"  # a key of points whose configs do not tell them apart


def write(*workdirs: Path, target: float = np.nan, out: Path | None = None) -> Path:
    """Writes the page and returns its path.

    `target` is the training loss that efficiency is measured to; NaN: the lowest that every method
    reaches, or of many the better half. `out` is the page's path, if not `report.html` in the
    workdirs' common folder. Raises `TableError` if there is no run in a workdir, or if one starts
    at or below the target.
    """
    points = _told_apart(tables.points(*workdirs))
    recorded = [point for point in points if point.config.get("replicas.count")]
    probed, plain = _probed(points)
    answers, found = _trained(plain or probed, target)
    trained = [point for point in points if not point.config.get("replicas.count")]
    found += [_metered(probed), _workers(trained), _staleness(trained)]
    found += [_fits(recorded, workdirs)]
    shown = [section for section in found if section]
    path = out or Path(os.path.commonpath([w.resolve() for w in workdirs])) / "report.html"
    names = ", ".join(workdir.resolve().name for workdir in workdirs[:3])
    more = f" and {len(workdirs) - 3} more" if len(workdirs) > 3 else ""
    title = f"Optimization dynamics: {names}{more}"
    text = page.render(
        title=title,
        notes=_notes(points, workdirs),
        answers=answers,
        sections=shown,
        differences=_differences(points),
        **_provenance(points, workdirs),
    )
    _write_pictures(path, shown)
    tables.replace(path, text)
    return path


def compared(*workdirs: Path, target: float = np.nan) -> dict[str, Any]:
    """The settings that the page compares, the best first, run by run.

    A row has the keys of the config that tell it from others, and of each of its runs the seed, the
    updates and the simulated seconds to the target (infinite if missed), and the final loss.
    """
    probed, plain = _probed(_told_apart(tables.points(*workdirs)))
    if not (plain or probed):
        return {"target": None, "rows": []}
    it, _ = _compared(plain or probed, target)
    return {"target": it.target, "rows": headline.rows(it.runs, it.keys)}


def best(workdir: Path, target: float = np.nan) -> str:
    """A short table, as text, of the points that come first; '' if nothing was trained."""
    probed, plain = _probed(_told_apart(tables.points(workdir)))
    if not (plain or probed):
        return ""
    it, _ = _compared(plain or probed, target)
    return headline.best(it.runs, it.keys, it.target)


def _probed(points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """Trained runs: metered ones, and the others.

    Metered runs beside others are there for the meter, and not to be compared.
    """
    trained = [point for point in points if not point.config.get("replicas.count")]
    parts: tuple[list[Point], list[Point]] = ([], [])
    for point in trained:
        parts[not point.config.get("probes.momentum")].append(point)
    return parts


def _notes(points: Sequence[Point], workdirs: Sequence[Path]) -> list[str]:
    """What the grids ask, and what runs say that they are for, if not too many do."""
    own = [str(point.config.get("note") or "") for point in points]
    every = dict.fromkeys([*tables.notes(*workdirs), *filter(None, own)])
    return list(every)[:NOTES]


def _told_apart(points: Sequence[Point]) -> Sequence[Point]:
    """The points, with their workdir in the config if two of different workdirs agree in it."""
    homes: dict[str, set[Path]] = {}
    for point in points:
        homes.setdefault(repr(sorted(point.config.items())), set()).add(tables.home(point.folder))
    if all(len(its) == 1 for its in homes.values()):
        return points
    return [p._replace(config=p.config | {WORKDIR: str(tables.home(p.folder))}) for p in points]


def _trained(points: Sequence[Point], target: float) -> tuple[list[str], list[Section | None]]:
    """The answer, what remains once all is tuned, what was run, and its comparisons."""
    if not points:
        return [], []
    for point in points:
        if why := missing(point.config, (NAME, MOMENTUM)):
            raise TableError(f"{point.folder / 'config.json'}: {why}")
    it, tuned = _compared(points, target)
    overview = run_tables.overview(it.runs, it.keys, it.target, it.why)
    if not it.curves:
        return [], [overview]
    said = kept_momentum.answer(tuned, it.keys) or headline.lines(it.runs, it.keys, it.target)
    kinds = curves.kinds(it.runs, it.log, it.keys) if it.others else it.curves
    return said, [
        *kept_momentum.sections(tuned, it.log, it.keys),
        overview,
        curves.losses(it.curves, it.others, it.note, it.target, run_tables.tuned(it.runs)),
        curves.to_losses(it.curves),
        curves.plane(kinds, it.target, bool(it.others)),
        curves.pareto(it.runs, it.log, it.keys),
        curves.along(it.curves),
    ]


def _compared(points: Sequence[Point], target: float) -> tuple[Compared, list[Comparison]]:
    """The points and the arms among them, all by one target."""
    it = curves.compared(points, target)
    tuned = arms.comparisons(it.runs, it.log, it.keys, target) if it.curves else []
    if tuned and np.isnan(target):
        loss = tuned[0].losses[0]
        why = "by which the settings above are chosen"
        it = curves.compared(points, loss)._replace(why=why)
    return it, tuned


def _metered(points: Sequence[Point]) -> Section | None:
    """What the momentum meter read, if any run had it on."""
    if not points:
        return None
    it = curves.compared(points, np.nan)
    return metered.section(points, it.runs, it.keys)


def _workers(points: Sequence[Point]) -> Section | None:
    """Charts of who computes when, in the runs of fewest and of most groups."""
    arrangements: dict[int, Point] = {}
    for point in points:
        arrangements.setdefault(int(point.config.get(GROUPS) or 1), point)
    several = [arrangements[g] for g in sorted(arrangements) if 2 <= g <= workers.LANES]
    found = [(point, workers.first(point)) for point in several]
    known = [(point, its) for point, its in found if its]
    pictures = []
    for point, (bars, lanes) in known[:1] + known[1:][-GANTTS + 1 :]:
        said = "real" if (point.folder / "trace.csv").exists() else "simulated"
        caption = f"{point.name}: the first {len(bars)} arrivals, {said}"
        alt = f"Which of {len(lanes)} groups computes when. {caption}."
        drawn = figures.uri(figures.gantt(bars, lanes))
        pictures.append(Picture(drawn, alt, caption, charts.gantt(bars, lanes)))
    text = (
        "A bar goes from where a group reads the parameters to where it delivers its gradient, "
        "with all that it waits between; the darker, the more updates of others it has missed."
    )
    return Section("Workers", text=text, pictures=pictures) if pictures else None


def _staleness(points: Sequence[Point]) -> Section | None:
    """A histogram for each arrangement of groups on a cluster, all its points together."""
    stale = [point for point in points if any(point.summary.get("staleness_histogram", [])[1:])]
    if not stale:
        return None
    keys = tables.columns(relevant(stale))
    keys = [key for key in keys if key.startswith(("strategy.", "cluster."))]
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
    labels = [GROUPS, *run_tables.varying(runs, keys)]
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
    name = config[NAME]
    each = strategies.arrives(name) and not strategies.owns(name, "arrivals")
    memoryless = services <= set(MEMORYLESS) and each and strategies.is_shared(name)
    groups = config[GROUPS] if memoryless else None
    caption = f"{run_tables.describe(config, labels)}: mean {mean:.3g}"
    alt = "Histogram of staleness. " + caption
    alt += f"; over it the geometric law of mean {groups - 1}." if groups else "."
    return Picture(figures.uri(figures.staleness(counts, groups)), alt, caption)


def _fits(points: Sequence[Point], workdirs: Sequence[Path]) -> Section | None:
    """Fitted implicit momentum beside theory and least squares."""
    if not points:
        return None
    lead = [f"{len(points)} recording{'s' * (len(points) > 1)} of replicas."]
    lead += list(dict.fromkeys(_scope(point.config) for point in points))[: run_tables.ROWS]
    if not all(point.fit for point in points):
        where = shlex.join(f"--workdir={workdir}" for workdir in workdirs)
        command = called("momentum", "analysis.implicit_momentum")
        lead += [f"Not all are fitted yet: {command} {where}"]
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
    again = called("report", "analysis.report")
    facts += [("this page again", f"{again} {shlex.join(['--workdir', *map(str, workdirs)])}")]
    differing = tables.differing(points)
    shared = [(key, str(v)) for key, v in points[0].config.items() if key not in differing]
    return {"provenance": facts, "shared": shared, "simulated": SIMULATED}


def _differences(points: Sequence[Point]) -> dict[str, Any]:
    """The keys in which configs differ, and each run's values: null where it has none."""
    keys = sorted(tables.differing(points))
    runs = [[p.name, [p.config.get(key) for key in keys]] for p in points[:RUNS]]
    return {"keys": keys, "runs": runs} if len(points) > 1 and keys else {}


def _write_pictures(path: Path, shown: Sequence[Section]) -> None:
    """Writes the page's pictures beside it, in place of those of the page before.

    What is in the folder and is no picture of that page, byte for byte, is not ours and stays.
    """
    folder, pictures = path.parent / "pictures", {}
    for section in shown:
        for i, picture in enumerate(section.pictures, start=1):
            name = section.title.lower().replace(" ", "-")
            pictures[f"{name}-{i}.svg"] = page.svg_of(picture.src)
    before = path.read_text(errors="replace") if path.exists() else ""
    old = {page.svg_of(src) for src in re.findall(r'<img src="(data:image/svg[^"]*)"', before)}
    for file in folder.glob("*.svg") if old else ():
        if file.name not in pictures and file.read_bytes() in old:
            file.unlink()
    for name, svg in pictures.items():
        folder.mkdir(exist_ok=True)
        tables.replace(folder / name, svg.decode())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 2 and one line on standard error for input it cannot use."""
    parser = Parser(prog="analysis.report", description="Writes report.html.")
    parser.add_argument("--workdir", type=Path, required=True, help="of a run or a sweep")
    parser.add_argument("more", type=Path, nargs="*", help="workdirs that are compared with it")
    parser.add_argument("--target", type=float, default=np.nan, help="training loss to reach")
    parser.add_argument("--out", type=Path, help="the page; report.html in their common folder")
    parser.add_argument("--json", action="store_true", help="print all settings as JSON")
    flags = parser.read(arguments)
    try:
        workdirs = (flags.workdir, *flags.more)
        path = write(*workdirs, target=flags.target, out=flags.out)
        print(as_json(compared(*workdirs, target=flags.target)) if flags.json else path)
    except TableError as error:
        return print_error(error)
    except OSError as error:
        folder = Path(error.filename or flags.workdir).parent
        print(f"error: {folder}: {error.strerror}; --out=FILE writes elsewhere", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
