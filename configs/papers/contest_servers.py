"""Servers of asynchronous DiLoCo on the slowest network: HeLoCo's and CGAD's against Nesterov's.

Claim 56 gave HeLoCo and CGAD 4,000 local steps of one worker, in which both missed the loss. Here
all three have 32,000, as many as 4,000 updates of eight workers, and each tunes two numbers at
every batch and period. They differ by the server alone (`async_local_sgd`, `cgad.py`, `heloco.py`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from optdyn.configs import contest, race
from optdyn.configs.contest import PERIODS
from optdyn.configs.papers.further_rules import SERVER
from optdyn.configs.slow_network import SLOW
from optdyn.evidence.arms import (
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
from optdyn.grid import Point

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
OPPONENT = "delayed Nesterov"
STEPS = 4000 * race.WORKERS  # local steps, of all workers
BATCHES = (8, 16, 32, 64, 128)  # of a local step
USUAL = (BATCHES.index(16), PERIODS.index(8))
OLD = contest.claim(24, "mlp")


class OfServer(NamedTuple):
    """Keys of a server, what of it is tuned, and where that starts."""

    keys: Point
    ladders: Mapping[str, Ladder]
    start: Mapping[str, int]


SERVERS: Mapping[str, OfServer] = {
    OPPONENT: OfServer(
        {}, {STEP: rates, OUTER: not_negative}, {STEP: 0, OUTER: rung(momenta, 0.6)}
    ),
    "HeLoCo": OfServer(
        # An exchange counts an eighth, as delayed Nesterov's does. Its momentum is a mean, which
        # makes no step longer.
        {"strategy.server": "heloco", SERVER: 0.7 / race.WORKERS},
        {RATE: rates, OUTER: not_negative},
        {RATE: -3, OUTER: rung(momenta, 0.6)},
    ),
    "CGAD": OfServer(
        {
            "strategy.server": "adam",
            "strategy.age_decay": 0.1,
            "strategy.age_cutoff": 16.0,
            OUTER: 0.9,
        },
        {RATE: rates, SERVER: rates},
        {RATE: -4, SERVER: -8},
    ),
}

CLAIM = Claim(
    number=67,
    sentence="(mlp) Where the all-reduce takes twenty times the computing, the better of HeLoCo's "
    "and CGAD's servers takes fewer seconds to a loss than delayed Nesterov momentum",
    source="arXiv 2606.00271 and 2605.09126, each of its own server; claim 56, in which they had "
    "an eighth of the local steps",
    measured=OLD.measured.replace("15 arms and 3 opponents", "3 servers").replace(
        "networks on which the all-reduce takes 0.2, 2, 6.7 and 20 times the computing (10, 1, "
        "0.3, 0.1 Gb/s of a ResNet-50)",
        "a network on which the all-reduce takes 20 times the computing (0.1 Gb/s of a ResNet-50)",
    ),
    opponent="asynchronous local SGD with delayed Nesterov momentum. All three choose the batch of "
    "a local step (8 to 128, powers of 2) and its period (2, 8, 32, 128) by seconds on this "
    "network until no neighbour is better, diagonals among them, and at each of these two numbers "
    "by updates: the inner rate, and the outer momentum or, of CGAD, the server's rate. All have "
    "32,000 local steps. Fixed are CGAD's first decay (0.9) and age keys (0.1 and 16), HeLoCo's "
    "angle and strength (0.5 and 0.5), and the outer rate of both others, 0.7 over 8 workers",
    rule="The server is that of the least median seconds to the last loss on the 4 seeds that "
    "choose. Of its median seconds over delayed Nesterov's, on the 20 seeds that report, with a "
    "95 % interval that draws the choosing seeds again, too: confirmed if the interval is below 1, "
    "refuted if it is above, open otherwise. It is decided with --scale=full. Words of the two are "
    "corrected by Holm over two",
)


def entry(name: str) -> Entry:
    of = SERVERS[name]
    keys = {**race.of_method("async_local_sgd", groups=race.WORKERS), **of.keys, "steps": STEPS}
    bandwidth = contest.contest("mlp", ()).networks[SLOW]  # what is tuned arrives as it will count
    config = race.config_of("mlp", contest.PLAIN).with_(keys, **{"cluster.bandwidth": bandwidth})
    choices = {"batch_size": BATCHES, PERIOD: PERIODS}
    return Entry(Arm(config, of.ladders, of.start), choices, USUAL)


def of_servers() -> Contest:
    every = contest.contest("mlp", ())
    return Contest(
        {OPPONENT: entry(OPPONENT)},
        {name: entry(name) for name in SERVERS if name != OPPONENT},
        every.losses,
        {SLOW: every.networks[SLOW]},
        SLOW,
        len(SERVERS) - 1,
    )


def measure(study: Study) -> dict[str, Any]:
    return measured(study, of_servers())


def verdict(result: dict[str, Any]) -> Verdict:
    best = fastest(result, SLOW)
    found, n = best["over at best"], len(best["seconds"][str(result["losses"][-1])])
    told = [f"{best['arm']} takes {shown(found)} of the seconds of {OPPONENT}"]
    others = [row["networks"][SLOW] for row in result["rows"]]
    told += [
        f"{own['arm']} {shown(own['over at best'])}" for own in others if own["arm"] != best["arm"]
    ]
    said = "; ".join([*told, *counts(result)])
    return Verdict(below(found, 1.0), f"{said} (n = {n}, Holm over {result['family']})")
