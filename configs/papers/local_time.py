"""Local parallelism trains faster than backpropagation where devices abound (arXiv 2012.03837).

Four blocks on four devices, one each; seconds are updates times seconds an update, in units of one
device's backpropagation of the batch, links free. Fair: backpropagation is pipelined (1F1B), not
stalled, in four micro-batches a stage as is usual; every variant has a learning rate of its own for
the same optimizer (Adam), found by one search. Greedy's clock is its pipeline's; a chunk is itself
pipelined by 1F1B over its two devices, and the slower chunk sets the pace; overlapping groups have
a bound in their favour, their longest dependent path.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from optdyn.config import usual
from optdyn.evidence import arms
from optdyn.evidence.arms import RATE
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.intervals import ratio, shown
from optdyn.evidence.study import Job, Study
from optdyn.evidence.trial import to_loss
from optdyn.experiment import Experiment
from optdyn.problem import shared_data
from optdyn.strategies import Network
from optdyn.strategies.gradient import local
from optdyn.timeline import pipeline
from optdyn.training import program

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
LOSSES = {"vision": (0.5, 0.2, 0.1), "text": (2.4, 2.2, 2.05)}  # the last is tuned for
STEPS = {"small": 500, "full": 2000}
BATCHES = (16, 64, 256)  # of backpropagation on the first task
UPDATES = 50  # that the clocks are taken over

CLAIM = Claim(
    number=10,
    sentence="Local parallelism reaches a loss sooner than backpropagation where parallel compute "
    "abounds, beyond the point where larger batches help; overlapping is above greedy",
    source="arXiv 2012.03837, abstract; the order of variants as commonly stated",
    measured="updates to three training losses, times simulated seconds an update on four devices "
    "with free links, of a residual perceptron of 4 blocks, 128 wide, on 4,000 MNIST images of 14 "
    "x 14 pixels (batch 64) and of "
    "a transformer of 4 blocks on the King James Bible (batch 16, 32 characters), at most 500 "
    "updates; updates of backpropagation at batches of 16, 64 and 256",
    opponent="backpropagation pipelined by 1F1B in 16 micro-batches on the same four devices; Adam "
    "with a learning rate tuned for each variant",
    rule="confirmed if on both tasks overlapping groups need fewer updates than greedy ones to "
    "the last loss and a local variant less time than 1F1B to every loss (intervals of the ratios "
    "below 1); refuted if on neither task a local variant needs less time to any loss; else open",
)


def config(task: str, variant: str, scale: str, batch_size: int = 0) -> Experiment:
    base = usual().with_(
        {
            "model.blocks": STAGES,
            "data.train_evaluated": 300,
            "optimizer.name": "adam",
            "cluster.service": "constant",
            "strategy.name": "local",
            **TASKS[task],
            **{f"strategy.{key}": value for key, value in VARIANTS[variant].items()},
        },
        steps=STEPS[scale],
    )
    if not batch_size:
        return base
    steps = base.steps * max(1, base.batch_size // batch_size)  # no fewer examples
    return base.with_(steps=steps, batch_size=batch_size)


def _method(config: Experiment) -> local.Local:
    method = config.methods.gradient
    assert isinstance(method, local.Local)
    return method


def clock(config: Experiment) -> dict[str, list[float]]:
    """The seconds of the first update and between two, by schedule."""
    config = config.with_({"cluster.nodes": STAGES})
    data = shared_data.load(config)
    one = {name: leaf[:1] for name, leaf in data.train.items()}
    params = program.init(config, data.classes, jax.random.key(0), one)
    network = Network(program.problem_of(config, data.classes), params, one)
    costs, work = local.costs(_method(config), config, network)
    made = {}
    method = _method(config)
    if method.variant == "greedy":
        made["greedy"] = pipeline.local(work.forward, work.backward, 0.0, UPDATES)
    found = {}
    if method.variant == "backprop":
        found[DATA] = [1 / STAGES, 1 / STAGES]
        for m in MICRO_BATCHES:
            made[f"1F1B, {m}"] = _flushed(work.forward / m, work.backward / m, m)
    if method.variant == "chunked":  # the slower of two pipelines, each of two stages
        m, half = MICRO_BATCHES[-1], STAGES // method.chunks
        parts = [slice(a, a + half) for a in range(0, STAGES, half)]
        each = [(work.forward[part] / m, work.backward[part] / m) for part in parts]
        slowest = max(pipeline.seconds(_flushed(*own, m))[0] for own in each)
        found["chunked"] = [float(slowest)] * 2
    for name, schedule in made.items():
        ends = pipeline.seconds(schedule)
        found[name] = [float(ends[0]), float(np.diff(ends).mean())]
    if not found:
        whole = _backprop_flops(config)
        found[method.variant] = [costs.latency / whole, costs.sequential / whole]
    return found


def _flushed(forward: np.ndarray, backward: np.ndarray, micro_batches: int) -> pipeline.Schedule:
    return pipeline.one_f_one_b(forward, backward, 0.0, micro_batches, UPDATES)


def _backprop_flops(config: Experiment) -> float:
    whole = config.with_({"strategy.variant": "backprop"})
    data = shared_data.load(whole)
    one = {name: leaf[:1] for name, leaf in data.train.items()}
    params = program.init(whole, data.classes, jax.random.key(0), one)
    network = Network(program.problem_of(whole, data.classes), params, one)
    return local.costs(_method(whole), whole, network)[0].total


def measure(study: Study) -> dict[str, Any]:
    arms_of = {
        (task, variant): config(task, variant, study.scale)
        for task in TASKS
        for variant in VARIANTS
    }
    large = {
        ("vision", batch): config("vision", "backprop", study.scale, batch)
        for batch in BATCHES
        if batch != TASKS["vision"]["batch_size"]
    }
    every: dict[tuple[str, Any], Experiment] = arms_of | large

    def best(key: tuple[str, Any]) -> arms.Tuned:
        arm = arms.Arm(every[key], {RATE: arms.rates}, {RATE: -8})
        return arms.tuned(study, arm, LOSSES[key[0]][-1])

    tuned = dict(zip(every, study.map(best, every), strict=True))
    updates = {}
    for key, own in every.items():
        jobs = [Job(arms.at(own, tuned[key].point, s), LOSSES[key[0]][-1]) for s in study.report]
        curves = study.trials(jobs)
        updates[key] = {loss: [to_loss(c, loss) for c in curves] for loss in LOSSES[key[0]]}
    tasks = {}
    for task, losses in LOSSES.items():
        clocks: dict[str, list[float]] = {}
        for variant in VARIANTS:
            clocks |= clock(config(task, variant, study.scale))
        last = losses[-1]
        tasks[task] = {
            "seconds": clocks,
            "tuned": {v: tuned[task, v]._asdict() for v in VARIANTS},
            "updates": {v: {str(k): n for k, n in updates[task, v].items()} for v in VARIANTS},
            "over_backprop": {
                v: ratio(updates[task, v][last], updates[task, "backprop"][last]) for v in VARIANTS
            },
            "overlapping_over_greedy": ratio(
                updates[task, "overlapping"][last], updates[task, "greedy"][last]
            ),
            "time": {
                f"{v} over {name}": {
                    str(loss): ratio(
                        _times(clocks[v], updates[task, v][loss]),
                        _times(clocks[name], updates[task, "backprop"][loss]),
                    )
                    for loss in losses
                }
                for v in ("chunked", "overlapping", "greedy")
                for name in clocks
                if name.startswith("1F1B") or name == DATA
            },
        }
    last, own = LOSSES["vision"][-1], TASKS["vision"]["batch_size"]
    of = {b: updates["vision", "backprop" if b == own else b][last] for b in BATCHES}
    returns = [ratio(of[a], of[b]) for a, b in pairwise(BATCHES)]
    settings = {str(b): tuned["vision", b]._asdict() for b in BATCHES if b != own}
    return {"tasks": tasks, "batches": {"updates": of, "fewer": returns, "tuned": settings}}


def one_claim(number: int, task: str, of: str) -> Claim:
    """Claim 10 on one task, as an estimate: the best local variant's time over 1F1B's."""
    last = LOSSES[task][-1]
    return Claim(
        number=number,
        sentence=f"({task}) Local parallelism reaches a training loss sooner than pipelined "
        "backpropagation where parallel compute abounds",
        source="arXiv 2012.03837, abstract; claim 10, whose rule is about two tasks at once",
        measured=f"updates to a training loss of {last:g}, times simulated seconds an update on "
        f"four devices with free links, of {of}, at most 500 updates",
        opponent="backpropagation pipelined by 1F1B in 16 micro-batches on the same four "
        "devices; Adam with a learning rate tuned for each variant. Data parallelism, whose "
        "exchange is free as links are, is told beside it",
        rule="Judged is the local variant (chunked, overlapping or greedy) of the least median "
        "time on the seeds that choose, 4. Of the ratio of median times on the seeds that report, "
        "20, its over 1F1B's, with a 95 % interval from seeds drawn in pairs: confirmed if the "
        "interval is below 1, refuted if it is above, open otherwise",
    )


def one_measured(study: Study, task: str) -> dict[str, Any]:
    """Every variant on one task: its seconds an update, and its updates to the last loss."""
    target, opponent = LOSSES[task][-1], f"1F1B, {MICRO_BATCHES[-1]}"
    every = {variant: config(task, variant, study.scale) for variant in VARIANTS}

    def best(variant: str) -> arms.Tuned:
        return arms.tuned(study, arms.Arm(every[variant], {RATE: arms.rates}, {RATE: -8}), target)

    tuned = dict(zip(every, study.map(best, every), strict=True))
    clocks = {variant: clock(own) for variant, own in every.items()}

    def times(variant: str, seeds: Sequence[int], schedule: str = "") -> list[float]:
        jobs = [Job(arms.at(every[variant], tuned[variant].point, s), target) for s in seeds]
        updates = [to_loss(curve, target) for curve in study.trials(jobs)]
        name = schedule or (opponent if variant == "backprop" else variant)
        return [float(t) for t in _times(clocks[variant][name], updates)]

    local_variants = [variant for variant in VARIANTS if variant != "backprop"]
    cost = {v: float(np.median(times(v, study.choose))) for v in local_variants}
    told = {variant: times(variant, study.report) for variant in VARIANTS}
    divided = times("backprop", study.report, DATA)
    return {
        "tuned": {variant: found._asdict() for variant, found in tuned.items()},
        "seconds an update": clocks,
        "chosen": min(cost, key=cost.__getitem__),
        "cost": cost,
        "times": told,
        "over": {v: ratio(told[v], told["backprop"]) for v in local_variants},
        DATA: {v: ratio(told[v], divided) for v in local_variants},
    }


def one_verdict(result: dict[str, Any]) -> Verdict:
    """Of the variant that was chosen, by the interval of its ratio."""
    name, interior = result["chosen"], [each["interior"] for each in result["tuned"].values()]
    others = ", ".join(f"{v} {shown(each)}" for v, each in result["over"].items() if v != name)
    return Verdict(
        below(result["over"][name], 1.0),
        f"{name} takes {shown(result['over'][name])} of 1F1B's time, the others {others}; of data "
        f"parallelism's it takes {shown(result[DATA][name])} "
        f"({sum(interior)} of {len(interior)} interior, n = {len(result['times'][name])})",
    )


def one_picture(result: dict[str, Any], figure: Figure) -> None:
    """Every run's time, and the medians."""
    axes = figure.subplots()
    for y, times in enumerate(result["times"].values()):
        axes.plot(times, [y] * len(times), "|", ms=9)
        axes.plot(float(np.median(times)), y, "o", color="#000000", ms=4)
    axes.set_yticks(range(len(result["times"])), list(result["times"]))
    axes.set(xlabel="time (backprop updates of one device)", xlim=(0, None))


