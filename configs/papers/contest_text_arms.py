"""Claim 43's text at 1 Gb/s, with the contest's arms of which a network chooses the batch alone.

There top-k wins on text (claim 61), while on an MLP no arm does. The opponents are claim 43's, on
its seeds, so that their trials are found again (`configs/slow_network.py`). K-batch-sync,
K-batch-async and the two other forms of asynchronous SGD, which were slower on every network of the
MLP, are left out.
"""

from typing import Any

from optdyn.configs import contest, slow_network
from optdyn.configs.contest import BATCHES
from optdyn.configs.slow_network import TEXT
from optdyn.evidence.claim import Claim, Verdict
from optdyn.evidence.contest import Contest, Entry, picture, words
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.intervals import shown
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
NETWORK = contest.JUDGED
ARMS = ("asynchronous", "gossip", "PowerSGD", "AD-PSGD")
START = 16  # the batch of this transformer's usual opponent

CLAIM = Claim(
    number=65,
    sentence="(text) Where the all-reduce takes twice the computing, the fastest of asynchronous "
    "SGD, gossip, PowerSGD and AD-PSGD takes fewer seconds to a loss than the best of synchronous "
    "training with its best batch and outer momentum",
    source="here; claim 61 had DiLoCo and top-k, which take 0.93 and 0.63 of its seconds",
    measured="simulated seconds, a last meeting of nodes included, to a training loss of "
    f"{TEXT.losses[-1]:g} of a transformer of 2 blocks, 16 wide, on 4,000 sequences of 32 "
    "characters of the King James Bible, Adam; 8 workers of log-normal times (30 %), 1 Gb/s of a "
    "ResNet-50; gradients real, seconds simulated",
    opponent="the faster, on the seeds that choose, of synchronous training and of outer Nesterov "
    "momentum on one node (SNOO), whose trials are those of claim 61. All choose their batch "
    "(powers of 2 from 8 to 2,048) and SNOO its period (2, 8, 32, 128) by seconds on this network "
    "until no neighbour is better, diagonals among them, and at each of these their learning rate "
    "and b1, below 0 too (SNOO the outer momentum), by updates",
    rule="The arm is that of the less median seconds to the loss on the 4 seeds that choose. Of "
    "its median seconds over the opponent's, on the 20 seeds that report, with a 95 % interval "
    "that draws the choosing seeds again, too: confirmed if the interval is below 1, refuted if it "
    "is above, open otherwise. It is decided with --scale=full. Words of the four arms are "
    "corrected by Holm over four",
)


def entry(name: str) -> Entry:
    found = slow_network.entry(TEXT, name)
    return found._replace(usual=(BATCHES.index(START),))


def of_arms() -> Contest:
    made = slow_network.of_smaller(TEXT, NETWORK)
    return made._replace(entries={name: entry(name) for name in ARMS}, family=len(ARMS))


def measure(study: Study) -> dict[str, Any]:
    return measured(study, of_arms())


def verdict(result: dict[str, Any]) -> Verdict:
    judged, said = slow_network.verdict(result), words(result)[NETWORK]
    told = list[str]()
    for row in result["rows"]:
        own, (word, _) = row["networks"][NETWORK], said[row["arm"]]
        batch, over = own["chosen"]["batch_size"], shown(own["over at best"])
        told.append(f"{row['arm']} (batch {batch}) {over}, {word}")
    return Verdict(judged.word, f"{judged.by}; over it {'; '.join(told)}")
