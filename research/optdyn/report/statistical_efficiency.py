"""The cost of compute groups in updates, and their gain in seconds (arXiv 1606.04487, 3 and 4).

    SE(S)     updates to the target loss, with staleness S = g - 1
    P_SE(S)   SE(S) / SE(0)
    P_HE(S)   HE(S) / HE(0), of simulated seconds an update
    product   P_SE P_HE, of simulated seconds to the target

    python -m launch.efficiency --workdir=DIR --target=0.25 [--fixed_momentum=0.9]

`DIR` is that of a sweep over groups x momentum x learning rate x seed. Figures are with the
momentum fixed and with it tuned, judged as in `report/efficiency.py`. SE(g) = a g^b is fitted.
Writes `statistical_efficiency.json` there.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from optdyn import methods
from optdyn.base.errors import print_error
from optdyn.base.files import as_json, write_json
from optdyn.base.flag_parser import Parser
from optdyn.evidence import intervals
from optdyn.report import efficiency, tables
from optdyn.report.tables import GROUPS, MOMENTUM, NAME, RATE, TableError

DEFAULT_MOMENTUM = 0.9  # that is fixed
VARIED = {RATE, MOMENTUM, GROUPS, NAME, "seed", "steps"}


class GroupTrials(NamedTuple):
    """All settings of g groups, and the updates and seconds of n seeds."""

    groups: int
    settings: pd.MultiIndex  # (momentum, learning rate) of S settings
    updates: np.ndarray  # (S, n), to the target; infinite where it was not reached
    seconds: np.ndarray  # (n,), of an update, simulated

    def at(self, momentum: float) -> "GroupTrials":
        rows = self.settings.get_level_values(0) == momentum
        return self._replace(settings=self.settings[rows], updates=self.updates[rows])


def trials(workdir: Path, target: float, where: Sequence[str] = ()) -> list[GroupTrials]:
    """Returns the trials of each number of groups.

    `where`: texts KEY=VALUE that the config of a point must agree with. Raises `TableError` if the
    points differ in other keys, or a setting lacks a seed.
    """
    points = tables.select(tables.trained(tables.points(workdir)), where)
    known = {point.config[NAME]: methods.known_stack(point.config[NAME]) for point in points}
    strange = {name for name, method in known.items() if not (method and method.simple)}
    if strange or not points:
        has = f"runs of {NAME} = {min(strange)!r}" if strange else "none that were asked for"
        raise TableError(f"{workdir}: needs runs of plain gradients, in groups or not, has {has}")
    tables.check_alike(points, f"{workdir}: points", VARIED.__contains__)
    runs = tables.runs(points, [NAME, GROUPS, MOMENTUM, RATE, "seed"])
    unfinished = runs[~runs["status"].isin(("completed", "diverged"))]
    if len(unfinished):
        point, status = unfinished.iloc[0][["point", "status"]]
        raise TableError(f"{workdir}: run {point} is {status}, must be completed")
    log = tables.metrics(points)
    runs = efficiency.with_target(runs, log, target)
    if not np.isfinite(runs["updates_to_target"]).any():
        raise TableError(
            f"{workdir}: no run reaches --target={target:g}; the lowest training loss is "
            f"{log['train_loss'].min():.4g}"
        )
    grouped = {name: bool(method and method.grouped) for name, method in known.items()}
    runs[GROUPS] = runs[GROUPS].where(runs[NAME].map(grouped).astype(bool), 1)
    seeds = sorted(runs["seed"].unique())
    return [_trials(workdir, int(g), members, seeds) for g, members in runs.groupby(GROUPS)]


def _trials(workdir: Path, groups: int, runs: pd.DataFrame, seeds: list[int]) -> GroupTrials:
    setting = [MOMENTUM, RATE]
    twice = runs[runs.duplicated([*setting, "seed"])]
    if len(twice):
        raise TableError(f"{workdir}: run {twice['point'].iloc[0]} is there twice")
    table = runs.pivot(index=setting, columns="seed", values="updates_to_target")
    table = table.reindex(columns=seeds)
    if table.isna().any(axis=None) or len(seeds) < 2:
        raise TableError(
            f"{workdir}: every setting needs the same seeds, at least two; with {groups} groups "
            f"there are {len(runs)} runs of {len(table)} settings and {len(seeds)} seeds"
        )
    # An update takes as long at all settings, but runs that diverge are short.
    seconds = runs.groupby("seed")["simulated_seconds_per_step"].median()
    return GroupTrials(groups, table.index, table.to_numpy(), seconds[seeds].to_numpy())


def summarize(
    all_trials: Sequence[GroupTrials], fixed: float | None, target: float
) -> dict[str, Any]:
    """Returns all that the command reports; a figure is `[value, low, high]`.

    `fixed` is the momentum that is not tuned; by default `DEFAULT_MOMENTUM`, or the only one that
    was tried. Raises `TableError` if it was not tried.
    """
    momenta = [set(trial.settings.get_level_values(0)) for trial in all_trials]
    common = sorted(set.intersection(*momenta))
    only = len(common) == 1 and DEFAULT_MOMENTUM not in common
    default = common[0] if only else DEFAULT_MOMENTUM
    momentum = default if fixed is None else fixed
    for trial, tried in zip(all_trials, momenta, strict=True):
        if momentum not in tried:
            known = ", ".join(f"{value:g}" for value in common) or "none"
            raise TableError(
                f"--fixed_momentum={momentum:g}: not tried with {trial.groups} groups; tried with "
                f"all: {known}"
            )
    groups = np.array([trial.groups for trial in all_trials])
    seeds = np.arange(len(all_trials[0].seconds))
    value = measured(all_trials, momentum, seeds[None])[0]
    values = measured(all_trials, momentum, efficiency.draws(len(seeds)))
    drawn = penalties(groups, values)
    figures = {
        name: np.stack([v, *intervals.ends(drawn[name], -np.inf if name == "recovered" else 0.0)])
        for name, v in penalties(groups, value).items()
    }
    rows = []
    for i, trial in enumerate(all_trials):
        row: dict[str, Any] = {"groups": trial.groups, "seconds": value[2, i]}
        for name, part in (("fixed", trial.at(momentum)), ("tuned", trial)):
            row[f"{name} setting"] = _best(part)
            row[f"{name} seeds"] = efficiency.held_out(part.updates, seeds).tolist()
        for name, figure in figures.items():  # what is not a number has no ends
            row[name] = [np.nan] * 3 if np.isnan(figure[0, i]) else figure[:, i].tolist()
        rows.append(row)
    models = {}
    for i, name in enumerate(("fixed", "tuned")) if len(groups) > 1 else ():
        law, laws = (power_law(groups, v[..., i, :]) for v in (value, values))
        misfit = np.exp(np.abs(np.log(value[i] / (law[0] * groups ** law[1]))).max())
        models[name] = {
            "a": [law[0], *intervals.ends(laws[:, 0], 0.0)],
            "b": [law[1], *intervals.ends(laws[:, 1])],
            "misfit": misfit,
        }
    return {
        "target": target,
        "fixed_momentum": momentum,
        "seeds": len(seeds),
        "groups": rows,
        "model": models,
    }


def measured(trials: Sequence[GroupTrials], momentum: float, drawn: np.ndarray) -> np.ndarray:
    """Returns SE with the momentum fixed, SE with it tuned, and HE, of draws (D, n), (D, 3, G)."""
    return np.stack(
        [
            [efficiency.median_held_out(trial.at(momentum).updates, drawn) for trial in trials],
            [efficiency.median_held_out(trial.updates, drawn) for trial in trials],
            [np.median(trial.seconds[drawn], axis=1) for trial in trials],
        ]
    ).transpose(2, 0, 1)


def penalties(groups: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the figures that follow from `measured`, (..., 3, G), by name, (..., G).

    `ratio` is fixed over tuned; `recovered` the share of the updates beyond those of the tuned
    synchronous run that go away when the momentum is tuned. Penalties need g = 1, or are NaN.
    """
    fixed, tuned, _ = np.moveaxis(values, -2, 0)
    start = values[..., groups == 1] if 1 in groups else np.full_like(values[..., :1], np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        beyond = np.where(groups == 1, np.nan, fixed - start[..., 1, :])
        p_fixed, p_tuned, p_he = np.moveaxis(values / start, -2, 0)
        return {
            "fixed": fixed,
            "tuned": tuned,
            "P_SE fixed": p_fixed,
            "P_SE tuned": p_tuned,
            "P_HE": p_he,
            "product fixed": p_fixed * p_he,
            "product tuned": p_tuned * p_he,
            "ratio": fixed / tuned,
            "recovered": (fixed - tuned) / beyond,
        }


def power_law(groups: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """Returns a and b of SE(g) = a g^b, least squares in logarithms, (..., 2), or NaN."""
    updates = np.where(np.isfinite(updates).all(axis=-1, keepdims=True), updates, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.linalg.pinv(np.stack([np.ones(len(groups)), np.log(groups)], axis=-1))
        log_a, b = np.moveaxis(np.log(updates) @ powers.T, -1, 0)
        return np.stack([np.exp(log_a), b], axis=-1)


def _best(trial: GroupTrials) -> dict[str, Any]:
    """Returns the setting best on all seeds; `edge`: a better learning rate may lie beyond."""
    medians = np.median(trial.updates, axis=1)
    momentum, rate = trial.settings[medians.argmin()]
    rates = trial.at(momentum).settings.get_level_values(1)
    return {
        "momentum": momentum,
        "learning_rate": rate,
        "updates": medians.min(),
        "edge": len(rates) > 1 and rate in (rates.min(), rates.max()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 2, after a line on standard error, for unusable input."""
    parser = Parser(prog="optdyn efficiency", description="Updates to a loss by groups.")
    parser.add_argument("--workdir", type=Path, required=True, help="of a sweep")
    parser.add_argument("--target", type=float, required=True, help="training loss to reach")
    parser.add_argument("--fixed_momentum", type=float, help="that is not tuned; 0.9 or the only")
    parser.add_argument("--where", action="append", default=[], help="KEY=VALUE, of the config")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    flags = parser.read(arguments)
    try:
        found = trials(flags.workdir, flags.target, flags.where)
        summary = summarize(found, flags.fixed_momentum, flags.target)
        write_json(flags.workdir / "statistical_efficiency.json", summary)
    except (TableError, OSError) as error:
        return print_error(error)
    print(as_json(summary) if flags.json else "\n".join(_lines(summary)))
    return 0


def _lines(summary: dict[str, Any]) -> list[str]:
    rows, ratios, edges = [], [], []
    for row in summary["groups"]:
        for name in ("fixed", "tuned"):
            best, seeds = row[f"{name} setting"], row[f"{name} seeds"]
            rows.append(
                {
                    "g": row["groups"],
                    "momentum": f"{best['momentum']:g}, {name}",
                    "rate": f"{best['learning_rate']:g}",
                    "updates": _shown(row[name]),
                    "range": f"{min(seeds):.4g} to {max(seeds):.4g}",
                    "P_SE": _shown(row[f"P_SE {name}"]),
                    "P_HE": _shown(row["P_HE"]),
                    "product": _shown(row[f"product {name}"]),
                }
            )
            if best["edge"]:
                edges.append(
                    f"g = {row['groups']}, {name}: {best['learning_rate']:g} is the lowest or the "
                    f"highest learning rate tried with momentum {best['momentum']:g}"
                )
        line = f"g = {row['groups']}: fixed over tuned {_shown(row['ratio'])}"
        if np.isfinite(row["recovered"][0]):
            line += f"; share of the penalty that tuning recovers {_shown(row['recovered'])}"
        ratios.append(line)
    laws = [
        f"SE(g) = a g^b, {name}: a = {_shown(model['a'])}, b = {_shown(model['b'])}; "
        f"a median is off by a factor of at most {model['misfit']:.3g}"
        for name, model in summary["model"].items()
    ]
    title = (
        f"Updates to a training loss of {summary['target']:g}: median of {summary['seeds']} seeds, "
        "each at the setting best on the others, and 95 % interval. The momentum and rate shown "
        "are best on all."
    )
    table = pd.DataFrame(rows).to_string(index=False)
    return [title, table, *ratios, *laws, "\n".join(edges)]


def _shown(figure: Sequence[float]) -> str:
    return "-" if np.isnan(figure[0]) else intervals.shown(figure)


if __name__ == "__main__":
    sys.exit(main())
