"""What a run does besides its updates: one hook a concern, in the order in which they are called.

The hooks before `LogHook` fill a row of the log; those after it see the whole row.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from optdyn import optimizers
from optdyn.base.files import write_json
from optdyn.base.processes import is_writer
from optdyn.base.progress import Watch
from optdyn.base.trees import Json
from optdyn.clock.trace import SERVED
from optdyn.core import LoggedState
from optdyn.devices.first_process import from_first
from optdyn.methods.compose import METERED
from optdyn.problem.data.order import Feed
from optdyn.problem.shared_data import Parts
from optdyn.train import program
from optdyn.train.checkpoints import Checkpoints, fingerprint
from optdyn.train.loop import Chunk, Hook
from optdyn.train.run import Run, batches_of, events_of, seconds_after
from optdyn.train.workdir import Metrics, is_finished, write_checksums

MEASURED = 8  # updates at the end of an epoch that workers are timed over


@dataclass
class LossHook(Hook):
    """Logs the clock, the hyperparameters, and the losses and metrics of both sets."""

    train: Parts
    test: Parts
    started: float  # when the run began, by `time.monotonic`, less its seconds before a resumption
    watch: Callable[[], Watch]

    def chunk(self, chunk: Chunk) -> None:
        if chunk.row is None:
            return
        losses = Json()
        with self.watch().during("evaluating"):
            for prefix, variables in chunk.run.evaluated(chunk.full_state).items():
                evaluate = partial(program.evaluate, chunk.run.program, variables)
                losses[f"{prefix}train_loss"] = evaluate(self.train)["loss"]
                test = evaluate(self.test).items()
                losses |= {f"{prefix}test_{name}": value for name, value in test}
        chunk.row |= _progress(chunk.run, chunk.step)
        chunk.row |= {"wall_seconds": time.monotonic() - self.started} | losses


def _progress(run: Run, step: int) -> Json:
    config, done = run.config, max(step - 1, 0)
    since = done - done % config.log_every
    fixed = optimizers.is_fixed(config.optimizer.name)
    return {
        "step": step,
        "epoch": step * config.batch_size / run.examples,
        "simulated_seconds": seconds_after(run.timeline, step),
        "learning_rate": None if fixed else float(str(run.hypers["learning_rate"][done])),
        "momentum": None if fixed else float(config.optimizer.momentum),
        "staleness_mean": float(run.timeline.staleness[since:step].mean()) if step else 0.0,
    }


@dataclass
class ProbeHook(Hook):
    """Logs the methods' metrics, the probes of `config.probes`, and the optimizer's figures."""

    train: Parts
    test: Parts

    def chunk(self, chunk: Chunk) -> None:
        if chunk.row is not None:
            state = chunk.full_state
            chunk.row |= program.extra_metrics(chunk.run.program, state, self.train, self.test)
            chunk.row |= optimizers.logged(state)


@dataclass
class SumHook(Hook):
    """Logs the sums of the updates' infos but for losses, and the figures of a `LoggedState`."""

    sums: dict[str, float]  # over the updates so far, by name

    def chunk(self, chunk: Chunk) -> None:
        for name in chunk.infos.keys() - {"loss", SERVED, *METERED}:
            new = float(chunk.infos[name].sum(dtype=np.float64))
            self.sums[name] = self.sums.get(name, 0.0) + new
        if chunk.row is not None:
            state = chunk.full_state
            chunk.row |= self.sums | (state.logged() if isinstance(state, LoggedState) else {})


class SteeringHook(Hook):
    """Logs the explicit momentum, which `extend_timeline` steers by the meter's readings."""

    def chunk(self, chunk: Chunk) -> None:
        if chunk.row is not None:
            done = max(chunk.step - 1, 0)
            chunk.row["explicit_momentum"] = float(chunk.run.hypers["momentum"][done])


