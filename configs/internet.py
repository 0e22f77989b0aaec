"""Toward the internet: what a cluster of volunteers all over the earth gains as it grows.

    python -m configs.internet WORKDIR --problem=quadratic --sizes 8 64 512 4096
    python -m configs.internet WORKDIR --problem=transformer --sizes 8 64

Nodes live in 100 regions (`research/timeline/regions.py`). The gradient of one example takes a node
30 seconds in the mean, log-normal with deviation 1, and 30 % more or less by the hour. All
parameters take 30 seconds through the median link, or 100 million float32 parameters through 107
Mb/s, and regions' links vary by a deviation of 1. Nodes leave after two hours in the mean and are
back after one. Models are small, so bandwidths are scaled to their bytes.

    synchronous   an all-reduce after every update
    DiLoCo        after every h-th; h and both momenta are tuned too, as of `decoupled`
    asynchronous  one server, in the region with the least far to all, with a link 1,000 times the
                  median one (107 Gb/s), which all queue for
    decoupled     DiLoCo whose nodes wait for nobody: a server merges as soon as half of them have
                  sent (Decoupled DiLoCo, arXiv 2604.21428)
    gossip        one peer of the exponential graph after every update, the next who is there

Every exchange may run behind the last two thirds of the computing before it. Every arm has its own
learning rate, momentum (of Adam b1) and examples of a node's gradient at every size, whose
neighbours are all worse by simulated seconds to the target on the seeds that choose; others report.
What breaks is told from the same clock with parts of the cluster left out: `computing` alone, all
alike and nothing to send; what `volunteers` add, who are unequal, follow the hour and leave; and
the network. Seconds are simulated. They end with a meeting of all nodes, after which there is one
model.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from optdyn.basics.arguments import Parser
from optdyn.basics.errors import InputError
from optdyn.basics.files import write_json
from optdyn.config import usual
from optdyn.configs.race import WORKERS, bandwidth, tuned_of
from optdyn.evidence.arms import (
    MOMENTUM,
    OUTER,
    PERIOD,
    RATE,
    Arm,
    at,
    counts,
    momenta,
    point,
    reported,
    rung,
    tuned,
)
from optdyn.evidence.intervals import drawn_again, ratio, shown, spread
from optdyn.evidence.study import Study
from optdyn.evidence.trial import meeting, to_loss
from optdyn.experiment import Experiment
from optdyn.grid import Point
from optdyn.training import trainer

SIZES = (8, 64, 512, 4096)
PLAIN = "synchronous"
BATCH = "batch_size"
SECONDS = 30.0  # of an example's gradient, and of all parameters through the median link
SERVER = 1000  # times the median link
LOOK = 1  # the first at the loss: a large cluster is there in a dozen updates
EARTH: Point = {
    "cluster.regions": 100,
    "cluster.latency": 0.01,
    "cluster.bandwidth_variation": 1.0,
    "cluster.service": "lognormal",
    "cluster.variation": 1.0,
    "cluster.seconds_per_example": SECONDS,
    "cluster.diurnal": 0.3,
    "cluster.overlap": 2 / 3,
    "cluster.presence": 7200.0,
    "cluster.absence": 3600.0,
}
ALIKE: Point = {"cluster.service": "constant", "cluster.diurnal": 0.0, "cluster.presence": 0.0}
FREE: Point = {
    "cluster.regions": 0,
    "cluster.latency": 0.0,
    "cluster.bandwidth": 0.0,
    "cluster.server_bandwidth": 0.0,
}


class Problem(NamedTuple):
    what: str
    config: Point
    target: float  # training loss
    rate: float  # of synchronous training, that searches start from
    updates: int  # of synchronous training, at most


PROBLEMS: Mapping[str, Problem] = {
    "quadratic": Problem(
        "a noisy quadratic of 256 dimensions, condition 100, SGD; from 55.3 to 28, of which 27.7 "
        "is noise of the examples (with a deviation of 0.03 from seed to seed)",
        {
            "model.name": "quadratic",
            "model.dimension": 256,
            "model.condition": 100.0,
            "model.noise": 1.0,
            "data.train_examples": 20_000,
            "data.train_evaluated": 20_000,
        },
        target=28.0,
        rate=0.5,
        updates=2048,
    ),
    "transformer": Problem(
        "a transformer of one block, 32 wide, on sequences of 32 characters of the King James "
        "Bible, to 2.6 nats a character; Adam",
        {
            "model.name": "transformer",
            "model.blocks": 1,
            "model.width": 32,
            "data.name": "kjv",
            "data.train_examples": 4000,
            "data.sequence_length": 32,
            "data.train_evaluated": 256,
            "data.test_evaluated": 64,
            "optimizer.name": "optdyn.configs.race:adam",
            "optimizer.momentum": 0.9,
        },
        target=2.6,
        rate=0.008,
        updates=1024,
    ),
}
ARMS: Mapping[str, Point] = {
    PLAIN: {"strategy.name": "model_averaging", "strategy.period": 1},
    "DiLoCo": {"strategy.name": "diloco", "strategy.period": 8},
    "asynchronous": {"strategy.name": "asynchronous"},
    "decoupled": {"strategy.name": "decoupled", "strategy.period": 8, "cluster.overlap": 0.0},
    "gossip": {
        "strategy.name": "gossip",
        "strategy.graph": "one_peer",
        "strategy.gossip_order": "adapt",
    },
}
ALONE = ("asynchronous", "decoupled")  # arms whose updates are of one node, not of all


def config_of(problem: str, arm: str, size: int) -> Experiment:
    """An arm on a cluster of so many nodes."""
    of, alone = PROBLEMS[problem], arm in ALONE
    config = usual().with_({**EARTH, **of.config, **ARMS[arm]})
    each = bandwidth(config, 2 * (1 - 1 / WORKERS) * SECONDS)  # one message
    values = {
        "data.replacement": True,
        "cluster.nodes": size,
        "batch_size": 1 if alone else size,
        "steps": of.updates * (max(size // 32, 8) if alone else 1),
        "cluster.bandwidth": each,
        "probes.mean": not alone,
    }
    if alone:
        values |= {"strategy.groups": size}
    if arm == "asynchronous":
        values["cluster.server_bandwidth"] = SERVER * each
    if arm == "decoupled":
        values["strategy.quorum"] = size // 2
    return config.with_(values)


def arm_of(problem: str, name: str, size: int) -> Arm:
    """What is tuned. The rate of n asynchronous workers is searched from 2 / n of the usual on.

    Where all wait for the network the search begins at 4 examples a node, elsewhere at one.
    """
    usual, config = PROBLEMS[problem].rate, config_of(problem, name, size)
    late = name == "asynchronous"
    arm = tuned_of(config, 4 * usual * min(1, 2 / size) if late else usual)
    arm = _with_examples(arm, 2 if name == PLAIN else 0)
    if OUTER not in arm.ladders:
        return arm
    inner = {MOMENTUM: rung(momenta, config.optimizer.momentum), PERIOD: rung(counts, 8)}
    return Arm(config, {**arm.ladders, MOMENTUM: momenta, PERIOD: counts}, {**arm.start, **inner})


def _with_examples(arm: Arm, start: int) -> Arm:
    """Also with a ladder of the examples of a node's gradient, 1, 2, 4, ..."""
    each = arm.config.batch_size

    def batches(i: int) -> int:
        return each * counts(i)

    return Arm(arm.config, {**arm.ladders, BATCH: batches}, {**arm.start, BATCH: start})


