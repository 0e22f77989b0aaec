"""Settings of trained runs in words and cells, and the loss by which all are measured."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from optdyn.methods import GROUPED
from optdyn.report import efficiency
from optdyn.report.page import Cell, cell
from optdyn.report.tables import GROUPS, MOMENTUM, NAME, RATE

VARIANT = "method.variant"
KIND = (NAME, GROUPS, VARIANT)
LINES = 10  # curves that a picture names
ROWS = 200  # of a table
TITLES = {
    NAME: "method",
    GROUPS: "groups g",
    MOMENTUM: "momentum",
    RATE: "learning rate",
    "batch_size": "batch",
    "train_loss": "final training loss",
    "test_accuracy": "test accuracy",
    "updates_to_target": "updates to target (statistical efficiency)",
    "simulated_seconds_per_step": "simulated seconds an update (hardware efficiency)",
    "seconds_to_target": "simulated seconds to target (their product)",
}
INTERPOLATED = (
    "Updates and seconds to a loss are interpolated linearly between log points, and rounded: no "
    "digit is finer than what the log leaves open, which 95 % intervals include."
)
LONG = 20  # characters of a text value


def prepare(runs: pd.DataFrame, keys: Sequence[str], log: pd.DataFrame) -> pd.DataFrame:
    """Adds `lowest`, the lowest logged loss, `kind`, and the columns of `with_settings`.

    The kind is the setting in words by `kind_keys`.
    """
    runs = runs.assign(**{GROUPS: pd.to_numeric(runs[GROUPS])})
    runs = runs.assign(lowest=runs["point"].map(log.groupby("point")["train_loss"].min()))
    kind = kind_keys(runs, keys)
    runs = runs.assign(kind=runs.apply(lambda run: describe(run, kind), axis=1))
    return efficiency.with_settings(runs, keys)


def kind_keys(runs: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """Returns the keys by which runs are of different kinds, at most `LINES` of these."""
    order = dict.fromkeys([*KIND, *sorted(keys, key=lambda key: not key.startswith("method."))])
    left = {NAME, MOMENTUM, "seed", "steps"}
    chosen = [k for k in order if k in keys and k not in left and not efficiency.is_tuned(k)]
    return _dividing_keys(runs, chosen, [NAME], LINES, KIND)


def distinguishing_keys(
    runs: pd.DataFrame, keys: Sequence[str], first: Sequence[str] = (NAME,)
) -> list[str]:
    """Returns `first` and the first of `keys` that tell these settings apart."""
    return _dividing_keys(runs, varied_keys(runs, keys), first)


def _dividing_keys(
    runs: pd.DataFrame,
    keys: Iterable[str],
    first: Sequence[str],
    most: float = np.inf,
    always: Sequence[str] = (),
) -> list[str]:
    """Returns `first` and the keys that divide the runs further, into `most` parts.

    A key of `always` need not divide them.
    """
    chosen = list(first)
    parts = runs.groupby(chosen, dropna=False).ngroup() if chosen else pd.Series(0, runs.index)
    for key in keys:
        finer = runs.groupby([parts, runs[key]], dropna=False).ngroup()
        divides = finer.nunique() > parts.nunique() or key in always
        if divides and finer.nunique() <= most:
            chosen, parts = [*chosen, key], finer
    return chosen


def titles_within_kinds(runs: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """Returns the titles of the keys in which settings of one kind differ."""
    within = runs.groupby("kind")
    return [
        TITLES.get(key, key) for key in varied_keys(runs, keys) if (within[key].nunique() > 1).any()
    ]


def target(runs: pd.DataFrame, log: pd.DataFrame) -> tuple[float, str]:
    """Returns the loss by which all are measured, and the reason; (NaN, '') without one.

    Of many methods some never learn: the target is a loss that the better half reaches.
    """
    methods = runs["method"].nunique()
    most = methods // 2 if methods > LINES else methods
    found = efficiency.common_target(runs, log, most)
    if not found.methods:
        return np.nan, ""
    why = "the lowest that every method here reaches"
    if runs["setting"].nunique() == 1:
        why = "the lowest reached"
    elif found.methods < most:
        why = f"the lowest that the best {found.methods} of the {methods} methods reach"
    elif methods > LINES:
        why = "the lowest that each of the better half of the methods reaches"
    if has_tuning(runs):
        why += " at its best learning rate"
    if has_seeds(runs):
        why += " with the worst of its seeds"
    if not found.resolved:
        why += "; most have it at the first log point, so the log does not tell them apart"
    return found.loss, why


def describe(values: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Returns a setting in words: `elastic, g = 8`; plain asynchronous runs are `g = 4`."""
    known = {k: key_cell(values[k]).shown for k in keys if k in values and not pd.isna(values[k])}
    if GROUPS in known and known.get(NAME) == GROUPED:
        known.pop(NAME)
    phrases = {NAME: "{}", GROUPS: "g = {}", VARIANT: "{}"}
    return ", ".join(
        phrases.get(key, TITLES.get(key, key) + " {}").format(value) for key, value in known.items()
    )


def status_counts(statuses: Iterable[str]) -> str:
    """Returns `3 completed, 1 diverged`."""
    return ", ".join(f"{n:,} {status}" for status, n in Counter(statuses).items())


def has_tuning(runs: pd.DataFrame) -> bool:
    """Returns whether some method was tried at several learning rates, or the like."""
    return runs["setting"].nunique() > runs["method"].nunique()


def has_seeds(runs: pd.DataFrame) -> bool:
    return bool(runs["setting"].duplicated().any())


def figure_cell(runs: pd.DataFrame, figure: str) -> Cell:
    """Returns `seeds_cell` of a figure; one to the target is no finer than the log."""
    ends = [figure.replace("_to_target", end) for end in ("_low", "_high")]
    known = figure not in ends and ends[0] in runs
    resolution = runs[ends].diff(axis=1).iloc[:, 1].max() if known else 0.0
    return seeds_cell(runs[figure], float(resolution))


def seeds_cell(values: pd.Series, resolution: float = 0.0) -> Cell:
    """Returns the median, and as its range least and most; `resolution` as in `page.number`."""
    values = floats(values)
    low, high = (
        cell(float(f"{end:.3g}"), resolution).shown for end in (values.min(), values.max())
    )
    middle = cell(values.median(skipna=False), resolution)
    return middle._replace(range=f"{low} – {high}") if low != high else middle


def floats(values: pd.Series) -> pd.Series:
    return pd.to_numeric(values).astype(float)


def varied_keys(runs: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """Returns the keys that have several values, but for the seed."""
    return [key for key in keys if key != "seed" and runs[key].nunique(dropna=False) > 1]


def key_cell(value: Any) -> Cell:
    """Returns a value of the config, of which a long text is shortened."""
    if value in ("", "[]"):
        return Cell("none", value)
    if isinstance(value, str) and value.startswith('["'):
        value = ", ".join(json.loads(value))
    if isinstance(value, str) and len(value) > LONG:
        end = value.rpartition(":")[2]  # the end of MODULE:NAME and of paths tells them apart
        short = f"…{end}" if end != value and len(end) < LONG else value[: LONG - 1] + "…"
        return Cell(short, value)
    return cell(value)
