"""Waiting for the fastest against never waiting: do we need asynchronous SGD? (arXiv 2602.03802)

`k_sync` takes the gradients of the m fastest and drops the others, `k_batch_sync` the next S
gradients (Rennala SGD, 2305.12387). Those who never wait are asynchronous SGD, Ringmaster, which
drops old gradients (2501.16168), and rates that fall with the delay (2206.07638).
"""

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from optdyn.evidence.arms import MOMENTUM, STEP, Arm, momenta, rates, reported, rung, tuned
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.intervals import mean_ratio, ratio, shown
from optdyn.evidence.study import Study
from optdyn.evidence.trial import to_loss
from optdyn.experiment import Config
from optdyn.train.grid import Point

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}
WORKERS, EXAMPLES, TARGET, BOUND = 8, 8, 0.25, 1.1
FASTEST, GRADIENTS, OLD = (2, 4, 6, 8), (4, 16), (4, 8)  # m, S and R
LAWS: Mapping[str, Point] = {
    "unlike speeds": {
        "cluster.service.name": "constant",
        "cluster.speeds": tuple(round(1 / (i + 1) ** 0.5, 4) for i in range(WORKERS)),
    },
    "exponential": {"cluster.service.name": "exponential"},
    "heavy tail": {"cluster.service.name": "lognormal", "cluster.service.variation": 3.0},
}

CLAIM = Claim(
    number=21,
    sentence="Whoever waits for the fastest takes at most a tenth more time than the best of "
    "asynchronous methods",
    source="arXiv 2602.03802: waiting for the m fastest is nearly optimal in time",
    measured="simulated seconds to a training loss of 0.25 of an MLP 784-32-10 on 4,000 MNIST "
    "images, 8 workers, gradients of 8 examples, free links; workers of constant speeds 1 / "
    "sqrt(i), memoryless ones, and log-normal ones with a deviation of 3 times the mean. No "
    "outages, and no example costs more than another",
    opponent="the best of asynchronous SGD, Ringmaster with R = 4 and 8, and rates that fall with "
    "the delay; every arm has its own learning rate and momentum, tuned by one procedure until "
    "interior",
    rule="Under each law the best that waits (m = 2, 4, 6, 8 of k_sync, S = 4, 16 of k_batch_sync) "
    "and the best that does not are those of the least median seconds on the seeds that choose, 4. "
    "Of the ratio of their median seconds on the seeds that report, 20, in the geometric mean over "
    "the three laws, with a 95 % interval from seeds drawn again in all alike: confirmed if the "
    "interval is below 1.1, refuted if it is above, open otherwise",
)


def arms() -> dict[str, Point]:
    """Returns the arms that wait, and then the others."""
    waiting: dict[str, Point] = {f"{m} fastest": _several(m, "k_sync") for m in FASTEST}
    waiting |= {f"{s} gradients": _several(s, "k_batch_sync") for s in GRADIENTS}
    late: dict[str, Point] = {"asynchronous": {"method.name": "asynchronous"}}
    late |= {
        f"Ringmaster, R = {r}": {"method.name": "ringmaster", "method.delay_bound": r} for r in OLD
    }
    late["rate by delay"] = {
        **late["asynchronous"],
        "optimizer.chain": ("staleness_rate",),
        "optimizer.chain_options.law": "bounded",
    }
    return waiting | late


def _several(count: int, waiting: str) -> Point:
    keys = {"name": "buffered", "arrivals": count, "waiting": waiting}
    return {f"method.{key}": value for key, value in keys.items()}


def waits(name: str) -> bool:
    return arms()[name]["method.name"] == "buffered"


def config_of(law: str, name: str) -> Config:
    """Returns an arm's config; a worker of speed 1 takes a second a gradient in the mean."""
    arm = arms()[name]
    base = Config().with_(
        {
            "model.hidden": (32,),
            "data.train_examples": 4000,
            "data.train_evaluated": 1000,
            "cluster.nodes": WORKERS,
            "cluster.seconds_per_example": 1 / EXAMPLES,
            "method.groups": WORKERS,
            **LAWS[law],
            **arm,
        },
        steps=8000,
    )
    return base.with_(batch_size=EXAMPLES * arm.get("method.arrivals", 1))


