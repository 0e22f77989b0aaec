"""Local gradients, blocks and generalization (arXiv 2012.03837): what can be tested here.

What the paper says of it we hold as commonly stated, not from its text: gradients of overlapping
groups point more nearly where backpropagation's do than greedy ones; in vision local learning
trains better than it generalizes. Settings are those of `local_time.py`: a learning rate a variant,
tuned. Test losses are compared at equal *training* loss, so that slower training is not mistaken
for worse generalization. Random labels, 500 images, show what a variant can memorize; they decide
nothing, as we do not know the paper's finding.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from optdyn.basics import seeds
from optdyn.configs.papers import local_time
from optdyn.configs.papers.local_time import LOSSES, TASKS
from optdyn.evidence import arms
from optdyn.evidence.arms import RATE
from optdyn.evidence.claim import Claim, Verdict
from optdyn.evidence.intervals import ratio, shown, spread
from optdyn.evidence.study import Job, Study
from optdyn.evidence.trial import to_loss
from optdyn.experiment import Experiment
from optdyn.outputs.workdir import rows
from optdyn.problem import shared_data
from optdyn.training import trainer

VARIANTS = ("backprop", "overlapping", "greedy")
UPDATES = 100  # at whose start and end cosines are measured
EQUAL = 0.05  # training loss in vision at which test losses are compared
RANDOM, FITTED = 500, 0.3  # images with random labels; training loss at which they are fitted

CLAIM = Claim(
    number=11,
    sentence="Gradients of overlapping groups are nearer to the global gradient than greedy ones; "
    "in vision local learning trains better than it generalizes",
    source="arXiv 2012.03837, as commonly stated",
    measured="cosine of local and global gradient by block on 1,000 training examples, mean over "
    "the blocks but the last, after 100 updates, on both tasks of claim 10; test loss at a "
    "training loss of 0.05 on 4,000 MNIST images; updates to fit 500 random labels",
    opponent="greedy groups, and backpropagation at the same training loss; Adam with a learning "
    "rate tuned for each variant",
    rule="confirmed if every seed has the larger cosine with overlapping groups on both tasks and "
    "the interval of the test loss over backpropagation's at equal training loss is above 1 for "
    "overlapping and greedy groups; refuted if no seed has it on either task or both intervals "
    "are below 1; else open",
)


def cosines(config: Experiment) -> list[list[float]]:
    """A row a log point: the cosine of every block but the last."""
    every = {"steps": UPDATES, "log_every": UPDATES, "checkpoint_every": 0}
    probed = config.with_({"strategy.probes": True}, **every)
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(probed, Path(folder) / "run")
        logged = list(rows(Path(folder) / "run" / "metrics.jsonl"))
    names = sorted(key for key in logged[0] if key.startswith("cosine_"))[:-1]
    return [[row[name] for name in names] for row in logged]


def random_labels(config: Experiment, folder: Path) -> Experiment:
    """The config on the first images with labels drawn anew, written to the folder."""
    data, made = shared_data.load(config), folder / "random_labels"
    if not made.exists():
        building = folder / "random_labels.part"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        labels = seeds.generator(0, "random labels").integers(data.classes, size=RANDOM)
        np.savez(building / "train.npz", image=data.train["image"][:RANDOM], label=labels)
        np.savez(building / "test.npz", image=data.test["image"], label=data.test["label"])
        building.rename(made)
    return config.with_({"data.name": f"folder:{made}"}, steps=2 * config.steps)


def measure(study: Study) -> dict[str, Any]:
    configs = {
        (task, variant): local_time.config(task, variant, study.scale)
        for task in TASKS
        for variant in VARIANTS
    }
    targets = {(task, variant): LOSSES[task][-1] for task, variant in configs}
    for variant in VARIANTS:
        configs["random", variant] = random_labels(configs["vision", variant], study.workdir)
        targets["random", variant] = FITTED

    def best(key: tuple[str, str]) -> arms.Tuned:
        arm = arms.Arm(configs[key], {RATE: arms.rates}, {RATE: -8})
        return arms.tuned(study, arm, targets[key])

    tuned = dict(zip(configs, study.map(best, configs), strict=True))

    def at(key: tuple[str, str], seed: int) -> Experiment:
        return arms.at(configs[key], tuned[key].point, seed)

    similar: dict[str, Any] = {
        task: {
            variant: [
                study.remember(f"cosines {json.dumps(own.to_dict(), sort_keys=True)}", cosines, own)
                for own in (at((task, variant), seed) for seed in study.report)
            ]
            for variant in ("overlapping", "greedy")
        }
        for task in TASKS
    }
    ends = {
        v: study.trials(Job(at(("vision", v), s), EQUAL) for s in study.report) for v in VARIANTS
    }
    test = {
        v: [c.test["loss"] if c.status == "reached" else np.inf for c in each]
        for v, each in ends.items()
    }
    fitted = {
        v: [
            to_loss(c, FITTED)
            for c in arms.reported(
                study, arms.Arm(configs["random", v], {}, {}), tuned["random", v].point, FITTED
            )
        ]
        for v in VARIANTS
    }
    return {
        "tuned": {f"{task}, {v}": t._asdict() for (task, v), t in tuned.items()},
        "cosines": similar,
        "test_loss": test,
        "test_over_backprop": {v: ratio(test[v], test["backprop"]) for v in VARIANTS[1:]},
        "random_labels": {
            v: {"updates": spread(fitted[v]), "over": ratio(fitted[v], fitted["backprop"])}
            for v in VARIANTS
        },
    }


def verdict(result: dict[str, Any]) -> Verdict:
    ends = {
        task: {v: np.array([each[-1] for each in found[v]]).mean(axis=1) for v in found}
        for task, found in result["cosines"].items()
    }
    nearer = [each["overlapping"] > each["greedy"] for each in ends.values()]
    worse = list(result["test_over_backprop"].values())
    word = "open"
    if all(seed.all() for seed in nearer) and all(found[1] > 1 for found in worse):
        word = "confirmed"
    if not any(seed.any() for seed in nearer) or all(found[2] < 1 for found in worse):
        word = "refuted"
    similar = "; ".join(
        f"{task}: {np.median(each['overlapping']):.2f} against {np.median(each['greedy']):.2f} "
        f"({int(wins.sum())} of {len(wins)} seeds)"
        for (task, each), wins in zip(ends.items(), nearer, strict=True)
    )
    tests = ", ".join(f"{v} {shown(f)}" for v, f in result["test_over_backprop"].items())
    random = ", ".join(
        f"{v} {shown(f['over'])}" for v, f in result["random_labels"].items() if v != "backprop"
    )
    return Verdict(
        word,
        f"cosine with the global gradient, overlapping against greedy, {similar}; test loss over "
        f"backpropagation's at a training loss of {EQUAL}: {tests}; updates to fit random labels "
        f"over backpropagation's: {random}",
    )


def picture(result: dict[str, Any], figure: Figure) -> None:
    for axes, (task, found) in zip(
        figure.subplots(1, len(TASKS), sharey=True), result["cosines"].items(), strict=True
    ):
        for variant, each in found.items():
            blocks = np.array([points[-1] for points in each])
            x = range(blocks.shape[1])
            axes.plot(x, np.median(blocks, axis=0), marker="o", label=variant)
            axes.fill_between(x, blocks.min(axis=0), blocks.max(axis=0), alpha=0.2)
        axes.axhline(0, color="#666666")
        axes.set(title=task, xlabel="block", xticks=list(x))
    figure.axes[0].set_ylabel("cosine of local and global gradient")
    axes.legend()
