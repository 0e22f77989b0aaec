"""Statistical efficiency x hardware efficiency = time to a loss (arXiv 1606.04487, section 3).

    SE       updates to a target loss             read off the losses
    HE       simulated seconds an update          read off the timeline
    SE x HE  simulated seconds to the target

A *setting* is all that a run's config says but the seed. Settings that differ only in how the
optimizer is tuned (above all in the learning rate; not in momentum) are one *method*, and the best
of them stands for it.

With g compute groups, of staleness S = g - 1, the paper's penalties are SE(S) / SE(0), HE(S) /
HE(0) and their product (`penalties`). A setting looks better than it is on the seeds that it was
chosen by; so each seed is judged at the setting that is best on the others (`held_out`), and
intervals draw seeds again and choose again.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

MOMENTUM = "optimizer.momentum"
BOOTSTRAP = 1000  # draws of seeds
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


def picks(updates: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """(n,): for each of the drawn `seeds` the setting best by the median of the others.

    `updates` is (S, N), `seeds` (n,) of its columns, of which at least two differ. A seed that is
    drawn twice is not among its own others.
    """
    settings = np.empty(len(seeds), int)
    for seed in np.unique(seeds):
        others = updates[:, seeds[seeds != seed]]
        settings[seeds == seed] = np.median(others, axis=1).argmin()
    return settings


def held_out(updates: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """(n,): what each of the drawn `seeds` takes at its setting of `picks`."""
    return updates[picks(updates, seeds), seeds]


def draws(seeds: int, count: int = BOOTSTRAP) -> np.ndarray:
    """(about `count`, seeds): seeds with replacement, at least two different ones in each row."""
    drawn = np.random.default_rng(0).integers(seeds, size=(count, seeds))
    return drawn[(drawn != drawn[:, :1]).any(axis=1)]


def measured(tried: Sequence[Tried], momentum: float, drawn: np.ndarray) -> np.ndarray:
    """(D, 3, G): SE with the momentum fixed, SE with it tuned, HE; medians over the drawn seeds.

    `drawn` is (D, n), the seeds of each draw.
    """
    # Five seeds give 126 different draws, but for their order.
    drawn, which = np.unique(np.sort(drawn, axis=1), axis=0, return_inverse=True)
    both = [[each.at(momentum).updates for each in tried], [each.updates for each in tried]]
    taken = [[[np.median(held_out(u, s)) for u in its] for its in both] for s in drawn]
    seconds = [np.median(each.seconds[drawn], axis=1) for each in tried]
    return np.concatenate([taken, np.stack(seconds, axis=-1)[:, None]], axis=1)[which]


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


def interval(drawn: np.ndarray) -> np.ndarray:
    """(2, ...): the 2.5th and 97.5th percentile along the first axis; they may be infinite.

    A NaN, as the ratio of two updates that are both infinite, may be anything: it counts as the
    least at the lower end and as the most at the upper one.
    """
    ends = [
        np.quantile(np.nan_to_num(drawn, nan=nan, posinf=np.inf), q, axis=0, method="inverted_cdf")
        for q, nan in ((0.025, -np.inf), (0.975, np.inf))
    ]
    return np.stack(ends)
