"""The updates that ways of parallelising cost, read from finished sweeps.

    penalty of an arm = its updates to a training loss / those of synchronous training

An *arm* is a method with the keys that its seconds depend on: period, groups, compression, its
batch. It is tuned by `FREE` and the optimizer's numbers, and judged as in `report/efficiency.py`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from optdyn import methods
from optdyn.report import efficiency, tables
from optdyn.report.relevant_keys import with_relevant_keys
from optdyn.report.tables import MOMENTUM, NAME, RATE, Point, TableError

BATCH, NODES = "batch_size", "cluster.nodes"
# Numbers of methods that no clock knows: a method is tuned by them.
FREE = (
    *("outer_learning_rate", "outer_momentum", "slow_learning_rate", "slow_momentum"),
    *("momentum_part", "elasticity", "mixing"),
)
# Keys and sections in which arms may differ, besides their method.
VARIED = ("seed", "steps", BATCH, MOMENTUM)
SECTIONS = ("method.", "cluster.", "parallel.", "probes.", "replicas.", "code.")


class MethodResults(NamedTuple):
    """The updates of a method's settings with n seeds."""

    name: str
    keys: Mapping[str, Any]  # of config.method, those that its seconds depend on
    batch: int
    nodes: int  # that it was measured on
    updates: np.ndarray  # (S, n), to the target; infinite where it was not reached
    doubt: str  # why its optimum may lie elsewhere; '' if it was found inside what was tried

    @property
    def synchronous(self) -> bool:
        return is_synchronous(self.name, self.keys)

    def median_updates(self, drawn: np.ndarray) -> np.ndarray:
        """Returns medians over drawn seeds, (D, n), each at its setting of the others, (D,)."""
        return efficiency.median_held_out(self.updates, drawn)


class ProblemResults(NamedTuple):
    problem: str  # in words
    target: float
    arms: list[MethodResults]  # synchronous ones first, those of fewest examples on top

    @property
    def seeds(self) -> int:
        return self.arms[0].updates.shape[1]

    @property
    def anchor(self) -> MethodResults:
        """Returns the synchronous arm of the smallest batch, by which others are measured."""
        return self.arms[0]


def is_synchronous(name: str, keys: Mapping[str, Any]) -> bool:
    """Returns whether a method is plain SGD, or one compute group."""
    one = name == methods.GROUPED and tables.method_value(keys, "groups", 1) == 1
    return (one or name == methods.PLAIN) and not keys.get("fresh")


def measured(
    sources: Sequence[Path], target: float = np.nan, where: Sequence[str] = ()
) -> ProblemResults:
    """Returns the arms in workdirs of sweeps.

    `target` NaN: the lowest training loss that all arms reach. `where`: texts KEY=VALUE that
    configs must agree with. Raises `TableError` without a synchronous arm or two seeds that all
    arms have, or where problems differ.
    """
    source = ", ".join(map(str, sources))
    points = tables.comparable(tables.points(*sources))
    points = tables.select(with_relevant_keys(points), where)
    points = [p for p in points if p.summary.get("status") in ("completed", "diverged")]
    if not points:
        raise TableError(f"{source}: no finished run that was asked for")
    tables.check_alike(
        points,
        f"{source}: runs",
        lambda key: key in VARIED or efficiency.is_tuned(key) or key.startswith(SECTIONS),
    )
    arms_of: dict[str, list[Point]] = {}
    for point in points:
        arms_of.setdefault(repr((int(point.config[BATCH]), *_method(point))), []).append(point)
    synchronous = [a for a in arms_of.values() if is_synchronous(*_method(a[0]))]
    if not synchronous:
        raise TableError(f"{source}: no finished run of synchronous training, the opponent of all")
    points = [point for members in arms_of.values() for point in members]
    names = [name for name, members in arms_of.items() for _ in members]
    log, free = tables.metrics(points), [_setting(point) for point in points]
    settings = [f"{name} {setting}" for name, setting in zip(names, free, strict=True)]
    runs = tables.runs(points, ["seed"]).assign(method=names, setting=settings, free=free)
    if np.isnan(target):
        target = efficiency.common_target(runs, log).loss
        if np.isnan(target):
            raise TableError("no training loss is reached by most methods; name one by --target")
        target = efficiency.rounded_target(target, log)
    else:
        efficiency.check_target(target, log)
    seeds = sorted(set.intersection(*runs.groupby("method")["seed"].agg(set)))
    if len(seeds) < 2:
        raise TableError(f"{source}: needs two seeds at least that all methods were run with")
    runs = efficiency.with_target(runs, log, target)
    arms = [
        _arm(source, members, runs[runs["method"] == name], seeds)
        for name, members in arms_of.items()
    ]
    all_seeds = np.arange(len(seeds))[None]
    if not any(np.isfinite(arm.median_updates(all_seeds)[0]) for arm in arms if arm.synchronous):
        raise TableError(
            f"{source}: most seeds of synchronous training do not get to a loss of {target:.4g}; "
            "name a higher --target"
        )
    arms.sort(key=lambda arm: (not arm.synchronous, arm.batch))
    model, data, optimizer = (
        synchronous[0][0].config.get(f"{key}.name") for key in ("model", "data", "optimizer")
    )
    return ProblemResults(f"{model} on {data}, {optimizer}", target, arms)


