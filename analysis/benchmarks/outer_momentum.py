"""The meter on meetings: the momentum of SlowMo's outer step, read from noisy runs.

    python -m analysis.benchmarks.outer_momentum

On f(x) = 1/2 h x^2 a node makes H updates of SGD with rate alpha from theta. With rate a and
momentum mu of the outer step, in the mean over batches and for any number of nodes,

    D = theta - x_H = (1 - (1 - alpha h)^H) theta = k theta

    SlowMo   theta'' - theta' = mu (theta' - theta) - a k theta'                      heavy ball
    DiLoCo   theta'' - theta' = mu (theta' - theta) - a (1 + mu) k theta' + a mu k theta
                                                                                      Nesterov

so a meeting is an update of momentum mu in a bowl of the *effective curvature* k. Derived here
(compare LA and SLA in arXiv 2603.26954, of which we read the abstract). The meter
(`implicit_momentum/moments.py`) gets SlowMo's steps of meetings over a, and k theta as their
gradients: heavy ball, whose explicit momentum is mu and whose implicit one is 0.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

import optdyn as od
from analysis.benchmarks.record import options, publish
from optdyn.base.trees import Params
from optdyn.implicit_momentum.moments import Reading, explicit, products
from optdyn.problem.models.quadratic import curvatures
from optdyn.train import loop, trainer

DIMENSION, CONDITION, NODES, RATE = 16, 20.0, 4, 0.1
SEEDS, MEETINGS = 40, 400


class OuterCase(NamedTuple):
    method: str
    momentum: float  # mu
    period: int  # H
    rate: float = 0.7  # a

    @property
    def nesterov(self) -> bool:
        return self.method == "diloco"

    def __str__(self) -> str:
        return f"{self.method} {self.momentum:g} {self.period}"


CASES = (
    OuterCase("slowmo", 0.0, 8),
    OuterCase("slowmo", 0.5, 8),
    OuterCase("slowmo", 0.8, 32),
    OuterCase("diloco", 0.5, 8),
    OuterCase("diloco", 0.9, 8),
    OuterCase("diloco", 0.9, 32),
)


def effective_curvature(period: int) -> np.ndarray:
    return 1 - (1 - RATE * np.asarray(curvatures(DIMENSION, CONDITION), float)) ** period


def config_of(case: OuterCase, meetings: int, noise: float, seed: int) -> od.Experiment:
    outer = (
        {"outer_learning_rate": case.rate, "outer_momentum": case.momentum}
        if case.nesterov
        else {"slow_learning_rate": case.rate, "slow_momentum": case.momentum}
    )
    return od.Experiment(
        seed=seed,
        steps=meetings * case.period,
        batch_size=NODES,
        model=od.Quadratic(dimension=DIMENSION, condition=CONDITION, noise=noise),
        data=od.MNIST5k(train_examples=2000, replacement=True),
        optimizer=od.SGD(learning_rate=RATE, momentum=0.0),
        method=od.MethodStack.named(case.method).with_keys({"period": case.period, **outer}),
        cluster=od.Cluster(nodes=NODES),
    )


def _flat(params: Params) -> np.ndarray:
    return np.concatenate([np.asarray(x, float).ravel() for x in jax.tree.leaves(params)])


def after_meetings(config: od.Experiment) -> np.ndarray:
    """Returns theta at the start and after each meeting, (meetings + 1, dimension)."""
    run, period = trainer.prepare(config), config.method.get("period", 0)
    theta, stops = [_flat(run.params)], range(period, config.steps + 1, period)
    for chunk in loop.updates(run, loop.initial_state(run), 0, stops):
        chunk.compute()
        if chunk.step in stops and chunk.n:
            theta.append(_flat(chunk.state.state.outer[0][0])[:DIMENSION])
    return np.array(theta)


def read(case: OuterCase, meetings: int, seed: int) -> Reading:
    """Returns the reading of explicit momentum in SlowMo's meetings."""
    theta = after_meetings(config_of(case, meetings, noise=1.0, seed=seed))
    gradients = effective_curvature(case.period) * theta[:-1]
    steps = np.diff(theta, axis=0) / case.rate
    return explicit(list(products(steps, gradients, np.ones(len(steps)))), mu=0.0)


def rows(seeds: int) -> Iterator[dict[str, Any]]:
    for case in CASES:
        if case.nesterov:
            continue
        found = [read(case, MEETINGS, seed) for seed in range(seeds)]
        yield {
            "method": case.method,
            "H": case.period,
            "momentum": case.momentum,
            "seeds": seeds,
            "covered": sum(it.covers(case.momentum) for it in found),
            "read": np.median([it.estimate for it in found if it.estimate is not None]),
            "width": np.median([it.width for it in found]),
            "says nothing": sum(it.says_nothing for it in found),
        }


def main() -> None:
    parser = options(__doc__, "workdirs/outer_momentum.json")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    publish(pd.DataFrame(rows(arguments.seeds)), arguments.out, meetings=MEETINGS)


if __name__ == "__main__":
    main()