def verdict(result: dict[str, Any]) -> Verdict:
    opponent = f"1F1B, {MICRO_BATCHES[-1]}"
    tasks = result["tasks"]
    order = [t["overlapping_over_greedy"][2] < 1 for t in tasks.values()]
    wins = {
        task: [
            [found[2] < 1 for found in each.values()]
            for name, each in t["time"].items()
            if name.endswith(opponent)
        ]
        for task, t in tasks.items()
    }
    word = "open"
    if all(order) and all(any(all(v) for v in each) for each in wins.values()):
        word = "confirmed"
    if not any(any(map(any, each)) for each in wins.values()):
        word = "refuted"
    parts = []
    for task, t in tasks.items():
        times = ", ".join(
            f"{v} {shown(t['time'][f'{v} over {opponent}'][str(LOSSES[task][-1])])}"
            for v in ("chunked", "overlapping", "greedy")
        )
        updates = shown(t["overlapping_over_greedy"])
        parts.append(
            f"{task}: time over 1F1B's to a loss of {LOSSES[task][-1]} {times}; updates of "
            f"overlapping over greedy {updates}"
        )
    fewer = " and ".join(shown(found) for found in result["batches"]["fewer"])
    return Verdict(
        word,
        "; ".join(parts) + f"; four times the batch needs {fewer} times fewer updates (batches "
        f"{', '.join(map(str, BATCHES))})",
    )


def picture(result: dict[str, Any], figure: Figure) -> None:
    for axes, (task, found) in zip(
        figure.subplots(1, len(TASKS)), result["tasks"].items(), strict=True
    ):
        for name, seconds in found["seconds"].items():
            variant = name if name in VARIANTS else "backprop"
            each = found["updates"][variant]
            times = [_times(seconds, each[str(loss)]) for loss in LOSSES[task]]
            middle, low, high = (f(times, axis=1) for f in (np.median, np.min, np.max))
            axes.plot(LOSSES[task], middle, marker="o", label=name)
            axes.fill_between(LOSSES[task], low, high, alpha=0.15)
        axes.invert_xaxis()
        axes.set(title=task, xlabel="training loss", ylabel="time (backprop updates of one device)")
        axes.set_ylim(bottom=0)
    axes.legend()


def _times(seconds: list[float], updates: list[float]) -> list[float]:
    first, between = seconds
    return [first + between * (n - 1) for n in updates]
