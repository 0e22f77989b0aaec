"""Loss against compute of local learning: `python -m analysis.pareto` (arXiv 2012.03837).

    sequential = updates x sequential_flops    what waits for one another on any number of devices
    total      = updates x total_flops         what one device has to do

Settings, their losses and fronts are those of `analysis.fronts`, a front for each variant. At a
budget a variant is as good as its front up to there; beyond what it was trained to nothing is said
of it. The best of more settings is better: variants compare if they were given equally many.
`--workdir` is a sweep's; writes NAME.csv, the fronts, NAME.json, who wins where, and a picture for
each compute there.
"""

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from optdyn import strategies
from optdyn.analysis import figures, tables, tradeoffs
from optdyn.analysis import fronts as fronts_of
from optdyn.analysis.tables import Point, TableError
from optdyn.basics.arguments import Parser
from optdyn.basics.errors import print_error
from optdyn.basics.files import as_json

COMPUTE = tuple(fronts_of.FLOPS)
VARIANT = "strategy.variant"
BACKPROP = "backprop"
BUDGETS = 16
LOOKS = {  # colour and line of each variant
    BACKPROP: ("#000000", "solid"),
    "greedy": ("#D55E00", "dashed"),
    "overlapping": ("#0072B2", "dash-dotted"),
    "chunked": ("#009E73", "dotted"),
}


def runs(workdir: Path) -> list[Point]:
    """The runs of local learning in the workdir; `TableError` if they cannot be compared."""
    every = tables.points(workdir)
    found = [p for p in every if strategies.owns(p.config["strategy.name"], "variant")]
    if not found:
        raise TableError(f"{workdir}: no run of local learning in it")
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
    """`fronts.levels` of the runs.

    Settings are told apart by variant, batch size, width and the config's keys in which they
    differ; `setting` numbers them.
    """
    keys = dict.fromkeys([VARIANT, "batch_size", "model.width", *tables.differing(every)])
    by = [key for key in keys if key != "seed"]
    table = fronts_of.levels(tables.runs(every, by), tables.metrics(every), by)
    return table.assign(setting=table.groupby(by, sort=False, dropna=False).ngroup())


def fronts(table: pd.DataFrame, compute: str) -> pd.DataFrame:
    """The rows of `levels` that are on their variant's front, variant by variant."""
    return fronts_of.fronts(table, compute, VARIANT)


def compare(table: pd.DataFrame, compute: str, budgets: np.ndarray) -> pd.DataFrame:
    """The best loss of every variant at each budget that backprop and a local variant cover.

    Columns: `budget`, the variants, `winner`, `rival` (backprop, or the best local variant if
    backprop wins, as it does a tie), `by` (what the rival's loss has more), `least` and `most` of
    it between any seed of the one and any of the other: if `least` is above 0, all seeds agree.
    """
    names = _variants(table)
    losses = fronts_of.at(table, compute, VARIANT, names, budgets)
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


def picture(table: pd.DataFrame, compute: str) -> Figure:
    """The fronts, with the range over seeds; thin lines are all settings."""
    best = fronts(table, compute)
    lines = [
        tradeoffs.Front(
            name, *LOOKS[name], *(rows[rows[VARIANT] == name] for rows in (best, table))
        )
        for name in _variants(table)
    ]
    return tradeoffs.fronts(lines, compute, f"{compute} FLOPs")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 2 and one line on standard error for input it cannot use."""
    parser = Parser(prog="analysis.pareto", description="Loss against compute.")
    parser.add_argument("--workdir", type=Path, required=True, help="of a sweep")
    parser.add_argument("--name", default="pareto", help="of the files written")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    flags = parser.read(arguments)
    try:
        table = levels(runs(flags.workdir))
        names = _variants(table)
        if BACKPROP not in names or len(names) == 1:
            raise TableError(
                f"{flags.workdir}: needs finite losses of {BACKPROP} and of a local variant, has "
                f"those of {' and '.join(names) or 'none'}"
            )
        answer = _write(flags.workdir / flags.name, table)
    except (TableError, OSError) as error:
        return print_error(error)
    if flags.json:
        print(as_json(answer))
        return 0
    for compute in COMPUTE:
        _print(table, compute)
    return 0


def _write(path: Path, table: pd.DataFrame) -> dict[str, Any]:
    best = [fronts(table, c).assign(compute=c) for c in COMPUTE]
    answer = {
        c: {
            "budgets": compare(table, c, budgets(table, c)).to_dict("records"),
            "regions": regions(table, c),
        }
        for c in COMPUTE
    }
    tables.replace(path.with_name(f"{path.name}.csv"), pd.concat(best).to_csv(index=False))
    tables.replace(path.with_name(f"{path.name}.json"), as_json(answer) + "\n")
    for compute in COMPUTE:
        file = path.with_name(f"{path.name}-{compute}.svg")
        tables.replace(file, figures.svg(picture(table, compute)))
    return answer


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
    """The variants in the table, backprop first."""
    return [name for name in LOOKS if name in set(table[VARIANT])]


if __name__ == "__main__":
    sys.exit(main())
