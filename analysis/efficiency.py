"""Statistical efficiency x hardware efficiency = time to a loss (arXiv 1606.04487, section 3).

    SE       updates to a target loss             read off the losses
    HE       simulated seconds an update          read off the timeline
    SE x HE  simulated seconds to the target

A *setting* is all that a run's config says but the seed. Settings that differ only in what an
optimizer is tuned by (the learning rate, above all; not momentum) are one *method*, and its best
setting speaks for it.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

MOMENTUM = "optimizer.momentum"
CLOCKS = ["step", "simulated_seconds"]
FIGURES = [
    "train_loss",
    "test_accuracy",
    "updates_to_target",
    "simulated_seconds_per_step",
    "seconds_to_target",
]


def tunes(key: str) -> bool:
    """Whether a config's key is one that a method is tuned by."""
    return key.startswith("optimizer.") and key not in (MOMENTUM, "optimizer.name")


def named(runs: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """`runs` with the columns `setting`, `method` and `place` (the method but for its momentum).

    They are texts, equal where all of the config's keys that they stand for are.
    """
    setting = [key for key in keys if key != "seed"]
    place = [key for key in setting if key != MOMENTUM and not tunes(key)]
    parts = {"setting": setting, "method": [*place, MOMENTUM], "place": place}
    rows = {name: runs[part].itertuples(index=False, name=None) for name, part in parts.items()}
    return runs.assign(**{name: [repr(row) for row in its] for name, its in rows.items()})


def to_target(log: pd.DataFrame, target: float) -> tuple[float, float]:
    """(updates, simulated seconds) at which one run's training loss first is at the target.

    Linear between the last log point above the target and the first at or below it; infinite if
    there is none.
    """
    log = log.dropna(subset=["train_loss"])
    below = np.flatnonzero(log["train_loss"] <= target)
    if not below.size:
        return np.inf, np.inf
    after, before = log.iloc[below[0]], log.iloc[max(below[0] - 1, 0)]
    fall = before["train_loss"] - after["train_loss"]
    part = (before["train_loss"] - target) / fall if fall else 1.0
    step, seconds = before[CLOCKS] + part * (after[CLOCKS] - before[CLOCKS])
    return float(step), float(seconds)


def common_target(runs: pd.DataFrame, metrics: pd.DataFrame) -> float:
    """The lowest training loss that every method reaches; NaN if no run completed.

    A run reaches its lowest logged loss, a setting what the worst of its completed seeds does, a
    method what the best of its settings does; the target is what the worst method reaches.
    """
    done = runs[runs["status"] == "completed"]
    reached = done.assign(lowest=done["point"].map(metrics.groupby("point")["train_loss"].min()))
    settings = reached.groupby(["method", "setting"])["lowest"].max()
    return float(settings.groupby("method").min().max())


def with_target(runs: pd.DataFrame, metrics: pd.DataFrame, target: float) -> pd.DataFrame:
    """`runs` with `updates_to_target` and `seconds_to_target`, infinite if a run diverged."""
    logs = dict(list(metrics.groupby("point")))
    reached = [
        to_target(logs.get(point, metrics.iloc[:0]), np.nan if status == "diverged" else target)
        for point, status in zip(runs["point"], runs["status"], strict=True)
    ]
    updates, seconds = zip(*reached, strict=True)
    return runs.assign(updates_to_target=updates, seconds_to_target=seconds)


def best(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of each method's best setting: fewest updates to the target, then lowest loss."""
    loss = runs["train_loss"].astype(float).where(runs["status"] != "diverged", np.inf)
    order = (
        runs.assign(loss=loss)
        .groupby(["method", "setting"])[["updates_to_target", "loss"]]
        .median()
        .sort_values(["updates_to_target", "loss"], kind="stable")
        .reset_index()
    )
    return runs[runs["setting"].isin(order.drop_duplicates("method")["setting"])]
