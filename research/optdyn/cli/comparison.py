"""Experiments from Python, compared: `optdyn.compare`.

All are trained with the same seeds, and told by one table: updates x seconds an update = seconds to
a loss, with intervals over pairs of seeds.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from optdyn.base import errors
from optdyn.base.arguments import check_arguments
from optdyn.cli.python import Experiment, MomentumEstimate, Trained, in_memory, trained
from optdyn.evidence.crossing import of_runs
from optdyn.evidence.intervals import FEWEST, ratio, shown
from optdyn.report import efficiency, figures, headline, tables
from optdyn.report.figures import OKABE_ITO
from optdyn.train.grid import Grid, named
from optdyn.train.trainer import Kept


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several experiments, each trained with the same seeds. `runs[name]` is a `SeedRuns`."""

    runs: Mapping[str, tuple[Trained, ...]]

    def __getitem__(self, name: str) -> "SeedRuns":
        errors.one_of("experiment", name, [*self.runs])
        return SeedRuns(self.runs[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.runs)

    @cached_property
    def target(self) -> float:
        """The lowest training loss that every run reaches that did not diverge.

        All are compared by it. NaN if all have diverged.
        """
        every = [run for arm in self.runs.values() for run in arm if not run.diverged]
        return float(max((run.log["train_loss"].min() for run in every), default=np.nan))

    @check_arguments
    def table(self, target: float | None = None) -> pd.DataFrame:
        """Updates and seconds to a training loss, a row an experiment, medians over the seeds.

        Columns: `updates` and simulated `seconds` to the loss `target`, by default that of the
        comparison, with the `least` and `most` of each that the log leaves possible; the ratio of
        each to the first experiment's, with the ends of its 95 % interval over pairs of seeds (NaN
        with fewer than 5, which give none) and over what the log leaves possible; the `loss` at the
        end; the number of `seeds`, and of those that `diverged`. A run that misses the loss or
        diverges counts as infinite.
        """
        loss = self.target if target is None else target
        way = {
            name: [
                efficiency.crossings(run.log, [np.nan if run.diverged else loss])[0] for run in arm
            ]
            for name, arm in self.runs.items()
        }
        first = next(iter(way))
        rows = []
        for name, arm in self.runs.items():
            row: dict[str, Any] = {"experiment": name}
            for i, clock in enumerate(("updates", "seconds")):
                its, base = of_runs(way[name], i), of_runs(way[first], i)
                same = name == first  # to itself, whatever the log leaves open
                value, low, high = ratio(its.value, base.value) if same else ratio(its, base)
                if len(arm) < FEWEST:
                    low = high = np.nan
                least, middle, most = (float(np.median(each)) for each in its)
                row |= {clock: middle, f"{clock}_least": least, f"{clock}_most": most}
                row |= {f"{clock}_ratio": value, f"{clock}_low": low, f"{clock}_high": high}
            ends = [np.inf if run.diverged else run.log["train_loss"].iloc[-1] for run in arm]
            row |= {"loss": float(np.median(ends)), "seeds": len(arm)}
            rows.append(row | {"diverged": sum(run.diverged for run in arm)})
        return pd.DataFrame(rows).set_index("experiment")

    def __str__(self) -> str:
        """What `table` says at the comparison's own loss, to be read."""
        table, first = self.table(), next(iter(self.runs))
        rows = [["", "updates", "x seconds an update", "= simulated seconds"]]
        for name, row in table.iterrows():
            own = {clock: f"{row[clock]:.3g}" for clock in ("updates", "seconds")}
            if name != first:
                for clock in own:
                    found = row[[f"{clock}_ratio", f"{clock}_low", f"{clock}_high"]]
                    own[clock] += f" ({shown(found)} times)"
            reached = 0 < row["updates"] < np.inf
            each = f"{row['seconds'] / row['updates']:.3g}" if reached else ""
            rows.append([str(name), own["updates"], each, own["seconds"]])
        lost = [
            f"{row['diverged']:g} of {row['seeds']:g} runs of {name} diverged."
            for name, row in table.iterrows()
            if row["diverged"]
        ]
        n = int(table["seeds"].iloc[0])
        ends = "with 95 % intervals" if n >= FEWEST else f"without intervals, for which {n} is few"
        said = (
            f"To a training loss of {self.target:.3g}; medians of {n} seeds, and times those of "
            f"{first} {ends}\n\n{headline.aligned(rows)}"
        )
        known = table[np.isfinite(table["updates_most"])]
        left = known["updates_most"] - known["updates_least"]
        if n >= FEWEST and left.max() > 0:
            lost.append(
                f"Between log points the loss is not known, which leaves {left.max():.0f} updates "
                f"of {left.idxmax()} open. The intervals include it; a smaller log_every leaves "
                "less open."
            )
        return "\n\n".join([said, *lost])

    @check_arguments
    def plot(self, x: str = "simulated_seconds", y: str = "train_loss") -> Figure:
        """A figure of one column of the log against another: medians and ranges over seeds.

        Raises `ConfigError` for a column that the log does not have.
        """
        for axis, column in (("x", x), ("y", y)):
            errors.one_of(axis, column, [*self[next(iter(self.runs))].log])
        looks = itertools.product(figures.DASHES, OKABE_ITO)
        series = [
            figures.Series(name, colour, dashes, figures.by_step(self[name].log, x, y))
            for name, (dashes, colour) in zip(self.runs, looks, strict=False)
        ]
        figure = figures.course(series, x.replace("_", " "), y.replace("_", " "))
        figure.axes[0].set_yscale("log")
        return figure


@dataclass(frozen=True, eq=False)
class SeedRuns:
    """The runs of one experiment of a comparison, a sequence of `Trained` in the seeds' order."""

    runs: tuple[Trained, ...]

    @check_arguments
    def __getitem__(self, i: int) -> Trained:
        return self.runs[i]

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def log(self) -> pd.DataFrame:
        """The log points of all seeds, with a column `seed`."""
        of = {run.experiment.seed: run.log for run in self.runs}
        return pd.concat(of, names=["seed"]).reset_index(level=0)

    def implicit_momentum(self) -> pd.DataFrame:
        """The momentum meter's readings (`MomentumEstimate`), a row a seed."""
        found = {run.experiment.seed: run.implicit_momentum() for run in self.runs}
        return pd.DataFrame.from_dict(found, "index", columns=MomentumEstimate._fields)


@check_arguments
def compare(
    experiments: Mapping[str, Experiment],
    steps: int | None = None,
    seeds: Iterable[int] = range(5),
    workdir: str | Path | None = None,
) -> Comparison:
    """Trains all experiments with all seeds, in threads that share compiled programs.

    `steps` replaces each experiment's own number of updates. With a `workdir` the runs are the
    points of a sweep: they resume there, and `optdyn report` reads them. Without one no file is
    written. Warns of settings that
    nothing reads, or that are hardly meant. Raises `ConfigError`, which names the point, also if
    there is no experiment or no seed.
    """
    from optdyn.cli import points, sweep

    drawn = tuple(seeds)
    errors.ConfigError.refuse(_cannot_be_compared(experiments, drawn))
    chosen = [
        (name, one.with_(seed=seed, steps=one.steps if steps is None else steps))
        for name, one in experiments.items()
        for seed in drawn
    ]
    listed = [{"name": f"{name},seed={one.seed}"} | one.changed_keys() for name, one in chosen]
    config, path = Grid(Experiment(), listed), Path(workdir) if workdir else None
    kept: dict[str, Kept] = {}
    entries = points.plan(config, path)
    for _, one in chosen[:: len(drawn)]:
        one.warn()
    if sweep.sweep(config, path, entries, "threads", sweep.cores(), kept):
        raise KeyboardInterrupt
    if path:
        tables.write_results(path)
    found: dict[str, list[Trained]] = {}
    for (point, _), (name, one) in zip(named(config), chosen, strict=True):
        run = trained(one, points.folder_of(path, point)) if path else in_memory(one, kept[point])
        found.setdefault(name, []).append(run)
    return Comparison({name: tuple(runs) for name, runs in found.items()})


def _cannot_be_compared(
    experiments: Mapping[str, Experiment], seeds: Sequence[int]
) -> Iterator[tuple[object, str]]:
    for name, one in experiments.items():
        said = f"{errors.short_repr(name)} must be of type Experiment, not {type(one).__name__}"
        yield not isinstance(one, Experiment), f"compare: {said}"
        said = "config.replicas.count: must be 0, as recordings of replicas have no log"
        yield one.replicas.count, f"compare: {said}"
    yield not experiments or not seeds, "compare: needs an experiment and a seed at least"
