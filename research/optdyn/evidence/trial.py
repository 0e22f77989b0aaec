"""One run of a config until its training loss is low enough, and its curve on the way there.

A trial trains to the same floats as `trainer.train`, without a workdir. Its log points are
geometric, so that a crossing is known to 8 % early and late in training.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from optdyn.base import lookup
from optdyn.base.errors import refuse
from optdyn.base.progress import Watch
from optdyn.base.trees import Json, Params, Tree, bytes_of, examples_in
from optdyn.clock.network import between_nodes, broadcast
from optdyn.clock.timeline import Meeting, Timeline, plan_of
from optdyn.core import State
from optdyn.evidence.crossing import Crossing, crossing, of_runs
from optdyn.experiment import Config
from optdyn.optimizers import schedules
from optdyn.problem import shared_data
from optdyn.problem.problem import Examples, Traits
from optdyn.problem.shared_data import Parts
from optdyn.train import program, trainer
from optdyn.train.loop import Chunk, Hook, run_to_end, updates, with_hooks
from optdyn.train.program import CHUNK, Program
from optdyn.train.run import Run, seconds_after

SPACING = 1.08  # updates from one log point to the next
FIRST = 16  # the first log point after the start
BLOWN_UP = 100.0  # times the first loss: above this a trial has diverged
MOST_KEPT = 2**31  # bytes of the timelines that a process keeps
_kept = 0
SILENT = Watch(lambda: 0, lambda step, text: None)  # no progress is shown, no signal stops it


class Curve(NamedTuple):
    """The log points of a run, from update 0 on."""

    updates: list[int]
    seconds: list[float]  # simulated
    losses: list[float]  # training loss, of `config.data.train_evaluated` examples
    status: str  # 'reached' the target, 'ended' before it, 'diverged'
    test: dict[str, float]  # metrics of the test set at the end; {} if it diverged or was cut short
    met: Sequence[float] = ()  # simulated seconds, with a last meeting where the loss is of a mean


@lookup.files_read_once()
def trial(
    config: Config,
    target: float = -math.inf,
    most: float = math.inf,
    clock: str = "updates",
    first: int = FIRST,
) -> Curve:
    """Trains until the training loss is at most `target`, or to the end of `config.steps`.

    The first log point is `first`. A trial also ends when more than `most` of the clock have
    passed, 'updates' or simulated 'seconds'. With `config.evaluation.average` the loss is that of
    the average. With `config.probes.mean` it is that of the nodes' mean, and the seconds `met`
    include the `meeting` that computes it. Raises what `trainer.prepare` raises, and `ConfigError`
    for a config of real devices.
    """
    on_host = config.methods.get("snapshots", "") == "host"
    api, expected = config.parallel.api, "must be '' in a trial, on one device"
    refuse(
        (api, f"config.parallel.api = {api!r}: {expected}"),
        (on_host, f"config.method.snapshots = 'host': {expected}, which trains the same"),
    )
    if config.probes.momentum:  # what the meter logs may steer the run
        return _logged(config, target, most, clock)
    run = trainer.prepare(config, timeline_of=timeline_of)
    layout = run.program.layout
    _, sample, test = shared_data.put_on_devices(run.data, layout.put_examples, config)
    hook = _LossHook(target, most, clock, _loss_of(run), sample, [])
    state = layout.put_state(run.program.rule.init(run.start))
    chunks = updates(run, state, 0, _log_points(first, config.steps), hook.rows)
    chunk = run_to_end(with_hooks(chunks, [hook], hook.rows), CHUNK)
    finite = [row for row in hook.rows if math.isfinite(row["train_loss"])]
    whole = chunk.status == "reached" or (not chunk.status and chunk.step == config.steps)
    metrics = (
        program.evaluate(run.program, _variables(run, chunk.full_state), test) if whole else {}
    )
    return _curve(finite, chunk.status or "ended", metrics)


@dataclass
class _LossHook(Hook):
    target: float
    most: float
    clock: str
    loss: Callable[[State, Parts], float]
    sample: Parts
    rows: list[Json]

    def chunk(self, chunk: Chunk) -> None:
        if chunk.row is not None:
            loss = self.loss(chunk.state, self.sample)
            self.rows.append(_row(chunk.run, chunk.step, loss))
            if chunk.step:
                chunk.status = _status(self.rows, self.target, self.most, self.clock)


class _Determined(NamedTuple):
    """Arguments that the config determines, and so are no part of a cache's key."""

    known: dict[str, Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Determined)

    def __hash__(self) -> int:
        return 0


def timeline_of(config: Config, **known: Any) -> Timeline:
    """Returns `Config.timeline`, cached for all learning rates and momenta, which no clock reads.

    The arrays are shared and read-only.
    """
    if known.get("epochs") or any(lookup.user_names(config)):
        return config.timeline(**known)
    optimizer = config.optimizer.with_(learning_rate=1.0)
    if optimizer.momentum:
        optimizer = optimizer.with_(momentum=0.0)
    return _drawn(config.with_(optimizer=optimizer), _Determined(known))


@lru_cache(maxsize=256)
def _drawn(config: Config, arguments: _Determined) -> Timeline:
    global _kept
    line, size = config.timeline(**arguments.known), 0
    for leaf in jax.tree.leaves(line):
        if isinstance(leaf, np.ndarray):
            leaf.setflags(write=False)  # it is shared
            size += leaf.nbytes
    _kept += size
    if _kept > MOST_KEPT:  # a timeline of ten thousand nodes has 160 MB
        _drawn.cache_clear()
        _kept = size
    return line


