"""The report's sections on implicit momentum, over training and of recorded replicas."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from optdyn.base.flag_parser import invocation
from optdyn.implicit_momentum.lags import groups_of, theory
from optdyn.implicit_momentum.moments import REJECTED, Reading
from optdyn.implicit_momentum.readings import NAME, as_row, from_row
from optdyn.report import curves, figures, page, run_tables, tables
from optdyn.report.figures import DASHES, OKABE_ITO, Series
from optdyn.report.page import Cell, Picture, Section, Table, cell
from optdyn.report.run_tables import GROUPS, LINES, ROWS, seeds_cell
from optdyn.report.tables import Point, config_value

ENDS = [NAME, f"{NAME}_low", f"{NAME}_high"]
SPOKEN = 12  # fits that a picture's text names
METERED = (
    "What the order of arrivals adds to momentum, read off windows of each run's updates: the "
    "gradients that arrive are compared with those of second mini-batches at the current "
    "parameters. For memoryless groups theory has 1 − 1/g."
)
ONE = " Bars are 95 % sets."
SEVERAL = " Of several seeds there are the median and least and most, of one its 95 % set."
NOTE = (
    "The table is of all windows of a run together. A set has every momentum that the run does not "
    "contradict, so one of 0 to 1 says nothing. p is the chance of residuals or of an order of "
    f"arrivals as odd as these if one term is the model; below {REJECTED} no term fits. Strength "
    "is the squared ratio of 1 − μ to its standard error."
)
REPLICAS = (
    "What replicas that start alike say of E dₜ = μ E dₜ₋₁ − (1 − μ) α E Gₜ, with d the step and G "
    "the gradient of the whole objective. For memoryless groups theory has μ = 1 − 1/g."
)


class Setting(NamedTuple):
    label: str
    readings: list[Reading]  # of each run that has one
    log: pd.DataFrame  # rows of the log in which there is a momentum
    config: Mapping[str, Any]  # of one of them, nested
    explicit: Cell


def metered(points: Sequence[Point]) -> Section | None:
    """Returns the section of momenta over updates, with a table; None if no run was metered."""
    settings = _settings(points) if points else []
    if not settings:
        return None
    several = any(len(setting.readings) > 1 for setting in settings)
    text, notes = METERED + (SEVERAL if several else ONE), [NOTE]
    drawn = [setting for setting in settings if len(setting.log)]
    if len(drawn) > LINES:
        text += f" {LINES} of {len(drawn)} settings."
        places = np.linspace(0, len(drawn) - 1, LINES).round().astype(int)
        drawn = [drawn[i] for i in places]
    if len(settings) > ROWS:
        notes.append(f"{ROWS} of {len(settings):,} settings; results.csv has all.")
    title = "Implicit momentum over training"
    table = _table(title, "setting", settings[:ROWS])
    return Section(title, text=text, pictures=_picture(drawn), table=table, notes=notes)


def _settings(points: Sequence[Point]) -> list[Setting]:
    comparison, log = curves.compared(points), tables.metrics(points)
    log = log.reindex(columns=list(dict.fromkeys([*log, *ENDS]))).dropna(subset=ENDS)
    known = {point.name: reading for point in points if (reading := from_row(point.summary))}
    runs = comparison.runs[comparison.runs["point"].isin(known)]
    folders = {point.name: point.folder for point in points}
    keys = run_tables.distinguishing_keys(runs, comparison.keys) if len(runs) else []
    found = []
    for _, members in runs.groupby("setting", sort=False):
        first = members.iloc[0]
        config = json.loads((folders[first["point"]] / "config.json").read_text())
        rows = log[log["point"].isin(members["point"])]
        readings = [known[name] for name in members["point"]]
        label = run_tables.describe(first, [GROUPS, *keys])
        found.append(Setting(label, readings, rows, config, _explicit(config, members)))
    return found


def _explicit(config: Mapping[str, Any], runs: pd.DataFrame) -> Cell:
    if config.get("probes", {}).get("steer") and "explicit_momentum" in runs:
        return seeds_cell(runs["explicit_momentum"].dropna())
    return cell(config["optimizer"].get("momentum", 0.0))


def _picture(settings: Sequence[Setting]) -> list[Picture]:
    if not settings:
        return []
    looks = _looks([groups_of(setting.config) for setting in settings])
    series = [
        Series(setting.label, *look, _over_updates(setting))
        for setting, look in zip(settings, looks, strict=True)
    ]
    end = max(line.table["x"].max() for line in series)
    truths = {t for setting in settings if (t := theory(setting.config)) is not None}
    at = np.tile([0.0, end, np.nan], len(truths))
    lines = {"theory, 1 − 1/g": (at, np.repeat(sorted(truths), 3))} if truths else {}
    spoken = [f"{line.label}: {_spoken(line.table.iloc[-1])}" for line in series]
    alt = f"Implicit momentum against updates, read off windows. Last, {'; '.join(spoken)}."
    figure = figures.against(series, "updates", "implicit momentum", lines)
    return [Picture(figures.uri(figure), alt)]


def _over_updates(setting: Setting) -> pd.DataFrame:
    """Returns the `Series` table: the set's ends of one run, the spread of several."""
    windows = setting.log.groupby("step")
    single = windows[ENDS].first().where(windows.size() == 1)
    table = windows[NAME].agg(["median", "min", "max"]).set_axis(ENDS, axis=1)
    return single.fillna(table).reset_index().set_axis(["x", "value", "low", "high"], axis=1)


