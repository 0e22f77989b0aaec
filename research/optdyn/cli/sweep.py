"""Trains a grid of runs: `python -m launch.sweep --config=configs/grids/NAME.py --workdir=DIR`.

A point's workdir, `DIR/points/NAME`, is as `launch.train` would leave it. The same command resumes,
runs points that were added to the grid, and continues points if `base.steps` has grown.
`results.csv` has the points that have ended, also while others run. At the end implicit momentum is
read from recorded replicas, `results.csv` and `report.html` are written for all points, and the
best of them are printed.

    --together=threads   several at a time, with the floats of `launch.train`; the default
              =vmap      many of one compilation as one program; floats differ by rounding
              =auto      the faster of the two on this backend, which is measured
    --threads=N          number of points at a time; 0: the cores of this machine
    --shard=i/n          every n-th point from number i on: n such commands, i = 0, ..., n - 1,
                         share a grid independently
    --target=LOSS        training loss to which the points are compared
    --dry_run            only prints the points, their compilations and their cost

`DIR/together/` stores how the points of a compilation are run, and the measurements.
"""

import math
import os
import signal
import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import jax
from absl import flags

from optdyn.base.files import read_json, write_json
from optdyn.base.processes import is_writer
from optdyn.base.progress import NotedSignals, Sweep, Watch, note_signals, say
from optdyn.base.streams import tell
from optdyn.cli import app
from optdyn.cli.local import cores
from optdyn.cli.points import DONE, PlannedPoint, dry_run_lines, folder_of, plan
from optdyn.devices.first_process import from_first, hold_workdir
from optdyn.experiment import ConfigError
from optdyn.problem import shared_data
from optdyn.report import implicit_momentum, report, tables
from optdyn.train import batched_runs, trainer
from optdyn.train.grid import Grid, point_errors, resolve
from optdyn.train.loop import run_to_end
from optdyn.train.memory_checks import available
from optdyn.train.replicas import record
from optdyn.train.resuming import has_checkpoint
from optdyn.train.run import Run
from optdyn.train.trainer import RunResult


class SweepState(NamedTuple):
    """The state that all points of a sweep share while they run."""

    config: Grid
    workdir: Path | None  # None: points write no files
    threads: int
    memory: float  # bytes for the points that run at a time
    line: Sweep
    noted: NotedSignals
    failed: Event  # set if a point has failed, so that the others stop
    results: Callable[[str], None] | None  # writes `results.csv` with that point and those before
    kept: dict[str, RunResult]  # results by point, without a workdir

    def prepare(self, entry: PlannedPoint) -> Run:
        resumed = self.workdir is not None and has_checkpoint(folder_of(self.workdir, entry.name))
        config = resolve(self.config, entry.name, entry.point)
        with point_errors(entry.name):
            return trainer.prepare(config, resumed=resumed)

    def train(self, entry: PlannedPoint, run: Run) -> dict[str, Any]:
        watch = self.watch(entry)
        if self.workdir:
            folder = folder_of(self.workdir, entry.name)
            summary = run_to_end(trainer.training(run, folder, watch))
        else:
            kept = run_to_end(trainer.in_memory(run, watch))
            self.kept[entry.name], summary = kept, kept.summary
        self.end(entry, summary)
        return summary

    def watch(self, entry: PlannedPoint) -> Watch:
        def stopped() -> int:
            return self.noted.stopped or (signal.SIGTERM if self.failed.is_set() else 0)

        def show(step: int, text: str) -> None:
            self.line.show(entry.name, step)

        return Watch(stopped, show, saves=lambda: self.noted.saves)

    def end(self, entry: PlannedPoint, summary: dict[str, Any]) -> None:
        if summary["status"] in DONE:
            self.line.end(entry.name, summary["status"])
            if self.results:
                self.results(entry.name)


def main(config: Grid, workdir: Path) -> int:
    app.check_kind(config, is_grid=True)
    chosen = flags.FLAGS
    if chosen.target is not None and not math.isfinite(chosen.target):
        raise ConfigError(f"--target={chosen.target}: must be a finite training loss")
    entries = from_first(plan(config, workdir, chosen.shard))
    threads = chosen.threads or cores()
    if chosen.dry_run:
        if is_writer():
            tell(*dry_run_lines(entries, threads))
        return 0
    shard = chosen.shard.replace("/", "-of-")
    with hold_workdir(workdir, f".lock.{shard}"):  # shards have no point in common
        number = sweep(config, workdir, entries, chosen.together, threads)
        if number:
            return 128 + number
        write(config, workdir)
    return 0


def write(config: Grid, workdir: Path) -> None:
    """Fits recordings without a fit, and writes the tables of all points in the workdir."""
    if not is_writer():
        return
    for file in workdir.glob("points/*/trajectories.npz"):
        if not (file.parent / "implicit_momentum.json").exists():
            implicit_momentum.of_folder(file.parent)
    if config.note:
        tables.replace(workdir / tables.NOTE, config.note)
    tables.write_results(workdir, _swept_keys(config))
    target = math.nan if flags.FLAGS.target is None else flags.FLAGS.target
    path = report.write(workdir, target=target)
    best = report.best(workdir, target)
    tell(*[best] * bool(best), path)


def _swept_keys(config: Grid) -> tuple[str, ...]:
    found = dict[str, None]()
    for point in config.points:
        for key, value in point.items():
            options = [f"{key}.{name}" for name in value] if isinstance(value, Mapping) else [key]
            found |= dict.fromkeys(options if key != "name" else ())
    return tuple(found)


