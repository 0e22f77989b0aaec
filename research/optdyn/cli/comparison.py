"""`optdyn.compare`: experiments trained with the same seeds and compared in one table."""

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
from optdyn.cli.python import Experiment, Trained, read_run, run_of_memory
from optdyn.evidence.crossing import of_runs
from optdyn.evidence.intervals import FEWEST, drawn_again, ratio, shown
from optdyn.report import efficiency, figures, headline, tables
from optdyn.report.figures import OKABE_ITO
from optdyn.train.grid import Grid, named
from optdyn.train.trainer import RunResult


@dataclass(frozen=True, eq=False)
class Comparison:
    """Experiments trained with the same seeds. `comparison[name]` is a `SeedRuns`."""

    runs: Mapping[str, tuple[Trained, ...]]

    def __getitem__(self, name: str) -> "SeedRuns":
        errors.one_of("experiment", name, [*self.runs])
        return SeedRuns(self.runs[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.runs)

    @cached_property
    def target(self) -> float:
        """Returns the lowest training loss that all runs reach that did not diverge, else NaN."""
        runs = [run for arm in self.runs.values() for run in arm if not run.diverged]
        return float(max((run.log["train_loss"].min() for run in runs), default=np.nan))

    @check_arguments
    def table(self, target: float | None = None) -> pd.DataFrame:
        """Returns updates and seconds to a training loss, a row an experiment, medians over seeds.

        `updates` and simulated `seconds` are those to the loss `target`, by default that of the
        comparison; `_least` and `_most` are the bounds between log points. `_ratio` is that to the
        first experiment with its 95 % interval over pairs of seeds, `_low` to `_high`, NaN with
        fewer than 5 seeds. `loss` is the last one. Runs that miss the loss or diverge count as
        infinite.
        """
        loss = self.target if target is None else target
        crossings = {
            name: [
                efficiency.crossings(run.log, [np.nan if run.diverged else loss])[0] for run in arm
            ]
            for name, arm in self.runs.items()
        }
        first = next(iter(crossings))
        rows = []
        for name, arm in self.runs.items():
            row: dict[str, Any] = {"experiment": name}
            for i, clock in enumerate(("updates", "seconds")):
                its, base = of_runs(crossings[name], i), of_runs(crossings[first], i)
                same = name == first  # exactly 1, also with wide bounds
                value, low, high = ratio(its.value, base.value) if same else ratio(its, base)
                if len(arm) < FEWEST:
                    low = high = np.nan
                least, middle, most = (float(np.median(values)) for values in its)
                row |= {clock: middle, f"{clock}_least": least, f"{clock}_most": most}
                row |= {f"{clock}_ratio": value, f"{clock}_low": low, f"{clock}_high": high}
            ends = [np.inf if run.diverged else run.log["train_loss"].iloc[-1] for run in arm]
            row |= {"loss": float(np.median(ends)), "seeds": len(arm)}
            rows.append(row | {"diverged": sum(run.diverged for run in arm)})
        return pd.DataFrame(rows).set_index("experiment")

    @check_arguments
    def metric(self, name: str) -> pd.DataFrame:
        """Returns the last value of a log column, a row an experiment: medians over seeds.

        `low` to `high` is the 95 % bootstrap interval of the median over seeds, NaN with fewer than
        5 seeds. `difference` is the median over seeds of the value less that of the first
        experiment with the same seed, with its interval. A run that diverges makes its row NaN.
        Raises `ConfigError` for a column that the log does not have.
        """
        errors.one_of("metric", name, [*self[next(iter(self.runs))].log])
        values = {
            arm: np.array([np.nan if run.diverged else run.log[name].iloc[-1] for run in runs])
            for arm, runs in self.runs.items()
        }
        first = next(iter(values.values()))
        rows = {name: [*_median(x), *_median(x - first), len(x)] for name, x in values.items()}
        ends = ["low", "high"]
        names = ["median", *ends, "difference", *(f"difference_{end}" for end in ends), "seeds"]
        return pd.DataFrame.from_dict(rows, "index", columns=names).rename_axis("experiment")

    def __str__(self) -> str:
        table, first = self.table(), next(iter(self.runs))
        rows = [["", "updates", "x seconds an update", "= simulated seconds"]]
        for name, row in table.iterrows():
            cells = {clock: f"{row[clock]:.3g}" for clock in ("updates", "seconds")}
            if name != first:
                for clock in cells:
                    interval = row[[f"{clock}_ratio", f"{clock}_low", f"{clock}_high"]]
                    cells[clock] += f" ({shown(interval)} times)"
            reached = 0 < row["updates"] < np.inf
            per_update = f"{row['seconds'] / row['updates']:.3g}" if reached else ""
            rows.append([str(name), cells["updates"], per_update, cells["seconds"]])
        notes = [
            f"{row['diverged']:g} of {row['seeds']:g} runs of {name} diverged."
            for name, row in table.iterrows()
            if row["diverged"]
        ]
        n = int(table["seeds"].iloc[0])
        ends = "with 95 % intervals" if n >= FEWEST else f"without intervals, for which {n} is few"
        text = (
            f"To a training loss of {self.target:.3g}; medians of {n} seeds, and times those of "
            f"{first} {ends}\n\n{headline.aligned(rows)}"
        )
        known = table[np.isfinite(table["updates_most"])]
        left = known["updates_most"] - known["updates_least"]
        if n >= FEWEST and left.max() > 0:
            notes.append(
                f"Between log points the loss is not known, which leaves {left.max():.0f} updates "
                f"of {left.idxmax()} open. The intervals include it; a smaller log_every leaves "
                "less open."
            )
        return "\n\n".join([text, *notes])

    @check_arguments
    def plot(self, x: str = "simulated_seconds", y: str = "train_loss") -> Figure:
        """Returns a figure of two log columns: medians, ranges. Raises `ConfigError`."""
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
    """The runs of one experiment: a sequence of `Trained` in the order of seeds."""

    runs: tuple[Trained, ...]

    @check_arguments
    def __getitem__(self, i: int) -> Trained:
        return self.runs[i]

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def log(self) -> pd.DataFrame:
        """Returns the log points of all seeds, with a column `seed`."""
        logs = {run.experiment.seed: run.log for run in self.runs}
        return pd.concat(logs, names=["seed"]).reset_index(level=0)


@check_arguments
def compare(
    experiments: Mapping[str, Experiment],
    steps: int | None = None,
    seeds: Iterable[int] = range(5),
    workdir: str | Path | None = None,
) -> Comparison:
    """Trains all experiments with all seeds, in threads that share compiled programs.

    `steps` replaces the experiments' numbers of updates. With a `workdir` the runs are the points
    of a sweep: they resume there, and `optdyn report` reads them. Warns of unused settings and
    probable mistakes. Raises `ConfigError`, which names the point.
    """
    from optdyn.cli import points, sweep
    from optdyn.cli.local import cores

    seeds = tuple(seeds)
    errors.ConfigError.refuse(_comparison_checks(experiments, seeds))
    chosen = [
        (name, one.with_(seed=seed, steps=one.steps if steps is None else steps))
        for name, one in experiments.items()
        for seed in seeds
    ]
    rows = [{"name": f"{name},seed={one.seed}"} | one.changed_keys() for name, one in chosen]
    config, path = Grid(Experiment(), rows), Path(workdir) if workdir else None
    kept: dict[str, RunResult] = {}
    entries = points.plan(config, path)
    for _, one in chosen[:: len(seeds)]:
        one.warn()
    if sweep.sweep(config, path, entries, "threads", cores(), kept):
        raise KeyboardInterrupt
    if path:
        tables.write_results(path)
    runs: dict[str, list[Trained]] = {}
    for (point, _), (name, one) in zip(named(config), chosen, strict=True):
        folder = path and points.folder_of(path, point)
        run = read_run(one, folder) if folder else run_of_memory(one, kept[point])
        runs.setdefault(name, []).append(run)
    return Comparison({name: tuple(arm) for name, arm in runs.items()})


def _median(values: np.ndarray) -> tuple[float, float, float]:
    """Returns the median over seeds with its 95 % interval, NaN where it is not known."""
    middle, *ends = drawn_again(lambda seeds: float(np.median(values[seeds])), len(values))
    low, high = ends if len(values) >= FEWEST and not np.isnan(middle) else (np.nan, np.nan)
    return middle, low, high


def _comparison_checks(
    experiments: Mapping[str, Experiment], seeds: Sequence[int]
) -> Iterator[errors.Check]:
    for name, one in experiments.items():
        line = f"{errors.short_repr(name)} must be of type Experiment, not {type(one).__name__}"
        yield not isinstance(one, Experiment), f"compare: {line}"
        line = "config.replicas.count: must be 0, as recordings of replicas have no log"
        yield one.replicas.count, f"compare: {line}"
    yield not experiments or not seeds, "compare: needs an experiment and a seed at least"
