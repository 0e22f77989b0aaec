"""The meter on meetings: the momentum of SlowMo's and DiLoCo's outer step, read from noisy runs.

    python -m analysis.benchmarks.outer_momentum

On f(x) = 1/2 h x^2 a node makes H updates of SGD with rate alpha from theta. With rate a and
momentum mu of the outer step, in the mean over batches and for any number of nodes,

    D = theta - x_H = (1 - (1 - alpha h)^H) theta = k theta

    SlowMo   theta'' - theta' = mu (theta' - theta) - a k theta'                      heavy ball
    DiLoCo   theta'' - theta' = mu (theta' - theta) - a (1 + mu) k theta' + a mu k theta
                                                                                      Nesterov

so a meeting is an update of momentum mu in a bowl of the *effective curvature* k. Derived here
(compare LA and SLA in arXiv 2603.26954, of which we read the abstract). The meter's fit
(`implicit_momentum/moments.py`) gets the steps of meetings, and k theta as their gradients.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

import optdyn as od
from analysis.benchmarks.record import options, publish
from optdyn.base.trees import Params
from optdyn.implicit_momentum.moments import Fit, NotIdentified, fit
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


def read(case: OuterCase, meetings: int, seed: int) -> Fit:
    """Returns the meter's fit to a run, with a past gradient where the outer step is Nesterov's."""
    theta = after_meetings(config_of(case, meetings, noise=1.0, seed=seed))
    k = effective_curvature(case.period)
    return fit([(np.diff(theta, axis=0), k * theta[:-1])], gradient_lags=int(case.nesterov))


def rows(seeds: int) -> Iterator[dict[str, Any]]:
    for case in CASES:
        found = [fit for seed in range(seeds) if (fit := _unless_refused(case, seed))]
        row = {"method": case.method, "H": case.period, "momentum": case.momentum}
        row |= {"seeds": seeds, "read in": len(found)}
        if found:
            momenta, rates = np.array([(fit.phi[0], fit.eta[0]) for fit in found]).T
            low, high = np.array([fit.phi_interval[0] for fit in found]).T
            row["covered"] = int(((low <= case.momentum) & (case.momentum <= high)).sum())
            row |= {"read": float(momenta.mean()), "deviation": float(momenta.std())}
            row["half-width"] = float(np.median(high - low)) / 2
            row["rate"] = case.rate * (1 + case.momentum * case.nesterov)
            row["rate, read"] = float(rates.mean())
        yield row


def _unless_refused(case: OuterCase, seed: int) -> Fit | None:
    try:
        return read(case, MEETINGS, seed)
    except NotIdentified:
        return None


def main() -> None:
    parser = options(__doc__, "workdirs/outer_momentum.json")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    publish(pd.DataFrame(rows(arguments.seeds)), arguments.out, meetings=MEETINGS)


if __name__ == "__main__":
    main()
