"""Groups with unlike labels: `ringleader` against `asynchronous`, and both against `sync`.

    python -m tests.benchmarks.shards WORKDIR

Sixteen groups of a worker each, memoryless, a free network, shards of the race's MLP's images whose
labels are Dirichlet(0.1), and batches of 64 a group. All are equally fast, or every second one is
four times as fast as the others. Rates are tuned by simulated seconds to a training loss of 0.25
over all images on seeds 100 and 101; five other seeds report. The figure is the ratio of seconds.
The loss of 0.05, with up to four times the updates, was added when 0.25 had been run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optdyn.basics.arguments import Parser
from optdyn.config import usual
from optdyn.configs.race import PROBLEMS
from optdyn.evidence.arms import RATE, Arm, rates, reported, tuned
from optdyn.evidence.intervals import ratio
from optdyn.evidence.study import Study
from optdyn.evidence.trial import FIRST, to_loss
from optdyn.grid import Point
from optdyn.outputs.workdir import write_json

GROUPS, EACH = 16, 64
TARGETS = {0.25: 1, 0.05: 4}  # training losses, and how much longer than for the first runs may be
RECORD = Path("tests/benchmarks/records/shards_cpu.json")
CLUSTER: Point = {
    "cluster.nodes": GROUPS,
    "cluster.service": "exponential",
    "cluster.seconds_per_example": 1e-3,
    "data.dirichlet": 0.1,
}
SPEEDS = {"equal": (1.0, 1.0), "unlike": (4.0, 1.0)}
# Of each method the examples and the most updates: `sync` has a batch of all groups in one.
METHODS = {
    "ringleader": (EACH, 16000),
    "asynchronous": (EACH, 16000),
    "sync": (GROUPS * EACH, 4000),
}


def arm(name: str, speeds: str, target: float) -> Arm:
    """The method, from a rate of 1/4 on."""
    batch, steps = METHODS[name]
    keys: Point = {"strategy.name": name, "batch_size": batch, "steps": steps * TARGETS[target]}
    keys |= {"cluster.speeds": SPEEDS[speeds] * (GROUPS // 2)}
    keys |= {} if name == "sync" else {"strategy.groups": GROUPS}
    config = usual().with_({**PROBLEMS["mlp"].config, **CLUSTER, **keys})
    return Arm(config, {RATE: rates}, {RATE: -2})


def row(study: Study, name: str, speeds: str, target: float) -> dict[str, Any]:
    """The best rate of a method, and simulated seconds to the loss of every seed."""
    of = arm(name, speeds, target)
    best = tuned(study, of, target, "seconds", "seconds")
    curves = reported(study, of, best.point, target)
    seconds = [to_loss(curve, target, "seconds") for curve in curves]
    found = {"method": name, "speeds": speeds, "target": target, **best.point}
    return found | {"interior": best.interior, "seconds": seconds}


def ratios(rows: list[dict[str, Any]]) -> Mapping[str, tuple[float, float, float]]:
    """Seconds of `ringleader` over those of the others, with a 95 % interval."""
    of = {(each["method"], each["speeds"], each["target"]): each["seconds"] for each in rows}
    return {
        f"{other}, {speeds}, {target}": ratio(
            of["ringleader", speeds, target], of[other, speeds, target]
        )
        for target in TARGETS
        for speeds in SPEEDS
        for other in ("asynchronous", "sync")
    }


def main() -> None:
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.read()
    choose, report = (100, 101), (0, 1, 2, 3, 4)
    given = asked.workdir, "shards", choose, report, asked.processes
    with Study(*given, first=FIRST) as study:
        every = [(n, speeds, t) for t in TARGETS for speeds in SPEEDS for n in METHODS]
        rows = [row(study, *each) for each in every]
    write_json(
        asked.out, {"choose": choose, "report": report, "rows": rows, "ratios": ratios(rows)}
    )
    for each in rows:
        print(each)
    print(ratios(rows))


if __name__ == "__main__":
    main()
