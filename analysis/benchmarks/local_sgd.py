"""Asynchronous local SGD without momentum against local SGD, for docs/faq.md; two minutes.

    python -m analysis.benchmarks.local_sgd

Of six rates the one with the fewest examples to a training loss of 0.1 on two seeds is taken; five
others report.
"""

import numpy as np

import optdyn as od
from optdyn.evidence.intervals import ratio
from optdyn.methods import Method
from optdyn.report.efficiency import to_target

TARGET, RATES = 0.1, [2.0**n for n in range(-4, 2)]
ARMS: dict[str, tuple[Method, int, int]] = {  # method, examples of an update, updates
    "local SGD": (od.ModelAveraging(period=8), 64, 1200),
    "asynchronous": (
        od.AsyncLocalSGD(groups=8, period=8, outer_learning_rate=1.0, outer_momentum=0.0),
        8,
        9600,
    ),
}


def costs(
    method: Method,
    batch: int,
    steps: int,
    speeds: tuple[float, ...],
    rates: list[float],
    seeds: range | tuple[int, ...],
) -> dict[float, np.ndarray]:
    """Returns examples and simulated seconds to the target, by rate (seeds, 2)."""
    base = od.Experiment(
        model=od.MLP(hidden=(32,)),
        data=od.MNIST5k(train_evaluated=1000, test_evaluated=100),
        cluster=od.Cluster(
            workers=8, speeds=speeds, service=od.LogNormal(0.3), seconds_per_example=1 / 8
        ),
        method=method,
        batch_size=batch,
        steps=steps,
        log_every=steps // 120,
        checkpoint_every=0,
    )
    arms = {rate: base.with_(optimizer=od.SGD(learning_rate=rate)) for rate in rates}
    return {
        rate: np.array([to_target(run.log, TARGET) * np.array([batch, 1]) for run in runs])
        for rate, runs in od.compare(arms, seeds=seeds).runs.items()
    }


def main() -> None:
    for speeds in ((1.0,) * 8, (1.0,) * 6 + (0.5, 0.25)):
        first = None
        for name, arm in ARMS.items():
            tried = costs(*arm, speeds, RATES, (100, 101))
            best = min(tried, key=lambda rate: np.median(tried[rate], axis=0)[0])
            found = costs(*arm, speeds, [best], range(5))[best]
            first = found if first is None else first
            over = [ratio(list(a), list(b)) for a, b in zip(found.T, first.T, strict=True)]
            print(speeds, name, best, over, flush=True)


if __name__ == "__main__":
    main()
