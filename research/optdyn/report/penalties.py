"""What ways of parallelising cost in updates, read from finished runs.

    penalty of an arm = its updates to a training loss / those of synchronous training

An *arm* is a method with the keys that its seconds depend on: period, groups, compression, its
batch over that of synchronous training. Everything else is what it is tuned by: `FREE` and the
optimizer's numbers. Each seed is judged at the setting that is best on the others, medians over
seeds are compared, and intervals draw seeds again, in pairs, and choose again
(`report/efficiency.py`). Sources are workdirs of sweeps.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from optdyn import methods
from optdyn.report import efficiency, tables
from optdyn.report.relevant_keys import relevant
from optdyn.report.tables import MOMENTUM, NAME, RATE, Point, TableError

BATCH, NODES = "batch_size", "cluster.nodes"
# Numbers of methods that no clock knows: a method is tuned by them.
FREE = (
    *("outer_learning_rate", "outer_momentum", "slow_learning_rate", "slow_momentum"),
    *("momentum_part", "elasticity", "mixing"),
)
# What arms may differ in, besides their method, and what says nothing of updates.
VARIED = ("seed", "steps", BATCH)
SECTIONS = ("method.", "cluster.", "parallel.", "probes.", "replicas.", "code.")


class MethodResults(NamedTuple):
    """A method, and what each of n seeds took at all of its settings."""

    name: str
    keys: Mapping[str, Any]  # of config.method, those that its seconds depend on
    batch: int
    nodes: int  # that it was measured on
    updates: np.ndarray  # (S, n), to the target; infinite where it was not reached
    doubt: str  # why its optimum may lie elsewhere; '' if it was found inside what was tried

    @property
    def synchronous(self) -> bool:
        """Whether it is synchronous SGD."""
        return is_synchronous(self.name, self.keys)

    def taken(self, seeds: np.ndarray) -> np.ndarray:
        """(D,): medians over the drawn `seeds`, (D, n), each at its setting of the others."""
        return efficiency.of_draws(
            lambda row: np.median(efficiency.held_out(self.updates, row)), seeds
        )


class ProblemResults(NamedTuple):
    """Arms of one problem."""

    problem: str  # in words
    target: float
    arms: list[MethodResults]  # synchronous ones first, those of fewest examples on top

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return self.arms[0].updates.shape[1]

    @property
    def anchor(self) -> MethodResults:
        """The synchronous one of the smallest batch, which other batches are said by."""
        return self.arms[0]


def is_synchronous(name: str, keys: Mapping[str, Any]) -> bool:
    """Whether it is plain SGD, or groups of which there is one."""
    one = name == methods.GROUPED and tables.of_method(keys, "groups", 1) == 1
    return (one or name == methods.PLAIN) and not keys.get("fresh")


def measured(
    sources: Sequence[Path], target: float = np.nan, where: Sequence[str] = ()
) -> ProblemResults:
    """The arms of workdirs of sweeps.

    `target`: the training loss to reach; NaN: the lowest that all arms do. `where`: texts
    KEY=VALUE that configs must agree with. Raises `TableError` where there is no synchronous arm,
    no two seeds that all arms have, or problems that differ.
    """
    said = ", ".join(map(str, sources))
    every = [p for p in tables.points(*sources) if not p.config.get("replicas.count")]
    plain = [p for p in every if not p.config.get("probes.momentum")]
    every = tables.narrowed(relevant(plain or every), where)
    every = [p for p in every if p.summary.get("status") in ("completed", "diverged")]
    if not every:
        raise TableError(f"{said}: no finished run that was asked for")
    tables.check_alike(
        every,
        f"{said}: runs",
        lambda key: key in (*VARIED, MOMENTUM) or efficiency.tunes(key) or key.startswith(SECTIONS),
    )
    kinds: dict[str, list[Point]] = {}
    for point in every:
        kinds.setdefault(repr((_batch(point), *_method(point))), []).append(point)
    synchronous = [its for its in kinds.values() if is_synchronous(*_method(its[0]))]
    if not synchronous:
        raise TableError(f"{said}: no finished run of synchronous training, the opponent of all")
    every = [point for its in kinds.values() for point in its]
    names = [name for name, its in kinds.items() for _ in its]
    log, free = tables.metrics(every), [_setting(point) for point in every]
    settings = [f"{name} {setting}" for name, setting in zip(names, free, strict=True)]
    runs = tables.runs(every, ["seed"]).assign(method=names, setting=settings, free=free)
    if np.isnan(target):
        target = efficiency.common_target(runs, log).loss
        if np.isnan(target):
            raise TableError("no training loss is reached by most methods; name one by --target")
        target = efficiency.rounded_target(target, log)
    else:
        efficiency.check_target(target, log)
    seeds = sorted(set.intersection(*runs.groupby("method")["seed"].agg(set)))
    if len(seeds) < 2:
        raise TableError(f"{said}: needs two seeds at least that all methods were run with")
    runs = efficiency.with_target(runs, log, target)
    arms = [_arm(said, its, runs[runs["method"] == name], seeds) for name, its in kinds.items()]
    everyone = np.arange(len(seeds))[None]
    if not any(np.isfinite(arm.taken(everyone)[0]) for arm in arms if arm.synchronous):
        raise TableError(
            f"{said}: most seeds of synchronous training do not get to a loss of {target:.4g}; "
            "name a higher --target"
        )
    arms.sort(key=lambda arm: (not arm.synchronous, arm.batch))
    model, data, optimizer = (
        synchronous[0][0].config.get(f"{key}.name") for key in ("model", "data", "optimizer")
    )
    return ProblemResults(f"{model} on {data}, {optimizer}", target, arms)


def _method(point: Point) -> tuple[str, dict[str, Any]]:
    """Its name, and the keys of config.method that its seconds depend on."""
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


def _batch(point: Point) -> int:
    return int(point.config[BATCH])


def _setting(point: Point) -> tuple[tuple[str, Any], ...]:
    """What its arm is tuned by."""
    free = {
        key: value
        for key, value in point.config.items()
        if key == MOMENTUM or efficiency.tunes(key) or key.rpartition(".")[2] in FREE
    }
    return tuple(sorted(free.items()))


def _arm(said: str, its: Sequence[Point], runs: pd.DataFrame, seeds: list[int]) -> MethodResults:
    """Settings that lack one of the seeds are left out."""
    name, keys = _method(its[0])
    if not is_synchronous(name, keys):  # what updates depend on is one
        chosen = methods.known_stack(name)
        grouped = chosen and chosen.grouped
        shape = "cluster." if grouped else (NODES, "cluster.devices_per_node")
        tables.check_alike(its, f"{said}: runs of {name}", lambda key: not key.startswith(shape))
    runs = runs.drop_duplicates(["free", "seed"], keep="last")
    table = runs.pivot(index="free", columns="seed", values="updates_to_target")
    table = table[seeds].dropna()
    if table.empty:
        raise TableError(f"{said}: no setting of {name} was run with all of {len(seeds)} seeds")
    medians = np.median(table.to_numpy(), axis=1)
    doubt = _doubt([dict(setting) for setting in table.index], medians)
    nodes = int(its[0].config.get(NODES, 1))
    return MethodResults(name, keys, _batch(its[0]), nodes, table.to_numpy(), doubt)


def _doubt(settings: Sequence[Mapping[str, Any]], medians: np.ndarray) -> str:
    """The keys of the best setting that have the lowest or highest value that was tried."""
    if len(settings) == 1:
        return "one setting"
    best, edges = settings[int(medians.argmin())], []
    for key in best:
        line = settings
        if key == RATE:  # every momentum has rates of its own
            line = [s for s in settings if {**s, RATE: 0.0} == {**best, RATE: 0.0}]
        tried = {s[key] for s in line if isinstance(s[key], int | float)}
        if len(tried) > 1 and best[key] in (min(tried), max(tried)):
            edges.append(key.rpartition(".")[2])
    return f"{', '.join(edges)} on an edge" if edges else ""
