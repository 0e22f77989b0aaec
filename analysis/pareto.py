"""Loss against compute of local learning: `python -m analysis.pareto` (arXiv 2012.03837).

    sequential = updates x sequential_flops    what waits for one another on any number of devices
    total      = updates x total_flops         what one device has to do

A *setting* is all that a run's config says but the seed; its loss after an update is the median of
its seeds, infinite for one that has diverged. On a variant's *front* are the settings and updates
that no other of the variant equals for less compute or beats for as much. At a budget a variant is
as good as its front up to there; beyond what it was trained to nothing is said of it. The best of
more settings is better: variants compare if they were given equally many. `--workdir` is a sweep's;
writes NAME.csv, the fronts, NAME.json, who wins where, and a picture for each compute there.
"""

import argparse
import io
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from analysis import figures, tables
from analysis.tables import Point, TableError

COMPUTE = ("sequential", "total")
VARIANT = "strategy.variant"
BACKPROP = "backprop"
BUDGETS = 16
LOOKS = {  # colour, marker and line of each variant
    BACKPROP: ("#000000", "o", "solid"),
    "greedy": ("#D55E00", "s", "dashed"),
    "overlapping": ("#0072B2", "^", "dash-dotted"),
    "chunked": ("#009E73", "D", "dotted"),
}


def runs(workdir: Path) -> list[Point]:
    """The runs of local learning in the workdir; `TableError` if they cannot be compared."""
    found = [p for p in tables.points(workdir) if p.config.get("strategy.name") == "local"]
    if not found:
        raise TableError(f"{workdir}: no run of config.strategy.name = 'local' in it")
    for point in found:
        status, variant = point.summary["status"], point.config.get(VARIANT)
        if status not in ("completed", "diverged"):
            raise TableError(f"{workdir}: run {point.name} is {status}, must be completed")
        missing = [f"{c}_flops" for c in COMPUTE if not point.summary.get(f"{c}_flops")]
        if missing:
            raise TableError(
                f"{workdir}: the summary.json of run {point.name} has no {' and no '.join(missing)}"
            )
        if variant not in LOOKS:
            raise TableError(
                f"{workdir}: run {point.name} has config.{VARIANT} = {variant!r}, must be one of "
                + ", ".join(LOOKS)
            )
    return found


def levels(every: Sequence[Point]) -> pd.DataFrame:
    """One row a setting and log point after update 0, where the median of the losses is finite.

    Columns: `strategy.variant`, `batch_size`, `model.width` and the config's keys in which the runs
    differ; `step`, `sequential` and `total` (FLOPs until then), `loss`, its least `low` and most
    `high` over `seeds` runs.
    """
    keys = dict.fromkeys([VARIANT, "batch_size", "model.width", *tables.differing(every)])
    setting = [key for key in keys if key != "seed"]
    summaries, log, rows = tables.runs(every, setting), tables.metrics(every), []
    for values, group in summaries.groupby(setting, sort=False, dropna=False):
        points = group["point"].tolist()
        logged = log[log["point"].isin(points) & (log["step"] > 0)]
        losses = logged.pivot(index="step", columns="point", values="train_loss")
        # A run that diverged has a null and then nothing.
        losses = losses.reindex(columns=points).fillna(np.inf)
        steps = losses.index.to_numpy(np.float64)
        rows.append(
            pd.DataFrame(
                dict(zip(setting, values, strict=True))
                | {"step": losses.index}
                | {c: steps * group[f"{c}_flops"].iloc[0] for c in COMPUTE}
                | {"loss": np.median(losses, axis=1)}
                | {"low": losses.min(axis=1).array, "high": losses.max(axis=1).array}
                | {"seeds": len(points)}
            )
        )
    whole = pd.concat(rows, ignore_index=True)
    return whole[np.isfinite(whole["loss"])].reset_index(drop=True)


