"""Settings of trained runs in words and cells, and the loss that all are measured by."""

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


def prepared(runs: pd.DataFrame, keys: Sequence[str], log: pd.DataFrame) -> pd.DataFrame:
    """`runs` named by `efficiency.named`, and more.

    `lowest` is the lowest logged loss; `kind` is the setting in words of what the runs compare,
    without its momentum and learning rates: as many keys as make `LINES` kinds at most.
    """
    runs = runs.assign(**{GROUPS: pd.to_numeric(runs[GROUPS])})
    runs = runs.assign(lowest=runs["point"].map(log.groupby("point")["train_loss"].min()))
    told = kinds(runs, keys)
    runs = runs.assign(kind=runs.apply(lambda run: describe(run, told), axis=1))
    return efficiency.named(runs, keys)


def kinds(runs: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """The keys by which runs are of different kinds: the method's first, then the others.

    One that would make more than `LINES` kinds is not among them.
    """
    order = [*KIND, *sorted(keys, key=lambda key: not key.startswith("method."))]
    told, parts = [NAME], runs.groupby(NAME, dropna=False).ngroup()
    for key in dict.fromkeys(order):
        if key in (NAME, MOMENTUM, "seed", "steps") or key not in keys or efficiency.tunes(key):
            continue
        finer = runs.groupby([parts, runs[key]], dropna=False).ngroup()
        if parts.nunique() < finer.nunique() <= LINES or (key in KIND and finer.nunique() <= LINES):
            told, parts = [*told, key], finer
    return told


def undocumented(runs: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """What settings of one kind differ in, in words."""
    its = [key for key in changing(runs, keys) if (runs.groupby("kind")[key].nunique() > 1).any()]
    return [TITLES.get(key, key) for key in its]


def target(runs: pd.DataFrame, log: pd.DataFrame) -> tuple[float, str]:
    """A loss for all to be measured by, and why it is that.

    Of many methods some never learn: the target is what the better half reaches. It is lower still
    where that half had it with its first log point, or started with it.
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
    if tuned(runs):
        why += " at its best learning rate"
    if seeded(runs):
        why += " with the worst of its seeds"
    if not found.resolved:
        why += "; most have it at the first log point, so the log does not tell them apart"
    return found.loss, why


def describe(values: Mapping[str, Any], keys: Iterable[str]) -> str:
    """A setting in words: `elastic, g = 8`; plain asynchronous runs go by their groups, `g = 4`."""
    known = {k: of_key(values[k]).shown for k in keys if k in values and not pd.isna(values[k])}
    if GROUPS in known and known.get(NAME) == GROUPED:
        known.pop(NAME)
    phrases = {NAME: "{}", GROUPS: "g = {}", VARIANT: "{}"}
    return ", ".join(
        phrases.get(key, TITLES.get(key, key) + " {}").format(value) for key, value in known.items()
    )


def varying(runs: pd.DataFrame, keys: Sequence[str], first: Sequence[str] = (NAME,)) -> list[str]:
    """The keys that it takes to tell these settings apart, the first of `keys` that do.

    `first`, the method, always; a key that others already say is not among them.
    """
    told, parts = list(first), pd.Series(0, runs.index)
    if told:
        parts = runs.groupby(told, dropna=False).ngroup()
    for key in changing(runs, keys):
        finer = runs.groupby([parts, runs[key]], dropna=False).ngroup()
        if finer.nunique() > parts.nunique():
            told, parts = [*told, key], finer
    return told


def counted(statuses: Iterable[str]) -> str:
    """`3 completed, 1 diverged`."""
    return ", ".join(f"{n:,} {status}" for status, n in Counter(statuses).items())


def tuned(runs: pd.DataFrame) -> bool:
    """Whether some method was tried at several learning rates, or the like."""
    return runs["setting"].nunique() > runs["method"].nunique()


def seeded(runs: pd.DataFrame) -> bool:
    """Whether some setting was run several times."""
    return bool(runs["setting"].duplicated().any())


def of_figure(runs: pd.DataFrame, figure: str) -> Cell:
    """A figure of some seeds, one to the target no finer than the log."""
    ends = [figure.replace("_to_target", end) for end in ("_low", "_high")]
    known = figure not in ends and ends[0] in runs
    apart = runs[ends].diff(axis=1).iloc[:, 1].max() if known else 0.0
    return of_seeds(runs[figure], float(apart))


def of_seeds(values: pd.Series, apart: float = 0.0) -> Cell:
    """The median, and in brackets least and most; `apart` as in `page.number`."""
    values = floats(values)
    low, high = (cell(float(f"{end:.3g}"), apart).shown for end in (values.min(), values.max()))
    middle = cell(values.median(skipna=False), apart)
    return middle._replace(range=f"{low} – {high}") if low != high else middle


def floats(values: pd.Series) -> pd.Series:
    """Numbers, of a column that may have None."""
    return pd.to_numeric(values).astype(float)


def changing(runs: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """The keys that are not of one value."""
    return [key for key in keys if key != "seed" and runs[key].nunique(dropna=False) > 1]


def of_key(value: Any) -> Cell:
    if value in ("", "[]"):
        return Cell("none", value)
    if isinstance(value, str) and value.startswith('["'):
        value = ", ".join(json.loads(value))
    if isinstance(value, str) and len(value) > LONG:
        end = value.rpartition(":")[2]  # of MODULE:NAME and of paths it is the end that tells apart
        short = f"…{end}" if end != value and len(end) < LONG else value[: LONG - 1] + "…"
        return Cell(short, value)
    return cell(value)
