"""The automatic optimizer against tuned synchronous training (arXiv 1606.04487, abstract).

Two cases of `configs/tune.py` that its rule decides: one where asynchrony can win (batches of 8,
workers that queue for a server) and one where it cannot (batches of 64, workers alike, messages
free). The optimizer counts with all its probes and measurements, the opponent without any: its
learning rate and momentum are tuned on other seeds, until both neighbours of each are worse. Both
are at the same log points. Two modes: the authors' own, and the default, which predicts.
"""

import math
from typing import Any

from matplotlib.figure import Figure

from optdyn.config import parse
from optdyn.configs import tune as cases
from optdyn.evidence import arms
from optdyn.evidence.claim import Claim, Verdict
from optdyn.evidence.intervals import ratio, shown
from optdyn.evidence.study import Study
from optdyn.experiment import Experiment
from optdyn.launch.tune import tune
from optdyn.tuning import bench
from optdyn.tuning.choice import Choice

CASES = {"can win": "small,server", "cannot": "large,uniform"}
MODES = ("predictive", "omnivore")
FASTER = 1.9  # times, the least that the paper has
STEPS = 8000  # of a trial, at most
START = {8: (0.125, 0.0), 64: (1.0, 0.9)}  # by batch: long-run step and momentum, searched from

CLAIM = Claim(
    number=5,
    sentence="The automatic optimizer is 1.9 to 12 times faster than the fastest other systems",
    source="arXiv 1606.04487, abstract (clusters of 9 and 33 machines)",
    measured="simulated seconds to training losses of 0.1 and 0.01, probes included, of a "
    "perceptron 784-32-10 on 4,000 MNIST images, 8 workers, two clusters, two modes of launch.tune",
    opponent="synchronous SGD, learning rate and momentum tuned on other seeds, without its probes",
    rule="for the cluster where asynchrony can win: confirmed if the interval of the speed-up of "
    "the authors' mode or of the default mode is above 1.9; refuted if both are below 1.9; else "
    "open. The other cluster is reported beside it",
)


def synchronous(study: Study, config: Experiment, groups: int = 1) -> arms.Tuned:
    """The best learning rate and momentum of so many groups, one by default, by seconds."""
    chosen = config.with_({"strategy.groups": groups}, steps=STEPS)
    step, momentum = START[config.batch_size]
    arm = arms.sgd(chosen, step / groups**0.5, momentum if groups == 1 else 0.0)
    return arms.tuned(study, arm, config.tune.target, "seconds")


def setting(found: arms.Tuned, groups: int = 1) -> Choice:
    return Choice(groups, found.point[arms.MOMENTUM], found.point[arms.RATE])


def alone(config: Experiment, seed: int, setting: Choice) -> float:
    """Seconds of a setting from the start to the target, at the log points of `launch.tune`."""
    cluster = bench.prepare(config.with_(seed=seed))
    start, target = bench.start(cluster), config.tune.target
    _, outcome = bench.attempt(cluster, start, setting, config.tune.seconds, target)
    return outcome.seconds if outcome.reached else math.inf


def automatic(study: Study, case: str, mode: str, seed: int) -> float:
    """Seconds of a mode to the target, its probes included."""
    config = of_mode(case, mode).with_(seed=seed)
    folder = study.workdir / "automatic_optimizer" / f"{case}-{mode}-{seed}"
    found = tune(config, folder)["tuned"]["with_probes"]
    return math.inf if found is None else float(found)


def of_mode(case: str, mode: str) -> Experiment:
    """The authors' epochs are equally long, and so longer than the first of those that double."""
    config = parse(cases.get_config(case))
    seconds = config.tune.epoch_seconds * (5 if mode == "omnivore" else 1)
    return config.with_({"tune.mode": mode, "tune.epoch_seconds": seconds})


def measure(study: Study) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, case in CASES.items():
        config = parse(cases.get_config(case))
        found = synchronous(study, config)
        key = f"automatic optimizer {case} {setting(found)}"
        opponent = [
            study.remember(f"{key} {seed}", alone, config, seed, setting(found))
            for seed in study.report
        ]
        result[name] = {
            "case": case,
            "tuned": found._asdict(),
            "synchronous": opponent,
            "modes": {
                mode: [automatic(study, case, mode, seed) for seed in study.report]
                for mode in MODES
            },
        }
        for mode, seconds in list(result[name]["modes"].items()):
            result[name][mode] = ratio(opponent, seconds)
    return result


def verdict(result: dict[str, Any]) -> Verdict:
    can = [result["can win"][mode] for mode in MODES]
    word = "open"
    if any(low > FASTER for _, low, _ in can):
        word = "confirmed"
    elif all(high < FASTER for _, _, high in can):
        word = "refuted"
    each = "; ".join(
        f"{mode} {shown(result['can win'][mode])} where asynchrony can win, "
        f"{shown(result['cannot'][mode])} where it cannot"
        for mode in MODES
    )
    return Verdict(word, f"times as fast as tuned synchronous training, probes included: {each}")


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.add_subplot()
    for at, mode in enumerate(MODES):
        middle, low, high = zip(*(result[name][mode] for name in CASES), strict=True)
        x = [place + 0.2 * at for place in range(len(CASES))]
        axes.errorbar(
            x,
            middle,
            [
                [m - lo for m, lo in zip(middle, low, strict=True)],
                [hi - m for m, hi in zip(middle, high, strict=True)],
            ],
            fmt="o",
            capsize=4,
            label=mode,
        )
    axes.axhline(1, color="#666666")
    axes.axhline(FASTER, color="#666666", ls=":", label="the paper's 1.9")
    axes.set(xticks=range(len(CASES)), xticklabels=CASES, ylabel="tuned synchronous over automatic")
    axes.legend()
