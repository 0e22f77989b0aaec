"""Statistical efficiency x hardware efficiency = time to a loss (arXiv 1606.04487, section 3).

    SE       updates to a target loss             read off the losses
    HE       simulated seconds an update          read off the timeline
    SE x HE  simulated seconds to the target

A *setting* is a config without its seed. Settings that differ only in how the optimizer is tuned,
but for momentum, are one *method*. As a setting looks better than it is on the seeds that it was
chosen by, each seed is judged at the setting that is best on the others (`held_out`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from optdyn.evidence.crossing import Crossing, crossing, of_runs
from optdyn.report.tables import MOMENTUM, TableError

BOOTSTRAP = 1000  # draws of seeds
CLOCKS = ["step", "simulated_seconds"]
FIGURES = [
    "train_loss",
    "test_accuracy",
    "updates_to_target",
    "simulated_seconds_per_step",
    "seconds_to_target",
]


def is_tuned(key: str) -> bool:
    """Returns whether a method is tuned by the config's key."""
    return key.startswith("optimizer.") and key not in (MOMENTUM, "optimizer.name")


def with_settings(runs: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Adds the texts `setting`, `method` and `place`, the method without its momentum."""
    setting = [key for key in keys if key != "seed"]
    place = [key for key in setting if key != MOMENTUM and not is_tuned(key)]
    parts = {"setting": setting, "method": [*place, MOMENTUM], "place": place}
    return runs.assign(
        **{
            name: [repr(row) for row in runs[part].itertuples(index=False, name=None)]
            for name, part in parts.items()
        }
    )


def crossings(log: pd.DataFrame, targets: Iterable[float]) -> list[Crossing]:
    """Returns when one run's loss is at each target, by updates and simulated seconds."""
    rows = log[[*CLOCKS, "train_loss"]].to_numpy(float)
    rows = rows[~np.isnan(rows[:, 2])]
    return [crossing(rows[:, :2], rows[:, 2], target) for target in targets]


def to_target(log: pd.DataFrame, target: float) -> tuple[float, float]:
    """Returns (updates, simulated seconds) to a training loss; infinite if it is never reached."""
    updates, seconds = crossings(log, [target])[0].value
    return float(updates), float(seconds)


class Target(NamedTuple):
    loss: float  # NaN: there is none
    methods: int  # that reach it, with the worst of the seeds of their best setting
    resolved: bool  # most of them need more than one log interval


def common_target(runs: pd.DataFrame, metrics: pd.DataFrame, most: int = 0) -> Target:
    """Returns the lowest training loss that the largest possible number of methods share.

    The loss that a method reaches is that of its best setting's worst seed. A target lies below the
    start of all runs. If possible it is one that more than half of its methods meet after the first
    log point. `most` limits its methods; 0: all.
    """
    log = metrics.dropna(subset=["train_loss"])
    losses = log.groupby("point")["train_loss"]
    start, place = losses.first().min(), losses.cumcount()
    done = runs[(runs["status"] == "completed") & runs["point"].isin(log["point"])]
    if done.empty:
        return Target(np.nan, 0, False)
    lowest = done["point"].map(losses.min())
    reached = done.assign(lowest=lowest).groupby(["method", "setting"])["lowest"].max()
    methods = reached.groupby("method").min().sort_values(kind="stable")
    best = done[done["setting"].isin(reached.groupby("method").idxmin().str[1])]
    second = log[place == 1].set_index("point")["train_loss"]
    soon = best.assign(second=best["point"].map(second)).groupby("method")["second"].median()
    targets = []
    for count in range(min(most or len(methods), len(methods)), 0, -1):
        loss = float(methods.iloc[count - 1])
        if loss < start:
            late = (soon[methods.index[:count]] > loss).sum()
            targets.append(Target(loss, count, bool(2 * late > count)))
    return next((t for t in targets if t.resolved), (targets or [Target(np.nan, 0, False)])[0])


def start_below(target: float, metrics: pd.DataFrame) -> float:
    """Returns the lowest loss at or below the target that a run starts from; NaN without one."""
    starts = metrics.dropna(subset=["train_loss"]).groupby("point")["train_loss"].first()
    return float(starts[starts <= target].min())


def check_target(target: float, metrics: pd.DataFrame) -> None:
    """Raises `TableError` if some run starts at or below the target that was asked for."""
    if not np.isnan(start := start_below(target, metrics)):
        raise TableError(f"--target={target:g}: some run starts from {start:.4g}; must be below it")


def rounded_target(lowest: float, metrics: pd.DataFrame) -> float:
    """Returns the next power of two from a loss up; the loss where a run starts below that."""
    power = 2.0 ** np.ceil(np.log2(lowest)) if lowest > 0 else lowest
    return float(power if np.isnan(start_below(power, metrics)) else lowest)


def with_target(runs: pd.DataFrame, metrics: pd.DataFrame, target: float) -> pd.DataFrame:
    """Adds `updates_to_target` and `seconds_to_target`, infinite if a run diverged.

    `updates_low`, `updates_high` and those of seconds are the ends that the log leaves possible.
    """
    logs = dict(list(metrics.groupby("point")))
    found = [
        crossings(logs.get(point, metrics.iloc[:0]), [np.nan if status == "diverged" else target])
        for point, status in zip(runs["point"], runs["status"], strict=True)
    ]
    columns: dict[str, np.ndarray] = {}
    for i, clock in enumerate(("updates", "seconds")):
        names = (f"{clock}_low", f"{clock}_to_target", f"{clock}_high")
        columns |= zip(names, of_runs([crossing for (crossing,) in found], i), strict=True)
    return runs.assign(**columns)


def ranked(runs: pd.DataFrame) -> list[str]:
    """Returns the settings, the best first: by updates to the target, then by final loss."""
    loss = runs["train_loss"].astype(float).where(runs["status"] != "diverged", np.inf)
    medians = runs.assign(loss=loss).groupby("setting")[["updates_to_target", "loss"]].median()
    return list(medians.sort_values(["updates_to_target", "loss"], kind="stable").index)


def best(runs: pd.DataFrame) -> pd.DataFrame:
    methods = runs.drop_duplicates("setting").set_index("setting")["method"]
    return runs[runs["setting"].isin(methods[ranked(runs)].drop_duplicates().index)]


def held_out_settings(updates: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Returns for each drawn seed the setting best by the median of the others, (n,).

    `updates` is (S, N), `seeds` (n,) of its columns, of which at least two differ. A seed that is
    drawn twice is left out twice.
    """
    settings = np.empty(len(seeds), int)
    for seed in np.unique(seeds):
        others = updates[:, seeds[seeds != seed]]
        settings[seeds == seed] = np.median(others, axis=1).argmin()
    return settings


def held_out(updates: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Returns the updates of each drawn seed at its setting of `held_out_settings`, (n,)."""
    return updates[held_out_settings(updates, seeds), seeds]


def draws(seeds: int, count: int = BOOTSTRAP) -> np.ndarray:
    """Returns (about `count`, seeds) with replacement, at least two different ones in a row."""
    drawn = np.random.default_rng(0).integers(seeds, size=(count, seeds))
    return drawn[(drawn != drawn[:, :1]).any(axis=1)]


def all_and_draws(seeds: int) -> np.ndarray:
    """Returns all seeds in the first row, then those of `draws`."""
    return np.concatenate([np.arange(seeds)[None], draws(seeds)])


def per_draw(statistic: Callable[[np.ndarray], Any], drawn: np.ndarray) -> np.ndarray:
    """Returns a statistic of the seeds of each draw (D, n), whatever their order, (D, ...)."""
    drawn, place = np.unique(np.sort(drawn, axis=1), axis=0, return_inverse=True)
    return np.array([statistic(seeds) for seeds in drawn])[place.ravel()]


def median_held_out(updates: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Returns the median of `held_out` updates over the seeds of each draw, (D,)."""
    return per_draw(lambda seeds: np.median(held_out(updates, seeds)), drawn)