def arm_of(law: str, name: str) -> Arm:
    """Returns an arm whose step is about 1 for a batch of 64, smaller for late gradients."""
    config = config_of(law, name)
    step = min(config.batch_size / 64, 1.0) if waits(name) else 1 / 16
    start = {STEP: round(log2(step)), MOMENTUM: rung(momenta, 0.6 if waits(name) else 0.0)}
    return Arm(config, {STEP: rates, MOMENTUM: momenta}, start)


def measure(study: Study) -> dict[str, Any]:
    cases = [(law, name) for law in LAWS for name in arms()]

    def run(key: tuple[str, str]) -> dict[str, Any]:
        arm = arm_of(*key)
        found = tuned(study, arm, TARGET)

        def seconds(seeds: Sequence[int]) -> list[float]:
            curves = reported(study, arm, found.point, TARGET, seeds)
            return [to_loss(curve, TARGET, "seconds") for curve in curves]

        cost, by_seed = float(np.median(seconds(study.choose))), seconds(study.report)
        interior = {"point": found.point, "interior": found.interior}
        return {"arm": key[1], "cost": cost, "seconds": by_seed, "updates": found.cost, **interior}

    rows = study.map(run, cases)
    found = {law: [r for r, key in zip(rows, cases, strict=True) if key[0] == law] for law in LAWS}
    return {"laws": found, "best": {law: best(rows) for law, rows in found.items()}}


def best(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the arms of the least cost, by `waits` and `late`."""

    def least(is_waiting: bool) -> str:
        chosen = [row for row in rows if waits(row["arm"]) == is_waiting]
        return str(min(chosen, key=lambda row: row["cost"])["arm"])

    return {"waits": least(True), "late": least(False)}


def pairs(result: Mapping[str, Any]) -> dict[str, tuple[list[float], list[float]]]:
    """Returns the seconds of the best arm that waits and of the best that does not, by law."""
    found = {}
    for law, rows in result["laws"].items():
        seconds = {row["arm"]: row["seconds"] for row in rows}
        chosen = result["best"][law]
        found[law] = seconds[chosen["waits"]], seconds[chosen["late"]]
    return found


def mean(result: Mapping[str, Any]) -> tuple[float, float, float]:
    """Returns the geometric mean over laws of ratios of medians, and its interval."""
    waits, late = zip(*pairs(result).values(), strict=True)
    return mean_ratio(waits, late)


def verdict(result: Mapping[str, Any]) -> Verdict:
    found = mean(result)
    interior = [r["interior"] for rows in result["laws"].values() for r in rows]
    by_law = "; ".join(
        f"{law}: {result['best'][law]['waits']} over {result['best'][law]['late']} "
        f"{shown(ratio(waits, late))}"
        for law, (waits, late) in pairs(result).items()
    )
    n = len(next(iter(pairs(result).values()))[0])
    return Verdict(
        below(found, BOUND),
        f"{shown(found)} of the seconds in the mean over laws; {by_law} ({sum(interior)} of "
        f"{len(interior)} interior, n = {n})",
    )


def picture(result: Mapping[str, Any], figure: Figure) -> None:
    figure.set_size_inches(9, 3.2)
    panels = figure.subplots(1, len(result["laws"]), sharey=True)
    for axes, (law, rows) in zip(panels, result["laws"].items(), strict=True):
        for y, row in enumerate(reversed(rows)):
            colour = "#0072B2" if waits(row["arm"]) else "#D55E00"
            axes.plot(row["seconds"], [y] * len(row["seconds"]), "|", color=colour, ms=6)
            axes.plot(float(np.median(row["seconds"])), y, "o", color=colour, ms=4)
        axes.set(xscale="log", title=law, xlabel="simulated seconds")
    names = [row["arm"] for row in reversed(next(iter(result["laws"].values())))]
    panels[0].set_yticks(range(len(names)), names, fontsize=7)
