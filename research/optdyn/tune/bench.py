"""Runs a setting on the simulated cluster for some simulated seconds, from a checkpoint.

Groups, momentum, learning rate and arrivals are arguments of one compiled program, which has a slot
for each possible group. A setting that never changes makes the run of `launch.train`. After a
change of the number of groups, all have read the parameters of the checkpoint; the velocity stays.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn import optimizers
from optdyn.base import seeds
from optdyn.base.errors import Join
from optdyn.base.trees import Json, Tree, bytes_of, head
from optdyn.clock.timeline import Timeline
from optdyn.experiment import Config, refuse_first
from optdyn.implicit_momentum.probes import GradientMoments, moments, sharpness
from optdyn.methods import GROUPED
from optdyn.problem import shared_data
from optdyn.problem.problem import Examples, Params
from optdyn.problem.shared_data import Parts
from optdyn.train import loop, program, trainer
from optdyn.train.program import CHUNK, Program
from optdyn.train.run import Run, seconds_after
from optdyn.tune.choice import Choice, Outcome
from optdyn.tune.prediction import MeasuredLoss, penalty, stability

LADDERS = "config.tune.mode='ladders' tunes any method and optimizer"
CEILING = 2.0  # times the loss to be beaten, at the start
LEAST = 4  # updates of a probe
CHANCE = 0.99  # of ln classes: with a loss above that nothing is learnt
MEASURED = 64  # examples that the noise scale is measured on; the sharpness on half of them
SMALL = 4  # the smaller batch of the noise scale
UNRESOLVED = 4  # times the examples measured on: the largest noise scale that is resolved
ITERATIONS = 2  # of the sharpness's power iteration
GROWTH = 2.0  # of the sharpness soon after the initialization
# Best long-run step without noise times the sharpness, without momentum and with 0.9: above 2, as
# the sharpness of a network gives way.
EDGE, WITH_MOMENTUM = 3.5, 6.0
MOMENTUM = 0.9  # best without noise
AVERAGED = 8  # steps of a probe whose parameters are averaged


class SimulatedCluster(NamedTuple):
    run: Run  # of the most groups
    evaluated: Parts  # the training examples on which the loss is computed
    groups: tuple[int, ...]  # all divisors of the number of workers, ascending


class Checkpoint(NamedTuple):
    updates: jax.Array  # int32, batches seen
    groups: jax.Array  # int32, of which the slots are
    state: Tree


def prepare(config: Config) -> SimulatedCluster:
    """Checks the config, loads the data and returns the cluster.

    Raises what `trainer.prepare` raises, and `ConfigError` if the config cannot be tuned.
    """
    refuse_first(config, _joins(config))
    tunable(config)
    workers = config.cluster.worker_count
    groups = tuple(g for g in range(1, workers + 1) if workers % g == 0)
    widest = config.with_({"method.groups": groups[-1], "steps": CHUNK})
    run = trainer.prepare(widest)
    least = float(_timeline(run, 1, 0, 0.0).seconds[LEAST - 1])
    expected = f"must be at least {least:.3g}, in which one group makes {LEAST} updates"
    short = config.tune.probe_seconds < least
    refuse_first(config, [Join("tune.probe_seconds", short, expected)])
    part = shared_data.sample(run.data.train, config.data.train_evaluated)
    # Updates read the examples on the device, without augmentation.
    images = {"augment": ""} if widest.data.augment else {}
    plain = widest.with_(data=widest.data.with_(streaming=False, **images))
    return SimulatedCluster(run._replace(config=plain), part, groups)


def tunable(config: Config) -> None:
    """Raises `ConfigError` where a learning rate is not constant, or x_0 is another run's."""
    changing = config.optimizer.schedule != "constant" or config.optimizer.warmup_steps
    schedule = Join(
        "optimizer.schedule", changing, "must be 'constant', without a warm-up, to tune"
    )
    origin = Join("init_from", config.init_from, "must be '' to tune, which draws x_0")
    refuse_first(config, [schedule, origin])


