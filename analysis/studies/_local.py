"""Local parallelism against pipelined backpropagation on four devices (arXiv 2012.03837).

Seconds are in units of one device's backpropagation of the batch, and links are free. A chunk is
pipelined by 1F1B over its two devices, and the slower chunk sets the pace. Overlapping groups take
their longest dependent path, a bound in their favour.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from optdyn.clock import pipeline
from optdyn.evidence import arms
from optdyn.evidence.arms import RATE
from optdyn.evidence.claim import Verdict, below
from optdyn.evidence.intervals import ratio, shown
from optdyn.evidence.study import Study
from optdyn.evidence.trial import to_loss
from optdyn.experiment import Config
from optdyn.methods import ModelInfo, local
from optdyn.problem import shared_data
from optdyn.train import program

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}
OPPONENT = (
    "backpropagation pipelined by 1F1B in 16 micro-batches on the same four devices; Adam with a "
    "learning rate tuned for each variant. Data parallelism, whose exchange is free as links are, "
    "is told beside it"
)
RULE = (
    "Judged is the local variant (chunked, overlapping or greedy) of the least median time on the "
    "seeds that choose, 4. Of the ratio of median times on the seeds that report, 20, its over "
    "1F1B's, with a 95 % interval from seeds drawn in pairs: confirmed if the interval is below 1, "
    "refuted if it is above, open otherwise"
)
STAGES, MICRO_BATCHES = 4, (4, 16)  # the last is the opponent's
DATA = "batch divided"  # among the devices: data parallelism, whose exchange is free as links are
VARIANTS: dict[str, dict[str, Any]] = {
    "backprop": {"variant": "backprop"},
    "chunked": {"variant": "chunked", "chunks": 2},
    "overlapping": {"variant": "overlapping", "window": 2},
    "greedy": {"variant": "greedy"},
}
TASKS: dict[str, dict[str, Any]] = {
    "vision": {
        "model.name": "resmlp",
        "model.width": 128,
        "data.image_size": 14,  # larger, and the first block has most of the work
        "batch_size": 64,
    },
    "text": {
        "model.name": "transformer",
        "model.width": 32,
        "data.name": "kjv",
        "data.sequence_length": 32,
        "data.test_evaluated": 500,
        "batch_size": 16,
    },
}
LOSSES = {"vision": 0.1, "text": 2.05}  # training losses that are tuned for
STEPS = {"small": 500, "full": 2000}
UPDATES = 50  # that the clocks are taken over


def config(task: str, variant: str, scale: str) -> Config:
    return Config().with_(
        {
            "model.blocks": STAGES,
            "data.train_evaluated": 300,
            "optimizer.name": "adam",
            "cluster.service.name": "constant",
            "method.name": "local",
            **TASKS[task],
            **{f"method.{key}": value for key, value in VARIANTS[variant].items()},
        },
        steps=STEPS[scale],
    )


def arm(task: str, variant: str, scale: str) -> arms.Arm:
    return arms.Arm(config(task, variant, scale), {RATE: arms.rates}, {RATE: -8})


def clock(config: Config) -> dict[str, list[float]]:
    """Returns the seconds of the first update and between two, by schedule."""
    config = config.with_({"cluster.nodes": STAGES})
    method, costs, work = _costs(config)
    schedules = {}
    if method.variant == "greedy":
        schedules["greedy"] = pipeline.schedule("local", work.forward, work.backward, 0.0, UPDATES)
    found = {}
    if method.variant == "backprop":
        found[DATA] = [1 / STAGES, 1 / STAGES]
        for m in MICRO_BATCHES:
            schedules[f"1F1B, {m}"] = _flushed(work.forward / m, work.backward / m, m)
    if method.variant == "chunked":  # the slower of two pipelines, each of two stages
        m, half = MICRO_BATCHES[-1], STAGES // method.chunks
        parts = [slice(a, a + half) for a in range(0, STAGES, half)]
        stages = [(work.forward[part] / m, work.backward[part] / m) for part in parts]
        slowest = max(pipeline.update_seconds(_flushed(*stage, m))[0] for stage in stages)
        found["chunked"] = [float(slowest)] * 2
    for name, schedule in schedules.items():
        ends = pipeline.update_seconds(schedule)
        found[name] = [float(ends[0]), float(np.diff(ends).mean())]
    if not found:
        whole = _costs(config.with_({"method.variant": "backprop"}))[1].total
        found[method.variant] = [costs.latency / whole, costs.sequential / whole]
    return found


def _flushed(forward: np.ndarray, backward: np.ndarray, micro_batches: int) -> pipeline.Schedule:
    return pipeline.schedule("1f1b", forward, backward, 0.0, UPDATES, micro_batches)


def _costs(config: Config) -> tuple[local.Local, local.UpdateCost, pipeline.StageWork]:
    method = config.methods.gradient
    assert isinstance(method, local.Local)
    data = shared_data.load(config)
    one = {name: leaf[:1] for name, leaf in data.train.items()}
    params = program.init(config, data.classes, jax.random.key(0), one)
    network = ModelInfo(program.problem_of(config, data.classes), params, one)
    return method, *local.costs(method, config, network)


def measure_task(study: Study, task: str) -> dict[str, Any]:
    """Returns the tuned variants of a task, their seconds an update and times to the loss."""
    target, opponent = LOSSES[task], f"1F1B, {MICRO_BATCHES[-1]}"
    tried = {variant: arm(task, variant, study.scale) for variant in VARIANTS}
    tuned = arms.best_of(study, tried, target)
    clocks = {variant: clock(arm.config) for variant, arm in tried.items()}

    def times(variant: str, seeds: Sequence[int], schedule: str = "") -> list[float]:
        curves = arms.reported(study, tried[variant], tuned[variant].point, target, seeds)
        name = schedule or (opponent if variant == "backprop" else variant)
        first, between = clocks[variant][name]
        return [float(first + between * (to_loss(curve, target) - 1)) for curve in curves]

    local_variants = [variant for variant in VARIANTS if variant != "backprop"]
    cost = {v: float(np.median(times(v, study.choose))) for v in local_variants}
    reported = {variant: times(variant, study.report) for variant in VARIANTS}
    divided = times("backprop", study.report, DATA)
    return {
        "tuned": {variant: found._asdict() for variant, found in tuned.items()},
        "seconds an update": clocks,
        "chosen": min(cost, key=cost.__getitem__),
        "cost": cost,
        "times": reported,
        "over": {v: ratio(reported[v], reported["backprop"]) for v in local_variants},
        DATA: {v: ratio(reported[v], divided) for v in local_variants},
    }


def verdict(result: dict[str, Any]) -> Verdict:
    name, interior = result["chosen"], [found["interior"] for found in result["tuned"].values()]
    others = ", ".join(f"{v} {shown(found)}" for v, found in result["over"].items() if v != name)
    return Verdict(
        below(result["over"][name], 1.0),
        f"{name} takes {shown(result['over'][name])} of 1F1B's time, the others {others}; of data "
        f"parallelism's it takes {shown(result[DATA][name])} "
        f"({sum(interior)} of {len(interior)} interior, n = {len(result['times'][name])})",
    )


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    for y, times in enumerate(result["times"].values()):
        axes.plot(times, [y] * len(times), "|", ms=9)
        axes.plot(float(np.median(times)), y, "o", color="#000000", ms=4)
    axes.set_yticks(range(len(result["times"])), list(result["times"]))
    axes.set(xlabel="time (backprop updates of one device)", xlim=(0, None))
