"""GASLoC in the contest: gossip of nodes that meet in pairs, with a momentum other than NoLoCo's.

Both meet the same pairs at the same seconds and send as much, so that the rule alone differs. Their
opponents, networks, ladders and seeds are those of the contest (`configs/contest.py`), and so are
NoLoCo's trials.
"""

from collections.abc import Mapping
from typing import Any

from optdyn.configs import contest
from optdyn.configs.slow_network import SLOW
from optdyn.evidence.arms import OUTER, STEP, Arm, momenta, not_negative, rates, rung
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.contest import Contest, Entry, counts, picture
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.intervals import chance, holm, ratio_at_best, shown
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
RULE, RIVAL = "GASLoC", "NoLoCo"
OLD = contest.claim(24, "mlp")

CLAIM = Claim(
    number=60,
    sentence="(mlp) Where the all-reduce takes twenty times the computing, GASLoC takes fewer "
    "seconds to a loss than NoLoCo",
    source="arXiv 2606.11081, by whose abstract it beats other decentralized methods; claim 39, "
    "where NoLoCo was in the contest",
    measured=OLD.measured.replace("15 arms", "GASLoC, NoLoCo"),
    opponent="NoLoCo (slow learning rate 0.7), whose trials are those of claim 39. GASLoC (outer "
    "learning rate 0.7) has its graph, pairs drawn at every meeting, and SGD without momentum "
    "inside, as NoLoCo. Each network chooses the batch (powers of 2 from 8 to 2,048) and the "
    "period (2, 8, 32, 128) of both by seconds until no neighbour is better, diagonals among them; "
    "at each of these its step and outer momentum are tuned by updates at 1 Gb/s",
    rule="Of GASLoC's median seconds to the last loss over NoLoCo's at 0.1 Gb/s, on the 20 seeds "
    "that report, with a 95 % interval that draws the 4 choosing seeds again, too: confirmed if "
    "the interval is below 1, refuted if it is above, open otherwise. It is decided with "
    "--scale=full. p-values on the four networks are corrected by Holm over four, those against "
    "NoLoCo and those against a network's best opponent by themselves",
)


def entry() -> Entry:
    """What NoLoCo chooses from; tuned from where the contest's DiLoCo starts."""
    keys = {"strategy.name": "gasloc", "strategy.graph": "random", **contest.MEAN}
    config = contest.config_of("mlp", contest.PLAIN).with_(keys)
    ladders = {STEP: rates, OUTER: not_negative}
    arm = Arm(config, ladders, {STEP: 0, OUTER: rung(momenta, 0.6)})
    return contest.entry("mlp", RIVAL)._replace(arm=arm)


def between() -> Contest:
    every = contest.contest("mlp", (RIVAL,))
    return every._replace(entries={RULE: entry(), **every.entries})


def measure(study: Study) -> dict[str, Any]:
    """The contest of both, whose one row is GASLoC's, and what that takes over NoLoCo."""
    result = measured(study, between())
    own, rival = (row["networks"] for row in result["rows"])
    over = {network: _over(study, own[network], rival[network], result) for network in own}
    return result | {"rows": result["rows"][:1], "rival": rival, "over rival": over}


def _over(
    study: Study, own: Mapping[str, Any], rival: Mapping[str, Any], result: Mapping[str, Any]
) -> dict[str, Any]:
    """Seconds over the rival's on a network, and the p-value of a ratio of 1."""
    times = [each["seconds"][str(result["losses"][-1])] for each in (own, rival)]
    tried = [[row[-len(study.choose) :] for row in each["tried"]] for each in (own, rival)]
    return {"ratio": list(ratio_at_best(*times, *tried)), "chance": chance(*times)}


def verdict(result: dict[str, Any]) -> Verdict:
    over = result["over rival"]
    chances = holm([each["chance"] for each in over.values()])
    told = [
        f"{network}: {RULE} takes {shown(each['ratio'])} of {RIVAL}'s seconds (p = {p:.2g})"
        for (network, each), p in zip(over.items(), chances, strict=True)
    ]
    n = len(result["rows"][0]["networks"][SLOW]["seconds"][str(result["losses"][-1])])
    said = "; ".join([*reversed(told), *counts(result)])
    return Verdict(below(over[SLOW]["ratio"], 1.0), f"{said} (n = {n}, Holm over {len(over)})")
