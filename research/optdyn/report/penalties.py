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
from optdyn.report.efficiency import MOMENTUM
from optdyn.report.relevant_keys import relevant
from optdyn.report.tables import Point, TableError

NAME, GROUPS, RATE = "method.name", "method.groups", "optimizer.learning_rate"
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
    _one_problem(said, every)
    kinds: dict[str, list[Point]] = {}
    for point in every:
        kinds.setdefault(repr((_batch(point), *_method(point))), []).append(point)
    synchronous = [its for its in kinds.values() if is_synchronous(*_method(its[0]))]
    if not synchronous:
        raise TableError(f"{said}: no finished run of synchronous training, the opponent of all")
    log = tables.metrics(every)
    if np.isnan(target):
        target = _common(list(kinds.values()), log)
    else:
        efficiency.check_target(target, log)
    seeds = set.intersection(*({p.config["seed"] for p in its} for its in kinds.values()))
    if len(seeds) < 2:
        raise TableError(f"{said}: needs two seeds at least that all methods were run with")
    arms = [_arm(said, its, log, target, sorted(seeds)) for its in kinds.values()]
    everyone = np.arange(len(seeds))[None]
    if not any(np.isfinite(arm.taken(everyone)[0]) for arm in arms if arm.synchronous):
        raise TableError(
            f"{said}: most seeds of synchronous training do not get to a loss of {target:.4g}; "
            "name a higher --target"
        )
    return ProblemResults(_words(synchronous[0][0].config), target, _ordered(arms))


def _one_problem(said: str, every: Sequence[Point]) -> None:
    """Raises `TableError` where runs differ in more than methods and what they are tuned by."""
    for key in tables.differing(every):
        if key in VARIED or key == MOMENTUM or efficiency.tunes(key) or key.startswith(SECTIONS):
            continue
        values = sorted({str(point.config.get(key)) for point in every})
        raise TableError(
            f"{said}: runs differ in {key}; choose one with --where={key}=VALUE, VALUE one of "
            f"{', '.join(values)}"
        )


def _method(point: Point) -> tuple[str, dict[str, Any]]:
    """Its name, and the keys of config.method that its seconds depend on."""
    name, keys = str(point.config[NAME]), dict[str, Any]()
    if methods.seen(name) is None:
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


def _common(kinds: Sequence[Sequence[Point]], log: pd.DataFrame) -> float:
    """The lowest power of two that each kind reaches with the worst seed of its best setting.

    Just what they reach, where runs start below that power.
    """
    runs = [
        tables.runs(its, ["seed"]).assign(
            method=str(i), setting=[f"{i} {_setting(point)}" for point in its]
        )
        for i, its in enumerate(kinds)
    ]
    lowest = efficiency.common_target(pd.concat(runs), log).loss
    if np.isnan(lowest):
        raise TableError("no training loss is reached by most methods; name one by --target")
    return efficiency.rounded_target(lowest, log)


def _setting(point: Point) -> tuple[tuple[str, Any], ...]:
    """What its arm is tuned by."""
    free = {
        key: value
        for key, value in point.config.items()
        if key == MOMENTUM or efficiency.tunes(key) or key.rpartition(".")[2] in FREE
    }
    return tuple(sorted(free.items()))


def _arm(
    said: str, its: Sequence[Point], log: pd.DataFrame, target: float, seeds: Any
) -> MethodResults:
    """Settings that lack one of the seeds are left out."""
    name, keys = _method(its[0])
    if not is_synchronous(name, keys):
        _one_cluster(said, name, its)
    own = log[log["point"].isin({point.name for point in its})]
    runs = efficiency.with_target(tables.runs(its, ["seed"]), own, target)
    runs = runs.assign(setting=[_setting(point) for point in its])
    runs = runs.drop_duplicates(["setting", "seed"], keep="last")
    table = runs.pivot(index="setting", columns="seed", values="updates_to_target")
    table = table[seeds].dropna()
    if table.empty:
        raise TableError(f"{said}: no setting of {name} was run with all of {len(seeds)} seeds")
    medians = np.median(table.to_numpy(), axis=1)
    doubt = _doubt([dict(setting) for setting in table.index], medians)
    nodes = int(its[0].config.get(NODES, 1))
    return MethodResults(name, keys, _batch(its[0]), nodes, table.to_numpy(), doubt)


def _one_cluster(said: str, name: str, its: Sequence[Point]) -> None:
    """Raises `TableError` where the runs of an arm differ in what updates depend on."""
    chosen = methods.seen(name)
    for key in tables.differing(its):
        matters = bool(chosen and chosen.grouped) or key in (NODES, "cluster.devices_per_node")
        if key.startswith("cluster.") and matters:
            values = sorted({str(point.config.get(key)) for point in its})
            raise TableError(
                f"{said}: runs of {name} differ in {key}; choose one with --where={key}=VALUE, "
                f"VALUE one of {', '.join(values)}"
            )


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


def _ordered(arms: Sequence[MethodResults]) -> list[MethodResults]:
    return sorted(arms, key=lambda arm: (not arm.synchronous, arm.batch))


def _words(config: Mapping[str, Any]) -> str:
    model, data, optimizer = (config.get(f"{key}.name") for key in ("model", "data", "optimizer"))
    return f"{model} on {data}, {optimizer}"
