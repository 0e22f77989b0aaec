"""Claim 20 at 1 Gb/s, its opponents' batch chosen: the methods with a parameter server.

Asynchronous SGD was there in claim 65. Delayed Nesterov momentum is left out: its local steps, of
one worker at a time, would take hours.
"""

from typing import Any

from optdyn.configs import contest, slow_network
from optdyn.configs.papers import contest_text_arms
from optdyn.configs.papers.contest_text_arms import verdict
from optdyn.configs.slow_network import TEXT
from optdyn.evidence.contest import Contest, Entry, picture
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
NETWORK = contest.JUDGED
ARMS = (
    "K-batch-sync, K = 4",
    "K-batch-async, K = 4",
    "delay-compensated",
    "rate by staleness",
    "elastic averaging",
)
OLD = contest_text_arms.CLAIM
CLAIM = OLD._replace(
    number=70,
    sentence="(text) Where the all-reduce takes twice the computing, the fastest of five methods "
    "with a parameter server takes fewer seconds to a loss than the best of synchronous training "
    "with its best batch and outer momentum",
    source="here; claim 65 had asynchronous SGD, which takes 2.07 of its seconds",
    opponent=OLD.opponent.replace(
        "SNOO its period (2, 8, 32, 128)", "SNOO and elastic averaging their period (2, 8, 32, 128)"
    ),
    rule=OLD.rule.replace("over four", f"over {len(ARMS)}").replace("four arms", "arms"),
)


def entry(name: str) -> Entry:
    found = slow_network.entry(TEXT, name)
    return found._replace(usual=(*contest_text_arms.entry(name).usual, *found.usual[1:]))


def of_arms() -> Contest:
    made = slow_network.of_smaller(TEXT, NETWORK)
    return made._replace(entries={name: entry(name) for name in ARMS}, family=len(ARMS))


def measure(study: Study) -> dict[str, Any]:
    return measured(study, of_arms())
