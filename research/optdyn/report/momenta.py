"""The report's sections on implicit momentum: the meter's readings, and fits to replicas."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from optdyn.base.flag_parser import invocation
from optdyn.momentum.lags import groups_of, memoryless, number_of, theory
from optdyn.momentum.moments import REJECTED
from optdyn.report import curves, figures, page, run_tables, tables
from optdyn.report.figures import DASHES, OKABE_ITO, Series
from optdyn.report.page import Cell, Picture, Section, Table, cell, number
from optdyn.report.run_tables import GROUPS, LINES, ROWS, floats, seeds_cell
from optdyn.report.tables import Point, config_value

IMPLICIT, TOTAL, RATE = "implicit_momentum", "fitted_momentum", "effective_learning_rate"
REFUSED = f"{IMPLICIT}_refused"
FIGURES = [f"{name}{end}" for name in (IMPLICIT, TOTAL) for end in ("", "_low", "_high", "_p")]
SPOKEN = 12  # fits that a picture's text names
SAME = 1e-3  # momenta that differ by less are two fits of the same numbers
METERED = (
    "What the order of arrivals adds to momentum, read off windows of each run's updates: the "
    "gradients that arrive are compared with those of second mini-batches at the current "
    "parameters. For memoryless groups theory has 1 − 1/g, and α/g for the effective learning "
    "rate. The total momentum φ₁ is that of the parameters' own steps, heavy-ball momentum μ "
    "included: by theory μ + 1 − 1/g, and where μ is steered what is aimed at."
)
ONE = " Intervals are of 95 %."
SEVERAL = (
    " Of several seeds that were fitted there are the median and least and most, of one its 95 % "
    "interval."
)
NOTE = (
    "The table is of all windows of a run together. p is the chance of residuals (J test) or of an "
    "order of arrivals as odd as these if one term (or, of the total, heavy-ball momentum) is the "
    f"model; below {REJECTED} it is marked, and the momentum says little."
)
FITTED = (
    "E dₜ = μ E dₜ₋₁ − η E Gₜ, with d the step and G the gradient of the whole objective, "
    "fitted over replicas by instrumental variables, with 95 % intervals. For memoryless "
    "groups theory has μ = 1 − 1/g and η = α/g. Least squares is biased towards 0 by the noise "
    "of the means. With explicit momentum the figure is that of the one-term recursion of the "
    "same mean lag."
)


class Setting(NamedTuple):
    label: str
    runs: pd.DataFrame
    log: pd.DataFrame  # rows of the log in which there is a momentum or why there is none
    config: Mapping[str, Any]  # of one of them, nested


def metered(points: Sequence[Point]) -> Section | None:
    """Returns the section of momenta over updates, with a table; None if no run was metered."""
    settings = _settings(points) if points else []
    if not settings:
        return None
    several = any(len(setting.runs) > 1 for setting in settings)
    text, notes = METERED + (SEVERAL if several else ONE), [NOTE]
    with_momentum = [setting for setting in settings if setting.log[IMPLICIT].notna().any()]
    if len(with_momentum) > LINES:
        text += f" {LINES} of {len(with_momentum)} settings."
        places = np.linspace(0, len(with_momentum) - 1, LINES).round().astype(int)
        with_momentum = [with_momentum[i] for i in places]
    with_total = [setting for setting in with_momentum if _differs(setting.log)]
    pictures = [
        *_picture(IMPLICIT, "implicit momentum", "theory, 1 − 1/g", with_momentum),
        *_picture(TOTAL, "total momentum φ₁", "theory", with_total),
    ]
    if len(settings) > ROWS:
        notes.append(f"{ROWS} of {len(settings):,} settings; results.csv has all.")
    table = _table(settings[:ROWS])
    return Section(
        "Implicit momentum over training", text=text, pictures=pictures, table=table, notes=notes
    )


def _settings(points: Sequence[Point]) -> list[Setting]:
    comparison, log = curves.compared(points), tables.metrics(points)
    log = log.reindex(columns=list(dict.fromkeys([*log, *FIGURES, RATE, REFUSED])))
    log = log[log[[IMPLICIT, REFUSED]].notna().any(axis=1)]
    runs = comparison.runs[comparison.runs["point"].isin(log["point"])]
    columns = [*FIGURES, RATE, REFUSED, "learning_rate"]
    runs = runs.reindex(columns=list(dict.fromkeys([*runs, *columns])))
    folders = {point.name: point.folder for point in points}
    keys = run_tables.distinguishing_keys(runs, comparison.keys) if len(runs) else []
    labels = [GROUPS, *keys]
    found = []
    for _, members in runs.groupby("setting", sort=False):
        first = members.iloc[0]
        config = json.loads((folders[first["point"]] / "config.json").read_text())
        rows = log[log["point"].isin(members["point"])]
        found.append(Setting(run_tables.describe(first, labels), members, rows, config))
    return found


def _differs(log: pd.DataFrame) -> bool:
    return bool(((log[TOTAL] - log[IMPLICIT]).abs() > SAME).any())


def _picture(name: str, label: str, theory: str, settings: Sequence[Setting]) -> list[Picture]:
    found = [setting for setting in settings if setting.log[name].notna().any()]
    if not found:
        return []
    looks = _looks([number_of(setting.config, "groups", 1) for setting in found])
    series = [
        Series(setting.label, *look, _over_updates(setting, name))
        for setting, look in zip(found, looks, strict=True)
    ]
    end = max(line.table["x"].max() for line in series)
    truths = {truth for setting in found if (truth := _theory(setting.config, name)) is not None}
    at = np.tile([0.0, end, np.nan], len(truths))
    lines = {theory: (at, np.repeat(sorted(truths), 3))} if truths else {}
    spoken = [f"{line.label}: {_spoken(line.table)}" for line in series]
    alt = f"{label.capitalize()} against updates, fitted to windows. Last, {'; '.join(spoken)}."
    return [Picture(figures.uri(figures.against(series, "updates", label, lines)), alt)]


def _over_updates(setting: Setting, name: str) -> pd.DataFrame:
    """Returns the `Series` table: the interval of one fitted run, the spread of several."""
    ends = [name, f"{name}_low", f"{name}_high"]
    windows = setting.log.dropna(subset=ends).groupby("step")
    single = windows[ends].first().where(windows.size() == 1)
    table = windows[name].agg(["median", "min", "max"]).set_axis(ends, axis=1)
    return single.fillna(table).reset_index().set_axis(["x", "value", "low", "high"], axis=1)


def _spoken(table: pd.DataFrame) -> str:
    last = table.iloc[-1]
    return f"{last['value']:.3g} ({last['low']:.3g} to {last['high']:.3g})"


def _looks(groups: Sequence[int]) -> list[tuple[Any, str]]:
    shades = figures.colours({str(g): g for g in groups})
    ranks = [groups[:i].count(g) for i, g in enumerate(groups)]
    styles = list(DASHES)
    if max(ranks) < len(styles):
        return [(shades[str(g)], styles[i]) for g, i in zip(groups, ranks, strict=True)]
    return [(OKABE_ITO[i % 7], styles[i // 7]) for i in range(len(groups))]


def _theory(config: Mapping[str, Any], name: str) -> float | None:
    if name == IMPLICIT:
        return 1 - 1 / groups_of(config) if memoryless(config) else None
    if config.get("probes", {}).get("steer"):
        return config["optimizer"]["momentum"]
    expected = theory(config)
    return expected.phi[0] if expected and expected.phi else None


def _table(settings: Sequence[Setting]) -> Table:
    rows = []
    for setting in settings:
        groups, config, runs = groups_of(setting.config), setting.config, setting.runs
        rate = floats(runs["learning_rate"]).median() / groups
        rows.append(
            {
                "setting": cell(setting.label),
                "groups g": cell(groups),
                "explicit momentum": _explicit(setting),
                "implicit momentum": _momentum(runs, IMPLICIT),
                "theory": cell(_theory(config, IMPLICIT)),
                "p": _chance(runs[f"{IMPLICIT}_p"]),
                "total momentum φ₁": _momentum(runs, TOTAL),
                "its theory": cell(_theory(config, TOTAL)),
                "its p": _chance(runs[f"{TOTAL}_p"]),
                "effective learning rate": seeds_cell(runs[RATE].dropna()),
                "α/g": cell(rate if memoryless(config) else None),
                "refused": _reason(runs[REFUSED]),
            }
        )
    without = ["setting"] * (len(settings) == 1)
    if not any(_differs(setting.runs) for setting in settings):
        without += ["total momentum φ₁", "its theory", "its p"]
    if not any(setting.runs[REFUSED].notna().any() for setting in settings):
        without += ["refused"]
    label = "Implicit momentum over training"
    return page.table(label, rows, ("setting", "refused"), without)


def _explicit(setting: Setting) -> Cell:
    if setting.config.get("probes", {}).get("steer") and "explicit_momentum" in setting.runs:
        return seeds_cell(setting.runs["explicit_momentum"].dropna())
    return cell(setting.config["optimizer"].get("momentum", 0.0))


def _momentum(runs: pd.DataFrame, name: str) -> Cell:
    found = runs[[name, f"{name}_low", f"{name}_high"]].dropna().astype(float)
    if len(runs) > 1 or found.empty:
        return seeds_cell(found[name])
    middle, low, high = found.iloc[0]
    return page.between(cell(middle), low, high)


def _chance(values: pd.Series) -> Cell:
    found = seeds_cell(values.dropna())
    return found._replace(bad=bool(floats(values).median() < REJECTED))


def _reason(values: pd.Series) -> Cell:
    found = values.dropna()
    if found.empty:
        return Cell("", "")
    many = f"{number(len(found))} of {number(len(values))}: " if len(values) > 1 else ""
    return Cell(many + found.iloc[0], found.iloc[0], bad=True)


def fitted(points: Sequence[Point], workdirs: Sequence[Path]) -> Section | None:
    """Returns the section of recordings' fits beside theory; None without a recording."""
    if not points:
        return None
    lead = [f"{len(points)} recording{'s' * (len(points) > 1)} of replicas."]
    lead += list(dict.fromkeys(_scope(point.config) for point in points))[:ROWS]
    if not all(point.fit for point in points):
        where = shlex.join(f"--workdir={workdir}" for workdir in workdirs)
        lead += [f"Not all are fitted yet: {invocation('momentum')} {where}"]
    known = [point for point in points if point.fit]
    if not known:
        return Section("Implicit momentum", lead)
    rows = [
        {
            "recording": cell(point.name),
            "groups g": cell(fit["groups"]),
            "explicit momentum": cell(fit["explicit_momentum"]),
            "fitted momentum": _with_interval(fit, "momentum"),
            "theory": cell(fit["theory_momentum"]),
            "least squares": cell(fit["least_squares_momentum"]),
            "instrument strength F": cell(fit["instrument_strength"]),
            "effective learning rate": _with_interval(fit, "learning_rate"),
            "α/g": cell(fit["config_learning_rate"] / fit["groups"]),
            "refused": Cell(fit["reason"], fit["reason"], bad=True),
        }
        for point, fit in ((point, point.fit) for point in known[:ROWS])
    ]
    without = () if any(row["refused"].shown for row in rows) else ("refused",)
    table = page.table("Implicit momentum", rows, ("recording", "refused"), without)
    pictures = _picture_of_fits([point.fit for point in known])
    return Section("Implicit momentum", lead, FITTED, pictures, table)