def front(cost: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Indices of the points that no other is as good as in both and better in one, by their cost.

    Of equals it has the first.
    """
    order = np.lexsort((loss, cost))
    best = np.minimum.accumulate(loss[order])
    return order[np.diff(best, prepend=np.inf) < 0]


def fronts(table: pd.DataFrame, compute: str) -> pd.DataFrame:
    """The rows of `levels` that are on their variant's front, variant by variant."""
    groups = [table[table[VARIANT] == variant] for variant in _variants(table)]
    return pd.concat(
        group.iloc[front(group[compute].to_numpy(), group["loss"].to_numpy())] for group in groups
    )


def compare(table: pd.DataFrame, compute: str, budgets: np.ndarray) -> pd.DataFrame:
    """The best loss of every variant at each budget that backprop and a local variant cover.

    Columns: `budget`, the variants, `winner`, `rival` (backprop, or the best local variant if
    backprop wins, as it does a tie), `by` (what the rival's loss has more), `least` and `most` of
    it between any seed of the one and any of the other: if `least` is above 0, all seeds agree.
    """
    names, best = _variants(table), fronts(table, compute)
    losses = np.full((3, len(names), len(budgets)), np.nan)  # median, low, high
    for i, name in enumerate(names):
        its = best[best[VARIANT] == name]
        at = np.searchsorted(its[compute], budgets, side="right") - 1
        known = (at >= 0) & (budgets <= table.loc[table[VARIANT] == name, compute].max())
        losses[:, i, known] = its[["loss", "low", "high"]].to_numpy().T[:, at[known]]
    both = np.isfinite(losses[0, 0]) & np.isfinite(losses[0, 1:]).any(axis=0)
    budgets, losses = budgets[both], losses[:, :, both]
    median = np.nan_to_num(losses[0], nan=np.inf)
    winner = median.argmin(axis=0)  # the first of equals: backprop
    rival = np.where(winner > 0, 0, 1 + median[1:].argmin(axis=0))
    columns = np.arange(len(budgets))
    won, won_low, won_high = losses[:, winner, columns]
    lost, low, high = losses[:, rival, columns]
    return pd.DataFrame({"budget": budgets} | dict(zip(names, losses[0], strict=True))).assign(
        winner=np.array(names)[winner],
        rival=np.array(names)[rival],
        by=lost - won,
        least=low - won_high,
        most=high - won_low,
    )


def budgets(table: pd.DataFrame, compute: str) -> np.ndarray:
    """Evenly in the logarithm, from where backprop and a local variant start to where one ends."""
    local = table[VARIANT] != BACKPROP
    ends = table.groupby(local)[compute].agg(["min", "max"])
    low, high = ends["min"].max(), ends["max"].min()
    return np.geomspace(low, high, BUDGETS) if low <= high else np.empty(0)


def regions(table: pd.DataFrame, compute: str) -> list[dict[str, Any]]:
    """Stretches of compute with one winner, exactly: between points of the fronts.

    Each has its `winner`, `from` and `to` (FLOPs), the greatest `by` of `compare` in it, and
    `clear`: whether all seeds agree somewhere in it.
    """
    places = np.union1d(budgets(table, compute), fronts(table, compute)[compute])
    compared = compare(table, compute, places)
    number = (compared["winner"] != compared["winner"].shift()).cumsum()
    found = [
        {
            "winner": part["winner"].iloc[0],
            "from": float(part["budget"].iloc[0]),
            "to": float(part["budget"].iloc[-1]),
            "by": float(part["by"].max()),
            "clear": bool((part["least"] > 0).any()),
        }
        for _, part in compared.groupby(number)
    ]
    for region, following in pairwise(found):
        region["to"] = following["from"]
    return found


@matplotlib.rc_context(figures.STYLE)
def picture(table: pd.DataFrame, compute: str) -> str:
    """An SVG of the fronts, with the range over seeds; thin lines are all settings."""
    figure = Figure(figsize=(6.2, 4.0), layout="constrained")
    axes = figure.add_subplot()
    best = fronts(table, compute)
    setting = list(table.columns[: table.columns.get_loc("step")])
    for name in _variants(table):
        colour, marker, dashes = LOOKS[name]
        its, every = best[best[VARIANT] == name], table[table[VARIANT] == name]
        for _, one in every.groupby(setting, dropna=False):
            axes.plot(one[compute], one["loss"], color=colour, alpha=0.35, lw=0.6)
        # The last of a front holds for as long as the variant was trained.
        its = pd.concat([its, its.tail(1).assign(**{compute: every[compute].max()})])
        x, high = its[compute], its["high"].replace(np.inf, np.nan)
        axes.fill_between(x, its["low"], high, step="post", color=colour, alpha=0.15, lw=0)
        axes.plot(
            x,
            its["loss"],
            color=colour,
            drawstyle="steps-post",
            ls=figures.DASHES[dashes],
            marker=marker,
            markevery=list(range(len(its) - 1)),
            ms=4,
            label=name,
        )
    low, top = best["low"].min(), best["loss"].max()
    if low > 0 and top > 3 * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(xscale="log", xlabel=f"{compute} FLOPs", ylabel="training loss")
    if top > low:
        axes.set_ylim(top=1.05 * top if top > 0 else None)
    axes.legend()
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 2 and one line on standard error for input it cannot use."""
    parser = argparse.ArgumentParser(prog="analysis.pareto", description="Loss against compute.")
    parser.add_argument("--workdir", type=Path, required=True, help="of a sweep")
    parser.add_argument("--name", default="pareto", help="of the files written")
    flags = parser.parse_args(arguments)
    try:
        table = levels(runs(flags.workdir))
        names = _variants(table)
        if BACKPROP not in names or len(names) == 1:
            raise TableError(
                f"{flags.workdir}: needs finite losses of {BACKPROP} and of a local variant, has "
                f"those of {' and '.join(names) or 'none'}"
            )
        _write(flags.workdir / flags.name, table)
    except (TableError, OSError) as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    for compute in COMPUTE:
        _print(table, compute)
    return 0


def _write(path: Path, table: pd.DataFrame) -> None:
    best = [fronts(table, c).assign(compute=c) for c in COMPUTE]
    answer = {
        c: {
            "budgets": _plain(compare(table, c, budgets(table, c))),
            "regions": regions(table, c),
        }
        for c in COMPUTE
    }
    tables.replace(path.with_name(f"{path.name}.csv"), pd.concat(best).to_csv(index=False))
    tables.replace(path.with_name(f"{path.name}.json"), json.dumps(answer, indent=2) + "\n")
    for compute in COMPUTE:
        file = path.with_name(f"{path.name}-{compute}.svg")
        tables.replace(file, picture(table, compute))


def _print(table: pd.DataFrame, compute: str) -> None:
    compared = compare(table, compute, budgets(table, compute)).drop(columns="rival")
    if compared.empty:
        print(f"No {compute} compute that both {BACKPROP} and a local variant were trained to.")
        return
    print(f"Training loss by {compute} FLOPs, median of {table['seeds'].min()} or more seeds:")
    print(compared.to_string(index=False, float_format="{:.4g}".format, na_rep="-"))
    for region in regions(table, compute):
        stretch = f"{region['from']:.4g} to {region['to']:.4g} {compute} FLOPs"
        seeds = "all seeds agree somewhere" if region["clear"] else "seeds agree nowhere"
        print(f"{stretch}: {region['winner']}, by up to {region['by']:.4g}; {seeds}")
    print()


def _variants(table: pd.DataFrame) -> list[str]:
    """Those in the table, backprop first."""
    return [name for name in LOOKS if name in set(table[VARIANT])]


def _plain(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON has them: null for what is not finite."""
    return [
        {k: v if isinstance(v, str) or np.isfinite(v) else None for k, v in row.items()}
        for row in table.to_dict("records")
    ]


if __name__ == "__main__":
    sys.exit(main())
