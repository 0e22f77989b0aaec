"""Does choosing the mini-batch and the algorithms of convolutions speed up real training?

The planner takes the mini-batch B of the least updates(B) x seconds(B), where updates(B) = U_min (1
+ B_noise / B) is fitted at three mini-batches and seconds(B) are measured. Wall-clock seconds of
training count, those of planning and fitting do not.
"""

import itertools
import math
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from analysis.studies import _problems as problems
from optdyn.evidence.arms import reported, sgd, tuned
from optdyn.evidence.claim import Claim, Verdict, above
from optdyn.evidence.intervals import ratio, shown
from optdyn.evidence.study import Study
from optdyn.evidence.trial import to_loss
from optdyn.experiment import Config
from optdyn.methods.setup import Plan
from optdyn.plan import convergence, layers, plans
from optdyn.problem.models.convolution import default_lowering
from optdyn.train.program import CHUNK

DEFAULT = 64
FITTED = (8, 32, 256)  # mini-batches that the law is fitted to
PREDICTED = (16, 64, 128)  # others, of which the predicted time is held against the measured
BATCHES = tuple(sorted(FITTED + PREDICTED))
ROUNDS = {"small": 5, "full": 15}  # of timing a plan
TIMES = 3  # that every seed's training is timed
LONG, SEEDS = True, {"small": (4, 120), "full": (4, 120)}
BOUND = 1.05  # less is no speed-up that anybody would plan for

CLAIM = Claim(
    number=44,
    sentence="Choosing the mini-batch and the algorithms of convolutions makes real training at "
    "least 5 % faster",
    source="Distributed training of large-scale deep architectures (arXiv 1709.06622), abstract; "
    "claim 9, which 5 seeds left open",
    measured="wall-clock seconds of real training to a training loss of 0.25: a convolutional "
    "network (4 and 8 channels, 32 hidden), 4,000 MNIST images, momentum 0.9, this machine's "
    "cores; mini-batch and algorithms only, as servers cannot be measured on one machine",
    opponent="mini-batch 64 and the default algorithm, gemm, with its own tuned learning rate. "
    "The plan knows 4 seeds at three mini-batches",
    rule="Of the default's seconds over the plan's, in medians over the seeds that report, 120, "
    "with a 95 % interval from seeds drawn in pairs: confirmed if the interval is above 1.05, "
    "refuted if it is below, open otherwise. Where the plan is the default, the ratio is 1",
)


def config_of(batch: int) -> Config:
    plain = {"method.name": "sync", "cluster.nodes": 1, "optimizer.momentum": 0.9}
    return problems.network("cnn", batch).with_(plain)


def measure(study: Study) -> dict[str, Any]:
    def judged(batch: int) -> dict[str, Any]:
        """Returns updates to the loss at the best rate, for choosing and reporting seeds."""
        arm = sgd(config_of(batch), min(0.02 * batch, 0.5))
        best = tuned(study, arm, problems.TARGET)
        chose, took = (
            reported(study, arm, best.point, problems.TARGET, seeds)
            for seeds in (study.choose, study.report)
        )
        return {
            "setting": best.point,
            "interior": best.interior,
            "chose": [to_loss(curve, problems.TARGET) for curve in chose],
            "took": [to_loss(curve, problems.TARGET) for curve in took],
        }

    runs = {str(b): results for b, results in zip(BATCHES, study.map(judged, BATCHES), strict=True)}
    known = [(b, updates) for b in FITTED for updates in runs[str(b)]["chose"]]
    rounds = ROUNDS[study.scale]
    plan = study.remember(f"plan {rounds} {known}", in_new_process, planned, known, rounds)
    took = {b: runs[str(b)]["took"] for b in BATCHES}
    found = study.remember(f"trained {plan} {took}", train, plan, took)
    return {"runs": runs, "plan": plan, **found}


def process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def in_new_process(*call: Any) -> Any:
    """Returns a function's result in a new process, which may use all cores."""
    with process() as child:
        return child.submit(*call).result()


