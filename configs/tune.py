"""Cases for `launch.tune` with 8 workers: `--config=configs/tune.py:CASE`.

Eight cases are BATCH,CLUSTER: `small` (8 examples, one a worker) or `large` (64), and a cluster. A
worker takes 1 ms an example.

    stragglers  memoryless workers, free messages
    network     2 ms a message
    server      groups queue for the server of the dense part, 1.5 ms a batch; 8 workers that
                exchange their convolutions take 4 ms, k take k / 2
    uniform     workers of equal, constant speed, free messages

A rule, `can_win`, says before a run whether asynchrony can win: the best number of groups makes
updates in less than 0.6 of the seconds, HE(g) / HE(1), and the batch is at most a third of the
gradient noise scale.

Twelve more, `drawn-0` to `drawn-11`, were not used in development: network, batch, workers, service
law, link and target are drawn from lists by a seed that was committed before any run.
"""

from typing import Any, NamedTuple

import numpy as np

import optdyn as od
from optdyn.base.errors import config_variant

WORKERS = 8
SECONDS = 1e-3  # an example, on one worker
BATCHES = {"small": 8, "large": 64}
VARIED = od.LogNormal(0.25)
CLUSTERS: dict[str, dict[str, Any]] = {
    "stragglers": {"service": od.Exponential()},
    "network": {"service": VARIED, "latency": 2e-3},
    "server": {"service": VARIED},
    "uniform": {"service": od.Constant()},
}
MLP, CNN = od.MLP(hidden=(32,)), od.CNN(channels=(4, 8), hidden=(32,))
TARGETS = {(MLP, 8): 0.1, (MLP, 64): 0.01, (CNN, 8): 0.2}
# Gradient noise scale of the MLP at its start, with seeds 10 to 12: 66, 77, 82 (1,000 examples).
NOISE = 75
# Lists for the drawn cases: networks with targets, and others.
NETWORKS: list[tuple[od.Model, tuple[float, ...]]] = [
    (MLP, (0.2, 0.1, 0.05)),
    (od.MLP(hidden=(64, 64)), (0.2, 0.1, 0.05)),
    (od.ResMLP(blocks=2, width=32), (0.2, 0.1, 0.05)),
    (CNN, (0.4, 0.3, 0.2)),
]
DRAWN_BATCHES = 16, 32, 64, 128
DRAWN_WORKERS = 4, 8, 12, 16
LAWS = [od.Constant(), VARIED, od.LogNormal(1.0), od.Gamma(0.5), od.Exponential()]
LATENCIES = 0.0, 1e-3, 4e-3  # seconds a message
DRAWN = tuple(f"drawn-{i}" for i in range(12))
DRAW = 20261125
CASES = {f"{batch},{cluster}": (batch, cluster) for batch in BATCHES for cluster in CLUSTERS}


class TuneCase(NamedTuple):
    model: od.Model
    cluster: od.Cluster
    batch_size: int
    target: float


def get_config(name: str = "small,stragglers") -> od.Experiment:
    case = drawn_case(name) if name in DRAWN else named_case(name)
    seconds = pace(case, 1)
    return od.Experiment(
        model=case.model,
        data=od.MNIST5k(train_evaluated=1000, image_size=20 if case.model == CNN else 0),
        method=od.Asynchronous(),
        cluster=case.cluster,
        batch_size=case.batch_size,
        log_every=20,
        tune=od.Tune(
            target=case.target,
            probe_seconds=10 * seconds,
            epoch_seconds=60 * seconds,
            seconds=6000 * seconds,
            probe_share=0.05,
        ),
    )


def named_case(name: str) -> TuneCase:
    batch, kind = config_variant(CASES, name)
    model = CNN if name in ("small,network", "small,uniform") else MLP
    size = BATCHES[batch]
    pieces = od.Pieces()
    if kind == "server":
        pieces = od.Pieces(conv_compute=SECONDS * size, conv_network=5e-4, fc_network=1.5e-3)
    cluster = od.Cluster(
        nodes=WORKERS, seconds_per_example=SECONDS, pieces=pieces, **CLUSTERS[kind]
    )
    return TuneCase(model, cluster, size, TARGETS[model, size])


def drawn_case(name: str) -> TuneCase:
    number = DRAWN.index(name)
    rng = np.random.default_rng((DRAW, number))
    model, targets = NETWORKS[number % len(NETWORKS)]
    batch, nodes = int(rng.choice(DRAWN_BATCHES)), int(rng.choice(DRAWN_WORKERS))
    law, latency = LAWS[rng.integers(len(LAWS))], float(rng.choice(LATENCIES))
    cluster = od.Cluster(nodes=nodes, seconds_per_example=SECONDS, service=law, latency=latency)
    return TuneCase(model, cluster, batch, float(rng.choice(targets)))


def can_win(name: str) -> bool:
    """Returns whether asynchrony can win in one of the eight cases, by the rule above."""
    case = named_case(name)
    faster = min(pace(case, groups) for groups in (1, 2, 4, 8)) / pace(case, 1)
    return faster < 0.6 and case.batch_size <= NOISE / 3


def pace(case: TuneCase | od.Experiment, groups: int) -> float:
    """Returns HE(g), the seconds an update."""
    method = od.Asynchronous(groups=groups)
    seconds = od.timeline(method, case.cluster, 2000, batch_size=case.batch_size).seconds
    return float(seconds[-1]) / len(seconds)
