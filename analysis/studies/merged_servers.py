"""Merged fully connected servers make asynchrony cheaper (Omnivore, arXiv 1606.04487).

Merged, the dense blocks have staleness 0 (`config.method.fresh`), and a group exchanges activations
with the server that it queues for, unmerged the dense model.
"""

from typing import Any

from matplotlib.figure import Figure

from analysis.studies import _problems as problems
from optdyn.evidence import arms
from optdyn.evidence.claim import Claim, Verdict
from optdyn.evidence.intervals import ratio, shown
from optdyn.evidence.study import Study
from optdyn.evidence.trial import to_loss
from optdyn.experiment import Config

GROUPS = {"small": (4, 16), "full": (2, 4, 8, 16, 32)}
STEPS = {"small": 2500, "full": 5000}
DENSE = ("hidden0", "classifier")
TARGET = 0.4
PIECES = {  # seconds of a batch; fc_network is queued for where the servers are not merged
    "cluster.pieces.conv_compute": 0.128,
    "cluster.pieces.conv_network": 0.00025,
    "cluster.pieces.fc": 0.002,
    "cluster.pieces.fc_network": 0.014,
}

CLAIM = Claim(
    number=12,
    sentence="Merging the fully connected layers' computing with their model on one server reduces "
    "the penalty of asynchrony",
    source="arXiv 1606.04487, section on merged FC servers, as commonly stated",
    measured="P_SE(g), updates to a training loss of 0.4 over those of synchronous training, and "
    "simulated seconds, for g = 4 and 16 groups of 16 workers; a CNN of 4 and 8 channels on 4,000 "
    "MNIST images, batch 32, memoryless times, a server of the dense model that saturates",
    opponent="the same groups with all blocks stale; learning rate and momentum tuned for every "
    "arm and number of groups, and for synchronous training",
    rule="confirmed if the interval of the merged updates over the unmerged ones is below 1 at the "
    "largest number of groups and above 1 nowhere; refuted if it is above 1 at the largest or "
    "contains 1 everywhere while every interval reaches neither below 0.9 nor above 1.1; else open",
)


def config(groups: int, merged: bool, scale: str) -> Config:
    keys = {**PIECES, "method.fresh": DENSE if merged else ()}
    return problems.network("cnn", 32, groups).with_(keys, steps=STEPS[scale])


def measure(study: Study) -> dict[str, Any]:
    groups = GROUPS[study.scale]
    keys = [(1, False), *((g, merged) for g in groups for merged in (False, True))]

    tried = {key: arms.sgd(config(*key, study.scale), 0.25, 0.3) for key in keys}
    tuned = arms.best_of(study, tried, TARGET)
    curves = {key: arms.reported(study, tried[key], tuned[key].point, TARGET) for key in keys}
    updates, seconds = (
        {key: [to_loss(curve, TARGET, clock) for curve in curves[key]] for key in keys}
        for clock in ("updates", "seconds")
    )
    return {
        "tuned": {_name(*key): found._asdict() for key, found in tuned.items()},
        "updates": {_name(*key): found for key, found in updates.items()},
        "penalty": {_name(*key): ratio(updates[key], updates[keys[0]]) for key in keys[1:]},
        "merged_over_unmerged": {
            str(g): {
                "updates": ratio(updates[g, True], updates[g, False]),
                "seconds": ratio(seconds[g, True], seconds[g, False]),
            }
            for g in groups
        },
    }


def verdict(result: dict[str, Any]) -> Verdict:
    found = {g: ratios["updates"] for g, ratios in result["merged_over_unmerged"].items()}
    last = list(found.values())[-1]
    word = "open"
    if last[2] < 1 and not any(low > 1 for _, low, _ in found.values()):
        word = "confirmed"
    if last[1] > 1 or all(0.9 <= e[1] <= 1 <= e[2] <= 1.1 for e in found.values()):
        word = "refuted"
    by_groups = "; ".join(
        f"g = {g}: P_SE {shown(result['penalty'][_name(int(g), True)])} merged, "
        f"{shown(result['penalty'][_name(int(g), False)])} unmerged, updates over the unmerged "
        f"{shown(ratios['updates'])}, seconds {shown(ratios['seconds'])}"
        for g, ratios in result["merged_over_unmerged"].items()
    )
    settings = "all" if all(t["interior"] for t in result["tuned"].values()) else "not all"
    return Verdict(word, f"{by_groups}; {settings} settings interior")


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.add_subplot()
    groups = [int(g) for g in result["merged_over_unmerged"]]
    for merged in (False, True):
        found = [result["penalty"][_name(g, merged)] for g in groups]
        middle, low, high = zip(*found, strict=True)
        axes.plot(groups, middle, marker="o", label="merged" if merged else "unmerged")
        axes.fill_between(groups, low, high, alpha=0.2)
    axes.axhline(1, color="#666666")
    axes.set(xscale="log", xlabel="groups", ylabel="updates over synchronous training")
    axes.set_xticks(groups, [str(g) for g in groups])
    axes.legend()


def _name(groups: int, merged: bool) -> str:
    return f"{groups} groups{', merged' if merged else ''}"
