"""The contest on an MLP: arms that each have their best batch on four networks. A table, no claim.

    python -m analysis.studies.contest WORKDIR

8 workers are on a node each, DASO's on 4 nodes of 2 devices. An eighth of the default batch takes a
worker 1 second, times a log-normal draw of deviation 0.3, and an exchange may run behind the last
two thirds of the computing before it. NETWORKS has the ring all-reduce's seconds over that second,
as of a ResNet-50 (102 MB) on 8 nodes of 256 images each at 360 a second.

The best of three opponents on a network is the opponent of all arms there:

    synchronous             SGD with momentum
    one backup worker       updates of the 7 fastest of 8, `buffered` with `k_sync` (1602.06709)
    outer momentum          SNOO (2510.15830), which is `diloco` on one node

Four seeds choose, twenty others report. Interrupted, the same command goes on.
"""

from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path
from typing import Any

import optdyn as od
from optdyn.base.files import write_json
from optdyn.base.flag_parser import Parser
from optdyn.evidence.arms import (
    MOMENTUM,
    OUTER,
    PERIOD,
    STEP,
    Arm,
    Ladder,
    momenta,
    not_negative,
    rates,
    rung,
)
from optdyn.evidence.contest import Contest, Entry, measure, table
from optdyn.evidence.study import Study
from optdyn.train.grid import Point

CLAIM = None  # it is judged by no rule
WORKERS, BATCH, SEED = 8, 64, 24
LOSSES = (0.5, 0.25, 0.1)  # training losses; the last is tuned for
LONG_RUN = 1.0  # step of synchronous training that searches start from
BYTES = 4 * (785 * 32 + 33 * 10)  # of the parameters
NETWORKS = {"10 Gb/s": 0.2, "1 Gb/s": 2.0, "0.3 Gb/s": 20 / 3, "0.1 Gb/s": 20.0}
TUNED_ON = "1 Gb/s"
BATCHES: Sequence[int] = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
PERIODS, MOSTS = (2, 8, 32, 128), (1, 4, 16, 64)  # H, and DASO's B
PROBLEM: Point = {
    "batch_size": BATCH,
    "steps": 4000,
    "model.name": "mlp",
    "model.hidden": (32,),
    "data.train_examples": 4000,
    "data.train_evaluated": 1000,
}


def _of(name: str, **keys: Any) -> dict[str, Any]:
    return {"method.name": name, **{f"method.{key}": value for key, value in keys.items()}}


def _late(chain: str, **options: Any) -> Point:
    chain_options = {f"optimizer.chain_options.{key}": value for key, value in options.items()}
    return _of("asynchronous", groups=WORKERS) | {"optimizer.chain": (chain,)} | chain_options


PLAIN, BACKUP, SNOO = "synchronous", "one backup worker", "outer momentum"
OPPONENTS: Mapping[str, Point] = {
    PLAIN: _of("sync"),
    BACKUP: _of("buffered", groups=WORKERS, arrivals=WORKERS - 1, waiting="k_sync"),
    SNOO: {**_of("diloco"), "cluster.nodes": 1},
}
ARMS: Mapping[str, Point] = {
    "gossip": _of("gossip", graph="one_peer", gossip_order="adapt"),
    "K-batch-sync, K = 4": _of("buffered", groups=WORKERS, arrivals=4, waiting="k_batch_sync"),
    "top-k": _of("model_averaging", period=1, compression="top_k"),
    "AD-PSGD": _of("ad_psgd", groups=WORKERS, graph="complete"),
    "K-batch-async, K = 4": _of("buffered", groups=WORKERS, arrivals=4),
    "asynchronous": _of("asynchronous", groups=WORKERS),
    "delay-compensated": _late("delay_compensation", adaptive=True, lam=2.0),
    "rate by staleness": _late("staleness_rate", law="power"),
    "PowerSGD": _of("model_averaging", period=1, compression="powersgd"),
    "local SGD": _of("model_averaging"),
    "DiLoCo": _of("diloco"),
    "SlowMo": _of("slowmo"),
    "DASO": {
        **_of("daso", warmup_epochs=0, cooldown_epochs=0, reset_batches=8, reset_wait=2),
        "cluster.nodes": WORKERS // 2,
        "cluster.devices_per_node": 2,
    },
    "elastic averaging": _of("elastic", groups=WORKERS),
    "delayed Nesterov": _of("async_local_sgd", groups=WORKERS),
}
# What a network chooses of an arm besides the batch; the second is where everybody starts.
CHOSEN: Mapping[str, tuple[str, Sequence[float]]] = {
    **dict.fromkeys(
        (SNOO, "local SGD", "DiLoCo", "SlowMo", "elastic averaging", "delayed Nesterov"),
        (PERIOD, PERIODS),
    ),
    "DASO": ("method.max_batches", MOSTS),
}
STALE = ("asynchronous", "buffered", "elastic", "async_local_sgd", "ad_psgd")
MEETING = ("model_averaging", "diloco", "slowmo", "daso", "gossip")  # nodes, whose mean counts
# Whose momentum is the outer one, what is inside is kept.
OUTSIDE = ("diloco", "async_local_sgd")


