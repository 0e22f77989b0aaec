"""The contest: what runs in it. The race's arms (`configs/race.py`), each with its best batch.

A network chooses the batch of every arm and, of methods that exchange now and then, the period. The
opponents are three, and the best of them on a network is everybody's opponent there:

    synchronous             SGD with momentum
    one backup worker       updates of the 7 fastest of 8, `buffered` with `k_sync` (1602.06709)
    outer momentum          SNOO (2510.15830), which is `diloco` on one node: an outer Nesterov step
                            of what H synchronous updates did, which costs no message

Beside the race's arms there are rules of 2024 to 2026 (`RULES`), in a contest of their own with the
same opponents, networks and seeds.

`python -m configs.contest WORKDIR` prints the tables of a workdir that `optdyn papers --scale=full
--only=contest_mlp` has finished, `--claim=contest_rules` those of the rules. With `--arms=N
--seed=SEED` it prints those of the first N arms of one that is not, and runs what they lack.
`--trials=FILE` begins with the trials of another machine, such as those that were run so far:
`tests/benchmarks/records/contest.parquet`.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from optdyn.basics.files import WorkdirError, read_json, write_json
from optdyn.configs import race
from optdyn.evidence import raw
from optdyn.evidence.arms import (
    MOMENTUM,
    PERIOD,
    RATE,
    STEP,
    Arm,
    momenta,
    not_negative,
    rates,
    rung,
)
from optdyn.evidence.claim import Claim
from optdyn.evidence.contest import Contest, Entry, Place, measure, table, timed
from optdyn.evidence.study import Study
from optdyn.evidence.trial import to_loss
from optdyn.experiment import Experiment
from optdyn.grid import Point
from optdyn.launch import papers

NETWORKS = {"10 Gb/s": 0.2, "1 Gb/s": 2.0, "0.3 Gb/s": 20 / 3, "0.1 Gb/s": 20.0}
JUDGED = race.MIDDLE  # where arms are tuned, too
BATCHES: Sequence[int] = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
PERIODS, MOSTS = (2, 8, 32, 128), (1, 4, 16, 64)  # H, and DASO's B
SEEDS = {"small": (2, 5), "full": (4, 20)}  # that choose and that report
FAST = race.WORKERS - 1  # workers that an update waits for, where one is a backup
PLAIN, BACKUP, SNOO = "synchronous", "one backup worker", "outer momentum"
DECOUPLED = "decoupled DiLoCo"
MEAN: Point = {"probes.mean": True}  # the loss of the nodes' mean is what counts
OPPONENTS: Mapping[str, Point] = {
    PLAIN: race.ARMS["synchronous"],
    BACKUP: {
        "strategy.name": "buffered",
        "strategy.groups": race.WORKERS,
        "strategy.arrivals": FAST,
        "strategy.waiting": "k_sync",
    },
    SNOO: {"strategy.name": "diloco", "cluster.nodes": 1, **MEAN},
}
OTHERS = (  # all of the race; first those of which a network chooses nothing but the batch
    "gossip",
    "K-batch-sync, K = 4",
    "top-k",
    "AD-PSGD",
    "K-batch-async, K = 4",
    "asynchronous",
    "delay-compensated",
    "rate by staleness",
    "PowerSGD",
    "local SGD",
    "DiLoCo",
    "SlowMo",
    "DASO",
    "elastic averaging",
    "delayed Nesterov",
)
RULES: Mapping[str, Point] = {  # of 2024 to 2026; first those whose updates take the least
    "NoLoCo": {
        "strategy.name": "slowmo+gossip",
        "strategy.graph": "random",
        "strategy.slow_learning_rate": 0.7,
        **MEAN,
    },
    DECOUPLED: {
        "strategy.name": "decoupled",
        "strategy.groups": race.WORKERS,
        "strategy.quorum": race.WORKERS // 2,
        "cluster.overlap": 0.0,  # its messages are behind the computing as it is
    },
    "SparseLoCo": {"strategy.name": "sparseloco", MOMENTUM: 0.9, **MEAN},
    "DeMo": {"strategy.name": "demo", MOMENTUM: 0.0},
    "SPARTA": {"strategy.name": "sparta", **MEAN},
    "CHOCO-SGD": {
        **race.ARMS["gossip"],
        "strategy.graph": "exponential",
        "strategy.compression": "top_k",
        "strategy.compression_share": 0.1,
        **MEAN,
    },
}
# What rules are tuned by that have a momentum or decay of their own, and where the search starts.
START: Mapping[str, Mapping[str, int]] = {
    "DeMo": {RATE: -9, "strategy.momentum_decay": rung(momenta, 0.9)},  # steps are of a sign
    "NoLoCo": {STEP: -2, "strategy.slow_momentum": rung(momenta, 0.6)},
    "SparseLoCo": {STEP: 0, "strategy.error_decay": rung(momenta, 0.9)},
}
PERIODIC = (
    SNOO,
    "local SGD",
    "DiLoCo",
    "SlowMo",
    "elastic averaging",
    "delayed Nesterov",
    "NoLoCo",
    "SparseLoCo",
    DECOUPLED,
)
# What a network chooses of an arm besides the batch, and the rung of the usual one.
CHOSEN: Mapping[str, tuple[str, Sequence[float], int]] = {
    **{name: (PERIOD, PERIODS, 1) for name in PERIODIC},
    "DASO": ("strategy.max_batches", MOSTS, 1),
    "SPARTA": ("strategy.averaged_share", (0.01, 0.04, 0.16, 0.64), 1),
    "CHOCO-SGD": ("strategy.consensus_rate", (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2), 3),
}
CLAIMS: Mapping[str, Sequence[str]] = {"contest_mlp": OTHERS, "contest_rules": tuple(RULES)}


def claim(number: int, problem: str) -> Claim:
    """What is asked of the contest on a problem, and the rule, the same for all."""
    of = race.PROBLEMS[problem]
    return Claim(
        number=number,
        sentence=f"({problem}) Where the all-reduce takes twice the computing, at least half of "
        "the speed-up that the best other way of parallelising has over synchronous SGD of the "
        "usual batch is had by synchronous SGD with its best batch",
        source="here; the race's opponent (claims 18 to 20) had two batches to choose from",
        measured=f"simulated seconds, a last meeting of nodes included, to training losses of "
        f"{', '.join(f'{loss:g}' for loss in of.losses)} of {of.what}; {len(OTHERS)} arms and 3 "
        "opponents, 8 workers of log-normal times (30 %), networks on which the all-reduce takes "
        "0.2, 2, 6.7 and 20 times the computing (10, 1, 0.3, 0.1 Gb/s of a ResNet-50); gradients "
        "real, seconds simulated",
        opponent="of a word, the best on that network of synchronous SGD, synchronous SGD with one "
        "backup worker of 8, and outer Nesterov momentum on one node (SNOO), by seconds of the "
        "seeds that choose; of the share, synchronous SGD. Every arm has its own batch (powers of "
        "2 from 8 to 2,048) and period (2, 8, 32, 128; DASO's B 1, 4, 16, 64), chosen by seconds "
        "on that network until no neighbour is better, diagonals among them; and at each batch "
        "and period its own learning rate and momentum (of DiLoCo, SNOO and delayed Nesterov the "
        "outer one), tuned by updates on the 1 Gb/s network by one procedure until interior. All "
        "other numbers are usual",
        rule="The best arm is that of the least median seconds to the last loss on the seeds that "
        "choose, where the all-reduce takes twice the computing (1 Gb/s; arms of 8 nodes of one "
        "device). The share is log(usual / best batch) / log(usual / best arm), of medians of the "
        "seeds that report, with a 95 % interval from seeds drawn in pairs. Confirmed if the "
        "interval is above 0.5, refuted if it is below, open otherwise. It is decided with "
        "--scale=full: 4 seeds choose, 20 report. A word of an arm on a network is faster or "
        "slower if the p-value of its ratio to the best opponent, corrected by Holm over all arms "
        "on all networks, is below 0.05",
    )


def config_of(problem: str, name: str) -> Experiment:
    """An arm at the usual batch and period, on the network where arms are tuned."""
    if name in race.ARMS and name not in OPPONENTS:
        return race.config_of(problem, name)
    config = race.config_of(problem, PLAIN).with_({**OPPONENTS, **RULES}[name])
    config = config.with_(batch_size=_of_its_update(name, config.batch_size))
    return config.with_(steps=config.steps * (race.WORKERS if name == DECOUPLED else 1))


def entry(problem: str, name: str) -> Entry:
    """What is tuned of an arm, and what a network chooses."""
    config = config_of(problem, name)
    batches = [_of_its_update(name, batch) for batch in BATCHES]
    choices: dict[str, Sequence[float]] = {"batch_size": batches}
    usual = [batches.index(config.batch_size)]
    if name in CHOSEN:
        key, steps, at = CHOSEN[name]
        choices[key] = steps
        usual.append(at)
    if name in START:
        size, own = START[name]
        arm = Arm(config, {size: rates, own: not_negative}, START[name])
    else:
        arm = race.tuned_of(config, race.PROBLEMS[problem].step)
    return Entry(arm, choices, tuple(usual), plain=name in (PLAIN, SNOO))


def contest(problem: str, of: Sequence[str] = OTHERS, first: int | None = None) -> Contest:
    """The contest of these arms, or of the first of them what is finished of it."""
    middle = race.config_of(problem, PLAIN)
    networks = {name: race.bandwidth(middle, ratio) for name, ratio in NETWORKS.items()}
    return Contest(
        {name: entry(problem, name) for name in OPPONENTS},
        {name: entry(problem, name) for name in of[:first]},
        race.PROBLEMS[problem].losses,
        networks,
        JUDGED,
        len(of) * len(networks),
    )


def _of_its_update(name: str, batch: int) -> int:
    """The examples of an arm's update where a worker's part is that of this batch for all."""
    if name == BACKUP:  # an update of the fast alone
        return batch // race.WORKERS * FAST
    return batch // race.WORKERS if name == DECOUPLED else batch  # a local step of one node


class Chose(NamedTuple):
    """A setting that a contest has chosen, to be run again on other seeds."""

    entry: str
    chosen: Point  # by the network: batch, period
    tuned: Point  # for these


def taken(
    study: Study, of: Contest, settings: Mapping[str, Chose], place: Place
) -> dict[str, list[float]]:
    """Seconds to the last loss of settings in a place, by name, of every seed that reports."""
    entries, times = {**of.opponents, **of.entries}, dict[str, list[float]]()
    loss = of.losses[-1]
    for name, (entry, chosen, tuned) in settings.items():
        setting = {**chosen, **tuned}
        curves = timed(study, entries[entry], setting, place, loss, study.report)
        times[name] = [to_loss(curve, loss, "met") for curve in curves]
    return times


def arrived(taken: Mapping[str, Sequence[float]], loss: float, figure: Figure) -> None:
    """A picture of such seconds: what share of the runs has got to the loss."""
    axes = figure.subplots()
    for name, times in taken.items():
        axes.ecdf(times, label=name)
    axes.set_xlabel(f"simulated seconds to a training loss of {loss:g}")
    axes.set_ylabel("share of the runs")
    axes.legend()


def taken_of_mlp(
    study: Study, settings: Mapping[str, Chose], network: str
) -> dict[str, list[float]]:
    """The same of the MLP's contest, on one of its networks."""
    of = contest("mlp", (*OTHERS, *RULES))
    return taken(study, of, settings, Place(of.networks[network], race.WORKERS, 1))