def _logged(config: Config, target: float, most: float, clock: str) -> Curve:
    chosen = config
    if clock == "updates":
        optimizer = config.optimizer  # whose schedule spans the whole run
        decay = schedules.decay_length(optimizer, config.steps)
        schedule = {} if optimizer.schedule == "constant" else {"optimizer.decay_steps": decay}
        steps = int(min(config.steps, max(most, 1)))
        chosen = config if steps == config.steps else config.with_(schedule, steps=steps)
    summary, rows, *_ = run_to_end(trainer.in_memory(trainer.prepare(chosen), SILENT))
    name = f"{average}_train_loss" if (average := config.evaluation.average) else "train_loss"
    found = [row | {"train_loss": row[name]} for row in rows if row["train_loss"]]
    reached = next((i for i, row in enumerate(found) if row["train_loss"] <= target), None)
    kept = found if reached is None else found[: reached + 1]
    whole = reached is not None or (summary["status"] == "completed" and chosen == config)
    status = "ended" if summary["status"] == "completed" else summary["status"]
    metrics = {k[5:]: v for k, v in kept[-1].items() if k.startswith("test_")} if whole else {}
    return _curve(kept, status if reached is None else "reached", metrics)


def _curve(rows: Sequence[Json], status: str, test: dict[str, float]) -> Curve:
    names = ("step", "simulated_seconds", "train_loss")
    updates, seconds, losses = ([row[name] for row in rows] for name in names)
    met = [row["met"] if "met" in row else row["simulated_seconds"] for row in rows]
    return Curve(updates, seconds, losses, status, test, met)


def cut(curve: Curve, most: float, clock: str = "updates") -> Curve:
    """Returns the curve of a trial that ended when more than `most` of the clock had passed."""
    passed = np.flatnonzero(np.asarray(getattr(curve, clock)) >= most)
    if not passed.size or (passed[0] == len(curve.updates) - 1 and curve.status == "reached"):
        return curve
    end = int(passed[0]) + 1
    return Curve(
        curve.updates[:end], curve.seconds[:end], curve.losses[:end], "ended", {}, curve.met[:end]
    )


def to_loss(curve: Curve, loss: float, clock: str = "updates") -> float:
    """Returns the updates or simulated seconds until the training loss first is at most `loss`.

    The loss falls exponentially between two log points. Infinite if it is never reached.
    """
    return float(between([curve], loss, clock).value[0])


def left_open(curves: Sequence[Curve], loss: float, clock: str = "updates") -> list[float]:
    """Returns the median least and most crossing over `to_loss`; 1 where that is 0 or infinite."""
    low, value, high = between(curves, loss, clock)
    known = np.isinf(value) | (value == 0)
    ends = [np.where(known, 1.0, end / np.where(known, 1.0, value)) for end in (low, high)]
    return [float(np.median(end)) for end in ends]


def between(curves: Sequence[Curve], loss: float, clock: str = "updates") -> Crossing:
    found = []
    for curve in curves:
        clocks = np.array([curve.updates, getattr(curve, clock)], float).T
        target = math.nan if curve.status == "diverged" else loss
        found.append(crossing(clocks, np.asarray(curve.losses), target, exponential=True))
    return of_runs(found, 1)


def _log_points(first: int, steps: int) -> list[int]:
    points, point = list[int](), first
    while point < steps:
        points.append(point)
        point = max(point + 1, math.ceil(point * SPACING))
    return [*points, steps]


def _row(run: Run, step: int, loss: float) -> Json:
    seconds = seconds_after(run.timeline, step)
    met = seconds + meeting(run, step)
    return {"step": step, "simulated_seconds": seconds, "met": met, "train_loss": loss}


def meeting(run: Run, step: int) -> float:
    """Returns the seconds of an all-reduce that gives all nodes the mean of their parameters.

    0 if the loss is not that of a mean, or if all nodes have just met with their latest parameters.
    """
    if not (run.config.probes.mean and step):
        return 0.0
    met, last = plan_of(run.timeline, Meeting), step - 1
    if met and met.to is None and met.receive[last].all() and not met.waited[last].any():
        return 0.0
    cluster, size = run.config.cluster, bytes_of(run.params)
    return between_nodes(cluster, size) + broadcast(cluster, size)


def _variables(run: Run, state: State) -> Params:
    """Returns what a trial is judged by: the average if there is one, else the parameters."""
    *_, variables = run.evaluated(state).values()
    return variables


def _loss_of(run: Run) -> Callable[[State, Parts], float]:
    its = run.config.evaluation
    if run.traits == Traits() and not its.average:
        return _mean_loss(run.program, run.config.probes.mean)

    def loss(state: State, parts: Parts) -> float:
        return program.evaluate(run.program, _variables(run, state), parts)["loss"]

    return loss


@lru_cache(maxsize=64)
def _mean_loss(compiled: Program, mean_of_nodes: bool) -> Callable[[State, Parts], float]:
    @jax.jit
    def total(state: Tree, examples: Examples) -> jax.Array:
        if mean_of_nodes:
            params = jax.tree.map(lambda leaf: leaf.mean(axis=0), state.node_params)
        else:
            params = state.params
        return compiled.evaluate(params, examples)[0]

    def mean(state: State, parts: Parts) -> float:
        count = sum(map(examples_in, parts))
        return sum(float(total(state, part)) for part in parts) / count

    return mean


def _status(rows: Sequence[Json], target: float, most: float, clock: str) -> str:
    loss = rows[-1]["train_loss"]
    if not loss <= BLOWN_UP * max(rows[0]["train_loss"], target):
        return "diverged"
    if loss <= target:
        return "reached"
    passed = rows[-1]["step" if clock == "updates" else "simulated_seconds"]
    return "ended" if passed >= most else ""