def planned(known: list[tuple[int, float]], rounds: int) -> dict[str, Any]:
    """Returns the plan from updates by mini-batch, measured here, and its noise scale."""
    config = config_of(DEFAULT).with_(plan=Plan(batches=BATCHES, rounds=rounds))
    batches, updates = zip(*known, strict=True)
    start = time.monotonic()
    decision = plans.decision(
        config.plan, plans.device(config), convergence.from_runs(batches, updates)
    )
    return {
        "batch": decision["batch"],
        "rows": {str(row["batch"]): row for row in decision["batches"]},
        "noise_scale": convergence.fit(batches, updates).noise,
        "planning_seconds": time.monotonic() - start,
    }


def train(plan: dict[str, Any], took: dict[int, list[float]]) -> dict[str, Any]:
    """Returns wall-clock seconds of training by arm and reporting seed, medians of `TIMES`.

    A seed that missed the loss has infinity.
    """
    rows = plan["rows"]
    arms = {
        "default": (DEFAULT, default_lowering()),
        "planned": (plan["batch"], rows[str(plan["batch"])]["lowering"]),
        **{str(b): (b, rows[str(b)]["lowering"]) for b in PREDICTED},
    }
    seeds, load = len(took[DEFAULT]), os.getloadavg()[0]
    order, seconds = np.random.default_rng(0), np.zeros((len(arms), TIMES, seeds))
    with process() as child:

        def once(arm: tuple[int, str], i: int) -> float:
            return child.submit(training, *arm, took[arm[0]][i]).result()

        settings = list(arms.values())
        for arm in settings:
            once(arm, 0)  # compiles
        for turn, i in itertools.product(range(TIMES), range(seeds)):
            for k in order.permutation(len(settings)):
                seconds[k, turn, i] = once(settings[k], i)
    medians = dict(zip(arms, np.median(seconds, axis=1).tolist(), strict=True))
    return {"seconds": medians, "arms": arms, "load": (load, os.getloadavg()[0])}


def training(batch: int, lowering: str, updates: float) -> float:
    """Returns the wall-clock seconds of `updates` updates."""
    if not math.isfinite(updates):
        return math.inf
    loop, whole = _program(batch, lowering), math.ceil(updates)
    start = time.perf_counter()
    for done in range(0, whole, CHUNK):
        losses = loop(min(whole - done, CHUNK))
    jax.block_until_ready(losses)
    return time.perf_counter() - start


@cache
def _program(batch: int, lowering: str) -> Any:
    run = plans.prepare(config_of(batch))
    convolutions = layers.convolutions(run)
    choice = layers.choice_of_config(lowering, convolutions)
    return layers.updates(run, convolutions)(batch, choice).loop.run


def verdict(result: dict[str, Any]) -> Verdict:
    seconds, (batch, lowering) = result["seconds"], result["arms"]["planned"]
    same = batch == DEFAULT and set(lowering.split(",")) == {result["arms"]["default"][1]}
    found = (1.0, 1.0, 1.0) if same else ratio(seconds["default"], seconds["planned"])
    plan = "the default" if same else f"mini-batch {batch} with {lowering}"
    line = f"mini-batch {DEFAULT} takes {shown(found)} of the planned one's seconds"
    return Verdict(
        above(found, BOUND), f"{line}; the plan is {plan} (n = {len(seconds['default'])})"
    )


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    rows = [result["plan"]["rows"][str(b)] for b in BATCHES]
    fits = [row for row in rows if row["feasible"]]
    times = np.array([[row["time"][k] for k in ("median", "low", "high")] for row in fits]).T
    batches = [row["batch"] for row in fits]
    axes.plot(batches, times[0], label="predicted, 90 %")
    axes.fill_between(batches, times[1], times[2], alpha=0.2)
    for name, (batch, _) in result["arms"].items():
        seconds = result["seconds"][name]
        mark = {"default": "s", "planned": "*"}.get(name, "o")
        axes.plot([batch] * len(seconds), seconds, mark, color="C1", alpha=0.6)
    axes.plot([], [], "o", color="C1", label="measured (square: default, star: planned)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("mini-batch")
    axes.set_ylabel("seconds of training")
    axes.legend()
