"""The contest's slowest network, or another, with a smaller network than the race's to train.

On slow ones the race and the MLP's contest saw methods win. The two arms that won meet the two
opponents that did best, and each has what the contest lets a network choose; top-k chooses its
share besides. The procedure is the contest's (`configs/contest.py`).
"""

from typing import Any, NamedTuple

from optdyn.configs import contest, race
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.contest import Contest, Entry, fastest, gain
from optdyn.evidence.intervals import shown
from optdyn.grid import Point

SLOW = "0.1 Gb/s"
START = 128  # the batch that all but plain training start from
ARMS, OPPONENTS = ("DiLoCo", "top-k"), (contest.PLAIN, contest.SNOO)


class Smaller(NamedTuple):
    problem: str  # the race's
    keys: Point  # what makes it smaller
    losses: tuple[float, ...]  # training losses; the last is tuned for
    shares: tuple[float, ...]  # of top-k; the second is the usual one


TEXT = Smaller(
    "text", {"model.width": 16, "data.sequence_length": 32}, (2.1,), (0.01, 0.04, 0.16, 0.64)
)
RESNET = Smaller(
    "resnet", {"model.channels": (4, 8)}, (0.8, 0.4, 0.2), (0.0025, 0.01, 0.04, 0.16, 0.64)
)


def claim(number: int, of: Smaller, source: str, what: str, tuned: str) -> Claim:
    """What is asked of a smaller network, and the rule, the same for all."""
    shares = ", ".join(f"{share:g}" for share in of.shares)
    return Claim(
        number=number,
        sentence=f"({of.problem}) Where the all-reduce takes twenty times the computing, the "
        "faster of DiLoCo and top-k takes fewer seconds to a loss than the best of synchronous "
        "training with its best batch and outer momentum",
        source=f"here; {source}",
        measured=f"simulated seconds, a last meeting of nodes included, to a training loss of "
        f"{of.losses[-1]:g} of {what}; 8 workers of log-normal times (30 %), 0.1 Gb/s of a "
        "ResNet-50; gradients real, seconds simulated",
        opponent="the faster, on the seeds that choose, of synchronous training and of outer "
        "Nesterov momentum on one node (SNOO). All four choose their batch (powers of 2 from 8 to "
        f"2,048), SNOO and DiLoCo their period (2, 8, 32, 128), top-k its share ({shares}) by "
        "seconds on this network until no neighbour is better, diagonals among them, and at each "
        f"of these their learning rate and {tuned} (SNOO and DiLoCo the outer momentum) by updates",
        rule="The arm is that of the less median seconds to the loss on the 4 seeds that choose. "
        "Of its median seconds over the opponent's, on the 20 seeds that report, with a 95 % "
        "interval that draws the choosing seeds again, too: confirmed if the interval is below 1, "
        "refuted if it is above, open otherwise. It is decided with --scale=full",
    )


def entry(of: Smaller, name: str) -> Entry:
    """The contest's of the smaller network; top-k has a share to choose besides."""
    found = contest.entry(of.problem, name)
    config = found.arm.config.with_(of.keys)
    bandwidth = race.bandwidth(config, contest.NETWORKS[contest.JUDGED])
    arm = found.arm._replace(config=config.with_({"cluster.bandwidth": bandwidth}))
    ladders, usual = {**found.ladders}, found.usual
    if name == "top-k":
        ladders["strategy.compression_share"] = of.shares
        usual = (*usual, 1)
    if name != contest.PLAIN:
        usual = (contest.BATCHES.index(START), *usual[1:])
    return found._replace(arm=arm, ladders=ladders, usual=usual)


def of_smaller(of: Smaller, network: str = SLOW) -> Contest:
    opponents = {name: entry(of, name) for name in OPPONENTS}
    config = opponents[contest.PLAIN].arm.config
    networks = {network: race.bandwidth(config, contest.NETWORKS[network])}
    entries = {name: entry(of, name) for name in ARMS}
    return Contest(opponents, entries, of.losses, networks, network, len(ARMS))


def verdict(result: dict[str, Any]) -> Verdict:
    network = result["judged"]
    best, (_, part) = fastest(result, network), gain(result, network)
    found, against = best["over at best"], result["opponents"][network][best["shape"]]["best"]
    n = len(best["seconds"][str(result["losses"][-1])])
    said = f"{best['arm']} takes {shown(found)} of the seconds of {against}; of its gain over the "
    said += f"usual batch {shown(part)} is had by synchronous training with its best (n = {n})"
    return Verdict(below(found, 1.0), said)