def _joins(config: Config) -> Iterator[Join]:
    methods, name = config.methods, config.optimizer.name
    expected = f"must have groups that arrive independently, as {GROUPED!r}; {LADDERS}"
    yield Join("method.name", not methods.simple or not methods.read, expected)
    its = config.evaluation
    yield Join("evaluation.average", its.average, f"must be ''; {LADDERS}")
    carried = its.statistics != "recomputed"
    yield Join("evaluation.statistics", carried, f"must be 'recomputed'; {LADDERS}")
    light = not optimizers.takes_momentum(name)
    yield Join("optimizer.name", light, f"must have a momentum; {LADDERS}")
    expected = f"must be another: it corrects its momentum for any number of groups; {LADDERS}"
    yield Join("optimizer.name", name == "closed_loop", expected)


def seconds_per_update(cluster: SimulatedCluster, groups: int) -> float:
    """Returns HE(g), the simulated seconds of an update."""
    line = _timeline(cluster.run, groups, 0, 0.0)
    return float(line.seconds[-1]) / len(line.seconds)


def start(cluster: SimulatedCluster, seed: int = 0) -> Checkpoint:
    """Returns initialization number `seed`; 0 is that of `launch.train`."""
    run, params = cluster.run, cluster.run.params
    if seed:
        key = seeds.key(run.config.seed, f"init {seed}")
        params = program.init(run.config, run.data.classes, key, head(run.data.train, 1))
    return Checkpoint(jnp.int32(0), jnp.int32(1), run.program.rule.init(params))