def setting_of(arm: Arm, items: Sequence[str]) -> Point:
    """KEY=VALUE of all that is tuned. Raises `InputError` where one is missing or no number."""
    start = point(arm, [arm.start[key] for key in arm.ladders])
    given = dict(item.partition("=")[::2] for item in items)
    if set(given) != set(start):
        raise InputError(f"--setting: must have {', '.join(sorted(start))}, each KEY=VALUE")
    try:
        return {key: type(value)(given[key]) for key, value in start.items()}
    except ValueError as error:
        raise InputError(f"--setting: {error}") from error


def clocks(config: Experiment, updates: int) -> dict[str, float]:
    """Seconds to that many updates, of computing alone, with volunteers, and with their network."""
    parts = {"computing": {**ALIKE, **FREE}, "volunteers": FREE, "network": {}}
    found = {}
    for name, part in parts.items():
        run = trainer.prepare(config.with_(part, steps=updates))
        found[name] = float(run.timeline.seconds[-1]) + meeting(run, updates)
    return found | {"staleness": float(np.mean(run.timeline.staleness))}


def computed(config: Experiment, updates: Sequence[float], seconds: Sequence[float]) -> np.ndarray:
    """Of each run, the share of its seconds that computing alone would take to as many updates."""
    most = max(round(max(updates)), 1) + 1
    alone = trainer.prepare(config.with_({**ALIKE, **FREE}, steps=most)).timeline.seconds
    return np.interp(updates, np.arange(most + 1), [0.0, *alone[:most]]) / np.array(seconds)


