"""The race: what runs in it. An arm is a line of ARMS, a problem one of PROBLEMS.

8 workers, a node each but for DASO (4 nodes of 2 devices), whose links inside a node are free. An
update is of one batch: of an eighth of it by every worker where all make it together, of all of it
by one worker where they arrive by themselves. Computing an eighth takes a worker 1 second, times a
log-normal draw of deviation 0.3 (real workers are more alike than memoryless ones), and every
exchange may run behind the last two thirds of the computing before it.

The models are small, so their networks are scaled: NETWORKS says how long the ring all-reduce of
all parameters takes, over the second of computing. These are the ratios of a ResNet-50 (102 MB in
float32) on 8 nodes that compute 256 images each at 360 a second.

`python -m configs.race` says how long it will take. `python -m configs.race WORKDIR` prints the
tables of a finished workdir.
"""

import sys
from collections.abc import Mapping
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax

from optdyn.basics.files import read_json
from optdyn.config import usual
from optdyn.evidence.arms import (
    MOMENTUM,
    OUTER,
    RATE,
    STEP,
    Arm,
    momenta,
    not_negative,
    rates,
    rung,
)
from optdyn.evidence.claim import Claim
from optdyn.evidence.race import Race, table
from optdyn.experiment import Experiment
from optdyn.grid import Point
from optdyn.problem import shared_data
from optdyn.setup import Cluster
from optdyn.training import program

WORKERS = 8
NETWORKS = {"10 Gb/s": 0.2, "1 Gb/s": 2.0, "0.1 Gb/s": 20.0}  # all-reduce over computing
MIDDLE = "1 Gb/s"  # where arms are tuned
LARGE = 4  # times the batch
TRIALS = 50  # of an arm, about


class Problem(NamedTuple):
    what: str
    config: Point
    losses: tuple[float, ...]  # training losses; the last is tuned for
    step: float  # of synchronous training, long-run, that searches start from; of Adam its rate
    seconds: float  # that a trial takes on one core, about, for the estimate


PROBLEMS: Mapping[str, Problem] = {
    "mlp": Problem(
        "an MLP 784-32-10 on 4,000 MNIST images, batch 64, SGD with momentum",
        {
            "batch_size": 64,
            "steps": 4000,
            "model.name": "mlp",
            "model.hidden": (32,),
            "data.train_examples": 4000,
            "data.train_evaluated": 1000,
        },
        losses=(0.5, 0.25, 0.1),
        step=1.0,
        seconds=1.0,
    ),
    "resnet": Problem(
        "a residual network of 8 and 16 channels on 4,000 MNIST images of 14 x 14, batch 32, SGD "
        "with momentum",
        {
            "batch_size": 32,
            "steps": 4000,
            "model.name": "resnet",
            "model.channels": (8, 16),
            "data.train_examples": 4000,
            "data.train_evaluated": 500,
            "data.image_size": 14,
        },
        losses=(0.8, 0.4, 0.2),
        step=0.5,
        seconds=8.0,
    ),
    "text": Problem(
        "a transformer of 2 blocks, 32 wide, on 4,000 sequences of 64 characters of the King James "
        "Bible, batch 16, Adam",
        {
            "batch_size": 16,
            "steps": 4000,
            "model.name": "transformer",
            "model.blocks": 2,
            "model.width": 32,
            "data.name": "kjv",
            "data.train_examples": 4000,
            "data.sequence_length": 64,
            "data.train_evaluated": 256,
            "data.test_evaluated": 64,
            "optimizer.name": "optdyn.configs.race:adam",
            "optimizer.momentum": 0.9,
        },
        losses=(2.5, 2.3, 2.1),
        step=0.004,
        seconds=8.0,
    ),
}


def of_method(name: str, **keys: Any) -> dict[str, Any]:
    """Keys of a config that name a method, and say its own."""
    return {"strategy.name": name, **{f"strategy.{key}": value for key, value in keys.items()}}


def _late(chain: str, **options: Any) -> Point:
    own = {f"optimizer.chain_options.{key}": value for key, value in options.items()}
    return of_method("asynchronous", groups=WORKERS) | {"optimizer.chain": (chain,)} | own


# H = 8 wherever there is a period: targets are some hundreds of updates away.
ARMS: Mapping[str, Point] = {
    "synchronous": of_method("sync"),
    "synchronous, large batch": of_method("sync"),
    "asynchronous": of_method("asynchronous", groups=WORKERS),
    "delay-compensated": _late("delay_compensation", adaptive=True, lam=2.0),
    "rate by staleness": _late("staleness_rate", law="power"),
    "K-batch-async, K = 4": of_method("buffered", groups=WORKERS, arrivals=4),
    "K-batch-sync, K = 4": of_method(
        "buffered", groups=WORKERS, arrivals=4, waiting="k_batch_sync"
    ),
    "local SGD": of_method("model_averaging"),
    "DiLoCo": of_method("diloco"),
    "SlowMo": of_method("slowmo"),
    "DASO": {
        **of_method("daso", warmup_epochs=0, cooldown_epochs=0, reset_batches=8, reset_wait=2),
        "cluster.nodes": WORKERS // 2,
        "cluster.devices_per_node": 2,
    },
    "elastic averaging": of_method("elastic", groups=WORKERS),
    "delayed Nesterov": of_method("async_local_sgd", groups=WORKERS),
    "AD-PSGD": of_method("ad_psgd", groups=WORKERS, graph="complete"),
    "gossip": of_method("gossip", graph="one_peer", gossip_order="adapt"),
    "PowerSGD": of_method("model_averaging", period=1, compression="powersgd"),
    "top-k": of_method("model_averaging", period=1, compression="top_k"),
}
SYNCHRONOUS = ("synchronous", "synchronous, large batch")
STALE = ("asynchronous", "buffered", "elastic", "async_local_sgd", "ad_psgd")
# Whose momentum is the outer one, what is inside is kept.
OUTSIDE = ("diloco", "async_local_sgd", "decoupled")
MEETING = ("model_averaging", "diloco", "slowmo", "daso", "gossip")  # nodes, whose mean counts