def measure(cluster: SimulatedCluster, begin: Checkpoint) -> Json:
    """Measures what limits steps at a checkpoint, and the simulated seconds that this takes.

    Returns `momentum` and `step`, the predicted best total momentum and long-run step of one group,
    and what they are predicted from (`prediction.py`). Noise shortens the long-run step by 1 +
    B_noise / B (arXiv 1812.06162). The stable rate stays the same, so the memory gets shorter:

        1 - mu = (1 - mu without noise) (1 + B_noise / B)

    `penalties` are P_SE by groups. Seconds are those in which synchronous updates compute as many
    gradients of examples; a product with the Hessian counts as two.
    """
    params, batch = begin.state.params, cluster.run.config.batch_size
    many, few = (head(cluster.evaluated[0], n) for n in (MEASURED, MEASURED // 2))
    found, largest = _limits(cluster.run.program)(params, many, few)
    peak = abs(float(largest))  # so few iterations may end where the loss curves down
    signal = max(float(found.square), float(found.trace) / (MEASURED * UNRESOLVED))
    scale = float(found.trace) / signal
    noise = 1 + scale / batch
    momentum = max(1 - (1 - MOMENTUM) * noise, 0.0)
    edge = EDGE + (WITH_MOMENTUM - EDGE) * momentum / MOMENTUM
    measured = MeasuredLoss(scale, GROWTH * peak, edge / peak)
    evaluations = MEASURED + MEASURED // 2 * 2 * (ITERATIONS + 1)
    return {
        "noise_scale": scale,
        "sharpness": peak,
        "momentum": momentum,
        "step": measured.step / noise,
        "penalties": [
            penalty(measured, batch, stability(cluster.run.config, g)) for g in cluster.groups
        ],
        "seconds": evaluations / batch * seconds_per_update(cluster, 1),
    }


@lru_cache(maxsize=4)
def _limits(program: Program) -> Callable[..., tuple[GradientMoments, jax.Array]]:
    def both(params: Params, many: Examples, few: Examples) -> tuple[GradientMoments, jax.Array]:
        noise = moments(program.problem, SMALL, params, many)
        return noise, sharpness(program.problem, params, few, ITERATIONS)

    return jax.jit(both)


def start_loss(cluster: SimulatedCluster, begin: Checkpoint) -> float:
    """Returns the loss that a first epoch has to beat: that at the start, or 0.99 of chance."""
    loss = evaluated(cluster, begin.state.params)
    classes = cluster.run.data.classes
    return min(loss, CHANCE * math.log(classes)) if classes > 1 else loss


def evaluated(cluster: SimulatedCluster, params: Params) -> float:
    """Returns the training loss, of the same examples for all settings."""
    run = cluster.run
    return program.evaluate(run.program, run.variables(params), cluster.evaluated)["loss"]


def attempt(
    cluster: SimulatedCluster,
    begin: Checkpoint,
    setting: Choice,
    seconds: float,
    target: float | None = None,
    lower: float = math.inf,
    settle: bool = False,
) -> tuple[Checkpoint, Outcome]:
    """Runs the setting for so many simulated seconds, one update at least.

    Returns the checkpoint after it and its outcome, whose loss is the training loss at the end, of
    the same examples for all settings; NaN where it is not finite. Without a target it is that of
    the mean of the parameters over the later half: parameters at the end of large steps are
    scattered around their mean, and small steps would always seem better.

    With a `target` the run ends at the log point where the loss is at most the target; or where
    neither it nor that of the mean of the latest parameters is below `lower`, the loss to be
    beaten, times two at the start and less and less later; or, with `settle`, where that of the
    mean is at the target. It always ends at the first batch whose loss is not finite.
    """
    run, t, log_every = cluster.run, int(begin.updates), cluster.run.config.log_every
    line = _timeline(run, setting.groups, t, seconds)
    before = seconds_after(line, t)
    updates = max(int(np.searchsorted(line.seconds, before + seconds, side="right")) - t, 1)
    stops = _later_half(updates) if target is None else _log_points(t, updates, log_every)
    done, loss, finite, reached, settled = 0, np.nan, True, False, False
    seen: list[Params] = []
    curve: list[tuple[float, float]] = []
    constant = partial(np.full, len(line.seconds), dtype=np.float32)
    hypers = {name: constant(getattr(setting, name)) for name in run.hypers}
    chosen, state = run._replace(timeline=line, hypers=hypers), begin.state
    if setting.groups != begin.groups:
        state = run.program.rule.init(state.params)._replace(opt_state=state.opt_state)
    state = jax.tree.map(jnp.copy, state)
    for chunk in loop.updates(chosen, state, t, [t + stop for stop in stops]):
        chunk.compute()
        finite = chunk.finite_step == chunk.step  # the first that is not is the last
        done = chunk.finite_step + (not finite) - t
        if finite and chunk.step < chunk.next_stop:
            continue
        if target is None:
            seen.append(jax.tree.map(jnp.copy, chunk.state.params))  # the state is donated
        if finite and (target is not None or done == updates):
            params = _mean(seen) if target is None else chunk.state.params
            loss = evaluated(cluster, params)
            finite = bool(np.isfinite(loss))
            reached = target is not None and loss <= target
            if target is not None and finite:
                curve.append((seconds_after(line, t + done) - before, float(loss)))
            if target is not None and finite and not reached and done < updates:
                seen = [*seen[1 - AVERAGED :], jax.tree.map(jnp.copy, params)]
                mean = evaluated(cluster, _mean(seen))
                finite = bool(min(loss, mean) <= lower * CEILING ** (1 - done / updates))
                settled = settle and len(seen) == AVERAGED and bool(mean <= target)
        if reached or settled or not finite:
            break
    ended = seconds_after(line, t + done) - before
    outcome = Outcome(
        loss=loss if finite else np.nan,
        updates=done,
        seconds=ended if reached or settled or not finite else max(ended, seconds),
        reached=reached,
        settled=settled,
        curve=curve,
    )
    return Checkpoint(begin.updates + done, jnp.int32(setting.groups), chunk.state), outcome


def _mean(trees: Sequence[Params]) -> Params:
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *trees)


def _later_half(updates: int) -> Sequence[int]:
    """Returns the steps of a probe whose parameters are averaged, evenly spaced."""
    moments = np.linspace(updates / 2, updates, AVERAGED + 1)[1:].round()
    return np.unique(moments).astype(int).tolist()


def _log_points(t: int, updates: int, log_every: int) -> Sequence[int]:
    """Returns multiples of `log_every` after update t, in updates from there, and the end."""
    return [*range(log_every - t % log_every, updates, log_every), updates]


def _timeline(run: Run, groups: int, t: int, seconds: float) -> Timeline:
    """Returns the arrivals of so many groups, a CHUNK beyond so many seconds after update t."""
    size, steps = bytes_of(run.params), t + 2 * CHUNK
    while True:
        config = run.config.with_({"method.groups": groups, "steps": steps})
        line = config.timeline(steps_per_epoch=run.epoch, update_bytes=size)
        if line.seconds[-CHUNK] > seconds_after(line, t) + seconds:
            return line
        steps *= 2  # a longer timeline begins with the shorter one