def sweep(
    config: Grid,
    workdir: Path | None,
    entries: Sequence[PlannedPoint],
    way: str,
    threads: int,
    kept: dict[str, RunResult] | None = None,
) -> int:
    """Runs the points that are not done; returns the number of the signal that stopped it, or 0.

    Without a workdir no file is written, and `kept` receives the results of points.
    """
    done = {entry.name: entry.status for entry in entries if entry.status in DONE}
    name = workdir.name if workdir else "compare"
    line = Sweep(name, {entry.name: entry.updates for entry in entries}, done)
    with note_signals() as noted:
        written = workdir if workdir and is_writer() else None
        results = tables.results_writer(written, _swept_keys(config)) if written else None
        kept, memory = {} if kept is None else kept, available() / 2
        state = SweepState(config, workdir, threads, memory, line, noted, Event(), results, kept)
        left = [entry for entry in entries if entry.status not in DONE]
        if way != "threads":
            left = [entry for group in _groups(left) for entry in _run_lanes(state, group, way)]
        _run_threads(state, [entry for entry in left if entry.threaded])
        number = _run_others(state, [entry for entry in left if not entry.threaded])
        return number or (0 if line.is_done else noted.stopped)


def _run_threads(state: SweepState, entries: Sequence[PlannedPoint]) -> None:
    budget = batched_runs.MemoryBudget(state.memory)
    sizes = dict[Hashable, int]()

    def work(entry: PlannedPoint) -> None:
        if state.watch(entry).stopped():
            return
        run = state.prepare(entry)
        with shared_data.COMPILE_LOCK:
            if entry.compilation not in sizes:
                sizes[entry.compilation] = batched_runs.memory(run)
        with budget.take(sizes[entry.compilation]):
            state.train(entry, run)

    with ThreadPoolExecutor(state.threads) as pool:
        try:
            # In copies of the context, for `lookup.files_read_once`.
            started = [pool.submit(copy_context().run, work, entry) for entry in entries]
            for future in as_completed(started):
                future.result()
        except KeyboardInterrupt:
            os._exit(128 + signal.SIGINT)  # at once: nothing that a thread leaves is harmful
        except BaseException:
            state.failed.set()
            raise


def _run_lanes(
    state: SweepState, group: Sequence[PlannedPoint], way: str
) -> Sequence[PlannedPoint]:
    """Runs a group as lanes of one program; returns the points to be run otherwise."""
    if not group[0].batched:
        return group
    key = repr((jax.default_backend(), group[0].compilation, group[0].updates, group[0].log_every))
    assert state.workdir
    path = state.workdir / "together" / f"{zlib.crc32(key.encode()):08x}.json"
    choice = read_json(path)
    if not choice or choice["asked"] != way:
        if len(group) == 1:
            return group
        choice = _choose(state, group, way)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, choice)
    lanes = choice["lanes"]
    if choice["together"] == "threads":
        return group
    for start in range(0, len(group), lanes):
        part = group[start : start + lanes]
        if state.noted.stopped:
            break
        runs = [state.prepare(entry) for entry in part]
        folders = [folder_of(state.workdir, entry.name) for entry in part]
        summaries = batched_runs.train(runs, folders, lanes, [state.watch(entry) for entry in part])
        for entry, summary in zip(part, summaries, strict=True):
            state.end(entry, summary)
    return ()


def _choose(state: SweepState, group: Sequence[PlannedPoint], way: str) -> dict[str, Any]:
    runs = [state.prepare(entry) for entry in group[: batched_runs.LANES]]
    lanes = batched_runs.lanes_of(runs, batched_runs.LANES, state.memory)
    choice: dict[str, Any] = {
        "asked": way,
        "together": "vmap" if lanes > 1 else "threads",
        "lanes": lanes,
    }
    text = f"{len(group)} points like {group[0].name}: "
    if way == "auto" and lanes > 1:
        rates = batched_runs.measure(runs, lanes, state.threads)
        choice |= {"together": "vmap" if rates.vmap > rates.threads else "threads"}
        choice |= {"threads": state.threads, "measured": rates._asdict()}
        text += f"{rates.threads:.3g} updates/s in {state.threads} threads, {rates.vmap:.3g} as "
        text += f"{lanes} lanes, whose parameters differ by {rates.difference:.2g} of the largest "
        text += f"after {rates.updates} updates; "
    say(text + (f"{lanes} lanes of one program" if choice["together"] == "vmap" else "threads"))
    return choice


def _run_others(state: SweepState, entries: Sequence[PlannedPoint]) -> int:
    """Runs points on all devices and recordings, in sequence; returns the signal or 0."""
    for entry in entries:
        if state.noted.stopped:
            break
        config = resolve(state.config, entry.name, entry.point)
        if state.workdir and config.replicas.count:
            summary = record(config, folder_of(state.workdir, entry.name))
            state.end(entry, summary)
        else:
            summary = state.train(entry, state.prepare(entry))
        if summary["status"] == "interrupted":
            return summary["signal"]
    return 0


def _groups(entries: Sequence[PlannedPoint]) -> list[list[PlannedPoint]]:
    groups: dict[Any, list[PlannedPoint]] = {}
    for entry in entries:
        groups.setdefault((entry.compilation, entry.updates, entry.log_every), []).append(entry)
    return list(groups.values())


def define_flags() -> None:
    flags.DEFINE_enum("together", "threads", ["threads", "vmap", "auto"], "How points are run.")
    flags.DEFINE_integer("threads", 0, "Points at a time; 0: as many as cores.", lower_bound=0)
    flags.DEFINE_string("shard", "0/1", "i/n: every n-th point, from number i on.")
    flags.DEFINE_float("target", None, "Training loss to compare the points by.")
    flags.DEFINE_bool("dry_run", False, "Only print what would run.")


if __name__ == "__main__":
    define_flags()
    app.run(main)