@dataclass
class WorkerTimeHook(Hook):
    """Logs each worker's seconds of an update at the end of an epoch, timed on its last updates."""

    feed: Feed

    def chunk(self, chunk: Chunk) -> None:
        if chunk.row is not None and chunk.step and chunk.step % chunk.run.epoch == 0:
            chunk.row["worker_seconds"] = self.measure(chunk).tolist()

    def measure(self, chunk: Chunk) -> np.ndarray:
        """Returns the seconds of an update of each worker, (workers,)."""
        run, layout = chunk.run, chunk.run.program.layout
        since = chunk.step - min(run.epoch, MEASURED)
        assert layout.measure
        block = self.feed(since, batches_of(run))
        n = min(chunk.step, block.stop) - since
        return layout.measure(chunk.state, block.examples, *events_of(run, since, block, n), n)


@dataclass
class LogHook(Hook):
    """Appends the rows to the log in memory."""

    rows: list[Json]

    def chunk(self, chunk: Chunk) -> None:
        if chunk.row is not None:
            self.rows.append(chunk.row)


@dataclass
class StopHook(Hook):
    """Ends a run after its last update, at a loss that is not finite, and at a signal."""

    watch: Callable[[], Watch]
    log: Sequence[Json]
    signal: int = 0  # number of the signal that ends the run
    asked: int = -1  # times that a signal has asked for a checkpoint; -1: the run has not begun

    def chunk(self, chunk: Chunk) -> None:
        if self.asked < 0 or chunk.status == "diverged":
            self.asked = 0
            return
        before, self.asked = self.asked, self.watch().saves()
        finite, save = math.isfinite(self.log[-1]["train_loss"]), self.asked > before
        self.signal, finite, chunk.save = from_first((self.watch().stopped(), finite, save))
        if not finite:
            chunk.status = "diverged"
        elif chunk.step == chunk.run.config.steps:
            chunk.status = "completed"
        elif self.signal:
            chunk.status = "interrupted"

    def end(self, chunk: Chunk, summary: Json) -> None:
        if chunk.status == "interrupted":
            summary["signal"] = self.signal
        if chunk.status != "diverged":
            summary["parameters_crc32"] = fingerprint(chunk.params)


@dataclass
class SaveHook(Hook):
    """Saves the state at the end, on a signal, and every `config.checkpoint_every` updates."""

    checkpoints: Checkpoints

    def chunk(self, chunk: Chunk) -> None:
        config = chunk.run.config
        due = is_due(chunk.step, config.log_every, config.checkpoint_every)
        wanted = chunk.status or chunk.save or (due and chunk.step > chunk.start)
        if wanted and chunk.status != "diverged":
            self.checkpoints.save(chunk.step, chunk.full_state)

    def end(self, chunk: Chunk, summary: Json) -> None:
        if chunk.status == "diverged":  # it has no finite state
            summary["kept_checkpoint"] = self.checkpoints.latest()


def is_due(step: int, log_every: int, checkpoint_every: int) -> bool:
    """Returns whether `step` is the first log point from a multiple of `checkpoint_every` on."""
    if not checkpoint_every or step % log_every:
        return False
    return step // checkpoint_every > (step - log_every) // checkpoint_every


@dataclass
class ProgressHook(Hook):
    """Shows how far the run is."""

    watch: Callable[[], Watch]
    log: Sequence[Json]

    def chunk(self, chunk: Chunk) -> None:
        if is_writer() and chunk.step > chunk.start and chunk.finite_step == chunk.step:
            self.watch().show(chunk.step, f"loss {self.log[-1]['train_loss']:.4g}")


@dataclass
class SummaryHook(Hook):
    """Writes the summary, and checksums of the recorded files if nothing is left to do."""

    folder: Path
    files: Metrics

    def end(self, chunk: Chunk, summary: Json) -> None:
        config = chunk.run.config
        if is_finished(summary, config.steps):
            self.files.summarize(config, summary)
            write_checksums(self.folder, summary)
        write_json(self.folder / "summary.json", summary)