def adam(learning_rate: Any, momentum: Any) -> optax.GradientTransformation:
    """optax's Adam, its b1 a number of every update, as momentum is of SGD."""
    return optax.adam(learning_rate, b1=momentum)


def claim(number: int, problem: str) -> Claim:
    """What is asked of the race on a problem, and the rule, the same for all."""
    of = PROBLEMS[problem]
    return Claim(
        number=number,
        sentence=f"({problem}) On a slow network most other ways of parallelising take fewer "
        "seconds to a loss than tuned synchronous training, and on a fast one none does",
        source="here; every method's own paper says so of it",
        measured=f"simulated seconds and updates to training losses of "
        f"{', '.join(f'{loss:g}' for loss in of.losses)} of {of.what}; {len(ARMS)} arms, 8 workers "
        "of log-normal times (30 %), networks on which the all-reduce takes 0.2, 2 and 20 times "
        "the computing (10, 1, 0.1 Gb/s of a ResNet-50); gradients real, seconds simulated",
        opponent=f"synchronous training with one or {LARGE} times the batch, whichever takes fewer "
        "seconds on that network on the seeds that choose, its ring all-reduce behind the last two "
        "thirds of the computing; every arm has its own learning rate and momentum, tuned by one "
        "procedure until interior, by updates",
        rule="Of a cell, an arm on a network: faster or slower if the interval of its seconds to "
        "the last loss over the opponent's is below or above 1, no difference seen if it contains "
        "1, missed if more than half of its runs never get there. Confirmed if on the slowest "
        "network more than half of the arms are faster and on the fastest none is; refuted if on "
        "the slowest none is, or on the fastest more than half are; open otherwise",
    )


def config_of(problem: str, arm: str, network: str = MIDDLE) -> Experiment:
    cluster = Cluster(nodes=WORKERS, service="lognormal", variation=0.3, overlap=2 / 3)
    config = usual().with_(cluster=cluster).with_({**PROBLEMS[problem].config, **ARMS[arm]})
    values = {
        "cluster.seconds_per_example": WORKERS / config.batch_size,
        "cluster.bandwidth": bandwidth(config, NETWORKS[network]),
        "batch_size": config.batch_size * (LARGE if arm == SYNCHRONOUS[1] else 1),
        "probes.mean": config.strategy.name in MEETING,
    }
    return config.with_(values)


def parameters(config: Experiment) -> int:
    """Bytes of the parameters."""
    data = shared_data.load(config)
    one = {name: leaf[:1] for name, leaf in data.train.items()}
    return program.parameter_bytes(program.shapes(config, data.classes, jax.random.key(0), one))


def bandwidth(config: Experiment, ratio: float) -> float:
    """Bytes a second with which the ring all-reduce of 8 workers takes so many seconds."""
    return 2 * (1 - 1 / WORKERS) * parameters(config) / ratio


def arm_of(problem: str, name: str) -> Arm:
    """What is tuned of an arm."""
    return tuned_of(config_of(problem, name), PROBLEMS[problem].step)


def tuned_of(config: Experiment, step: float) -> Arm:
    """What is tuned of a method: its step, and the momentum that it is about.

    Steps are over 1 - mu of SGD and of an outer momentum, which may not be negative. That of Adam
    is its rate, as its step depends little on b1. The search starts from `step`, a fourth of it
    where gradients are late.
    """
    method, adaptive = config.strategy.name, config.optimizer.name != "sgd"
    stale = method in STALE
    start = {STEP: round(log2(step / 4 if stale else step))}
    if method in OUTSIDE:
        start[STEP] += round(-log2(1 - config.optimizer.momentum))  # of the inner optimizer
        ladders = {STEP: rates, OUTER: not_negative}
        return Arm(config, ladders, {**start, OUTER: rung(momenta, 0.6)})
    size = RATE if adaptive else STEP
    ladders = {size: rates, MOMENTUM: momenta}
    momentum = config.optimizer.momentum if adaptive else 0.0 if stale else 0.6
    return Arm(config, ladders, {size: start[STEP], MOMENTUM: rung(momenta, momentum)})


def race(problem: str) -> Race:
    arms = {name: arm_of(problem, name) for name in ARMS}
    config = arms[SYNCHRONOUS[0]].config
    networks = {name: bandwidth(config, ratio) for name, ratio in NETWORKS.items()}
    return Race(arms, PROBLEMS[problem].losses, networks, SYNCHRONOUS)


def estimate() -> str:
    """Minutes on two cores, in Markdown."""
    lines = ["| problem | trials, about | seconds a trial | minutes |", "|---|---|---|---|"]
    for name, problem in PROBLEMS.items():
        trials = TRIALS * len(ARMS)
        minutes = trials * problem.seconds / 2 / 60
        lines.append(f"| {name} | {trials} | {problem.seconds:g} | {minutes:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(estimate())
    else:
        claims = read_json(Path(sys.argv[1]) / "scoreboard.json")["claims"]
        for problem in PROBLEMS:
            if f"race_{problem}" in claims:
                print(f"## {problem}\n\n{table(claims[f'race_{problem}']['result'])}")
