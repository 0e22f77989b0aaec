"""How much of the workers' time dynamic batches leave to waiting: claim 8, as an estimate.

The cluster, the draws and the disturbances are those of `dynamic_batch.py`. Its rule asks for every
seed to be below 5 %, which gets harder with more seeds; here it is the mean over seeds.
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from optdyn.configs.papers import dynamic_batch
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.intervals import drawn_again, shown
from optdyn.evidence.study import Study

PROBABILITIES = ("rare", "often")  # cases of `dynamic_batch`: 0.05 and 0.2 a worker and epoch
SEEDS = {"small": (1, 25), "full": (1, 100)}

CLAIM = Claim(
    number=25,
    sentence="Batches that follow the workers' speeds leave less than 5 % of the workers' time to "
    "waiting under random disturbances",
    source="arXiv 2007.11831, abstract; claim 8, whose rule was about every seed",
    measured="barrier waste of 40 epochs of 31 updates by 4 workers, an undisturbed epoch 20 s, "
    "disturbed with probability 0.05 and 0.2 a worker and epoch, in the mean over both; simulated, "
    "nothing is trained",
    opponent="none in the rule; the waste of equal shares with the same draws is told beside it",
    rule="Of the authors' rule (no smoothing) the mean waste over both probabilities and all seeds "
    "that report, 25 with --scale=small, with a 95 % interval from seeds drawn again. Confirmed if "
    "the interval is below 5 %, refuted if it is above, open otherwise",
)


def measure(study: Study) -> dict[str, Any]:
    waste = {
        name: {
            case: [
                dynamic_batch.clock(dynamic_batch.config(study.scale, case, **own), seed)[0]
                for seed in study.report
            ]
            for case in PROBABILITIES
        }
        for name, own in dynamic_batch.SHARES.items()
    }
    return {
        "waste": waste,
        "mean": {name: mean(list(each.values())) for name, each in waste.items()},
    }


def mean(waste: list[list[float]]) -> tuple[float, float, float]:
    """Of (cases, seeds), and its interval."""
    every = np.array(waste)
    return drawn_again(lambda seeds: float(every[:, seeds].mean()), every.shape[1])


def verdict(result: dict[str, Any]) -> Verdict:
    found = {name: shown([100 * x for x in each]) for name, each in result["mean"].items()}
    cases = ", ".join(
        f"{case} {100 * float(np.mean(each)):.3g} %"
        for case, each in result["waste"]["paper"].items()
    )
    return Verdict(
        below(result["mean"]["paper"], dynamic_batch.GONE),
        f"{found['paper']} % of the time ({cases}), {found['smoothed']} smoothed, "
        f"{found['equal']} with equal shares (n = {len(result['waste']['paper']['rare'])})",
    )


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    for x, (name, (middle, low, high)) in enumerate(result["mean"].items()):
        every = 100 * np.mean(list(result["waste"][name].values()), axis=0)
        axes.plot([x] * len(every), every, "_", color="#bbbbbb", ms=12)
        axes.errorbar(x, 100 * middle, 100 * np.array([[middle - low], [high - middle]]), fmt="o")
    axes.axhline(100 * dynamic_batch.GONE, color="#666666", ls=":", label="5 %")
    axes.set_xticks(range(len(result["mean"])), list(result["mean"]))
    axes.set(xlabel="shares", ylabel="barrier waste (% of the workers' time)", ylim=(0, None))
    axes.legend()
