"""A setting run on the simulated cluster for so many simulated seconds, from a checkpoint.

Groups, momentum, learning rate and arrivals are arguments of one compiled program, which has as
many slots as there can be groups. The velocity is kept, the slots are fresh: every group has read
the parameters of the checkpoint. From one checkpoint all settings see the same batches, and all of
equally many groups the same arrivals. From the start that is the run of `launch.train`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from research import data as datasets
from research import optimizers, program, seeds, timeline, trainer
from research.config import ConfigError
from research.problem import Examples, Params
from research.program import CHUNK
from research.strategies.base import Event
from research.timeline import Timeline
from research.trainer import Run
from research.tuning.automatic import Outcome, Setting

LEAST = 4  # updates of a probe


class Cluster(NamedTuple):
    """A problem on a simulated cluster."""

    run: Run  # of all groups
    examples: Examples  # the training set, on its device
    evaluated: Examples  # the part of it that the training loss is of
    groups: tuple[int, ...]  # 1, 2, 4, ..., as far as they divide the workers


class Checkpoint(NamedTuple):
    """What an attempt starts from, and what it leaves."""

    updates: jax.Array  # int32, batches seen
    params: Params
    opt_state: Any  # the velocity, of heavy ball


def prepare(config: ConfigDict) -> Cluster:
    """Checks the config and loads data.

    Raises what `trainer.prepare` raises, and `ConfigError` if the config has no groups, momentum or
    learning rate to be tuned, or probes are too short.
    """
    if config.strategy.name != "asynchronous":
        raise ConfigError(
            f"config.strategy.name = {config.strategy.name!r}: groups are those of 'asynchronous'"
        )
    if not optimizers.takes_momentum(config.optimizer.name):
        raise ConfigError(f"config.optimizer.name = {config.optimizer.name!r}: has no momentum")
    if config.optimizer.schedule != "constant" or config.optimizer.warmup_steps:
        raise ConfigError("config.optimizer.schedule: learning rates are constant while tuned")
    groups = _groups(config.cluster.nodes * config.cluster.devices_per_node)
    every = config.copy_and_resolve_references()
    every.strategy.groups = groups[-1]
    every.steps = CHUNK
    run = trainer.prepare(every)
    probe = min(config.tune.probe_seconds)
    least = float(_timeline(run, 1, 0, 0.0).seconds[LEAST - 1])
    if probe < least:
        raise ConfigError(
            f"config.tune.probe_seconds = {tuple(config.tune.probe_seconds)}: must be at least "
            f"{least:.3g}, in which one group makes {LEAST} updates"
        )
    stride = -(-run.examples // (config.data.train_evaluated or run.examples))
    part = {name: jnp.asarray(leaf[::stride]) for name, leaf in run.data.train.items()}
    return Cluster(run, run.program.layout.put_examples(run.data.train), part, groups)


def _groups(workers: int) -> tuple[int, ...]:
    groups = [1]
    while workers % (2 * groups[-1]) == 0:
        groups.append(2 * groups[-1])
    return tuple(groups)


def start(cluster: Cluster, seed: int = 0) -> Checkpoint:
    """Initialization number `seed`; 0 is that of `launch.train`."""
    run, params = cluster.run, cluster.run.params
    if seed:
        one = {name: leaf[:1] for name, leaf in run.data.train.items()}
        key = seeds.key(run.config.seed, f"init {seed}")
        params = program.init(run.config, run.data.classes, key, one)
    return Checkpoint(jnp.int32(0), params, run.program.strategy.init(params).opt_state)


def attempt(
    cluster: Cluster, begin: Checkpoint, setting: Setting, seconds: float, target: float = -np.inf
) -> tuple[Checkpoint, Outcome]:
    """Runs the setting for so many simulated seconds, one update at least.

    The loss of the outcome is the training loss at its end, NaN where it is not finite: of the same
    examples for every setting, as batches are too few to compare settings by, and not the same for
    different groups. With a `target` it is evaluated every `config.log_every` updates, too, and the
    run ends when it is at most the target. It also ends with the first batch whose loss is not
    finite. Evaluation takes no simulated time. HE(g) is the cluster's, over 2 CHUNK arrivals or
    more, however few the seconds allow: under random service a probe's own say little.
    """
    run, t, every = cluster.run, int(begin.updates), cluster.run.config.log_every
    line = _timeline(run, setting.groups, t, seconds)
    updates = max(int(np.searchsorted(line.seconds, seconds, side="right")), 1)
    hyper = {name: np.full(CHUNK, getattr(setting, name), np.float32) for name in run.hypers}
    fresh = run.program.strategy.init(begin.params)._replace(opt_state=begin.opt_state)
    state = jax.tree.map(jnp.copy, fresh)  # it is donated, the checkpoint is not
    done, reached, finite, loss = 0, False, True, np.nan
    while done < updates and finite and not reached:
        n = min(every - done % every, CHUNK, updates - done)
        window = slice(done, done + CHUNK)
        events = Event(line.read[window], line.write[window], hyper)
        indices = _batches(run, t + done)
        state, losses = run.program.advance(state, cluster.examples, events, indices, n)
        good = np.isfinite(losses)[:n]
        finite = bool(good.all())
        done += n if finite else int(good.argmin()) + 1  # the first that is not finite is the last
        if finite and (done == updates or (target > -np.inf and done % every == 0)):
            loss = program.evaluate(run.program, state.params, cluster.evaluated)["loss"]
            finite = bool(np.isfinite(loss))
            reached = loss <= target
    ended = float(line.seconds[done - 1])
    outcome = Outcome(
        loss=loss if finite else np.nan,
        updates=done,
        seconds=ended if reached or not finite else max(ended, seconds),
        seconds_per_update=float(line.seconds[-1]) / len(line.seconds),
        reached=reached,
    )
    return Checkpoint(begin.updates + done, state.params, state.opt_state), outcome


def _timeline(run: Run, groups: int, t: int, seconds: float) -> Timeline:
    """The arrivals after update t, which all groups have read: a CHUNK beyond the seconds."""
    config = run.config.copy_and_resolve_references()
    config.strategy.groups = groups
    if t:
        config.seed = int(seeds.generator(config.seed, f"arrivals after {t}").integers(2**32))
    size = program.parameter_bytes(run.params)
    config.steps = 2 * CHUNK
    while True:
        line = timeline.of_config(config, steps_per_epoch=run.epoch, update_bytes=size)
        if line.seconds[-CHUNK] > seconds:
            return line
        config.steps *= 2  # a longer timeline begins with the shorter one


def _batches(run: Run, t: int) -> np.ndarray:
    """Those of updates t .. t + CHUNK - 1, in the order of `launch.train`."""
    order = int(seeds.generator(run.config.seed, "batches").integers(2**63))
    config = run.config
    replacement = config.data.replacement
    return datasets.batches(order, t, t + CHUNK, config.batch_size, run.examples, replacement)
