"""Claim 43 on all networks of the contest, and whether claim 57's line holds there.

The arms and opponents are claim 43's, to the letter and on its seeds, so that its trials are found
again (`configs/slow_network.py`). A network chooses by its own seconds from what has been tuned for
the others, and begins with the slowest, as claim 43 did.

`research/tuning/who_pays.py` says on which side of 1 each cell is, an arm on a network: rho, which
needs B of this transformer, and the lines of an MLP's contest. B is measured here as in claim 57,
along one synchronous run, tuned at its usual batch. The lines were drawn on a perceptron
and held against two others, all of them with SGD. This is a transformer with Adam.

On the slowest network both arms had been seen when this was written (claim 43), and the prediction
had been looked at beside them. These two cells are told and do not count.
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binomtest

from optdyn.configs import contest, race, slow_network
from optdyn.configs.contest import PLAIN
from optdyn.configs.papers.phase_diagram import BOUND, noise_scale, right
from optdyn.configs.slow_network import ARMS, SLOW, TEXT
from optdyn.evidence.arms import at, tuned
from optdyn.evidence.claim import Claim, Verdict
from optdyn.evidence.contest import Contest, fastest
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.intervals import shown
from optdyn.evidence.study import Study
from optdyn.tuning import who_pays

LONG, SEEDS = True, contest.SEEDS
BETWEEN = "0.3 Gb/s"  # where nobody had looked
FEWEST = 5  # cells that differ

CLAIM = Claim(
    number=61,
    sentence="The boundary of claim 57, which was drawn on perceptrons, holds on a small "
    "transformer with Adam",
    source="here; claim 57 asked it of two other perceptrons",
    measured="simulated seconds, a last meeting of nodes included, to a training loss of "
    f"{TEXT.losses[-1]:g} of a transformer of 2 blocks, 16 wide, on 4,000 sequences of 32 "
    "characters of the King James Bible, Adam; 8 workers of log-normal times (30 %), networks on "
    "which the all-reduce takes 0.2, 2, 6.7 and 20 times the computing (10, 1, 0.3, 0.1 Gb/s of a "
    "ResNet-50); gradients real, seconds simulated",
    opponent="on each network the best, on the seeds that choose, of synchronous training and of "
    "outer Nesterov momentum on one node (SNOO). All four choose their batch (powers of 2 from 8 "
    "to 2,048), SNOO and DiLoCo their period (2, 8, 32, 128), top-k its share (0.01, 0.04, 0.16, "
    "0.64) by seconds on that network until no neighbour is better, diagonals among them, and at "
    "each of these their learning rate and b1 (SNOO and DiLoCo the outer momentum) by updates",
    rule="A cell is DiLoCo or top-k on a network. Its side of 1 is predicted by who_pays.over_best "
    "at its rho, from the noise scale along one synchronous run with the usual batch. It counts if "
    "the 95 % interval of its seconds over the best opponent's (20 seeds, the choosing seeds drawn "
    "again, too) has no 1 in it, but not on the slowest network, which claim 43 had shown. "
    "Confirmed if at least 80 % of the cells that count are on the predicted side, open if fewer "
    "than 5 count, refuted otherwise. It is decided with --scale=full",
)


def of_networks() -> Contest:
    """Claim 43's contest on every network, from the slowest to the fastest."""
    slowest = slow_network.of_smaller(TEXT)
    config = slowest.opponents[PLAIN].arm.config
    names = sorted(contest.NETWORKS, key=contest.NETWORKS.__getitem__, reverse=True)
    networks = {name: race.bandwidth(config, contest.NETWORKS[name]) for name in names}
    family = len(slowest.entries) * len(networks)
    return slowest._replace(networks=networks, judged=BETWEEN, family=family)


def noise_of(study: Study) -> float:
    """B along a synchronous run of the usual batch, tuned there; of which claim 43 has trials."""
    arm, loss = slow_network.entry(TEXT, PLAIN).arm, TEXT.losses[-1]
    best = tuned(study, arm, loss)
    run = at(arm.config, best.point, study.choose[0]).with_(steps=round(1.5 * best.cost))
    key = f"noise scale {TEXT.problem} {TEXT.keys} {best.point} {run.seed} {run.steps}"
    found: float = study.remember(key, noise_scale, run, loss)
    return found


def predicted(noise: float) -> dict[tuple[str, str], dict[str, float]]:
    """By arm and network: rho, the ratio to the best opponent, and what the MLP's contest had."""
    example = slow_network.entry(TEXT, PLAIN).arm.config.cluster.seconds_per_example
    found = dict[tuple[str, str], dict[str, float]]()
    for (network, exchange), known in zip(contest.NETWORKS.items(), who_pays.KNOWN, strict=True):
        rho = who_pays.rho(exchange, example, race.WORKERS, noise)
        for arm in ARMS:
            over, copied = (who_pays.over_best(arm, at_it) for at_it in (rho, known))
            found[arm, network] = {"rho": rho, "predicted": over, "copied": copied}
    return found


def measure(study: Study) -> dict[str, Any]:
    noise = noise_of(study)
    before = predicted(noise)
    found = measured(study, of_networks())
    cells = [
        {"arm": arm, "network": network, **before[arm, network], "measured": own["over at best"]}
        for arm, networks in ((row["arm"], row["networks"]) for row in found["rows"])
        for network, own in networks.items()
    ]
    return {**found, "noise": noise, "cells": cells}


def verdict(result: dict[str, Any]) -> Verdict:
    every = result["cells"]
    new = [cell for cell in every if cell["network"] != SLOW]
    good, n = right(new)
    held = "confirmed" if good >= BOUND * n else "refuted"
    low, high = binomtest(good, n).proportion_ci(method="exact") if n else (0.0, 1.0)
    best = fastest(result, BETWEEN)
    against = result["opponents"][BETWEEN][best["shape"]]["best"]
    over = shown(best["over at best"])
    told = [
        f"{good} of {n} cells that differ are predicted right [{low:.2g}, {high:.2g}]",
        "with those that had been seen {} of {}".format(*right(every)),
        f"what the MLP says of the network is right in {right(new, 'copied')[0]}",
        f"the noise scale is {result['noise']:.3g}",
        f"at {BETWEEN} {best['arm']} takes {over} of the seconds of {against}",
    ]
    return Verdict(held if n >= FEWEST else "open", "; ".join(told) + " (n = 20)")


def picture(result: dict[str, Any], figure: Figure) -> None:
    """Every arm over rho: what the MLP's contest says, and what was measured."""
    axes = figure.subplots()
    for arm, marker in zip(ARMS, "os", strict=True):
        cells = sorted((c for c in result["cells"] if c["arm"] == arm), key=lambda c: c["rho"])
        rho, y = [c["rho"] for c in cells], np.array([c["measured"] for c in cells])
        bars = np.clip([y[:, 0] - y[:, 1], y[:, 2] - y[:, 0]], 0, None)
        (line,) = axes.plot(rho, [c["predicted"] for c in cells], ls=":", label=f"{arm}, predicted")
        axes.errorbar(rho, y[:, 0], bars, fmt=marker, color=line.get_color(), label=arm)
    axes.axhline(1, color="#999999", lw=0.8)
    axes.set(xscale="log", yscale="log", xlabel="rho", ylabel="seconds over the best opponent's")
    axes.legend(fontsize=7)