def _scope(config: Mapping[str, Any]) -> str:
    name, examples = config.get("model.name"), config.get("data.train_examples")
    data = f"{examples:,} examples" if examples else "all examples"
    groups = config_value(config, GROUPS) or 1
    return (
        f"g = {groups}: {config['replicas.count']:,} replicas of the first "
        f"{config.get('steps', 0):,} updates of {name}, in batches of {config.get('batch_size')} "
        f"of {data}."
    )


def _picture_of_fits(fits: Sequence[Mapping[str, Any]]) -> list[Picture]:
    found = [fit for fit in fits if fit["momentum"] is not None]
    if not found:
        return []
    g = np.array([fit["groups"] for fit in found], float)
    low, high = np.array([fit["momentum_interval"] for fit in found], float).T
    momentum = [fit["momentum"] for fit in found]
    squares = [fit["least_squares_momentum"] for fit in found]
    tables = [
        pd.DataFrame({"x": g, "value": squares, "low": squares, "high": squares}),
        pd.DataFrame({"x": g, "value": momentum, "low": low, "high": high}),
    ]
    series = [
        Series("least squares", "#E69F00", "dash-dotted", tables[0], False),
        Series("fitted, 95 % interval", figures.BLUE, "solid", tables[1], False),
    ]
    at = np.geomspace(1, max(g.max(), 2), 200)
    theory = {"theory, 1 − 1/g": (at, 1 - 1 / at)}
    figure = figures.against(series, "compute groups g", "implicit momentum", theory, log=2)
    spoken = [
        "{:.3g} ({:.3g} to {:.3g})".format(fit["momentum"], *fit["momentum_interval"])
        + f" at g = {fit['groups']}"
        for fit in found[:SPOKEN]
    ]
    alt = "Fitted implicit momentum against the number of groups g: "
    return [Picture(figures.uri(figure), alt + "; ".join(spoken) + ".")]


def _with_interval(fit: Mapping[str, Any], name: str) -> Cell:
    if fit[name] is None:
        return cell(None)
    low, high = fit[f"{name}_interval"]
    return page.between(cell(fit[name]), low, high, digits=4)
