"""The first lines of a report: what was compared, and who gets to the target first, by how much.

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
from optdyn.report import efficiency, run_tables
from optdyn.report.curves import CLOCKS
from optdyn.report.efficiency import MOMENTUM
from optdyn.report.page import number
from optdyn.report.run_tables import GROUPS, NAME, describe, of_figure, varying

PARTS = 4  # problems or clusters that are told of
PLACES = ("model.", "data.", "cluster.", "loss")  # keys of a problem or a cluster begin so
LAYOUT = ("cluster.nodes", "cluster.devices_per_node")  # which a method may have of its own


def lines(runs: pd.DataFrame, keys: Sequence[str], target: float) -> list[str]:
    """The sentences; `runs` are those of `run_tables.prepared`, with figures to the target."""
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
    first += ", each at its best learning rate" if run_tables.tuned(runs) else ""
    first += f", in {len(parts):,} places by themselves" if len(parts) > 1 else ""
    seeds = int(runs.groupby("setting")["seed"].nunique().min())
    first += f", with {seeds} seeds or more." if seeds > 1 else ", with one seed."
    told, said = parts[:PARTS], [first]
    if alone:
        titles = ", ".join(run_tables.TITLES.get(key, key) for key in alone)
        said.append(f"No two methods had the same {titles}, so this is not of methods alone.")
    said += [line for its in told for line in _of_part(its, keys, place, alone)]
    if len(parts) > len(told):
        said.append(f"And {len(parts) - len(told):,} places more, in the table below.")
    return said


def best(runs: pd.DataFrame, keys: Sequence[str], target: float, most: int = 5) -> str:
    """A table, as text, of the settings that come first at the target, or at the end."""
    reached = bool(np.isfinite(runs["updates_to_target"]).any())
    goal = f"to {number(target)}"
    titles = ["best points", f"updates {goal}", f"simulated seconds {goal}", "final loss"]
    figures = ["updates_to_target", "seconds_to_target", "train_loss"]
    if not reached:
        titles, figures = [titles[0], titles[-1]], figures[-1:]
    batch = [key for key in ("batch_size",) if key in keys and runs[key].nunique() > 1]
    labels = list(dict.fromkeys([*varying(runs, keys), *batch]))
    rows = [titles]
    for setting in run_tables.ranked(runs)[:most]:
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


def rows(runs: pd.DataFrame, keys: Sequence[str]) -> list[dict[str, Any]]:
    """A row a setting, the best first: the keys that tell it from others, figures run by run."""
    labels, found = varying(runs, keys), []
    for setting in run_tables.ranked(runs):
        its = runs[runs["setting"] == setting]
        figures = ("seed", "updates_to_target", "seconds_to_target", "train_loss")
        found.append(
            {key: _plain(its.iloc[0][key]) for key in labels}
            | {key: [_plain(value) for value in its[key]] for key in figures}
        )
    return found


def _plain(value: Any) -> Any:
    """A cell of a table as JSON has it."""
    return value.item() if isinstance(value, np.generic) else value


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
    told = run_tables.varying(runs, where, first=())
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
