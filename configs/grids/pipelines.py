"""Local SGD or a pipeline, as periods and stages grow: `--config=configs/grids/pipelines.py:TABLE`.

    ladder  learning rates of all arms, three seeds: which is best after 300 updates?
    judged  the best rates of all arms, five other seeds: training loss and simulated seconds

The question is that of arXiv 2606.03498, with as many workers on both sides: local SGD on P nodes
that average every H updates, against the stages of a residual MLP of 8 blocks without flushes.
`python analysis/best_rates.py WORKDIR` prints the best settings.
"""

from collections.abc import Iterator, Mapping
from itertools import product

import optdyn as od
from optdyn.base.errors import config_variant
from optdyn.train.grid import Point

STAGES = (2, 4, 8)  # or nodes
PERIODS = (4, 16, 64, 256)
RATES = {0.9: od.log_range(2**-11, 2**-2, 10), 0.0: od.log_range(2**-8, 2**0, 9)}  # by momentum


def _pipeline(stages: int, kind: str = "stash") -> Point:
    return {
        "method.name": "stale_pipeline",
        "method.micro_batches": 8,
        "method.pipeline": kind,
        "cluster.nodes": stages,
    }


def _local(nodes: int, period: int) -> Point:
    return {"method.name": "model_averaging", "method.period": period, "cluster.nodes": nodes}


ARMS: Mapping[str, Point] = {
    "synchronous": _local(8, 1),
    **{f"stash-{s}": _pipeline(s) for s in STAGES},
    **{f"{kind}-8": _pipeline(8, kind) for kind in ("2bw", "no_stash", "predict")},
    **{f"local-{p}-{h}": _local(p, h) for p in STAGES for h in PERIODS},
}
# Momentum and rate: the rung of `ladder` with the least median, inside the range that was tried.
CHOSEN = {
    "synchronous": (0.0, 0.0625),
    "stash-2": (0.9, 0.0078125),
    "stash-4": (0.0, 0.03125),
    "stash-8": (0.0, 0.0625),
    "2bw-8": (0.9, 0.00390625),
    "no_stash-8": (0.0, 0.015625),
    "predict-8": (0.9, 0.00195313),
    "local-2-4": (0.9, 0.015625),
    "local-2-16": (0.9, 0.015625),
    "local-2-64": (0.0, 0.0625),
    "local-2-256": (0.0, 0.0625),
    "local-4-4": (0.9, 0.0078125),
    "local-4-16": (0.9, 0.015625),
    "local-4-64": (0.9, 0.0078125),
    "local-4-256": (0.9, 0.00390625),
    "local-8-4": (0.9, 0.0078125),
    "local-8-16": (0.9, 0.0078125),
    "local-8-64": (0.9, 0.00390625),
    "local-8-256": (0.9, 0.00390625),
}


def get_config(table: str = "ladder") -> od.Grid:
    base = od.Experiment(
        model=od.ResMLP(blocks=8, width=64),
        data=od.MNIST5k(image_size=14, train_evaluated=1000, test_evaluated=1000),
        optimizer=od.SGD(momentum=0.9),
        cluster=od.Cluster(service=od.Constant(), bandwidth=1e7),
        batch_size=64,
        steps=300,
        log_every=300,
        checkpoint_every=0,
    )
    return od.Grid(base, config_variant(TABLES, table)())


def _point(arm: str, momentum: float, rate: float, seed: int) -> Point:
    varied = {"optimizer.learning_rate": rate, "optimizer.momentum": momentum, "seed": seed}
    return {"name": f"{arm},{momentum},{rate:.5g},{seed}", **ARMS[arm], **varied}


def ladder() -> Iterator[Point]:
    for arm, (momentum, rates) in product(ARMS, RATES.items()):
        if momentum or not arm.startswith("predict"):  # which is stash without
            for rate, seed in product(rates, (100, 101, 102)):
                yield _point(arm, momentum, rate, seed)


def judged() -> Iterator[Point]:
    return (_point(arm, *CHOSEN[arm], seed) for arm in ARMS for seed in range(5))


TABLES = {"ladder": ladder, "judged": judged}