def bandwidth(network: str) -> float:
    """Returns the bytes a second with which the ring all-reduce takes the network's seconds."""
    return 2 * (1 - 1 / WORKERS) * BYTES / NETWORKS[network]


def config_of(name: str) -> od.Experiment:
    """Returns an arm at the default batch and period, on the network where arms are tuned."""
    cluster = od.Cluster(
        nodes=WORKERS,
        service=od.LogNormal(0.3),
        overlap=2 / 3,
        seconds_per_example=WORKERS / BATCH,
        bandwidth=bandwidth(TUNED_ON),
    )
    config = od.Experiment(cluster=cluster).with_({**PROBLEM, **{**OPPONENTS, **ARMS}[name]})
    mean = config.method.name in MEETING
    return config.with_({"probes.mean": mean, "batch_size": _of_its_update(name, BATCH)})


def arm_of(name: str) -> Arm:
    """Returns an arm whose step and momentum, or outer momentum, are to be tuned."""
    config = config_of(name)
    late = config.method.name in STALE
    step = round(log2(LONG_RUN / 4 if late else LONG_RUN))
    key, ladder, momentum = MOMENTUM, momenta, 0.0 if late else 0.6
    if config.method.name in OUTSIDE:
        step += round(-log2(1 - config.optimizer.momentum))  # of the inner optimizer
        key, ladder, momentum = OUTER, not_negative, 0.6
    ladders: dict[str, Ladder] = {STEP: rates, key: ladder}
    return Arm(config, ladders, {STEP: step, key: rung(momenta, momentum)})


def entry(name: str) -> Entry:
    arm, batches = arm_of(name), [_of_its_update(name, batch) for batch in BATCHES]
    choices: dict[str, Sequence[float]] = {"batch_size": batches}
    defaults = [batches.index(arm.config.batch_size)]
    if name in CHOSEN:
        key, steps = CHOSEN[name]
        choices[key] = steps
        defaults.append(1)
    return Entry(arm, choices, tuple(defaults), plain=name in (PLAIN, SNOO))


def contest() -> Contest:
    return Contest(
        {name: entry(name) for name in OPPONENTS},
        {name: entry(name) for name in ARMS},
        LOSSES,
        {network: bandwidth(network) for network in NETWORKS},
    )


def _of_its_update(name: str, batch: int) -> int:
    return batch // WORKERS * (WORKERS - 1) if name == BACKUP else batch


def main() -> None:
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.read()
    first = 1000 * arguments.seed
    choose, report = range(first + 500, first + 504), range(first, first + 20)
    with Study(arguments.workdir, "full", choose, report) as study:
        result = measure(study, contest())
    write_json(arguments.workdir / "contest.json", result)
    print(table(result))


if __name__ == "__main__":
    main()
