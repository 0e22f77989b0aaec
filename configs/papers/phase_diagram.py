"""Where DiLoCo and top-k pay, predicted for two networks that nothing was fitted on.

The diagram has one axis, rho, and the lines of an MLP's contest (`research/tuning/who_pays.py`):

    R(method, rho)                     over synchronous training with its best batch
    R / min(1, R(outer momentum))      over the best opponent
    R min_b T(b) / T(usual)            over synchronous training with its usual batch

    T(b) = (1 + C B / b) s(b)          arXiv 1812.06162, with s(b) the clock's seconds an update

B is the mean of tr(Sigma) / |G|^2 over the updates of one synchronous run, tuned at its usual
batch. C = 2.3 is what the MLP's updates with batches of 64 and 512 say over its B of 187. So a
prediction knows the MLP's contest, one synchronous run, and the clock.

With B along their synchronous runs of claims 50 and 43, which had been seen when this was written,
the residual network and the transformer come out well on the slowest network: over the best
opponent 0.55 and 0.52 are predicted where 0.53 and 0.55 were measured (DiLoCo, top-k), and 0.44 and
0.40 where 0.41 and 0.30 were. A contest of these two on other networks takes hours on two cores.
What is held out here are two other perceptrons, of which nothing had been seen but how a loss
falls.

Who knows no noise scale may say of every network what the MLP's contest says of it (`copied`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binomtest

from optdyn.configs import contest, race
from optdyn.configs.contest import BATCHES, PLAIN, SNOO
from optdyn.configs.slow_network import ARMS, OPPONENTS, START, Smaller
from optdyn.evidence.arms import at, tuned
from optdyn.evidence.claim import Claim, Verdict, above
from optdyn.evidence.contest import Contest, Entry
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.study import Study
from optdyn.evidence.trial import logged
from optdyn.experiment import Experiment
from optdyn.tuning import who_pays

LONG, SEEDS = True, contest.SEEDS
PROBLEMS: Mapping[str, Smaller] = {
    "deep": Smaller("mlp", {"model.hidden": (64, 64), "data.image_size": 14}, (0.25,), ()),
    "wide": Smaller("mlp", {"model.hidden": (128,), "data.image_size": 14}, (0.25, 0.1), ()),
}
BATCH_OF = {"deep": 16, "wide": 128}  # usual ones
BOUND = 0.8  # of the cells
POINTS = 40  # of a run, where the noise scale is measured, about
C = 2.3
# Claim 24's record: the best batch over the usual one, from the fastest network to the slowest.
BATCH = (1.004, 0.715, 0.422, 0.301)
AGAINST = ("usual", "best")  # opponents

CLAIM = Claim(
    number=57,
    sentence="Where DiLoCo and top-k pay is predicted right in more than four of five cases from "
    "an MLP's contest and the gradient noise scale",
    source="here; the noise scale is that of arXiv 1812.06162",
    measured="simulated seconds to a training loss of 0.25 of an MLP 196-64-64-10 with a usual "
    "batch of 16, and of 0.1 of an MLP 196-128-10 with one of 128, on 4,000 MNIST images of 14 x 14"
    "; 8 workers of log-normal times (30 %), networks on which the all-reduce takes 0.2, 2, 6.7 "
    "and 20 times the computing; gradients real, seconds simulated",
    opponent="(a) synchronous training with its usual batch, and (b) the best of synchronous "
    "training with its best batch and outer Nesterov momentum on one node. Batch and period are "
    "chosen on each network, and step and momentum at each, as in claim 24",
    rule="A cell is a problem, a network, DiLoCo or top-k, and (a) or (b): 32 cells. It counts if "
    "the 95 % interval of the measured ratio of seconds (20 seeds; for (b) the choosing seeds are "
    "drawn again, too) has no 1 in it, and is right if the predicted ratio is on the same side of "
    "1. Of the share of right cells among those that count, with the exact 95 % interval of a "
    "binomial share: confirmed if the interval is above 0.8, refuted if it is below, open "
    "otherwise. It is decided with --scale=full",
)


def side(problem: str, name: str) -> Entry:
    """An arm of the MLP's contest, of this problem. All but plain training start at `START`."""
    of, batch = PROBLEMS[problem], BATCH_OF[problem]
    found = contest.entry(of.problem, name)
    keys = {**of.keys, "cluster.seconds_per_example": race.WORKERS / batch}
    config = found.arm.config.with_(keys, batch_size=batch)
    middle = race.bandwidth(config, contest.NETWORKS[contest.JUDGED])
    arm = found.arm._replace(config=config.with_({"cluster.bandwidth": middle}))
    first = BATCHES.index(batch if name == PLAIN else START)
    return found._replace(arm=arm, usual=(first, *found.usual[1:]))


