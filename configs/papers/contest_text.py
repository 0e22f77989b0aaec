"""Claim 20 with opponents that choose their batch: does a slow network's best arm win on text?

The contest's procedure (`configs/contest.py`) on a smaller transformer than the race's, on the one
network where the race and the MLP's contest saw methods win, with the two arms that won there.
"""

from typing import Any

from optdyn.configs import contest, race
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.contest import Contest, Entry, fastest, gain, picture
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.intervals import shown
from optdyn.evidence.study import Study
from optdyn.grid import Point

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
SMALLER: Point = {"model.width": 16, "data.sequence_length": 32}
SLOW, LOSS = "0.1 Gb/s", 2.1
START = 128  # the batch that all but plain training start from, 8 times the usual one
SHARES = (0.01, 0.04, 0.16, 0.64)  # of top-k
ARMS, OPPONENTS = ("DiLoCo", "top-k"), (contest.PLAIN, contest.SNOO)

CLAIM = Claim(
    number=43,
    sentence="(text) Where the all-reduce takes twenty times the computing, the faster of DiLoCo "
    "and top-k takes fewer seconds to a loss than the best of synchronous training with its best "
    "batch and outer momentum",
    source="here; of claim 20, whose opponent had two batches to choose from",
    measured="simulated seconds, a last meeting of nodes included, to a training loss of 2.1 of a "
    "transformer of 2 blocks, 16 wide, on 4,000 sequences of 32 characters of the King James "
    "Bible, Adam; 8 workers of log-normal times (30 %), 0.1 Gb/s of a ResNet-50; gradients real, "
    "seconds simulated",
    opponent="the faster, on the seeds that choose, of synchronous training and of outer Nesterov "
    "momentum on one node (SNOO). All four choose their batch (powers of 2 from 8 to 2,048), SNOO "
    "and DiLoCo their period (2, 8, 32, 128), top-k its share (0.01, 0.04, 0.16, 0.64) by seconds "
    "on this network until no neighbour is better, diagonals among them, and at each of these "
    "their learning rate and b1 (SNOO and DiLoCo the outer momentum) by updates",
    rule="The arm is that of the less median seconds to the loss on the 4 seeds that choose. Of "
    "its median seconds over the opponent's, on the 20 seeds that report, with a 95 % interval "
    "that draws the choosing seeds again, too: confirmed if the interval is below 1, refuted if it "
    "is above, open otherwise. It is decided with --scale=full",
)


def entry(name: str) -> Entry:
    """The contest's of the smaller transformer; top-k has a share to choose besides."""
    found = contest.entry("text", name)
    config = found.arm.config.with_(SMALLER)
    bandwidth = race.bandwidth(config, contest.NETWORKS[contest.JUDGED])
    arm = found.arm._replace(config=config.with_({"cluster.bandwidth": bandwidth}))
    ladders, usual = {**found.ladders}, found.usual
    if name == "top-k":
        ladders["strategy.compression_share"] = SHARES
        usual = (*usual, 1)
    if name != contest.PLAIN:
        usual = (contest.BATCHES.index(START), *usual[1:])
    return found._replace(arm=arm, ladders=ladders, usual=usual)


def of() -> Contest:
    opponents = {name: entry(name) for name in OPPONENTS}
    config = opponents[contest.PLAIN].arm.config
    networks = {SLOW: race.bandwidth(config, contest.NETWORKS[SLOW])}
    entries = {name: entry(name) for name in ARMS}
    return Contest(opponents, entries, (LOSS,), networks, SLOW, len(ARMS))


def measure(study: Study) -> dict[str, Any]:
    return measured(study, of())


def verdict(result: dict[str, Any]) -> Verdict:
    best, (_, part) = fastest(result, SLOW), gain(result, SLOW)
    found, against = best["over at best"], result["opponents"][SLOW][best["shape"]]["best"]
    n = len(best["seconds"][str(LOSS)])
    said = f"{best['arm']} takes {shown(found)} of the seconds of {against}; of its gain over the "
    said += f"usual batch {shown(part)} is had by synchronous training with its best (n = {n})"
    return Verdict(below(found, 1.0), said)
