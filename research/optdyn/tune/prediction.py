"""When does asynchrony pay: the penalty of staleness, predicted from one synchronous run.

    P_SE(g, B) = alpha*(1, B) / alpha*(g, B)         updates of g groups over those of one, tuned

    1 / alpha*(g, B) = (1 + B_noise / B) / alpha_max  +  kappa lambda / a*(g, law)
                       noise limits the step             staleness limits the step

alpha are long-run steps, rate over 1 - momentum: a loss takes a given sum of them. The first term
is that of arXiv 1812.06162, updates(B) = updates_min (1 + B_noise / B). The second is a quadratic's
stability at the sharpness lambda, with the limit a* of the cluster's arrivals
(`implicit_momentum/stability.py`), infinite for one group. So

    P_SE(g, B) = 1 + kappa lambda alpha_max / (a*(g, law) (1 + B_noise / B))

KAPPA was fitted on a perceptron (`tune/when_asynchrony_pays.md`). It is below 1, since the
sharpness of a network gives way where a step is too large for it.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn import methods
from optdyn.base.trees import Json
from optdyn.experiment import Config
from optdyn.implicit_momentum.probes import GradientMoments, moments, sharpness
from optdyn.implicit_momentum.stability import limit
from optdyn.problem.problem import Examples, Params
from optdyn.train import loop, trainer
from optdyn.train.checks import check
from optdyn.train.program import Program
from optdyn.train.run import Run, feed_of

KAPPA = 0.35
POINTS = 8  # steps of the run at which it is measured
SAMPLE = 1000  # training examples that are measured on, at most
SMALL = 10  # the smaller batch of the noise scale
REPLICAS, ROUNDS = 200, 40  # of arrivals: windows of so many updates a group


class MeasuredLoss(NamedTuple):
    """The measures of a problem, along one synchronous run."""

    noise_scale: float  # B_noise, examples: mean tr(Sigma) over mean |G|^2
    sharpness: float  # lambda, the mean
    step: float  # alpha_max: the run's long-run step, times 1 + B_noise / B for its batch


def penalty(measured: MeasuredLoss, batch: Any, limit: float) -> Any:
    """Returns P_SE of groups with this stability limit a*, at least 1; `batch` may be an array."""
    noise = 1 + measured.noise_scale / batch
    return 1 + KAPPA * measured.sharpness * measured.step / (limit * noise)


def stability(config: Config, groups: int) -> float:
    """Returns a* of the config's cluster in so many groups, infinite for one group."""
    if groups == 1:
        return np.inf
    drawn = config.with_(_grouped(groups), steps=ROUNDS * groups)
    check(drawn)
    line = drawn.timeline(steps_per_epoch=1, update_bytes=0, replicas=REPLICAS)
    return limit(line)


def _grouped(groups: int) -> Json:
    return {"method.name": methods.GROUPED, "method.groups": groups}


def measure(config: Config, updates: int) -> MeasuredLoss:
    """Returns the measures along a run of one group at the config's batch, rate and momentum."""
    chosen = config.with_({**_grouped(1), "steps": updates, "cluster.service.name": "constant"})
    run = trainer.prepare(chosen)
    stride = -(-run.examples // SAMPLE)
    some = {name: jnp.asarray(leaf[::stride]) for name, leaf in run.data.train.items()}
    step = chosen.optimizer.learning_rate / (1 - chosen.optimizer.momentum)
    return measured(run.program, some, _along(run), step, chosen.batch_size)


def measured(
    program: Program, examples: Examples, points: Iterable[Params], step: float, batch: int
) -> MeasuredLoss:
    """Returns the measures at parameters along a run of this long-run step and batch."""
    found = [jax.device_get(_at(program)(x, examples)) for x in points]
    square, trace, largest = np.mean([(m.square, m.trace, peak) for m, peak in found], axis=0)
    noise = float(trace / square)
    return MeasuredLoss(noise, float(largest), step * (1 + noise / batch))


@lru_cache(maxsize=4)
def _at(program: Program) -> Callable[[Params, Examples], tuple[GradientMoments, jax.Array]]:
    problem = program.problem
    return jax.jit(lambda x, some: (moments(problem, SMALL, x, some), sharpness(problem, x, some)))


def _along(run: Run) -> Iterator[Params]:
    """Yields the parameters in the middle of each of POINTS equal parts of the run."""
    layout, feed = run.program.layout, feed_of(run)
    state, step = layout.put_state(run.program.init(run.params)), 0
    for part in range(POINTS):
        until = max((2 * part + 1) * run.config.steps // (2 * POINTS), step)
        for chunk in loop.updates(run, state, step, [until], feed=feed):
            chunk.compute()
        state, step = chunk.state, until
        yield layout.get(state).params
