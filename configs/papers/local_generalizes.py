"""Whether local learning generalizes worse at equal training loss: of claim 11, as an estimate.

Network, variants and tuning are those of `local_similarity.py`.
"""

from typing import Any

from matplotlib.figure import Figure

from optdyn.configs.papers.local_similarity import EQUAL, VARIANTS, measure
from optdyn.evidence.claim import Claim, Verdict, above
from optdyn.evidence.intervals import mean_ratio, shown

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}

CLAIM = Claim(
    number=36,
    sentence="In vision local learning generalizes worse than backpropagation that trains as well",
    source="arXiv 2012.03837, as commonly stated; claim 11, whose rule is about two things at once",
    measured="test loss of an MLP at a training loss of 0.05 on 4,000 MNIST images, of overlapping "
    "and greedy groups",
    opponent="backpropagation at the same training loss; Adam with a learning rate tuned for each "
    "variant",
    rule="Of the local variant's median test loss over backpropagation's, in the geometric mean of "
    "both variants, with a 95 % interval from the seeds that report, 20, drawn again in all alike: "
    "confirmed if the interval is above 1, refuted if it is below, open otherwise",
)


def verdict(result: dict[str, Any]) -> Verdict:
    test = result["test_loss"]
    own = [test[variant] for variant in VARIANTS[1:]]
    found = mean_ratio(own, [test["backprop"]] * len(own))
    each = ", ".join(f"{v} {shown(result['test_over_backprop'][v])}" for v in VARIANTS[1:])
    return Verdict(
        above(found, 1.0),
        f"{shown(found)} of the test loss ({each}; n = {len(test['backprop'])})",
    )


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    axes.boxplot([result["test_loss"][variant] for variant in VARIANTS], tick_labels=VARIANTS)
    axes.set_ylabel(f"test loss at a training loss of {EQUAL}")
