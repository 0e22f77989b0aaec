"""Do numbers of 4 bits save a message's seconds, on 300 new seeds and with luck taken out?

Claim 56 chose a batch and a share of the numbers for each side on 4 seeds. Top-k's choice was lucky
there: it took 402 s on the seeds that chose and 542 on those that reported. Here all settings of
batch and share that were within 1.15 of the best of their side run again, on 100 seeds. These
choose one of each side, and 300 others report.
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from optdyn.configs import contest, race
from optdyn.configs.papers import further_rules
from optdyn.configs.papers.further_rules import OPPONENT, SHARE
from optdyn.configs.slow_network import SLOW
from optdyn.evidence.arms import MOMENTUM, RATE
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.contest import Place, timed
from optdyn.evidence.intervals import ratio_at_best, shown
from optdyn.evidence.study import Study
from optdyn.evidence.trial import to_loss
from optdyn.grid import Point

LONG, SEEDS = True, {"small": (100, 300), "full": (100, 300)}
FEW = "top-k, 4 bits"
LOSS = race.PROBLEMS["mlp"].losses[-1]
# Batch, share, learning rate and momentum, as claim 56 tuned them.
CELLS = {
    FEW: (
        (16, 0.0025, 0.05, 0.8),
        (8, 0.000625, 0.025, 0.8),
        (32, 0.0025, 0.2, 0.6),
        (16, 0.000625, 0.175, 0.3),
        (64, 0.01, 0.4, 0.6),
        (64, 0.0025, 0.7, 0.3),
    ),
    OPPONENT: (
        (8, 0.000625, 0.175, 0.3),
        (16, 0.000625, 0.175, 0.3),
        (32, 0.0025, 0.35, 0.3),
        (8, 0.00015625, 0.125, 0.0),
        (64, 0.0025, 0.7, 0.3),
    ),
}


def setting(cell: tuple[float, ...]) -> Point:
    return dict(zip(("batch_size", SHARE, RATE, MOMENTUM), cell, strict=True))


CLAIM = Claim(
    number=62,
    sentence="(mlp) Where the all-reduce takes twenty times the computing, top-k that sends "
    "numbers of 4 bits takes fewer seconds to a loss than with numbers of 32",
    source="claim 56, whose opponent had been chosen by luck; SparseLoCo (2508.15706)",
    measured="simulated seconds, a last meeting of nodes included, to a training loss of 0.1 of "
    f"{race.PROBLEMS['mlp'].what}; 8 workers of log-normal times (30 %), the all-reduce 20 times "
    "as long as the computing (0.1 Gb/s of a ResNet-50)",
    opponent="top-k of 32 bits. Each side has all settings of batch and share within 1.15 of its "
    "best on the 4 seeds that chose in claim 56 (6 with 4 bits, 5 with 32), each with the rate and "
    "momentum that claim 56 tuned for it; of them each side takes that of the least median seconds "
    "on 100 new seeds",
    rule="Of the median seconds with 4 bits over those with 32, over the seeds that report, 300, "
    "with a 95 % interval from seeds drawn in pairs that draws the choosing seeds again, too: "
    "confirmed if the interval is below 1, refuted if it is above, open otherwise",
)


def measure(study: Study) -> dict[str, Any]:
    of = further_rules.of_rules()
    place, entries = Place(of.networks[SLOW], race.WORKERS, 1), {**of.opponents, **of.entries}

    def told(arm: str) -> dict[str, Any]:
        def seconds(at: Point, seeds: Any) -> list[float]:
            curves = timed(study, entries[arm], at, place, LOSS, seeds)
            return [to_loss(curve, LOSS, "met") for curve in curves]

        every = [setting(cell) for cell in CELLS[arm]]
        tried = [seconds(at, study.choose) for at in every]
        best = every[int(np.argmin(np.median(tried, axis=1)))]
        return {"tried": tried, "chosen": best, "seconds": seconds(best, study.report)}

    return {arm: told(arm) for arm in CELLS}


def verdict(result: dict[str, Any]) -> Verdict:
    few, usual = result[FEW], result[OPPONENT]
    found = ratio_at_best(few["seconds"], usual["seconds"], few["tried"], usual["tried"])
    chose = "; ".join(
        f"{arm} with batches of {of['chosen']['batch_size']:g} and a share of "
        f"{of['chosen'][SHARE]:g}"
        for arm, of in result.items()
    )
    n = len(few["seconds"])
    said = f"4 bits take {shown(found)} of the seconds of 32 ({chose}; n = {n})"
    return Verdict(below(found, 1.0), said)


def picture(result: dict[str, Any], figure: Figure) -> None:
    contest.arrived({arm: of["seconds"] for arm, of in result.items()}, LOSS, figure)
