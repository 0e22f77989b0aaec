"""What a report says first: what was run, and who gets to the target first, by how much.

The reference is plain SGD, synchronous or of one group; where nobody ran that, the first method of
the grid. Problems and clusters are compared by themselves, methods only within each; where no two
methods ran in one place, that is said.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from optdyn.evidence import intervals
from optdyn.evidence.crossing import Crossing
from optdyn.evidence.intervals import FEWEST
from optdyn.methods import GROUPED, PLAIN
from optdyn.report import efficiency, page
from optdyn.report.curves import CLOCKS, Compared
from optdyn.report.efficiency import MOMENTUM
from optdyn.report.page import Cell, Section, Table, cell, number
from optdyn.report.run_tables import (
    GROUPS,
    INTERPOLATED,
    KIND,
    NAME,
    ROWS,
    TITLES,
    changing,
    counted,
    describe,
    floats,
    of_figure,
    of_key,
    seeded,
    tuned,
    varying,
)

COLUMNS = 8  # of keys, in a table
PARTS = 4  # problems or clusters that are told of
PLACES = ("model.", "data.", "cluster.", "loss")  # keys of a problem or a cluster begin so
LAYOUT = ("cluster.nodes", "cluster.devices_per_node")  # which a method may have of its own


def lines(it: Compared) -> list[str]:
    """The sentences."""
    runs, keys, target = it.runs, it.keys, it.target
    methods = runs["method"].nunique()
    if methods < 2:
        return []
    if not np.isfinite(target):
        return [
            f"{methods:,} methods, and no answer: no completed run gets below the training loss "
            "that all start from."
        ]
    parts, place, alone = _parts(runs, keys)
    methods = max(its["method"].nunique() for its in parts)
    first = f"{methods:,} methods were compared by their way to a training loss of {number(target)}"
    first += ", each at its best learning rate" if tuned(runs) else ""
    first += f", in {len(parts):,} places by themselves" if len(parts) > 1 else ""
    seeds = int(runs.groupby("setting")["seed"].nunique().min())
    first += f", with {seeds} seeds or more." if seeds > 1 else ", with one seed."
    told, said = parts[:PARTS], [first]
    if alone:
        titles = ", ".join(TITLES.get(key, key) for key in alone)
        said.append(f"No two methods had the same {titles}, so this is not of methods alone.")
    said += [line for its in told for line in _of_part(its, keys, place, alone)]
    if len(parts) > len(told):
        said.append(f"And {len(parts) - len(told):,} places more, in the table below.")
    return said


def overview(it: Compared) -> Section:
    """How many runs, what all share, what they are measured by; and the table."""
    runs, keys, target = it.runs, it.keys, it.target
    if "worse" in runs:
        marked = runs["status"].where(runs["worse"].isna(), runs["status"] + ", worse")
        runs = runs.assign(status=marked)
    same = [key for key in keys if key != "seed" and key not in changing(runs, keys)]
    points = [f"{len(runs):,} run{'s' * (len(runs) > 1)}: {counted(runs['status'])}."]
    common = describe(runs.iloc[0], [NAME, *same] if runs[NAME].nunique() == 1 else same)
    points += [f"All: {common}."] if common and len(runs) > 1 else []
    if np.isfinite(target):
        points += [f"Target: a training loss of {number(target)}, {it.why}."]
    else:
        points += ["No target: no completed run gets below the training loss that all start from."]
    table, notes = _table(runs, keys)
    if np.isfinite(target):
        notes.append(INTERPOLATED + " A run that diverged has not reached it.")
    if "worse" in runs:
        notes.append("Worse: the last training loss, though finite, is over 100 times the first.")
    if seeded(runs):
        notes.append("Of several seeds the table has the median, in brackets least and most.")
    return Section("What was run", points, table=table, notes=notes)


def _table(runs: pd.DataFrame, keys: Sequence[str]) -> tuple[Table, list[str]]:
    """One row a setting, with the median of its seeds; of very many the best and the worst."""
    differing = changing(runs, keys)
    differing = differing if len(differing) <= COLUMNS else varying(runs, keys)
    keys = [key for key in differing if key not in KIND]
    seeds = seeded(runs)
    settings, notes = list(runs["setting"].unique()), []
    if len(settings) > ROWS:
        ranks = efficiency.ranked(runs)
        settings, worst = ranks[: ROWS - ROWS // 4] + ranks[-(ROWS // 4) :], ROWS // 4
        notes.append(
            f"Of {len(ranks):,} settings the table has the best {ROWS - worst} and the worst "
            f"{worst}, by updates to the target, then by final loss; results.csv has all."
        )
    shown = [f for f in efficiency.FIGURES if f in runs and np.isfinite(floats(runs[f])).any()]
    rows, groups = [], dict(list(runs[runs["setting"].isin(settings)].groupby("setting")))
    for group in (groups[setting] for setting in settings):
        status = counted(group["status"]) if seeds else group["status"].iloc[0]
        bad = set(group["status"]) != {"completed"}
        rows.append(
            {"method": cell(describe(group.iloc[0], KIND))}
            | {TITLES.get(key, key): of_key(group[key].iloc[0]) for key in keys}
            | {"status": Cell(status, status, bad)}
            | {TITLES[figure]: of_figure(group, figure) for figure in shown}
        )
    words = [TITLES.get(k, k) for k in keys if any(isinstance(v, str) for v in runs[k])]
    without = ("status",) if set(runs["status"]) == {"completed"} else ()
    return page.table("Runs", rows, ("method", "status", *words), without), notes


def best(it: Compared, most: int = 5) -> str:
    """A table, as text, of the settings that come first at the target, or at the end."""
    runs, keys, target = it.runs, it.keys, it.target
    reached = bool(np.isfinite(runs["updates_to_target"]).any())
    goal = f"to {number(target)}"
    titles = ["best points", f"updates {goal}", f"simulated seconds {goal}", "final loss"]
    figures = ["updates_to_target", "seconds_to_target", "train_loss"]
    if not reached:
        titles, figures = [titles[0], titles[-1]], figures[-1:]
    batch = [key for key in ("batch_size",) if key in keys and runs[key].nunique() > 1]
    labels = list(dict.fromkeys([*varying(runs, keys), *batch]))
    rows = [titles]
    for setting in efficiency.ranked(runs)[:most]:
        its = runs[runs["setting"] == setting]
        cells = [of_figure(its, figure) for figure in figures]
        rows.append([describe(its.iloc[0], labels), *(cell.shown for cell in cells)])
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of as many cells each as text: the first column to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def rows(it: Compared) -> list[dict[str, Any]]:
    """A row a setting, the best first: the keys that tell it from others, figures run by run."""
    labels, found = varying(it.runs, it.keys), []
    for setting in efficiency.ranked(it.runs):
        its = it.runs[it.runs["setting"] == setting]
        figures = ("seed", "updates_to_target", "seconds_to_target", "train_loss")
        found.append(
            {key: its[key].tolist()[0] for key in labels}
            | {key: its[key].tolist() for key in figures}
        )
    return found


def _parts(
    runs: pd.DataFrame, keys: Sequence[str]
) -> tuple[list[pd.DataFrame], list[str], list[str]]:
    """The runs of each problem and cluster in which several methods ran, and the keys that tell.

    What a problem or a cluster is always tells, though the method or a tuned number may say it as
    well. Of other keys, as of the batch, those tell that methods do not say. Where no place has
    several methods all runs are one part, and last come the keys by which places differ.
    """
    own = [key for key in keys if key.startswith(("method.", "optimizer.")) or key == "steps"]
    ways = [key for key in own if key not in ("steps", MOMENTUM) and not efficiency.tunes(key)]
    where = [key for key in keys if key.startswith(PLACES) and key not in LAYOUT]
    others = [key for key in keys if key not in (*own, *where)]
    told = varying(runs, where, first=())
    both = [*told, *(key for key in varying(runs, [*ways, *told, *others]) if key in others)]
    for place in filter(None, (both, told)):
        parts = [its for _, its in runs.groupby(place, sort=False, dropna=False)]
        if several := [its for its in parts if its["method"].nunique() > 1]:
            return several, place, []
    return [runs], [], told


def _of_part(
    runs: pd.DataFrame, keys: Sequence[str], place: Sequence[str], alone: Sequence[str]
) -> list[str]:
    start = f"{describe(runs.iloc[0], place)}: " if place else ""
    labels = [key for key in dict.fromkeys([*varying(runs, keys), *alone]) if key not in place]
    said = []
    for clock, unit in CLOCKS.items():
        figure = f"{clock}_to_target"
        order = runs.groupby("setting", sort=False)[figure].median().sort_values(kind="stable")
        if not np.isfinite(order.iloc[0]):
            return [f"{start}nobody reaches the target with most seeds."]
        plain, what = _reference(runs, order)
        method = runs.drop_duplicates("setting").set_index("setting")["method"]
        if method[order.index[0]] == method[plain]:
            others = [setting for setting in order.index if method[setting] != method[plain]]
            above, below = others[0], plain
            text = "{below}, {what}, itself takes the fewest {unit}: {its}; next {top}, {of}"
        else:
            above, below = order.index[0], plain
            text = "fewest {unit}: {top}, {of}, against {its} of {below}, {what}"
        one, other = (runs[runs["setting"] == setting] for setting in (above, below))
        told = text.format(
            unit=unit,
            top=describe(one.iloc[0], labels),
            below=describe(other.iloc[0], labels),
            of=of_figure(one, figure).shown,
            its=of_figure(other, figure).shown,
            what=what,
        )
        begins = told if start or told.startswith("g =") else told[0].upper() + told[1:]
        said.append(start + begins + _times(one, other, figure))
    return said


def _reference(runs: pd.DataFrame, order: pd.Series) -> tuple[str, str]:
    """The setting that others are measured by, and what it is."""
    plain = runs[NAME].eq(PLAIN) | (runs[NAME].eq(GROUPED) & runs[GROUPS].eq(1))
    if plain.any() and not plain.all():
        its = set(runs.loc[plain, "setting"])
        return next(setting for setting in order.index if setting in its), "the synchronous one"
    its = set(runs.loc[runs["method"] == runs["method"].iloc[0], "setting"])
    return next(setting for setting in order.index if setting in its), "the first of the grid"


def _times(one: pd.DataFrame, other: pd.DataFrame, figure: str) -> str:
    """`, 0.5 times [0.4, 0.6]`: medians, and the 95 % interval of `intervals.ratio`."""
    a, b = (its.drop_duplicates("seed").set_index("seed") for its in (one, other))
    both = sorted(set(a.index) & set(b.index))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = a[figure].median() / b[figure].median()
    if not np.isfinite(ratio) or ratio == 0:
        return "."
    if len(both) < FEWEST:
        few = "one seed" if len(both) == 1 else f"{len(both)} seeds"
        return f", {ratio:.2g} times; {few}, so no interval."
    names = (figure.replace("to_target", "low"), figure, figure.replace("to_target", "high"))
    ways = (Crossing(*(its.loc[both, name].to_numpy(float) for name in names)) for its in (a, b))
    _, low, high = intervals.ratio(*ways)
    return f", {ratio:.3g} times [{low:.3g}, {high:.3g}].".replace("inf", "∞")
