"""One offline page about runs: `python -m launch.report --workdir=DIR [DIR ...]`.

Reads workdirs only, each that of a run, of a sweep, or a folder above some. Writes `report.html`,
with its pictures inside it, into the folder that holds them all: `DIR` itself, if it is one. The
page stays of one size however many runs there are: it names the best and the worst of them.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from optdyn.base.errors import print_error
from optdyn.base.files import as_json
from optdyn.base.flag_parser import Parser, invocation
from optdyn.report import (
    arrivals,
    curves,
    fronts,
    headline,
    kept_momentum,
    momenta,
    page,
    tables,
)
from optdyn.report.curves import Compared
from optdyn.report.kept_momentum import GroupComparison
from optdyn.report.page import Section, number
from optdyn.report.run_tables import NAME
from optdyn.report.tables import Point, TableError

SIMULATED = (
    "Gradients, updates and losses are real: they were computed. Staleness and seconds are "
    "simulated: the order of arrivals and the clock come from the simulated cluster of the "
    "configuration (cluster.*), and no wall-clock time enters them."
)
NOTES = 6
WORKDIR = "workdir"  # a key of points whose configs do not tell them apart


def write(*workdirs: Path, target: float = np.nan, out: Path | None = None) -> Path:
    """Writes the page and returns its path.

    `target` is the training loss that efficiency is measured to; NaN: the lowest that every method
    reaches, or of many the better half. `out` is the page's path, if not `report.html` in the
    workdirs' common folder. Raises `TableError` if there is no run in a workdir, or if one starts
    at or below the target.
    """
    points = _distinguished(tables.points(*workdirs))
    recorded = [point for point in points if point.config.get("replicas.count")]
    trained = [point for point in points if not point.config.get("replicas.count")]
    probed = [point for point in trained if point.config.get("probes.momentum")]
    answers, found = _trained(_comparable(points), target)
    found += [momenta.metered(probed), arrivals.workers(trained), arrivals.staleness(trained)]
    found += [momenta.fitted(recorded, workdirs)]
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
        **_provenance(points, workdirs),
    )
    tables.replace(path, text)
    return path


def compared(*workdirs: Path, target: float = np.nan) -> dict[str, Any]:
    """The settings that the page compares, the best first, run by run.

    A row has the keys of the config that tell it from others, and of each of its runs the seed, the
    updates and the simulated seconds to the target (infinite if missed), and the final loss.
    """
    points = _comparable(_distinguished(tables.points(*workdirs)))
    it = _compared(points, target)[0] if points else None
    return {"target": it and it.target, "rows": headline.rows(it) if it else []}


def best(workdir: Path, target: float = np.nan) -> str:
    """A short table, as text, of the points that come first; '' if nothing was trained."""
    points = _comparable(_distinguished(tables.points(workdir)))
    return headline.best(_compared(points, target)[0]) if points else ""


def _comparable(points: Sequence[Point]) -> list[Point]:
    """Trained runs; metered ones beside others are there for the meter, and not to be compared."""
    trained = [point for point in points if not point.config.get("replicas.count")]
    return [point for point in trained if not point.config.get("probes.momentum")] or trained


def _notes(points: Sequence[Point], workdirs: Sequence[Path]) -> list[str]:
    """What the grids ask, and what runs say that they are for, if not too many do."""
    own = [str(point.config.get("note") or "") for point in points]
    every = dict.fromkeys([*tables.notes(*workdirs), *filter(None, own)])
    return list(every)[:NOTES]


def _distinguished(points: Sequence[Point]) -> Sequence[Point]:
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
        if point.config.get(NAME) is None:
            raise TableError(f"{point.folder / 'config.json'}: {NAME} is missing")
    it, tuned = _compared(points, target)
    if not it.curves:
        return [], [headline.overview(it)]
    return kept_momentum.answer(tuned, it.keys) or headline.lines(it), [
        kept_momentum.section(tuned, it),
        headline.overview(it),
        curves.losses(it),
        curves.to_losses(it),
        curves.plane(it),
        fronts.section(it),
        curves.along(it),
    ]


def _compared(points: Sequence[Point], target: float) -> tuple[Compared, list[GroupComparison]]:
    """The points and the arms among them, all by one target."""
    it = curves.compared(points, target)
    tuned = kept_momentum.comparisons(it.runs, it.log, it.keys, target) if it.curves else []
    if tuned and np.isnan(target):
        loss = tuned[0].losses[0]
        why = "by which the settings above are chosen"
        it = curves.compared(points, loss)._replace(why=why)
    return it, tuned


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
    again = invocation("report")
    facts += [("this page again", f"{again} {shlex.join(['--workdir', *map(str, workdirs)])}")]
    differing = tables.differing(points)
    shared = [
        (key, str(value))
        for key, value in points[0].config.items()
        if key not in differing and all(key in point.config for point in points)
    ]
    return {"provenance": facts, "shared": shared, "simulated": SIMULATED}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 2 and one line on standard error for input it cannot use."""
    parser = Parser(prog="optdyn report", description="Writes report.html.")
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
