"""The contest's asynchronous SGD with the number of groups chosen, too: claim 24 gave it eight.

A group is 8 / g workers that share a batch and meet for it, as in Omnivore (arXiv 1606.04487): one
group is synchronous training. Each network chooses g and the batch, everything else is the
contest's (`configs/contest.py`), its opponents, networks and seeds included.
"""

from typing import Any

from optdyn.configs import contest
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.contest import Contest, Entry, counts, picture
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.intervals import shown
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
ARM, GROUPS = "asynchronous", (2, 4, 8)
OLD = contest.claim(24, "mlp")

CLAIM = Claim(
    number=58,
    sentence="(mlp) Where the all-reduce takes twice the computing, asynchronous SGD of the best "
    "number of groups takes fewer seconds to a loss than the best opponent",
    source="arXiv 1606.04487, whose optimizer chooses the number of groups; claim 24 had eight",
    measured=OLD.measured.replace("15 arms", "asynchronous SGD"),
    opponent="the best on a network of synchronous SGD, synchronous SGD with one backup worker, "
    "and outer Nesterov momentum on one node, with batch and period chosen there; their trials are "
    "those of claim 24. Asynchronous SGD chooses 2, 4 or 8 groups and the batch of a group (powers "
    "of 2 from 8 to 2,048) on each network by seconds until no neighbour is better, diagonals "
    "among them, and at each its step and momentum, below 0 too, by updates at 1 Gb/s",
    rule="Of its median seconds to the last loss over the best opponent's at 1 Gb/s, on the 20 "
    "seeds that report, with a 95 % interval that draws the 4 choosing seeds again, too: confirmed "
    "if the interval is below 1, refuted if it is above, open otherwise. It is decided with "
    "--scale=full. Words on the four networks are corrected by Holm over four",
)


def entry() -> Entry:
    found = contest.entry("mlp", ARM)
    ladders = {**found.ladders, "strategy.groups": GROUPS}
    return found._replace(ladders=ladders, usual=(*found.usual, GROUPS.index(2)))


def of_groups() -> Contest:
    every = contest.contest("mlp", ())
    return every._replace(entries={ARM: entry()}, family=len(every.networks))


def measure(study: Study) -> dict[str, Any]:
    return measured(study, of_groups())


def verdict(result: dict[str, Any]) -> Verdict:
    (row,) = result["rows"]
    told = list[str]()
    for network, own in row["networks"].items():
        groups, found = own["chosen"]["strategy.groups"], own["over at best"]
        told.append(f"{network}: {groups} groups take {shown(found)} of the best opponent's")
    judged = row["networks"][result["judged"]]
    found, n = judged["over at best"], len(judged["seconds"][str(result["losses"][-1])])
    said = "; ".join([*told, *counts(result)])
    return Verdict(below(found, 1.0), f"{said} (n = {n}, Holm over {result['family']})")
