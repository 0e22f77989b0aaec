"""One offline page about runs: `python -m launch.report --workdir=DIR [DIR ...]`.

A workdir is that of a run, of a sweep, or a folder above some. `report.html` lies in the folder
that holds them all. It names the best and the worst, so its size is bounded.
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
from optdyn.report.curves import RunComparison
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

    `target` is the training loss of efficiencies; NaN: the lowest that all methods reach, or of
    many the better half. `out` is by default `report.html` in the workdirs' common folder. Raises
    `TableError` if there is no run in a workdir, or if one starts at or below the target.
    """
    points = _points(*workdirs)
    recorded = [point for point in points if point.config.get("replicas.count")]
    trained = tables.trained(points)
    metered = [point for point in trained if point.config.get("probes.momentum")]
    answer, compared = _comparisons(tables.comparable(points), target)
    sections = [
        *compared,
        momenta.metered(metered),
        arrivals.workers(trained),
        arrivals.staleness(trained),
        momenta.replicas(recorded, workdirs),
    ]
    path = out or Path(os.path.commonpath([w.resolve() for w in workdirs])) / "report.html"
    names = ", ".join(workdir.resolve().name for workdir in workdirs[:3])
    more = f" and {len(workdirs) - 3} more" if len(workdirs) > 3 else ""
    notes = dict.fromkeys(
        [*tables.notes(*workdirs), *(str(point.config.get("note") or "") for point in points)]
    )
    text = page.render(
        title=f"Optimization dynamics: {names}{more}",
        notes=[note for note in notes if note][:NOTES],
        answers=answer,
        sections=[section for section in sections if section],
        **_provenance(points, workdirs),
    )
    tables.replace(path, text)
    return path


def compared(*workdirs: Path, target: float = np.nan) -> dict[str, Any]:
    """Returns the target and the settings that the page compares, the best first, run by run.

    A row has the keys that tell its setting from others, and of each run the seed, the updates and
    simulated seconds to the target (infinite if missed), and the final loss.
    """
    points = tables.comparable(_points(*workdirs))
    if not points:
        return {"target": None, "rows": []}
    comparison, _ = _compare(points, target)
    return {"target": comparison.target, "rows": headline.rows(comparison)}


def best(workdir: Path, target: float = np.nan) -> str:
    """Returns a short table, as text, of the best points; '' if nothing was trained."""
    points = tables.comparable(_points(workdir))
    return headline.best(_compare(points, target)[0]) if points else ""


def _points(*workdirs: Path) -> Sequence[Point]:
    """Reads the points; equal configs of different workdirs get a key that tells them apart."""
    points = tables.points(*workdirs)
    homes: dict[str, set[Path]] = {}
    for point in points:
        homes.setdefault(repr(sorted(point.config.items())), set()).add(tables.home(point.folder))
    if all(len(folders) == 1 for folders in homes.values()):
        return points
    return [p._replace(config=p.config | {WORKDIR: str(tables.home(p.folder))}) for p in points]


def _comparisons(points: Sequence[Point], target: float) -> tuple[list[str], list[Section | None]]:
    if not points:
        return [], []
    for point in points:
        if point.config.get(NAME) is None:
            raise TableError(f"{point.folder / 'config.json'}: {NAME} is missing")
    comparison, groups = _compare(points, target)
    if not comparison.curves:
        return [], [headline.overview(comparison)]
    return kept_momentum.answer(groups, comparison.keys) or headline.answer(comparison), [
        kept_momentum.section(groups, comparison),
        headline.overview(comparison),
        curves.losses(comparison),
        curves.time_to_losses(comparison),
        curves.plane(comparison),
        fronts.section(comparison),
        curves.along(comparison),
    ]


def _compare(points: Sequence[Point], target: float) -> tuple[RunComparison, list[GroupComparison]]:
    comparison = curves.compared(points, target)
    groups = (
        kept_momentum.comparisons(comparison.runs, comparison.log, comparison.keys, target)
        if comparison.curves
        else []
    )
    if groups and np.isnan(target):
        why = "by which the settings above are chosen"
        comparison = curves.compared(points, groups[0].losses[0])._replace(why=why)
    return comparison, groups


def _provenance(points: Sequence[Point], workdirs: Sequence[Path]) -> dict[str, Any]:
    facts = []
    for title, key in (("libraries", "versions"), ("device", "device")):
        texts = {
            ", ".join(f"{name} {value}" for name, value in point.summary.get(key, {}).items())
            for point in points
        }
        if texts := texts - {""}:
            facts.append((title, "; ".join(sorted(texts))))
    seconds = sum(point.summary.get("wall_seconds") or 0.0 for point in points)
    facts += [("wall-clock seconds of the runs", number(seconds))] if seconds else []
    command = f"{invocation('report')} {shlex.join(['--workdir', *map(str, workdirs)])}"
    differing = tables.differing_keys(points)
    shared = [
        (key, str(value))
        for key, value in points[0].config.items()
        if key not in differing and all(key in point.config for point in points)
    ]
    return {
        "provenance": [*facts, ("this page again", command)],
        "shared": shared,
        "simulated": SIMULATED,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 2, after a line on standard error, for unusable input."""
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
