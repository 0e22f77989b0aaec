"""The report's sections on arrivals: who computes when, and how stale gradients are.

The timeline of a simulated run is drawn again from its config, and is used only if it agrees with
the log's seconds; a real run recorded its arrivals in `trace.csv`.
"""

import json
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from optdyn import methods
from optdyn.base.errors import InputError
from optdyn.base.lookup import CLOCK
from optdyn.clock.trace import read_table
from optdyn.experiment import read
from optdyn.report import figures, run_tables, tables
from optdyn.report.page import Picture, Section
from optdyn.report.relevant_keys import with_relevant_keys
from optdyn.report.run_tables import GROUPS, NAME
from optdyn.report.tables import Point, config_value

LONGEST = 1_000_000  # updates of a timeline that is drawn again
LANES = 16
ROUNDS = 4  # arrivals a group that are shown, about
GANTTS = 2  # pictures: of the fewest and of the most groups
WORD = 4  # bytes of a parameter
MEMORYLESS = ("exponential", "geometric")  # services with a geometric law of staleness
MOST = 6  # histograms


def workers(points: Sequence[Point]) -> Section | None:
    """Returns the section of who computes when, in the runs of fewest and of most groups."""
    by_groups: dict[int, Point] = {}
    for point in points:
        by_groups.setdefault(int(config_value(point.config, GROUPS) or 1), point)
    several = [by_groups[g] for g in sorted(by_groups) if 2 <= g <= LANES]
    found = [(point, chart) for point in several if (chart := first(point))]
    pictures = []
    for point, (bars, lanes) in found[:1] + found[1:][-GANTTS + 1 :]:
        kind = "real" if (point.folder / "trace.csv").exists() else "simulated"
        caption = f"{point.name}: the first {len(bars)} arrivals, {kind}"
        alt = f"Which of {len(lanes)} groups computes when. {caption}."
        pictures.append(Picture(figures.uri(gantt(bars, lanes)), alt, caption))
    text = (
        "A bar goes from where a group reads the parameters to where it delivers its gradient, "
        "with all that it waits between; the darker, the more updates of others it has missed."
    )
    return Section("Workers", text=text, pictures=pictures) if pictures else None


@matplotlib.rc_context(figures.STYLE)
def gantt(bars: pd.DataFrame, lanes: Sequence[str]) -> Figure:
    """Draws bars from `start` to `end` in lanes; the staler a gradient, the darker its bar."""
    figure, axes = figures.new(height=0.9 + 0.24 * len(lanes))
    share = bars["staleness"] / max(bars["staleness"].max(), 1)
    shades = matplotlib.colormaps["viridis_r"](share.to_numpy())
    spans = bars["end"] - bars["start"]
    edge: Any = {"height": 0.75, "color": shades, "edgecolor": "white", "linewidth": 0.8}
    axes.barh(bars["lane"], spans, left=bars["start"], **edge)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set(xlabel="simulated seconds")
    return figure


def first(point: Point) -> tuple[pd.DataFrame, list[str]] | None:
    """Returns (bars, lanes) of the first updates; None if they are unknown, or of one group.

    The bars' columns are `lane`, `start`, `end` (seconds) and `staleness`. A bar includes the
    waiting.
    """
    found = arrivals(point)
    if found is None:
        return None
    worker, seconds = found
    groups = int(worker.max()) + 1 if len(worker) else 0
    if not 2 <= groups <= LANES:
        return None
    shown = seconds[min(ROUNDS * groups, len(seconds)) - 1]
    rows, read_at, version = [], np.zeros(groups), np.zeros(groups, int)
    for update, (group, second) in enumerate(zip(worker, seconds, strict=True), start=1):
        start, staleness = read_at[group], update - 1 - version[group]
        read_at[group], version[group] = second, update
        if start >= shown:
            if read_at.min() > shown:
                break
            continue
        rows.append((int(group), float(start), float(min(second, shown)), int(staleness)))
    bars = pd.DataFrame(rows, columns=["lane", "start", "end", "staleness"])
    return bars, [f"group {group}" for group in range(groups)]


def arrivals(point: Point) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the groups that arrive and their seconds, (updates,); None if they are unknown."""
    path = point.folder / "trace.csv"
    try:
        if path.exists():
            table = read_table(path)
            return table["worker"].to_numpy(int), table["seconds"].to_numpy(float)
        path = point.folder / "config.json"
        config = read(json.loads(path.read_text()), path, CLOCK)
        simple = config.methods.simple and config.methods.grouped
        if not simple or config.cluster.service.name == "geometric" or config.steps > LONGEST:
            return None
        size = WORD * int(point.summary.get("parameters", 0))
        timeline = config.timeline(steps_per_epoch=1, update_bytes=size)
        agrees = _agrees(timeline.seconds, point.log)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError):
        return None  # a foreign file: the page does without the picture
    return (timeline.worker, timeline.seconds) if agrees else None


def _agrees(seconds: np.ndarray, log: list[dict[str, Any]]) -> bool:
    rows = [row for row in log if 0 < row["step"] <= len(seconds)]
    logged = np.array([row["simulated_seconds"] for row in rows], float)
    drawn = seconds[[row["step"] - 1 for row in rows]] if rows else logged
    return bool(rows) and np.allclose(drawn, logged, rtol=1e-6, atol=0)


def staleness(points: Sequence[Point]) -> Section | None:
    """Returns the section of a histogram for each arrangement of groups on a cluster."""
    stale = [point for point in points if any(point.summary.get("staleness_histogram", [])[1:])]
    if not stale:
        return None
    keys = tables.columns(with_relevant_keys(stale))
    keys = [key for key in keys if key.startswith(("method.", "cluster."))]
    runs = tables.runs(stale, keys)
    note = (
        "Updates applied between a gradient's reading of the parameters and its arrival. For "
        "memoryless groups of one worker the law is geometric, of mean g − 1. A group of several "
        "workers delivers with its slowest, which is more regular: the mean is the same."
    )
    if len(runs.drop_duplicates(keys)) > MOST:
        keys = [key for key in keys if key in (NAME, GROUPS, "cluster.service.name")]
        note += " Each picture is of all clusters together."
    groups = [group for _, group in runs.groupby(keys, dropna=False)]
    if len(groups) > MOST:
        note += f" {MOST} of {len(groups)}."
        places = np.linspace(0, len(groups) - 1, MOST).round().astype(int)
        groups = [groups[place] for place in places]
    labels = [GROUPS, *run_tables.distinguishing_keys(runs, keys)]
    pictures = [_histogram([stale[i] for i in group.index], labels) for group in groups]
    return Section("Staleness", text=note, pictures=pictures, small=True)


def _histogram(members: Sequence[Point], labels: Sequence[str]) -> Picture:
    histograms = [point.summary["staleness_histogram"] for point in members]
    counts = pd.DataFrame(histograms).sum().to_numpy(float)
    mean = np.average(np.arange(len(counts)), weights=counts)
    config = members[0].config
    services = {point.config.get("cluster.service.name") for point in members}
    method = methods.known_stack(config[NAME])
    independent = (
        method and method.grouped and method.shared and not method.sections_with("arrivals")
    )
    memoryless = services <= set(MEMORYLESS) and independent
    groups = config_value(config, GROUPS) if memoryless else None
    setting = {key: config_value(config, key) for key in labels}
    caption = f"{run_tables.describe(setting, labels)}: mean {mean:.3g}"
    alt = "Histogram of staleness. " + caption
    alt += f"; over it the geometric law of mean {groups - 1}." if groups else "."
    return Picture(figures.uri(figures.staleness(counts, groups)), alt, caption)
