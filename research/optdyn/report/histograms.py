"""The report's section on staleness: a histogram for each arrangement of groups on a cluster."""

from collections.abc import Sequence

import numpy as np

from optdyn import methods
from optdyn.report import figures, run_tables, tables
from optdyn.report.page import Picture, Section
from optdyn.report.relevant_keys import relevant
from optdyn.report.run_tables import GROUPS, NAME
from optdyn.report.tables import Point

MEMORYLESS = ("exponential", "geometric")  # services with a geometric law of staleness
MOST = 6  # histograms


def section(points: Sequence[Point]) -> Section | None:
    """A histogram for each arrangement of groups on a cluster, all its points together."""
    stale = [point for point in points if any(point.summary.get("staleness_histogram", [])[1:])]
    if not stale:
        return None
    keys = tables.columns(relevant(stale))
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
    services = {point.config.get("cluster.service.name") for point in members}
    name = config[NAME]
    chosen = methods.seen(name)
    each = chosen and chosen.grouped and chosen.shared and not chosen.having("arrivals")
    memoryless = services <= set(MEMORYLESS) and each
    groups = tables.value(config, GROUPS) if memoryless else None
    its = {key: tables.value(config, key) for key in labels}
    caption = f"{run_tables.describe(its, labels)}: mean {mean:.3g}"
    alt = "Histogram of staleness. " + caption
    alt += f"; over it the geometric law of mean {groups - 1}." if groups else "."
    return Picture(figures.uri(figures.staleness(counts, groups)), alt, caption)