def _spoken(row: pd.Series) -> str:
    return f"{row['value']:.3g} ({row['low']:.3g} to {row['high']:.3g})"


def _looks(groups: Sequence[int]) -> list[tuple[Any, str]]:
    shades = figures.colours({str(g): g for g in groups})
    ranks = [groups[:i].count(g) for i, g in enumerate(groups)]
    styles = list(DASHES)
    if max(ranks) < len(styles):
        return [(shades[str(g)], styles[i]) for g, i in zip(groups, ranks, strict=True)]
    return [(OKABE_ITO[i % 7], styles[i // 7]) for i in range(len(groups))]


def _table(title: str, called: str, settings: Sequence[Setting]) -> Table:
    rows = []
    for setting in settings:
        figures_of = pd.DataFrame([as_row(reading) for reading in setting.readings])
        figures_of = figures_of.reindex(columns=[NAME, f"{NAME}_p", f"{NAME}_strength"])
        estimate, p, strength = (seeds_cell(figures_of[name].dropna()) for name in figures_of)
        rejected = [reading.rejected for reading in setting.readings]
        rows.append(
            {
                called: cell(setting.label),
                "groups g": cell(groups_of(setting.config)),
                "explicit momentum": setting.explicit,
                "implicit momentum": estimate,
                "95 % set": cell(_sets(setting.readings)),
                "theory": cell(theory(setting.config)),
                "p": p._replace(bad=2 * sum(rejected) > len(rejected)),
                "strength": strength,
            }
        )
    return page.table(title, rows, (called, "95 % set"), [called] * (len(rows) == 1))


def _sets(readings: Sequence[Reading]) -> str:
    """Returns the one set in words, or of several how many say what."""
    if len(readings) == 1:
        return str(readings[0])
    informative = [one for one in readings if not (one.rejected or one.says_nothing)]
    nothing = sum(reading.says_nothing and not reading.rejected for reading in readings)
    rejected = sum(reading.rejected for reading in readings)
    parts = []
    if informative:
        width = np.median([one.width for one in informative])
        parts.append(f"{len(informative)} of a median width of {width:.2g}")
    parts += [f"{nothing} say nothing"] * bool(nothing)
    parts += [f"in {rejected} no single term fits"] * bool(rejected)
    return ", ".join(parts)


def replicas(points: Sequence[Point], workdirs: Sequence[Path]) -> Section | None:
    """Returns the section of what recorded replicas say; None without a recording."""
    if not points:
        return None
    title = "Implicit momentum of replicas"
    lead = [f"{len(points)} recording{'s' * (len(points) > 1)} of replicas."]
    lead += list(dict.fromkeys(_scope(point.config) for point in points))[:ROWS]
    if not all(point.fit for point in points):
        where = "\n".join(f"{invocation('momentum')} {shlex.quote(str(w))}" for w in workdirs)
        lead += [f"Not all are read yet: {where}"]
    settings = [
        Setting(
            point.name,
            [reading],
            pd.DataFrame([as_row(reading)]).reindex(columns=ENDS),
            json.loads((point.folder / "config.json").read_text()),
            cell(point.config.get("optimizer.momentum") or 0.0),
        )
        for point in points
        if (reading := from_row(point.fit))
    ]
    if not settings:
        return Section(title, lead)
    table = _table(title, "recording", settings[:ROWS])
    return Section(title, lead, REPLICAS, _against_groups(settings), table, notes=[NOTE])


def _scope(config: Mapping[str, Any]) -> str:
    name, examples = config.get("model.name"), config.get("data.train_examples")
    data = f"{examples:,} examples" if examples else "all examples"
    groups = config_value(config, GROUPS) or 1
    return (
        f"g = {groups}: {config['replicas.count']:,} replicas of the first "
        f"{config.get('steps', 0):,} updates of {name}, in batches of {config.get('batch_size')} "
        f"of {data}."
    )


def _against_groups(settings: Sequence[Setting]) -> list[Picture]:
    known = [(groups_of(s.config), s.log.iloc[0]) for s in settings if s.log[NAME].notna().all()]
    if not known:
        return []
    groups = [g for g, _ in known]
    table = pd.DataFrame([row[ENDS].tolist() for _, row in known], columns=["value", "low", "high"])
    series = [Series("read, 95 % set", figures.BLUE, "solid", table.assign(x=groups), False)]
    at = np.geomspace(1, max(*groups, 2), 200)
    theory = {"theory, 1 − 1/g": (at, 1 - 1 / at)}
    figure = figures.against(series, "compute groups g", "implicit momentum", theory, log=2)
    rows = table.assign(x=groups).head(SPOKEN).iterrows()
    spoken = [f"{_spoken(row)} at g = {row['x']:.0f}" for _, row in rows]
    alt = "Implicit momentum of replicas against the number of groups g: "
    return [Picture(figures.uri(figure), alt + "; ".join(spoken) + ".")]
