"""The generalization of local learning and backpropagation at equal training loss.

The paper (arXiv 2012.03837) is cited as commonly stated: in vision local learning trains better
than it generalizes. At equal *training* loss slower training does not look like worse
generalization.
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis.studies import _local
from optdyn.evidence import arms
from optdyn.evidence.claim import Claim, Verdict, above
from optdyn.evidence.intervals import mean_ratio, ratio, shown
from optdyn.evidence.study import Study

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}
TASK, VARIANTS = "vision", ("backprop", "overlapping", "greedy")
EQUAL = 0.05  # training loss at which test losses are compared

CLAIM = Claim(
    number=36,
    sentence="In vision local learning generalizes worse than backpropagation that trains as well",
    source="arXiv 2012.03837, as commonly stated; claim 11, whose rule is about two things at once",
    measured="test loss of an MLP at a training loss of 0.05 on 4,000 MNIST images, of "
    "overlapping and greedy groups",
    opponent="backpropagation at the same training loss; Adam with a learning rate tuned for "
    "each variant",
    rule="Of the local variant's median test loss over backpropagation's, in the geometric mean "
    "of both variants, with a 95 % interval from the seeds that report, 20, drawn again in all "
    "alike: confirmed if the interval is above 1, refuted if it is below, open otherwise",
)


def measure(study: Study) -> dict[str, Any]:
    tried = {variant: _local.arm(TASK, variant, study.scale) for variant in VARIANTS}
    tuned = arms.best_of(study, tried, _local.LOSSES[TASK])
    test = {}
    for variant in VARIANTS:
        curves = arms.reported(study, tried[variant], tuned[variant].point, EQUAL)
        test[variant] = [c.test["loss"] if c.status == "reached" else np.inf for c in curves]
    return {
        "tuned": {variant: found._asdict() for variant, found in tuned.items()},
        "test_loss": test,
        "test_over_backprop": {v: ratio(test[v], test["backprop"]) for v in VARIANTS[1:]},
    }


def verdict(result: dict[str, Any]) -> Verdict:
    test = result["test_loss"]
    ratios = [test[variant] for variant in VARIANTS[1:]]
    found = mean_ratio(ratios, [test["backprop"]] * len(ratios))
    texts = ", ".join(f"{v} {shown(result['test_over_backprop'][v])}" for v in VARIANTS[1:])
    return Verdict(
        above(found, 1.0),
        f"{shown(found)} of the test loss ({texts}; n = {len(test['backprop'])})",
    )


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    axes.boxplot([result["test_loss"][variant] for variant in VARIANTS], tick_labels=VARIANTS)
    axes.set_ylabel(f"test loss at a training loss of {EQUAL}")