def row(study: Study, problem: str, name: str, size: int, given: Point) -> dict[str, Any]:
    """Median, least and most of what an arm takes at a size; its setting is `given` or searched."""
    arm, target, said = arm_of(problem, name, size), PROBLEMS[problem].target, {}
    if not given:
        best = tuned(study, arm, target, "met", "seconds")
        given = best.point
        said = {"interior": best.interior, "tried": best.tried, "range": best.range}
    curves = reported(study, arm, given, target)
    taken = [to_loss(curve, target) for curve in curves]
    each = [to_loss(curve, target, "met") for curve in curves]
    updates, met = spread(taken), spread(each)
    found = {"arm": name, "nodes": size, "updates": updates, "seconds": met, "each": each}
    found |= {"rate": given[RATE], "momentum": given[MOMENTUM], "seeds": len(curves), **said}
    found["examples"] = given[BATCH] / arm.config.batch_size  # of a node's gradient
    if PERIOD in given:
        found |= {"outer": given[OUTER], "period": given[PERIOD]}
    if isfinite(updates[0]):
        config = at(arm.config, given, study.report[0])
        found |= clocks(config, max(round(updates[0]), 1))
    if isfinite(updates[2]):
        shares = computed(config, taken, each)
        found["computed"] = drawn_again(lambda seeds: float(np.median(shares[seeds])), len(each))
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """In Markdown."""
    lines = [
        "| arm | nodes | rate, momentum | updates | seconds | computing | + volunteers | "
        "+ network |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for of in rows:
        cells = [
            f"{v:.3g} ({low:.3g} to {high:.3g})" for v, low, high in (of["updates"], of["seconds"])
        ]
        clock = [f"{of[name]:.3g}" if name in of else "" for name in PARTS]
        rate = f"{of['rate']:.3g}, {of['momentum']:.3g}"
        rate += f", {of['outer']:.3g} outside, every {of['period']}" if "period" in of else ""
        rate += f"; {of['examples']:g} examples" if of.get("examples", 1) > 1 else ""
        rate += "" if of.get("interior", True) else " (not interior)"
        lines.append(f"| {of['arm']} | {of['nodes']:,} | {' | '.join([rate, *cells, *clock])} |")
    return "\n".join(lines)


def against(rows: Sequence[Mapping[str, Any]]) -> str:
    """In Markdown: how many times as fast as synchronous training an arm is on as many nodes."""
    plain = {row["nodes"]: row["each"] for row in rows if row["arm"] == PLAIN}
    lines = ["| arm | nodes | synchronous training's seconds over its | n |", "|---|---|---|---|"]
    for row in rows:
        if row["arm"] != PLAIN and row["nodes"] in plain:
            found = shown(ratio(plain[row["nodes"]], row["each"]))
            lines.append(f"| {row['arm']} | {row['nodes']:,} | {found} | {len(row['each'])} |")
    return "\n".join(lines)


PARTS = ("computing", "volunteers", "network")


def main() -> None:
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--problem", choices=PROBLEMS, default="quadratic")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--choose", type=int, nargs="+", default=[100, 101])
    parser.add_argument("--report", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--setting", nargs="+", default=[], help="KEY=VALUE of one arm; no search")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="the record; WORKDIR/internet.json")
    asked = parser.read()
    if both := set(asked.choose) & set(asked.report):
        parser.error(f"--choose, --report: both have {min(both)}; seeds that choose report nothing")
    every = [(size, name) for size in asked.sizes for name in asked.arms]
    given: list[Point] = [{}] * len(every)
    try:
        if asked.setting:
            arms = [arm_of(asked.problem, name, size) for size, name in every]
            given = [setting_of(arm, asked.setting) for arm in arms]
    except InputError as error:
        parser.error(str(error))
    out = asked.out or asked.workdir / "internet.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    seeds = asked.choose, asked.report
    with Study(asked.workdir, "internet", *seeds, asked.processes, first=LOOK) as study:

        def made(size: int, name: str, setting: Point) -> dict[str, Any]:
            found = row(study, asked.problem, name, size, setting)
            print(table([found]).split("\n")[-1], flush=True)
            return found

        rows = study.map(made, *zip(*every, strict=True), given)
    said = {"problem": PROBLEMS[asked.problem].what, "target": PROBLEMS[asked.problem].target}
    write_json(out, said | {"choose": asked.choose, "report": asked.report, "rows": rows})
    print(table(rows), against(rows), sep="\n\n")


if __name__ == "__main__":
    main()
