"""The head of a report: what was run, and who gets to the target first, by how much.

The reference is plain SGD, synchronous or of one group; where nobody ran that, the first method of
the grid. Methods are compared only within a place, a problem and a cluster.
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
from optdyn.report.curves import CLOCKS, RunComparison
from optdyn.report.efficiency import MOMENTUM
from optdyn.report.page import Cell, Section, Table, cell, number
from optdyn.report.run_tables import (
    GROUPS,
    INTERPOLATED,
    KIND,
    NAME,
    ROWS,
    TITLES,
    describe,
    distinguishing_keys,
    figure_cell,
    floats,
    has_seeds,
    has_tuning,
    key_cell,
    status_counts,
    varied_keys,
)

COLUMNS = 8  # of keys, in a table
PLACES = 4  # that the answer has lines for
PLACE_KEYS = ("model.", "data.", "cluster.", "loss")  # prefixes of a problem's or a cluster's keys
LAYOUT = ("cluster.nodes", "cluster.devices_per_node")  # which a method may have of its own


def answer(comparison: RunComparison) -> list[str]:
    runs, keys, target = comparison.runs, comparison.keys, comparison.target
    methods = runs["method"].nunique()
    if methods < 2:
        return []
    if not np.isfinite(target):
        return [
            f"{methods:,} methods, and no answer: no completed run gets below the training loss "
            "that all start from."
        ]
    parts, place, confounded = _places(runs, keys)
    methods = max(part["method"].nunique() for part in parts)
    first = f"{methods:,} methods were compared by their way to a training loss of {number(target)}"
    first += ", each at its best learning rate" if has_tuning(runs) else ""
    first += f", in {len(parts):,} places by themselves" if len(parts) > 1 else ""
    seeds = int(runs.groupby("setting")["seed"].nunique().min())
    lines = [first + (f", with {seeds} seeds or more." if seeds > 1 else ", with one seed.")]
    if confounded:
        titles = ", ".join(TITLES.get(key, key) for key in confounded)
        lines.append(f"No two methods had the same {titles}, so this is not of methods alone.")
    for part in parts[:PLACES]:
        lines += _answer_of_place(part, keys, place, confounded)
    if len(parts) > PLACES:
        lines.append(f"And {len(parts) - PLACES:,} places more, in the table below.")
    return lines


def overview(comparison: RunComparison) -> Section:
    """Returns the section of how many runs, what they share, their target and their table."""
    runs, keys, target = comparison.runs, comparison.keys, comparison.target
    if "worse" in runs:
        marked = runs["status"].where(runs["worse"].isna(), runs["status"] + ", worse")
        runs = runs.assign(status=marked)
    varied = varied_keys(runs, keys)
    same = [key for key in keys if key != "seed" and key not in varied]
    points = [f"{len(runs):,} run{'s' * (len(runs) > 1)}: {status_counts(runs['status'])}."]
    common = describe(runs.iloc[0], [NAME, *same] if runs[NAME].nunique() == 1 else same)
    points += [f"All: {common}."] if common and len(runs) > 1 else []
    table, notes = _table(runs, keys)
    if np.isfinite(target):
        points += [f"Target: a training loss of {number(target)}, {comparison.why}."]
        notes.append(INTERPOLATED + " A run that diverged has not reached it.")
    else:
        points += ["No target: no completed run gets below the training loss that all start from."]
    if "worse" in runs:
        notes.append("Worse: the last training loss, though finite, is over 100 times the first.")
    if has_seeds(runs):
        notes.append("Of several seeds the table has the median, in brackets least and most.")
    return Section("What was run", points, table=table, notes=notes)


def _table(runs: pd.DataFrame, keys: Sequence[str]) -> tuple[Table, list[str]]:
    """Returns a row a setting, with the median of its seeds; of very many the best and worst."""
    varied = varied_keys(runs, keys)
    varied = varied if len(varied) <= COLUMNS else distinguishing_keys(runs, keys)
    keys = [key for key in varied if key not in KIND]
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
        counts = status_counts(group["status"])
        status = counts if has_seeds(runs) else group["status"].iloc[0]
        bad = set(group["status"]) != {"completed"}
        rows.append(
            {"method": cell(describe(group.iloc[0], KIND))}
            | {TITLES.get(key, key): key_cell(group[key].iloc[0]) for key in keys}
            | {"status": Cell(status, status, bad)}
            | {TITLES[figure]: figure_cell(group, figure) for figure in shown}
        )
    words = [TITLES.get(k, k) for k in keys if any(isinstance(v, str) for v in runs[k])]
    without = ("status",) if set(runs["status"]) == {"completed"} else ()
    return page.table("Runs", rows, ("method", "status", *words), without), notes


def best(comparison: RunComparison, most: int = 5) -> str:
    """Returns, as text, a table of the settings that come first at the target, or at the end."""
    runs, keys, goal = comparison.runs, comparison.keys, f"to {number(comparison.target)}"
    figures = {
        "updates_to_target": f"updates {goal}",
        "seconds_to_target": f"simulated seconds {goal}",
        "train_loss": "final loss",
    }
    if not np.isfinite(runs["updates_to_target"]).any():
        figures = {"train_loss": figures["train_loss"]}
    batch = [key for key in ("batch_size",) if key in keys and runs[key].nunique() > 1]
    labels = list(dict.fromkeys([*distinguishing_keys(runs, keys), *batch]))
    rows = [["best points", *figures.values()]]
    for setting in efficiency.ranked(runs)[:most]:
        seeds = runs[runs["setting"] == setting]
        cells = [figure_cell(seeds, figure).shown for figure in figures]
        rows.append([describe(seeds.iloc[0], labels), *cells])
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells as text: the first column to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def rows(comparison: RunComparison) -> list[dict[str, Any]]:
    """Returns a row a setting, the best first: its distinguishing keys, figures run by run."""
    labels = distinguishing_keys(comparison.runs, comparison.keys)
    figures = ["seed", "updates_to_target", "seconds_to_target", "train_loss"]
    settings = dict(list(comparison.runs.groupby("setting")))
    return [
        {key: settings[setting][key].tolist()[0] for key in labels}
        | settings[setting][figures].to_dict("list")
        for setting in efficiency.ranked(comparison.runs)
    ]


def _places(
    runs: pd.DataFrame, keys: Sequence[str]
) -> tuple[list[pd.DataFrame], list[str], list[str]]:
    """Returns the runs of each place in which several methods ran, a place's keys, and confounders.

    Keys of a problem or a cluster always divide places, other keys where methods do not. Where no
    place has several methods, all runs are one part, and the confounders are the keys of places.
    """
    tuned = [key for key in keys if key.startswith(("method.", "optimizer.")) or key == "steps"]
    ways = [k for k in tuned if k not in ("steps", MOMENTUM) and not efficiency.is_tuned(k)]
    where = [key for key in keys if key.startswith(PLACE_KEYS) and key not in LAYOUT]
    others = [key for key in keys if key not in (*tuned, *where)]
    place = distinguishing_keys(runs, where, first=())
    finer = distinguishing_keys(runs, [*ways, *place, *others])
    for divisors in filter(None, ([*place, *(key for key in finer if key in others)], place)):
        parts = [part for _, part in runs.groupby(divisors, sort=False, dropna=False)]
        if several := [part for part in parts if part["method"].nunique() > 1]:
            return several, divisors, []
    return [runs], [], place


def _answer_of_place(
    runs: pd.DataFrame, keys: Sequence[str], place: Sequence[str], confounded: Sequence[str]
) -> list[str]:
    start = f"{describe(runs.iloc[0], place)}: " if place else ""
    distinguishing = dict.fromkeys([*distinguishing_keys(runs, keys), *confounded])
    labels = [key for key in distinguishing if key not in place]
    method = runs.drop_duplicates("setting").set_index("setting")["method"]
    lines = []
    for clock, unit in CLOCKS.items():
        figure = f"{clock}_to_target"
        order = runs.groupby("setting", sort=False)[figure].median().sort_values(kind="stable")
        if not np.isfinite(order.iloc[0]):
            return [f"{start}nobody reaches the target with most seeds."]
        reference, role = _reference(runs, order)
        if method[order.index[0]] == method[reference]:
            others = [setting for setting in order.index if method[setting] != method[reference]]
            first = others[0]
            text = "{below}, {role}, itself takes the fewest {unit}: {base}; next {top}, {time}"
        else:
            first = order.index[0]
            text = "fewest {unit}: {top}, {time}, against {base} of {below}, {role}"
        above, below = (runs[runs["setting"] == setting] for setting in (first, reference))
        line = text.format(
            unit=unit,
            top=describe(above.iloc[0], labels),
            below=describe(below.iloc[0], labels),
            time=figure_cell(above, figure).shown,
            base=figure_cell(below, figure).shown,
            role=role,
        )
        is_sentence = not start and not line.startswith("g =")
        line = line[0].upper() + line[1:] if is_sentence else line
        lines.append(start + line + _times(above, below, figure))
    return lines


def _reference(runs: pd.DataFrame, order: pd.Series) -> tuple[str, str]:
    members, role = runs["method"] == runs["method"].iloc[0], "the first of the grid"
    plain = runs[NAME].eq(PLAIN) | (runs[NAME].eq(GROUPED) & runs[GROUPS].eq(1))
    if plain.any() and not plain.all():
        members, role = plain, "the synchronous one"
    settings = set(runs.loc[members, "setting"])
    return next(setting for setting in order.index if setting in settings), role


def _times(above: pd.DataFrame, below: pd.DataFrame, figure: str) -> str:
    """Returns `, 0.5 times [0.4, 0.6]`: medians, and the 95 % interval of `intervals.ratio`."""
    sides = [runs.drop_duplicates("seed").set_index("seed") for runs in (above, below)]
    seeds = sorted(set(sides[0].index) & set(sides[1].index))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = sides[0][figure].median() / sides[1][figure].median()
    if not np.isfinite(ratio) or ratio == 0:
        return "."
    if len(seeds) < FEWEST:
        few = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
        return f", {ratio:.2g} times; {few}, so no interval."
    ends = (figure.replace("to_target", "low"), figure, figure.replace("to_target", "high"))
    crossings = (
        Crossing(*(side.loc[seeds, name].to_numpy(float) for name in ends)) for side in sides
    )
    _, low, high = intervals.ratio(*crossings)
    return f", {ratio:.3g} times [{low:.3g}, {high:.3g}].".replace("inf", "∞")
