"""Eight further rules on the contest's slowest network, against top-k with its best share.

Claim 39 asked this of six rules and of top-k with its usual share, claim 54 found that a smaller
share is better. Everything that is not said here is the contest's (`configs/contest.py`).

    DES-LOC                  moments are averaged less often than parameters (2505.22549)
    eager updates            a node's own part at once, the others' a meeting later (2502.12996)
    late merges that correct the mean of what was sent, and what was done since (2605.20866)
    DiLoCo, 4 bits           outer gradients in E3M0 (2501.18512)
    top-k, 4 bits            the numbers that are sent in E3M0, as SparseLoCo may (2508.15706)
    HeLoCo                   late messages are turned toward the momentum (2606.00271)
    CGAD                     Adam on the server, of messages weighed by age (2605.09126)
    FADAS                    AMSGrad of four late gradients, its rate by staleness (2407.18365)
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from optdyn.configs import contest, race
from optdyn.configs.contest import BATCHES, MEAN
from optdyn.configs.papers import sparse_shares
from optdyn.configs.slow_network import SLOW
from optdyn.evidence.arms import (
    MOMENTUM,
    OUTER,
    PERIOD,
    RATE,
    STEP,
    Arm,
    Ladder,
    momenta,
    not_negative,
    rates,
    rung,
)
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.contest import Contest, Entry, counts, fastest, picture
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.intervals import shown
from optdyn.evidence.study import Study
from optdyn.experiment import Experiment
from optdyn.grid import Point

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
OPPONENT = "top-k"
SHARE, SHARES = sparse_shares.SHARE, (0.00015625, 0.000625, 0.0025, 0.01, 0.04)
BEST = {"batch_size": 128, SHARE: 0.0025}  # about what claim 54 chose
MEETINGS = (8, 32, 128, 512)  # H
SERVER = "strategy.outer_learning_rate"  # of the server's Adam
OLD = contest.claim(24, "mlp")


class Rule(NamedTuple):
    """A rule, what a network chooses of it besides the batch, and where its tuning starts."""

    config: Point
    chosen: Mapping[str, Sequence[float]]
    usual: Point  # of what is chosen, where the search starts
    ladders: Mapping[str, Ladder]
    start: Mapping[str, int]


def _met(name: str, **keys: Any) -> Rule:
    """Of nodes that meet every H updates, SGD with momentum inside."""
    return Rule(
        {**race.of_method(name, **keys), **MEAN},
        {PERIOD: MEETINGS},
        {"batch_size": 16, PERIOD: 128},
        {STEP: rates, MOMENTUM: momenta},
        {STEP: -3, MOMENTUM: rung(momenta, 0.9)},
    )


def _outer(name: str, **keys: Any) -> Rule:
    """The same with SGD inside and momentum outside."""
    tuned = {STEP: rates, OUTER: not_negative}
    return _met(name, **keys)._replace(ladders=tuned, start={STEP: -1, OUTER: rung(momenta, 0.8)})


def _and(rule: Rule, keys: Point) -> Rule:
    return rule._replace(config={**rule.config, **keys})


SERVERS = {"batch_size": 16, PERIOD: 32}
AMSGRAD: Point = {
    "optimizer.name": "amsgrad",
    "optimizer.momentum": 0.0,
    "optimizer.chain": ("staleness_rate",),
    "optimizer.chain_options.law": "bounded",
}
RULES: Mapping[str, Rule] = {
    "DES-LOC": _met("des_loc"),
    "eager updates": _outer("eager"),
    "late merges that correct": _met("model_averaging", merging="correct", period=128)._replace(
        chosen={"strategy.delay": (7, 15, 31, 63, 127)},
        usual={"batch_size": 16, "strategy.delay": 31},
    ),
    "DiLoCo, 4 bits": _outer("diloco", compression_bits=4),
    "top-k, 4 bits": Rule(
        {**race.ARMS["top-k"], "strategy.compression_bits": 4, **MEAN},
        {SHARE: SHARES},
        BEST,
        {STEP: rates, MOMENTUM: momenta},
        {STEP: 1, MOMENTUM: rung(momenta, 0.3)},
    ),
    "HeLoCo": _and(
        _outer("async_local_sgd", groups=race.WORKERS, server="heloco"), {"probes.mean": False}
    )._replace(usual=SERVERS, start={STEP: -3, OUTER: rung(momenta, 0.6)}),
    "CGAD": _and(
        _outer(
            "async_local_sgd", groups=race.WORKERS, server="adam", age_decay=0.1, age_cutoff=16.0
        ),
        {"probes.mean": False},
    )._replace(
        usual=SERVERS,
        ladders={SERVER: rates, OUTER: not_negative},
        start={SERVER: -9, OUTER: rung(momenta, 0.8)},
    ),
    "FADAS": Rule(
        {**race.of_method("buffered", groups=race.WORKERS, arrivals=4), **AMSGRAD},
        {},
        {"batch_size": 128},
        {RATE: rates},
        {RATE: -8},
    ),
}

CLAIM = Claim(
    number=56,
    sentence="(mlp) Where the all-reduce takes twenty times the computing, the best of eight "
    "further rules takes fewer seconds to a loss than top-k with error feedback",
    source="the papers beside the rules, in this file",
    measured=OLD.measured.replace("15 arms and 3 opponents", "8 rules and top-k").replace(
        "networks on which the all-reduce takes 0.2, 2, 6.7 and 20 times the computing (10, 1, "
        "0.3, 0.1 Gb/s of a ResNet-50)",
        "a network on which the all-reduce takes 20 times the computing (0.1 Gb/s of a ResNet-50)",
    ),
    opponent="top-k with numbers of 32 bits, the fastest arm of claims 24, 39 and 54 there. All "
    "choose their batch (powers of 2 from 8 to 2,048) and what is named in this file (periods, "
    "delays of merges after 128 updates, shares of the numbers) by seconds on this network until "
    "no neighbour is better, diagonals among them. At each of these a step and a momentum (of "
    "nodes with SGD inside, and of HeLoCo, the outer one; of CGAD the server's rate and first "
    "decay; of FADAS the rate) are tuned by updates, on this network. All other numbers are usual",
    rule="The rule is that of the least median seconds to the last loss on the seeds that choose. "
    "Of its median seconds over top-k's, on the 20 seeds that report, with a 95 % interval that "
    "draws the 4 choosing seeds again, too: confirmed if the interval is below 1, refuted if it is "
    "above, open otherwise. It is decided with --scale=full. Words of single rules are corrected "
    "by Holm over eight",
)


def entry(name: str) -> Entry:
    """What is tuned of a rule, what the network chooses, and where both begin."""
    rule = RULES[name]
    config = _there(race.config_of("mlp", contest.PLAIN).with_(rule.config))
    ladders = {"batch_size": BATCHES, **rule.chosen}
    usual = tuple(steps.index(rule.usual[key]) for key, steps in ladders.items())
    return Entry(Arm(config, rule.ladders, rule.start), ladders, usual)


def opponent() -> Entry:
    """Top-k of claim 54, with smaller shares to choose from."""
    found = sparse_shares.entry(OPPONENT)
    arm = found.arm._replace(config=_there(found.arm.config))
    ladders = {**found.ladders, SHARE: SHARES}
    usual = BATCHES.index(32), SHARES.index(0.0025)
    return found._replace(arm=arm, ladders=ladders, usual=usual)


def _there(config: Experiment) -> Experiment:
    """On the slowest network, where there is only one: what is tuned arrives as it will count."""
    middle = race.config_of("mlp", contest.PLAIN)
    return config.with_({"cluster.bandwidth": race.bandwidth(middle, contest.NETWORKS[SLOW])})


def of_rules() -> Contest:
    every = contest.contest("mlp", ())
    return Contest(
        {OPPONENT: opponent()},
        {name: entry(name) for name in RULES},
        every.losses,
        {SLOW: every.networks[SLOW]},
        SLOW,
        len(RULES),
    )


def measure(study: Study) -> dict[str, Any]:
    return measured(study, of_rules())


def verdict(result: dict[str, Any]) -> Verdict:
    best = fastest(result, SLOW)
    found, n = best["over at best"], len(best["seconds"][str(result["losses"][-1])])
    told = f"{best['arm']} takes {shown(found)} of the seconds of {OPPONENT}"
    said = "; ".join([told, *counts(result)])
    return Verdict(below(found, 1.0), f"{said} (n = {n}, Holm over {result['family']})")
