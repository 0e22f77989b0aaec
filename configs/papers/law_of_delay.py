"""One law of delay for all optimizers? What d updates of delay cost, of five of them.

Groups that take turns (constant service) are a delay of d for g = d + 1 of them: every gradient is
at the parameters of d updates ago. T_d are the updates to a loss. The law that is asked for has

    P = T_d / T_0 = (1 + c d / T_0)^p

A delay counts by how much of training it is, and c, p are the same whatever the optimizer is. Each
optimizer is predicted by the c and p that are fitted to the others. Beside it, the same with d in
place of d / T_0: a law of delays that knows nothing of the optimizer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.optimize
from matplotlib.figure import Figure

from optdyn.config import usual
from optdyn.evidence.arms import (
    MOMENTUM,
    RATE,
    STEP,
    Arm,
    Ladder,
    momenta,
    not_negative,
    rates,
    reported,
    rung,
    tuned,
)
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.intervals import drawn_again, ratio, shown
from optdyn.evidence.study import Study
from optdyn.evidence.trial import to_loss
from optdyn.experiment import Experiment
from optdyn.grid import Point
from optdyn.setup import Cluster, Data, Model

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}
DELAYS, BATCHES, TARGET, BOUND = (0, 1, 4, 16, 32), (16, 128), 0.25, 1.25
FED = 1  # the delay at which errors are fed back, too
DRAWS = 400  # of seeds; each fits ten laws


def _options(**options: Any) -> Point:
    return {f"optimizer.options.{key}": value for key, value in options.items()}


# Of each the config, the key of its momentum, where that begins, and the rung of its rate.
OPTIMIZERS: Mapping[str, tuple[Point, str, float, int]] = {
    "SGD": ({"optimizer.name": "sgd"}, MOMENTUM, 0.6, 0),
    "AdamW": ({"optimizer.name": "adamw"}, "optimizer.options.b1", 0.9, -7),
    "Lion": ({"optimizer.name": "lion"}, "optimizer.options.b1", 0.9, -9),
    "Muon": (
        {"optimizer.name": "contrib.muon", **_options(consistent_rms=0.2)},
        "optimizer.options.beta",
        0.9,
        -6,
    ),
    "SOAP": ({"optimizer.name": "soap"}, "optimizer.options.b1", 0.9, -7),
}

CLAIM = Claim(
    number=22,
    sentence="One law says what a delay costs, whatever the optimizer: (1 + c d / T_0)^p",
    source="ours; arXiv 2606.30634 and 2602.03515 say that the optimizer decides",
    measured="updates to a training loss of 0.25 of an MLP 196-32-10 on 4,000 MNIST images of 14 x "
    "14, batches of 16 and 128, delays of 1, 4, 16, 32 updates over none, a constant rate: SGD "
    "with momentum, AdamW, Lion, Muon (whose biases have AdamW), SOAP",
    opponent="the law that is fitted to four optimizers predicts the fifth; every optimizer, batch "
    "and delay has its own rate and momentum (AdamW's, Lion's and SOAP's b1, Muon's beta), tuned "
    "by one procedure until interior",
    rule="c and p of least squares in log P over the four others, both batches and all delays. The "
    "factor exp |log (predicted / measured)| of medians over the seeds that report, 20, in the "
    "median over 5 optimizers, 2 batches and 4 delays, with a 95 % interval from seeds drawn again "
    "in all alike: confirmed if the interval is below 1.25, refuted if it is above, open otherwise",
)


def config_of(optimizer: str, batch_size: int, delay: int, fed: bool = False) -> Experiment:
    chain = {"optimizer.chain": ("error_feedback",)} if fed else {}
    keys = {
        "strategy.name": "asynchronous",
        "strategy.groups": 1 + delay,
        "optimizer.momentum": 0.0,
    }
    return usual().with_(
        {**keys, **OPTIMIZERS[optimizer][0], **chain},
        steps=8000,
        batch_size=batch_size,
        model=Model("mlp", hidden=(32,)),
        data=Data(train_examples=4000, train_evaluated=1000, image_size=14),
        cluster=Cluster(nodes=1 + delay, service="constant"),
    )


def arm_of(optimizer: str, batch_size: int, delay: int, fed: bool = False) -> Arm:
    """Rates start at a half of their rung for every fourfold delay; momenta at 0 for long ones."""
    _, key, momentum, first = OPTIMIZERS[optimizer]
    down = {0: 0, 1: 1, 4: 2, 16: 3, 32: 4}[delay]
    is_sgd = key == MOMENTUM
    ladders: dict[str, Ladder] = {STEP if is_sgd else RATE: rates}
    ladders[key] = momenta if is_sgd else not_negative
    start = {next(iter(ladders)): first - down, key: rung(momenta, momentum if delay < 4 else 0.0)}
    return Arm(config_of(optimizer, batch_size, delay, fed), ladders, start)


def measure(study: Study) -> dict[str, Any]:
    every = [(o, b, d, False) for o in OPTIMIZERS for b in BATCHES for d in DELAYS]
    every += [(o, b, FED, True) for o in OPTIMIZERS for b in BATCHES]

    def run(cell: tuple[str, int, int, bool]) -> dict[str, Any]:
        arm = arm_of(*cell)
        best = tuned(study, arm, TARGET)
        curves = reported(study, arm, best.point, TARGET)
        found = dict(zip(("optimizer", "batch_size", "delay", "fed"), cell, strict=True))
        found |= {"point": best.point, "range": best.range, "interior": best.interior}
        return found | {"updates": [to_loss(curve, TARGET) for curve in curves]}

    return {"rows": study.map(run, every)}


def times(result: Mapping[str, Any], fed: bool = False) -> np.ndarray:
    """(optimizers, batches, delays, seeds) updates; of `fed` the one delay."""
    rows = [row["updates"] for row in result["rows"] if row["fed"] == fed]
    delays = 1 if fed else len(DELAYS)
    return np.array(rows).reshape(len(OPTIMIZERS), len(BATCHES), delays, -1)


def fitted(x: np.ndarray, penalty: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """log (1 + c x)^p, with the c and p of least squares in log P."""
    wanted = np.log(penalty).ravel()

    def law(of: np.ndarray, at: np.ndarray) -> np.ndarray:
        c, p = np.exp(of)
        return np.asarray(p * np.log1p(c * at))

    starts = [(np.log(c), np.log(p)) for c in (0.1, 1.0, 10.0, 100.0) for p in (0.3, 1.0)]
    every = [
        scipy.optimize.least_squares(lambda of: law(of, x.ravel()) - wanted, start)
        for start in starts
    ]
    best = min(every, key=lambda each: float(each.cost)).x
    return lambda at: law(best, at)


def factors(medians: np.ndarray, scaled: bool = True) -> np.ndarray:
    """(optimizers, batches, delays > 0): predicted from the others over measured, or the reverse.

    `medians` are T_d, (optimizers, batches, delays). Where not `scaled` x is d alone.
    """
    penalty = medians[..., 1:] / medians[..., :1]
    x = np.array(DELAYS[1:]) / (medians[..., :1] if scaled else np.ones_like(medians[..., :1]))
    return left_out(x, penalty)


def left_out(x: np.ndarray, penalty: np.ndarray) -> np.ndarray:
    """Of every cell predicted by the law of the other optimizers over measured, or the reverse."""
    found = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        law = fitted(x[others], penalty[others])
        found.append(np.exp(np.abs(law(x[i]) - np.log(penalty[i]))))
    return np.array(found)


def error(result: Mapping[str, Any], scaled: bool = True) -> tuple[float, float, float]:
    """The factor in the median, and its interval; infinite where a median missed the loss."""
    every = times(result)

    def figure(seeds: np.ndarray) -> float:
        medians = np.median(every[..., seeds], axis=-1)
        return float(np.median(factors(medians, scaled))) if np.isfinite(medians).all() else np.inf

    return drawn_again(figure, every.shape[-1], DRAWS)


def verdict(result: Mapping[str, Any]) -> Verdict:
    every, fed = times(result), times(result, fed=True)
    if missed := int((~np.isfinite(np.median(every, axis=-1))).sum()):
        return Verdict("open", f"{missed} arms missed the loss in the median of seeds")
    found, alone = error(result), error(result, scaled=False)
    worst = factors(np.median(every, axis=-1)).max(axis=(1, 2))
    each = ", ".join(f"{o} {w:.2f}" for o, w in zip(OPTIMIZERS, worst, strict=True))
    at = DELAYS.index(FED)
    costs, left = (
        "; ".join(
            f"{optimizer} {', '.join(shown(ratio(a[i, b], below_[i, b])) for b in range(2))}"
            for i, optimizer in enumerate(OPTIMIZERS)
        )
        for a, below_ in ((every[:, :, at], every[:, :, 0]), (fed[:, :, 0], every[:, :, 0]))
    )
    interior = sum(row["interior"] for row in result["rows"])
    return Verdict(
        below(found, BOUND),
        f"predicted within {shown(found)} in the median (of delays alone, {shown(alone)}), at "
        f"worst {each}; a delay of one update costs, at batches of {BATCHES[0]} and {BATCHES[1]}, "
        f"{costs}; with error feedback {left} ({interior} of {len(result['rows'])} interior, n = "
        f"{every.shape[-1]})",
    )


def picture(result: Mapping[str, Any], figure: Figure) -> None:
    medians = np.median(times(result), axis=-1)
    penalty = medians[..., 1:] / medians[..., :1]
    x = np.array(DELAYS[1:]) / medians[..., :1]
    axes = figure.subplots()
    colours: Sequence[str] = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7")
    for i, optimizer in enumerate(OPTIMIZERS):
        for b in range(len(BATCHES)):
            named: dict[str, Any] = {"label": optimizer} if b == 0 else {}
            style: dict[str, Any] = {
                "marker": "os"[b],
                "ls": "",
                "color": colours[i],
                "ms": 5,
                **named,
            }
            axes.plot(x[i, b], penalty[i, b], **style)
    if np.isfinite(penalty).all():
        line = np.geomspace(x.min(), x.max(), 100)
        axes.plot(line, np.exp(fitted(x, penalty)(line)), color="#777777", lw=1, label="one law")
    axes.set(xscale="log", yscale="log", xlabel="delay over updates without delay")
    axes.set_ylabel("updates over those without delay")
    axes.legend(fontsize=8)
    axes.set_title(f"batches of {BATCHES[0]} (circles) and {BATCHES[1]} (squares)", fontsize=9)
