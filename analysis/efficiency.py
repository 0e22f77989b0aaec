"""Statistical efficiency x hardware efficiency = time to a loss (arXiv 1606.04487, section 3).

    SE       updates to a target loss             read off the losses
    HE       simulated seconds an update          read off the timeline
    SE x HE  simulated seconds to the target

A *setting* is all that a run's config says but the seed. Settings that differ only in keys of the
optimizer other than momentum (the learning rate, above all) are one *method* being tuned, and its
best setting speaks for it.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

MOMENTUM = "optimizer.momentum"
FIGURES = [
    "train_loss",
    "test_accuracy",
    "updates_to_target",
    "simulated_seconds_per_step",
    "seconds_to_target",
]


def method_keys(keys: Sequence[str]) -> list[str]:
    """Those of a run's config keys that make its method."""
    return [
        k for k in keys if k != "seed" and (k == MOMENTUM or not k.startswith("optimizer."))
    ]


def named(runs: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """`runs` with the columns `setting` and `method`: equal text, equal setting."""

    def text(columns: Sequence[str]) -> pd.Series:
        return runs[list(columns)].astype(str).agg("\n".join, axis=1)

    return runs.assign(setting=text([k for k in keys if k != "seed"]), method=text(method_keys(keys)))


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


CLOCKS = ["step", "simulated_seconds"]


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
    return runs.assign(**dict(zip(("updates_to_target", "seconds_to_target"), zip(*reached, strict=True), strict=True)))


def best(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of each method's best setting: fewest updates to the target, then lowest loss."""
    medians = runs.groupby("setting", sort=False)[["updates_to_target", "train_loss"]].median()
    order = medians.sort_values(["updates_to_target", "train_loss"], kind="stable").index
    method = runs.drop_duplicates("setting").set_index("setting")["method"]
    return runs[runs["setting"].isin(method[order].drop_duplicates().index)]