def noise_scale(config: Experiment, loss: float) -> float:
    """B in examples, along a synchronous run to the loss."""
    every = max(config.steps // POINTS, 1)
    _, rows = logged(config.with_({"probes.noise_scale": True}, log_every=every))
    reached = [row["train_loss"] <= loss for row in rows]
    end = reached.index(True) + 1 if any(reached) else len(rows)
    return float(np.mean([row["noise_scale"] for row in rows[:end]]))


def best_batch(config: Experiment, bandwidth: float, size: int, noise: float) -> float:
    """min_b T(b) / T(usual) of synchronous training, by a clock of `size` bytes of parameters."""

    def time(batch: int) -> float:
        there = config.with_({"cluster.bandwidth": bandwidth}, batch_size=batch, steps=200)
        line = there.timeline(steps_per_epoch=1, update_bytes=size)
        return (1 + C * noise / batch) * float(line.seconds[-1]) / there.steps

    return min(map(time, BATCHES)) / time(config.batch_size)


def predicted(config: Experiment, network: str, noise: float) -> dict[str, dict[str, float]]:
    """By arm and opponent the ratio of seconds, from the noise scale of the config's problem."""
    exchange, workers = contest.NETWORKS[network], race.WORKERS
    rho = who_pays.rho(exchange, workers / config.batch_size, workers, noise)
    gain = best_batch(config, race.bandwidth(config, exchange), race.parameters(config), noise)
    return {
        name: {
            "usual": who_pays.over_best_batch(name, rho) * gain,
            "best": who_pays.over_best(name, rho),
        }
        for name in ARMS
    }


def copied(network: str) -> dict[str, dict[str, float]]:
    """The same of the MLP on that network, whatever the problem."""
    i = list(contest.NETWORKS).index(network)
    over, best = {name: who_pays.SEEN[name][i] for name in ARMS}, min(1.0, who_pays.SEEN[SNOO][i])
    return {name: {"usual": r * BATCH[i], "best": r / best} for name, r in over.items()}


def held_out(problem: str) -> Contest:
    opponents = {name: side(problem, name) for name in OPPONENTS}
    config = opponents[PLAIN].arm.config
    networks = {name: race.bandwidth(config, x) for name, x in contest.NETWORKS.items()}
    entries, losses = {name: side(problem, name) for name in ARMS}, PROBLEMS[problem].losses
    return Contest(opponents, entries, losses, networks, contest.JUDGED, len(ARMS) * len(networks))


def cells(study: Study, problem: str) -> list[dict[str, Any]]:
    """What is predicted of a problem. Of its runs this knows the tuned one with the usual batch."""
    arm, loss = side(problem, PLAIN).arm, PROBLEMS[problem].losses[-1]
    best = tuned(study, arm, loss)
    run = at(arm.config, best.point, study.choose[0]).with_(steps=round(1.5 * best.cost))
    noise = study.remember(
        f"noise scale {problem} {best.point} {run.seed} {run.steps}", noise_scale, run, loss
    )
    found = list[dict[str, Any]]()
    for network in contest.NETWORKS:
        same = copied(network)
        for name, ratios in predicted(arm.config, network, noise).items():
            cell = {"problem": problem, "network": network, "arm": name, "noise": noise}
            found += [
                {**cell, "against": x, "predicted": ratios[x], "copied": same[name][x]}
                for x in AGAINST
            ]
    return found


def measure(study: Study) -> dict[str, Any]:
    every = [cell for problem in PROBLEMS for cell in cells(study, problem)]
    found = {problem: measured(study, held_out(problem)) for problem in PROBLEMS}
    for each in every:
        each["measured"] = _ratio(found[each["problem"]], each)
    return {"cells": every, "contests": found}


def _ratio(result: dict[str, Any], cell: Mapping[str, str]) -> list[float]:
    row = next(each for each in result["rows"] if each["arm"] == cell["arm"])
    own, last = row["networks"][cell["network"]], str(result["losses"][-1])
    found: list[float] = (
        own["over at best"] if cell["against"] == "best" else own["over usual"][last]
    )
    return found


def right(cells: list[dict[str, Any]], by: str = "predicted") -> tuple[int, int]:
    """How many cells are on the predicted side of 1, of how many whose interval has no 1 in it."""
    counted = [each for each in cells if not each["measured"][1] <= 1 <= each["measured"][2]]
    return sum((c[by] < 1) == (c["measured"][0] < 1) for c in counted), len(counted)


def verdict(result: dict[str, Any]) -> Verdict:
    every = result["cells"]
    good, n = right(every)
    low, high = binomtest(good, n).proportion_ci(method="exact")
    off = np.median([abs(np.log(c["predicted"] / c["measured"][0])) for c in every])
    told = [f"{good} of {n} cells that differ are predicted right [{low:.2g}, {high:.2g}]"]
    for against in AGAINST:
        good_at, n_at = right([cell for cell in every if cell["against"] == against])
        told.append(f"over the {against} opponent {good_at} of {n_at}")
    told.append(f"what the MLP says of the network is right in {right(every, 'copied')[0]}")
    told.append(f"ratios within a factor of {np.exp(off):.2f} in the median of {len(every)}")
    return Verdict(above((good / n, low, high), BOUND), "; ".join(told) + " (n = 20)")


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    for problem, marker in zip(PROBLEMS, "os", strict=True):
        for against, fill in zip(AGAINST, ("none", None), strict=True):
            cells = [
                c for c in result["cells"] if (c["problem"], c["against"]) == (problem, against)
            ]
            x, y = [c["predicted"] for c in cells], np.array([c["measured"] for c in cells])
            bars = np.clip([y[:, 0] - y[:, 1], y[:, 2] - y[:, 0]], 0, None)
            axes.errorbar(
                x, y[:, 0], bars, fmt=marker, mfc=fill, label=f"{problem}, over the {against}"
            )
    axes.axhline(1, color="#999999", lw=0.8)
    axes.axvline(1, color="#999999", lw=0.8)
    axes.axline((1, 1), slope=1, color="#999999", lw=0.8, ls=":")
    axes.set(xscale="log", yscale="log", xlabel="predicted ratio of seconds", ylabel="measured")
    axes.legend(fontsize=7)
