"""What compute groups cost in updates and save in seconds (arXiv 1606.04487, sections 3 and 4).

    SE(S)     updates to the target loss, with staleness S = g - 1
    P_SE(S)   SE(S) / SE(0)
    P_HE(S)   HE(S) / HE(0), of simulated seconds an update
    product   P_SE P_HE, of simulated seconds to the target

    python -m launch.efficiency --workdir=DIR --target=0.25 [--fixed_momentum=0.9]

`DIR` is that of a sweep over groups x momentum x learning rate x seed. SE is given once with the
momentum fixed and once with it tuned, both with the learning rate tuned, and each has a P_SE over
its own SE(0). Every seed is judged at the setting that is best on the others. Figures are medians
over the seeds, with 95 % intervals from drawing seeds again (`report/efficiency.py`). Between the
g that were run, a fitted SE(g) = a g^b interpolates. If points differ in more than these four,
--where=KEY=VALUE chooses among them. Writes statistical_efficiency.json there.
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
from optdyn.report.tables import GROUPS, MOMENTUM, NAME, RATE, Point, TableError

USUAL = 0.9  # momentum that is not tuned
VARIED = {RATE, MOMENTUM, GROUPS, NAME, "seed", "steps"}


class Tried(NamedTuple):
    """All settings of g groups, and what each of n seeds took."""

    groups: int
    settings: pd.MultiIndex  # (momentum, learning rate) of S settings
    updates: np.ndarray  # (S, n), to the target; infinite where it was not reached
    seconds: np.ndarray  # (n,), of an update, simulated

    def at(self, momentum: float) -> "Tried":
        """Only the settings of this momentum."""
        kept = self.settings.get_level_values(0) == momentum
        return self._replace(settings=self.settings[kept], updates=self.updates[kept])


def tried(workdir: Path, target: float, where: Sequence[str] = ()) -> list[Tried]:
    """The settings of every number of groups, and what each seed takes to the target.

    `where`: texts KEY=VALUE that the config of a point must agree with. Raises `TableError` if the
    points cannot be compared: if they differ in other keys, or a setting lacks a seed.
    """
    every = [p for p in tables.points(workdir) if not p.config.get("replicas.count")]
    every = _chosen(workdir, every, where)
    runs = tables.runs(every, [NAME, GROUPS, MOMENTUM, RATE, "seed"])
    unfinished = runs[~runs["status"].isin(("completed", "diverged"))]
    if len(unfinished):
        point, status = unfinished.iloc[0][["point", "status"]]
        raise TableError(f"{workdir}: run {point} is {status}, must be completed")
    log = tables.metrics(every)
    runs = efficiency.with_target(runs, log, target)
    if not np.isfinite(runs["updates_to_target"]).any():
        raise TableError(
            f"{workdir}: no run reaches --target={target:g}; the lowest training loss is "
            f"{log['train_loss'].min():.4g}"
        )
    known = {name: methods.seen(name) for name in runs[NAME].unique()}
    grouped = {name: bool(its and its.grouped) for name, its in known.items()}
    runs[GROUPS] = runs[GROUPS].where(runs[NAME].map(grouped).astype(bool), 1)
    return [_tried(workdir, int(g), its, runs["seed"]) for g, its in runs.groupby(GROUPS)]


def _chosen(workdir: Path, every: Sequence[Point], where: Sequence[str]) -> list[Point]:
    every = tables.narrowed(every, where)
    names = {p.config[NAME]: methods.seen(p.config[NAME]) for p in every}
    strange = {name for name, its in names.items() if not (its and its.simple)}
    if strange or not every:
        has = f"runs of {NAME} = {min(strange)!r}" if strange else "none that were asked for"
        raise TableError(f"{workdir}: needs runs of plain gradients, in groups or not, has {has}")
    tables.check_alike(every, f"{workdir}: points", VARIED.__contains__)
    return every


def _tried(workdir: Path, groups: int, runs: pd.DataFrame, seeds: pd.Series) -> Tried:
    setting = [MOMENTUM, RATE]
    twice = runs[runs.duplicated([*setting, "seed"])]
    if len(twice):
        raise TableError(f"{workdir}: run {twice['point'].iloc[0]} is there twice")
    columns = sorted(seeds.unique())
    table = runs.pivot(index=setting, columns="seed", values="updates_to_target")
    table = table.reindex(columns=columns)
    if table.isna().any(axis=None) or len(columns) < 2:
        raise TableError(
            f"{workdir}: every setting needs the same seeds, at least two; with {groups} groups "
            f"there are {len(runs)} runs of {len(table)} settings and {len(columns)} seeds"
        )
    # What an update takes does not depend on the setting, but runs that diverge are short.
    seconds = runs.groupby("seed")["simulated_seconds_per_step"].median()
    return Tried(groups, table.index, table.to_numpy(), seconds[columns].to_numpy())


def summarize(every: Sequence[Tried], fixed: float | None, target: float) -> dict[str, Any]:
    """All that the command reports, as JSON has it but for numbers that are not finite.

    A figure is `[value, low, high]`. `fixed` is the momentum that is not tuned; by default `USUAL`,
    or the only one that was tried. Raises `TableError` if it was not tried.
    """
    momenta = [set(each.settings.get_level_values(0)) for each in every]
    common = sorted(set.intersection(*momenta))
    only = common[0] if len(common) == 1 and USUAL not in common else USUAL
    momentum = only if fixed is None else fixed
    for each, tried in zip(every, momenta, strict=True):
        if momentum not in tried:
            known = ", ".join(f"{value:g}" for value in common) or "none"
            raise TableError(
                f"--fixed_momentum={momentum:g}: not tried with {each.groups} groups; tried with "
                f"all: {known}"
            )
    groups = np.array([each.groups for each in every])
    seeds = np.arange(len(every[0].seconds))
    value = measured(every, momentum, seeds[None])[0]
    values = measured(every, momentum, efficiency.draws(len(seeds)))
    found = penalties(groups, value)
    ends = {
        name: intervals.ends(v, -np.inf if name == "recovered" else 0.0)
        for name, v in penalties(groups, values).items()
    }
    rows = []
    for i, each in enumerate(every):
        row: dict[str, Any] = {"groups": each.groups, "seconds": value[2, i]}
        for name, its in (("fixed", each.at(momentum)), ("tuned", each)):
            row[f"{name} setting"] = _best(its)
            row[f"{name} seeds"] = efficiency.held_out(its.updates, seeds).tolist()
        rows.append(
            row | {name: _figure(v[i], ends[name][:, i].tolist()) for name, v in found.items()}
        )
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


def measured(tried: Sequence[Tried], momentum: float, drawn: np.ndarray) -> np.ndarray:
    """(D, 3, G): SE with the momentum fixed, SE with it tuned, HE; medians over the drawn seeds.

    `drawn` is (D, n), the seeds of each draw.
    """

    def judged(seeds: np.ndarray) -> list[list[np.floating]]:
        return [
            [np.median(efficiency.held_out(each.at(momentum).updates, seeds)) for each in tried],
            [np.median(efficiency.held_out(each.updates, seeds)) for each in tried],
            [np.median(each.seconds[seeds]) for each in tried],
        ]

    return efficiency.of_draws(judged, drawn)


def penalties(groups: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
    """What follows from `measured`, (..., 3, G), by name, (..., G) each.

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
    """(..., 2): a and b of SE(g) = a g^b, least squares in logarithms; `updates` is (..., G).

    NaN where one of the updates is infinite.
    """
    updates = np.where(np.isfinite(updates).all(axis=-1, keepdims=True), updates, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.linalg.pinv(np.stack([np.ones(len(groups)), np.log(groups)], axis=-1))
        log_a, b = np.moveaxis(np.log(updates) @ powers.T, -1, 0)
        return np.stack([np.exp(log_a), b], axis=-1)


def _figure(value: float, ends: Sequence[float]) -> list[float]:
    """`[value, low, high]`; what is not a number has no ends."""
    return [np.nan] * 3 if np.isnan(value) else [value, *ends]


def _best(its: Tried) -> dict[str, Any]:
    """The setting best on all seeds, by whose median it looks better than it is.

    `edge`: whether of its momentum's learning rates it has the lowest or highest: a better one may
    lie beyond.
    """
    medians = np.median(its.updates, axis=1)
    momentum, rate = its.settings[medians.argmin()]
    rates = its.at(momentum).settings.get_level_values(1)
    return {
        "momentum": momentum,
        "learning_rate": rate,
        "updates": medians.min(),
        "edge": len(rates) > 1 and rate in (rates.min(), rates.max()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 2 and one line on standard error for input it cannot use."""
    parser = Parser(prog="optdyn efficiency", description="Updates to a loss by groups.")
    parser.add_argument("--workdir", type=Path, required=True, help="of a sweep")
    parser.add_argument("--target", type=float, required=True, help="training loss to reach")
    parser.add_argument("--fixed_momentum", type=float, help="that is not tuned; 0.9 or the only")
    parser.add_argument("--where", action="append", default=[], help="KEY=VALUE, of the config")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    flags = parser.read(arguments)
    try:
        every = tried(flags.workdir, flags.target, flags.where)
        summary = summarize(every, flags.fixed_momentum, flags.target)
        write_json(flags.workdir / "statistical_efficiency.json", summary)
    except (TableError, OSError) as error:
        return print_error(error)
    if flags.json:
        print(as_json(summary))
    else:
        _print(summary)
    return 0


def _print(summary: dict[str, Any]) -> None:
    rows, notes = [], []
    for row in summary["groups"]:
        for name in ("fixed", "tuned"):
            best, taken = row[f"{name} setting"], row[f"{name} seeds"]
            rows.append(
                {
                    "g": row["groups"],
                    "momentum": f"{best['momentum']:g}, {name}",
                    "rate": f"{best['learning_rate']:g}",
                    "updates": _shown(row[name]),
                    "range": f"{min(taken):.4g} to {max(taken):.4g}",
                    "P_SE": _shown(row[f"P_SE {name}"]),
                    "P_HE": _shown(row["P_HE"]),
                    "product": _shown(row[f"product {name}"]),
                }
            )
            if best["edge"]:
                notes.append(
                    f"g = {row['groups']}, {name}: {best['learning_rate']:g} is the lowest or the "
                    f"highest learning rate tried with momentum {best['momentum']:g}"
                )
    print(
        f"Updates to a training loss of {summary['target']:g}: median of {summary['seeds']} seeds, "
        "each at the setting best on the others, and 95 % interval. The momentum and rate shown "
        "are best on all."
    )
    print(pd.DataFrame(rows).to_string(index=False))
    for row in summary["groups"]:
        line = f"g = {row['groups']}: fixed over tuned {_shown(row['ratio'])}"
        if np.isfinite(row["recovered"][0]):
            line += f"; share of the penalty that tuning recovers {_shown(row['recovered'])}"
        print(line)
    for name, model in summary["model"].items():
        print(
            f"SE(g) = a g^b, {name}: a = {_shown(model['a'])}, b = {_shown(model['b'])}; "
            f"a median is off by a factor of at most {model['misfit']:.3g}"
        )
    print("\n".join(notes))


def _shown(figure: Sequence[float]) -> str:
    return "-" if np.isnan(figure[0]) else intervals.shown(figure)


if __name__ == "__main__":
    sys.exit(main())
