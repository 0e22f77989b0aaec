"""The contest with rules of 2024 to 2026: is any of them better than the older arms?

What is measured is in `configs/contest.py`: `RULES` are in a contest like that of claim 24, with
its opponents, networks and seeds. Those of the older arms had been seen when this rule was written.
"""

from typing import Any

from optdyn.configs import contest
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.contest import best_of, counts, fastest, picture
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.intervals import ratio, shown
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
OLD = contest.claim(24, "mlp")

CLAIM = Claim(
    number=39,
    sentence="(mlp) Where the all-reduce takes twenty times the computing, the best of six rules "
    "of 2024 to 2026 takes fewer seconds than the best of the contest's older arms",
    source="SPARTA (2025), DeMo (2411.19870), CHOCO-SGD (1902.00340, which is older and was not in "
    "the race), NoLoCo (2506.10911), SparseLoCo (2508.15706), Decoupled DiLoCo (2604.21428)",
    measured=OLD.measured.replace("15 arms", "6 rules, the contest's 15 arms"),
    opponent="the best of the contest's 15 arms and 3 opponents on 8 nodes of one device, by the "
    "seeds that choose; its trials are those of claim 24. Of a rule each network chooses the batch "
    "(powers of 2 from 8 to 2,048; of a learner of decoupled DiLoCo an eighth of these), and the "
    "period (2, 8, 32, 128), SPARTA's share (0.01 to 0.64) or CHOCO's consensus rate (1/32 to 1/2);"
    " at each its step and a momentum or decay are tuned by updates, as those of the others",
    rule="On the network where the all-reduce takes 20 times the computing (0.1 Gb/s) the best "
    "rule and the best older arm are those of the least median seconds to the last loss on the "
    "seeds that choose. Of the rule's median seconds over the arm's, on the 20 seeds that report, "
    "with a 95 % interval from seeds drawn in pairs: confirmed if the interval is below 1, refuted "
    "if it is above, open otherwise. It is decided with --scale=full. Words of single rules against"
    " the best opponent of a network are as in claim 24, corrected by Holm over 24",
)


def measure(study: Study) -> dict[str, Any]:
    rules, both = contest.contest("mlp", tuple(contest.RULES)), contest.contest("mlp")
    every = measured(study, both._replace(entries={**rules.entries, **both.entries}))
    newer = [row for row in every["rows"] if row["arm"] in rules.entries]
    older = [row for row in every["rows"] if row["arm"] in both.entries]
    return every | {"rows": newer, "family": rules.family, "older": older}


def verdict(result: dict[str, Any]) -> Verdict:
    last, told = str(result["losses"][-1]), list[str]()
    older = result | {"rows": result["older"]}
    for network in result["opponents"]:  # the slowest is the last
        rule, arm = fastest(result, network), fastest(older, network)
        against = best_of(result["opponents"][network][arm["shape"]])
        best = min((arm, against), key=lambda each: float(each["cost"]))
        found = ratio(rule["seconds"][last], best["seconds"][last])
        told.append(f"{network}: {rule['arm']} takes {shown(found)} of {best['arm']}'s seconds")
    n = len(rule["seconds"][last])
    said = "; ".join([*reversed(told), *counts(result)])
    return Verdict(below(found, 1.0), f"{said} (n = {n}, Holm over {result['family']})")