def _method(point: Point) -> tuple[str, dict[str, Any]]:
    """Returns a method's name, and the keys of config.method that its seconds depend on."""
    name, keys = str(point.config[NAME]), dict[str, Any]()
    if methods.known_stack(name) is None:
        raise TableError(
            f"{point.folder / 'config.json'}: config.method.name = {name!r} is not built in; if "
            "it is yours, name it on the command line too, among those of --methods"
        )
    for key, value in point.config.items():
        section, _, rest = key.partition(".")
        if section == "method" and rest != "name" and rest.rpartition(".")[2] not in FREE:
            keys[rest] = json.loads(value) if str(value).startswith("[") else value
    return (methods.PLAIN, {}) if is_synchronous(name, keys) else (name, keys)


def _setting(point: Point) -> tuple[tuple[str, Any], ...]:
    free = {
        key: value
        for key, value in point.config.items()
        if key == MOMENTUM or efficiency.is_tuned(key) or key.rpartition(".")[2] in FREE
    }
    return tuple(sorted(free.items()))


def _arm(
    source: str, members: Sequence[Point], runs: pd.DataFrame, seeds: list[int]
) -> MethodResults:
    """Returns an arm without the settings that lack one of the seeds."""
    first = members[0]
    name, keys = _method(first)
    if not is_synchronous(name, keys):
        method = methods.known_stack(name)
        grouped = method and method.grouped
        shape = "cluster." if grouped else (NODES, "cluster.devices_per_node")
        tables.check_alike(
            members, f"{source}: runs of {name}", lambda key: not key.startswith(shape)
        )
    runs = runs.drop_duplicates(["free", "seed"], keep="last")
    table = runs.pivot(index="free", columns="seed", values="updates_to_target")
    table = table[seeds].dropna()
    if table.empty:
        raise TableError(f"{source}: no setting of {name} was run with all of {len(seeds)} seeds")
    settings, updates = [dict(setting) for setting in table.index], table.to_numpy()
    doubt = _doubt(settings, np.median(updates, axis=1))
    nodes = int(first.config.get(NODES, 1))
    return MethodResults(name, keys, int(first.config[BATCH]), nodes, updates, doubt)


def _doubt(settings: Sequence[Mapping[str, Any]], medians: np.ndarray) -> str:
    """Returns the keys whose best value is the lowest or highest that was tried."""
    if len(settings) == 1:
        return "one setting"
    best, edges = settings[int(medians.argmin())], []
    for key in best:
        line = settings
        if key == RATE:  # momenta have rates of their own
            line = [s for s in settings if {**s, RATE: 0.0} == {**best, RATE: 0.0}]
        values = {s[key] for s in line if isinstance(s[key], int | float)}
        if len(values) > 1 and best[key] in (min(values), max(values)):
            edges.append(key.rpartition(".")[2])
    return f"{', '.join(edges)} on an edge" if edges else ""
