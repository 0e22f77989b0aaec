"""Claim 39 with the share of a message chosen, too: SparseLoCo against top-k where links are slow.

Claim 39 gave both their usual share of the numbers, a hundredth, and SparseLoCo a period of 2 at
least, which is what it chose. Everything else is the contest's (`configs/contest.py`).
"""

from typing import Any

from optdyn.configs import contest
from optdyn.configs.slow_network import SLOW
from optdyn.evidence.arms import PERIOD
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.contest import Contest, Entry, picture
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.intervals import shown
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
ARM, OPPONENT = "SparseLoCo", "top-k"
SHARE, SHARES = "strategy.compression_share", (0.0025, 0.01, 0.04, 0.16, 0.64)
PERIODS = (1, *contest.PERIODS)
OLD = contest.claim(24, "mlp")

CLAIM = Claim(
    number=54,
    sentence="(mlp) Where the all-reduce takes twenty times the computing and messages have the "
    "share that is best, SparseLoCo takes fewer seconds to a loss than top-k with error feedback",
    source="claim 39, which had one share for all",
    measured=OLD.measured.replace("15 arms and 3 opponents", "2 arms").replace(
        "networks on which the all-reduce takes 0.2, 2, 6.7 and 20 times the computing (10, 1, "
        "0.3, 0.1 Gb/s of a ResNet-50)",
        "a network on which the all-reduce takes 20 times the computing (0.1 Gb/s of a ResNet-50)",
    ),
    opponent="top-k. Both choose their batch (powers of 2 from 8 to 2,048) and share "
    f"({', '.join(f'{share:g}' for share in SHARES)} of the numbers of 32 bits), and SparseLoCo "
    f"its period ({', '.join(map(str, PERIODS))}), by seconds on this network until no neighbour "
    "is better, diagonals among them; at each of these a step and a momentum (SparseLoCo's error "
    "decay) are tuned by updates",
    rule="Of SparseLoCo's median seconds to the last loss over top-k's, on the 20 seeds that "
    "report, with a 95 % interval that draws the 4 choosing seeds again, too: confirmed if the "
    "interval is below 1, refuted if it is above, open otherwise. It is decided with --scale=full",
)


def entry(name: str) -> Entry:
    """The contest's, which chooses its share besides, and a period from 1 on."""
    found = contest.entry("mlp", name)
    ladders, usual = {**found.ladders, SHARE: SHARES}, (*found.usual, SHARES.index(0.01))
    if PERIOD in ladders:
        ladders[PERIOD] = PERIODS
        usual = (usual[0], usual[1] + 1, usual[2])
    return found._replace(ladders=ladders, usual=usual)


def between() -> Contest:
    every = contest.contest("mlp", (ARM, OPPONENT))
    networks = {SLOW: every.networks[SLOW]}
    return Contest({OPPONENT: entry(OPPONENT)}, {ARM: entry(ARM)}, every.losses, networks, SLOW, 1)


def measure(study: Study) -> dict[str, Any]:
    return measured(study, between())


def verdict(result: dict[str, Any]) -> Verdict:
    (row,) = result["rows"]
    own = row["networks"][SLOW]
    found, n = own["over at best"], len(own["seconds"][str(result["losses"][-1])])
    said = f"{ARM} takes {shown(found)} of the seconds of {OPPONENT} (n = {n})"
    return Verdict(below(found, 1.0), said)
