"""How much faster the automatic optimizer of the authors is: claim 5, as an estimate.

Cases, modes and tuning are those of `automatic_optimizer.py`, whose rule lets the better of two
modes decide.
"""

from typing import Any

from optdyn.configs.papers.automatic_optimizer import FASTER, MODES, measure, picture
from optdyn.evidence.claim import Claim, Verdict, above
from optdyn.evidence.intervals import shown

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}

CLAIM = Claim(
    number=34,
    sentence="The authors' automatic optimizer is at least 1.9 times faster where asynchrony can "
    "win",
    source="arXiv 1606.04487, abstract: 1.9 to 12 times; claim 5",
    measured="simulated seconds to a training loss of 0.1, probes included, of a perceptron "
    "784-32-10 on 4,000 MNIST images, batches of 8, 8 workers that queue for a server",
    opponent="synchronous SGD, learning rate and momentum tuned on other seeds, without its probes",
    rule="Of the opponent's median seconds over those of the mode `omnivore`, with a 95 % interval "
    "from the seeds that report, 20, drawn again in pairs: confirmed if the interval is above 1.9, "
    "refuted if it is below, open otherwise. The default mode was developed on this case, so it "
    "is told beside it and decides nothing",
)


def verdict(result: dict[str, Any]) -> Verdict:
    default, authors = (result["can win"][mode] for mode in MODES)
    cannot = ", ".join(f"{mode} {shown(result['cannot'][mode])}" for mode in MODES)
    return Verdict(
        above(authors, FASTER),
        f"{shown(authors)} times as fast, the default mode {shown(default)}; where asynchrony "
        f"cannot win, {cannot} (n = {len(result['can win']['synchronous'])})",
    )
