"""Dynamic batch sizes leave no worker waiting, at the same accuracy (DBS, arXiv 2007.11831).

The authors' test: random disturbances slow a worker by 5 to 10 seconds an epoch for 4 to 20 epochs.
Barrier waste is the share of the workers' time in which they wait for one another: 1 - (sum of busy
seconds) / (workers x makespan). Accuracy is that of the same runs. Fair: the network is free for
both arms, the opponent has the same draws and disturbances, and learning rate and momentum are
tuned for the update that shares do not change (weights r_i, which is synchronous SGD's) and, apart,
for weights 1/N.
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from optdyn.config import usual
from optdyn.evidence import arms
from optdyn.evidence.claim import Claim, Verdict
from optdyn.evidence.intervals import ratio, shown, spread
from optdyn.evidence.study import Job, Study
from optdyn.experiment import Experiment
from optdyn.problem import shared_data
from optdyn.setup import Cluster, Data, Model
from optdyn.strategies.gradient.dynamic_batch import DynamicBatch
from optdyn.timeline.dynamic_batch import clocked, waste

EPOCHS = {"small": 40, "full": 120}
BATCH, NODES = 128, 4
EPOCH = 20.0  # seconds of an undisturbed epoch of equal workers
TARGET = 0.1
CASES: dict[str, dict[str, Any]] = {
    "rare": {"disturbance_probability": 0.05},
    "often": {"disturbance_probability": 0.2},
    "unequal": {"disturbance_probability": 0.05, "speeds": (1.0, 1.0, 2.0, 4.0)},
    "noisy": {"disturbance_probability": 0.05, "service": "lognormal", "variation": 0.1},
}
SHARES: dict[str, dict[str, Any]] = {
    "equal": {"adapt": False},
    "paper": {"smoothing": 0.0},
    "smoothed": {"smoothing": 0.5},
}
WEIGHTS = {"share": "r_i", "equal": "1/N"}
TRAINED = "unequal"  # the case whose accuracy is measured: it moves the shares most
GONE, LOST = 0.05, 0.005

CLAIM = Claim(
    number=8,
    sentence="Batches that follow the workers' speeds use the cluster fully: barrier waste is gone "
    "under random disturbances, at the same accuracy",
    source="arXiv 2007.11831, abstract; the disturbances are those of the authors' code",
    measured="barrier waste and simulated seconds of 40 epochs of 31 updates by 4 workers, an "
    "undisturbed epoch 20 s, disturbed with probability 0.05 and 0.2 a worker and epoch, also "
    "with workers of speeds 1, 1, 2, 4 and with times that vary by 10 % a step; test accuracy of "
    "a perceptron 784-32-10 on 4,000 MNIST images after them (speeds 1, 1, 2, 4)",
    opponent="equal shares on the same cluster, draws and disturbances; learning rate and momentum "
    "tuned for each weighting",
    rule="of the authors' rule (no smoothing): confirmed if under both probabilities the waste of "
    "every seed is at most 5 %, the interval of the time over that of equal shares below 1, and "
    "the interval of the accuracy over that of equal shares not below 0.995 with one of the two "
    "weightings; refuted if under both probabilities the waste of every seed is above 5 %, or the "
    "interval of the accuracy below 0.995 with both; else open",
)


def config(scale: str, case: str, **strategy: Any) -> Experiment:
    base = usual().with_(
        model=Model(hidden=(32,)), data=Data(train_evaluated=1000), batch_size=BATCH
    )
    examples = len(shared_data.load(base).train["label"])
    keys = {"name": "dynamic_batch", "micro_batch": BATCH, **strategy}  # simulated in one pass
    cluster = Cluster(NODES, service="constant", seconds_per_example=EPOCH * NODES / examples)
    return base.with_(
        {f"strategy.{key}": value for key, value in keys.items()},
        steps=EPOCHS[scale] * (examples // BATCH),
        cluster=cluster.with_(**CASES[case]),
    )


def clock(config: Experiment, seed: int) -> tuple[float, float]:
    """Barrier waste, and simulated seconds, of a run."""
    per_epoch = len(shared_data.load(config).train["label"]) // config.batch_size
    sizes: Any = {"steps": config.steps, "batch_size": config.batch_size, "seed": seed}
    method = config.methods.of(DynamicBatch)
    made, busy = clocked(config.cluster, method, steps_per_epoch=per_epoch, **sizes)
    return waste(made, busy), float(made.seconds[-1])


def measure(study: Study) -> dict[str, Any]:
    clocks: dict[str, Any] = {}
    for case in CASES:
        found = {
            name: [clock(config(study.scale, case, **own), seed) for seed in study.report]
            for name, own in SHARES.items()
        }
        clocks[case] = {
            name: {
                "waste": spread([share for share, _ in each]),
                "time": ratio([t for _, t in each], [t for _, t in found["equal"]]),
            }
            for name, each in found.items()
        }
    # Weights r_i make the update of the whole batch, so equal shares stand for them all.
    arms_of = {"share": SHARES["equal"], "equal": SHARES["paper"] | {"weights": "equal"}}

    def best(weights: str) -> arms.Tuned:
        arm = arms.sgd(config(study.scale, TRAINED, **arms_of[weights]), 0.5, 0.6)
        return arms.tuned(study, arm, TARGET)

    tuned = dict(zip(arms_of, study.map(best, arms_of), strict=True))
    runs = {(name, "share"): own for name, own in SHARES.items()}
    runs |= {(n, "equal"): SHARES[n] | {"weights": "equal"} for n in ("paper", "smoothed")}
    curves = {
        key: study.trials(
            Job(arms.at(config(study.scale, TRAINED, **own), tuned[key[1]].point, seed))
            for seed in study.report
        )
        for key, own in runs.items()
    }
    accuracy = {key: [c.test.get("accuracy", 0.0) for c in each] for key, each in curves.items()}
    whole = accuracy["equal", "share"]
    return {
        "tuned": {weights: found._asdict() for weights, found in tuned.items()},
        "clocks": clocks,
        "accuracy": {
            f"{name}, weights {WEIGHTS[weights]}": {
                "values": each,
                "ratio": ratio(each, whole),
                "final_loss": spread([c.losses[-1] for c in curves[name, weights]]),
            }
            for (name, weights), each in accuracy.items()
        },
    }


def verdict(result: dict[str, Any]) -> Verdict:
    plain = [result["clocks"][case] for case in ("rare", "often")]
    kept = [result["accuracy"][f"paper, weights {w}"]["ratio"] for w in WEIGHTS.values()]
    gone = all(c["paper"]["waste"][2] <= GONE and c["paper"]["time"][2] < 1 for c in plain)
    word = "confirmed" if gone and any(a[1] >= 1 - LOST for a in kept) else "open"
    left = all(c["paper"]["waste"][1] > GONE for c in plain)
    if left or all(a[2] < 1 - LOST for a in kept):
        word = "refuted"
    each = "; ".join(
        f"{case}: {c['equal']['waste'][0]:.1%} to {c['paper']['waste'][0]:.1%} (at most "
        f"{c['paper']['waste'][2]:.1%}; smoothed {c['smoothed']['waste'][0]:.1%}), time "
        f"{shown(c['paper']['time'])}"
        for case, c in result["clocks"].items()
    )
    accuracies = ", ".join(
        f"{shown(found, 4)} with weights {weights}"
        for found, weights in zip(kept, WEIGHTS.values(), strict=True)
    )
    return Verdict(word, f"waste of equal shares to DBS, {each}; accuracy over it {accuracies}")


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.add_subplot()
    for k, name in enumerate(SHARES):
        each = [100 * np.array(result["clocks"][case][name]["waste"]) for case in CASES]
        middle, low, high = np.transpose(each)
        x = np.arange(len(CASES)) + 0.25 * (k - 1)
        axes.bar(x, middle, 0.22, yerr=[middle - low, high - middle], label=name)
    axes.axhline(100 * GONE, color="#666666", ls=":", label="gone: at most 5 %")
    axes.set_xticks(range(len(CASES)), list(CASES))
    axes.set(xlabel="disturbances", ylabel="barrier waste (% of the workers' time)")
    axes.legend()