def finished(workdir: Path, seed: int, claim: str, first: int) -> dict[str, Any]:
    """The result of the first arms of an MLP's contest, of trials that the workdir has."""
    with papers.study_of(workdir, "full", seed, claim) as study:
        return measure(study, contest("mlp", CLAIMS[claim], first))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--claim", choices=CLAIMS, default="contest_mlp", help="whose arms")
    parser.add_argument("--seed", type=int, help="of the run that is not finished")
    parser.add_argument("--arms", type=int, help="how many are told of one that is not finished")
    parser.add_argument("--trials", type=Path, help="raw results that the workdir is to have")
    given = parser.parse_args(arguments)
    if given.trials:
        try:
            raw.unpack(given.trials, given.workdir)
        except WorkdirError as error:
            parser.error(str(error))
    every = CLAIMS[given.claim]
    if given.arms:
        if given.seed is None or not 1 <= given.arms <= len(every):
            parser.error(f"--arms={given.arms}: needs --seed, and is 1 to {len(every)}")
        result = finished(given.workdir, given.seed, given.claim, given.arms)
        write_json(given.workdir / "arms.json", result)
    else:
        claims = read_json(given.workdir / "scoreboard.json").get("claims", {})
        if given.claim not in claims:
            parser.error(f"{given.workdir}: no {given.claim} has ended; --arms=N --seed=SEED")
        result = claims[given.claim]["result"]
    print(table(result))


if __name__ == "__main__":
    main()
