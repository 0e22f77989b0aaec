"""What does asynchrony cost once both sides are tuned? MNIST, a small MLP, 1 to 16 groups.

    --config=grids/quickstart:demo    the grid of `make demo`
    --config=grids/quickstart         the whole study, `make study`, which continues the demo

16 workers in g groups train with momentum 0.9 *kept*, as for one group, and with the momentum
*tuned* for g, both with tuned learning rates. With mini-batches of 64 training is limited by the
largest stable step, which staleness lowers; with 16 more by the gradients' noise. Rates are
long-run steps alpha / (1 - mu); their ranges were chosen with seeds 100 to 102. At the end the
implicit momentum of g memoryless workers is read from replicas of the beginning of plain SGD, and
by the momentum meter from one ordinary run.
"""

import itertools
from collections.abc import Iterator

import optdyn as od
from optdyn.base.errors import config_variant
from optdyn.train.grid import Point

NOTE = """\
A perceptron with 32 hidden units learns 4,000 MNIST images with 16 simulated workers in g groups,
each of which takes the gradient of one mini-batch at parameters that the others meanwhile move.
How many more updates does that take, with the momentum 0.9 of synchronous training kept and with
one tuned for g, both with a learning rate of their own? And does it pay in simulated seconds?"""
KEPT = 0.9
# Not looked at before the ranges were fixed; then one was moved up a rung, that of 16 groups with
# KEPT at batches of 16, whose highest step had come out best.
SEEDS = tuple(range(30, 35))
GROUPS = (2, 4, 8, 16)
HIGH, LOW = (-0.3, 0.3, KEPT, 0.97), (-0.9, -0.3, 0.3, KEPT)  # momenta of few and of many groups
# (batch, groups): updates, those between log points, momenta, long-run steps, those with KEPT. A
# batch is a whole number of examples for each worker of a group.
SETTINGS = {
    (64, 1): (300, 10, HIGH, (0.4, 0.8, 1.6, 3.2), (0.4, 0.8, 1.6, 3.2)),
    (64, 2): (400, 10, HIGH, (0.2, 0.4, 0.8), (0.2, 0.4, 0.8)),
    (64, 4): (700, 20, LOW, (0.1, 0.2, 0.4), (0.05, 0.1, 0.2, 0.4)),
    (64, 8): (1000, 25, (-0.97, *LOW), (0.05, 0.1, 0.2, 0.4), (0.05, 0.1, 0.2)),
    (64, 16): (1250, 25, LOW, (0.05, 0.1, 0.2, 0.4), (0.025, 0.05, 0.1, 0.2)),
    (16, 1): (500, 10, HIGH, (0.1, 0.2, 0.4, 0.8), (0.1, 0.2, 0.4, 0.8)),
    (16, 4): (900, 20, LOW, (0.1, 0.2, 0.4), (0.05, 0.1, 0.2, 0.4)),
    (16, 16): (1400, 25, (-0.97, *LOW), (0.05, 0.1, 0.2), (0.05, 0.1, 0.2)),
}
DEMO = {1: (0.3, KEPT), 4: (-0.3, 0.3, KEPT), 16: (-0.3, 0.3, KEPT)}  # momenta of these groups


def get_config(part: str = "") -> od.Grid:
    base = od.config("quickstart").with_(
        model=od.MLP(hidden=(32,)),
        data=od.MNIST5k(train_evaluated=1000, test_evaluated=200),
        checkpoint_every=0,
    )
    return od.Grid(base, config_variant(PARTS, part)(), NOTE)


def study() -> Iterator[Point]:
    return itertools.chain(training(), fits(), metered())


def demo() -> Iterator[Point]:
    for point in training():
        if point["optimizer.momentum"] in DEMO.get(point["method.groups"], ()):
            yield point


def training() -> Iterator[Point]:
    for (batch, g), (updates, log_every, momenta, steps, kept) in SETTINGS.items():
        for seed, mu in itertools.product(SEEDS, momenta):
            for step in kept if mu == KEPT else steps:
                yield {
                    "name": f"batch{batch}-g{g}-momentum{mu}-step{step}-seed{seed}",
                    "method.groups": g,
                    "batch_size": batch,
                    "optimizer.momentum": mu,
                    "optimizer.learning_rate": round(step * (1 - mu), 6),
                    "seed": seed,
                    "steps": updates,
                    "log_every": log_every,
                }


def fits() -> Iterator[Point]:
    """Yields a recording a number of groups: many replicas of a few g updates, the transient."""
    for g in GROUPS:
        yield {
            "name": f"fit-g{g}",
            "method.groups": g,
            "cluster.nodes": g,
            "optimizer.learning_rate": 0.5,
            "steps": 8 + g,
            "replicas.count": 400,
            "replicas.subspace": 512,
            "batch_size": 128,
            "data.train_examples": 250,
            "data.replacement": True,
        }


def metered() -> Iterator[Point]:
    """Yields a metered run a number of groups, in shuffled epochs of all images."""
    for g in GROUPS:
        yield {
            "name": f"meter-g{g}",
            "method.groups": g,
            "cluster.nodes": g,
            "optimizer.learning_rate": 0.1,
            "optimizer.momentum": 0.0,
            "steps": 1000,
            "log_every": 100,
            "probes.momentum": True,
            "probes.window": 1000,
            "probes.every": 1000,
        }


PARTS = {"": study, "demo": demo}
