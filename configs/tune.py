"""What `launch.tune` is to tune: eight cases, `--config=configs/tune.py:CASE`, of 8 workers.

A case is BATCH,CLUSTER: `small` (8 examples, one a worker) or `large` (64), and what the cluster
is like. An example takes a worker 1 ms.

    stragglers  memoryless workers, nothing else: whoever waits for all waits for the slowest
    network     2 ms a message
    server      groups queue for the server of the dense part, 1.5 ms a batch; 8 workers that
                exchange their convolutions with one another take 4 ms, k take k / 2
    uniform     workers equally fast, always; messages take no time

Whether asynchrony can win is decided by a rule, `can_win`, of what is known before a run: the best
number of groups makes updates in less than 0.6 of the seconds, HE(g) / HE(1), and the batch is well
below the gradient noise scale, at most a third of it. The targets are losses that synchronous
training takes some 500 to 1,500 updates to reach.

Beside them are twelve more, `drawn-0` to `drawn-11`, on which nothing was developed: network,
batch, workers, law of service, link and target of each are drawn from lists by a seed that was
committed before any of them was run.
"""

import numpy as np

from optdyn import clock
from optdyn.base.errors import entry
from optdyn.base.trees import Json
from optdyn.experiment import Experiment

WORKERS = 8
SECONDS = 1e-3  # an example, on one worker
BATCHES = {"small": 8, "large": 64}
CLUSTERS: dict[str, Json] = {
    "stragglers": {"cluster.service.name": "exponential"},
    "network": {
        "cluster.service.name": "lognormal",
        "cluster.service.variation": 0.25,
        "cluster.latency": 2e-3,
    },
    "server": {
        "cluster.service.name": "lognormal",
        "cluster.service.variation": 0.25,
        "cluster.pieces.conv_network": 5e-4,
        "cluster.pieces.fc_network": 1.5e-3,
    },
    "uniform": {"cluster.service.name": "constant"},
}
MLP: Json = {"model.name": "mlp", "model.hidden": (32,)}
CNN: Json = {
    "model.name": "cnn",
    "model.channels": (4, 8),
    "model.hidden": (32,),
    "data.image_size": 20,
}
TARGETS = {("mlp", 8): 0.1, ("mlp", 64): 0.01, ("cnn", 8): 0.2}
# Gradient noise scale of the MLP at its start, on seeds 10 to 12: 66, 77, 82 (1,000 examples).
NOISE = 75
# Of the drawn cases: networks and their targets, and what else is drawn.
NETWORKS: list[tuple[Json, tuple[float, ...]]] = [
    (MLP, (0.2, 0.1, 0.05)),
    ({"model.name": "mlp", "model.hidden": (64, 64)}, (0.2, 0.1, 0.05)),
    ({"model.name": "resmlp", "model.blocks": 2, "model.width": 32}, (0.2, 0.1, 0.05)),
    (CNN, (0.4, 0.3, 0.2)),
]
DRAWN_BATCHES = 16, 32, 64, 128
DRAWN_WORKERS = 4, 8, 12, 16
LAWS: list[Json] = [
    {"cluster.service.name": "constant"},
    {"cluster.service.name": "lognormal", "cluster.service.variation": 0.25},
    {"cluster.service.name": "lognormal", "cluster.service.variation": 1.0},
    {"cluster.service.name": "gamma", "cluster.service.variation": 0.5},
    {"cluster.service.name": "exponential"},
]
LATENCIES = 0.0, 1e-3, 4e-3  # seconds a message
DRAWN = tuple(f"drawn-{i}" for i in range(12))
DRAW = 20261125
CASES = {f"{batch},{cluster}": (batch, cluster) for batch in BATCHES for cluster in CLUSTERS}


def get_config(case: str = "small,stragglers") -> Experiment:
    config = Experiment()
    config = config.with_(
        {
            "log_every": 20,
            "data.train_evaluated": 1000,
            "method.name": "asynchronous",
            "cluster.seconds_per_example": SECONDS,
        }
    )
    config = config.with_(drawn(case) if case in DRAWN else chosen(case))
    each = pace(config, 1)
    config = config.with_(
        {
            "tune.probe_seconds": 10 * each,
            "tune.epoch_seconds": 60 * each,
            "tune.seconds": 6000 * each,
            "tune.probe_share": 0.05,
        }
    )
    return config


def chosen(case: str) -> Json:
    """The keys of one of the eight cases. Raises `ConfigError` for others."""
    batch, cluster = entry(CASES, case)
    network = CNN if case in ("small,network", "small,uniform") else MLP
    size = BATCHES[batch]
    keys = CLUSTERS[cluster] | network | {"batch_size": size, "cluster.nodes": WORKERS}
    if cluster == "server":
        keys |= {"cluster.pieces.conv_compute": SECONDS * size}
    return keys | {"tune.target": TARGETS[network["model.name"], size]}


def drawn(case: str) -> Json:
    """The keys of one of the drawn cases: each network is in three of them."""
    number = DRAWN.index(case)
    rng = np.random.default_rng((DRAW, number))
    network, targets = NETWORKS[number % len(NETWORKS)]
    batch, nodes = int(rng.choice(DRAWN_BATCHES)), int(rng.choice(DRAWN_WORKERS))
    law, latency = LAWS[rng.integers(len(LAWS))], float(rng.choice(LATENCIES))
    target = float(rng.choice(targets))
    keys = {"batch_size": batch, "cluster.nodes": nodes, "cluster.latency": latency}
    return network | law | keys | {"tune.target": target}


def can_win(case: str) -> bool:
    """Whether asynchrony can win, by the rule above."""
    config = get_config(case)
    faster = min(pace(config, g) for g in (1, 2, 4, 8)) / pace(config, 1)
    return faster < 0.6 and config.batch_size <= NOISE / 3


def pace(config: Experiment, groups: int) -> float:
    """HE(g), seconds an update."""
    line = clock.make(config.cluster, groups=groups, steps=2000, batch_size=config.batch_size)
    return float(line.seconds[-1]) / len(line.seconds)
