"""Groups with unlike labels: `ringleader` against `asynchronous`, and both against `sync`.

    python -m analysis.benchmarks.shards WORKDIR

Sixteen groups of a worker each, memoryless, a free network, the contest's MLP, shards of images
whose labels are Dirichlet(0.1), and batches of 64 a group. All are equally fast, or every second
one is four times as fast as the others. Steps and momenta are tuned by simulated seconds to a
training loss of 0.25 over all images on seeds 100 to 103; twenty others report. The figure is the
ratio of seconds, of seeds in pairs. A run of rates alone and five seeds was seen before.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.studies.contest import PROBLEM
from optdyn.base.arguments import Parser
from optdyn.base.files import write_json
from optdyn.evidence.arms import Arm, reported, sgd, tuned
from optdyn.evidence.intervals import ratio
from optdyn.evidence.study import Study
from optdyn.evidence.trial import FIRST, to_loss
from optdyn.experiment import Experiment
from optdyn.train.grid import Point

GROUPS, EACH = 16, 64
TARGET = 0.25  # training loss
RECORD = Path("analysis/benchmarks/records/shards_cpu.json")
CLUSTER: Point = {
    "cluster.nodes": GROUPS,
    "cluster.service.name": "exponential",
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


def arm(name: str, speeds: str) -> Arm:
    """The method, from a step of 1/4 and no momentum on."""
    batch, steps = METHODS[name]
    keys: Point = {"method.name": name, "batch_size": batch, "steps": steps}
    keys |= {"cluster.speeds": SPEEDS[speeds] * (GROUPS // 2)}
    keys |= {} if name == "sync" else {"method.groups": GROUPS}
    config = Experiment().with_({**PROBLEM, **CLUSTER, **keys})
    return sgd(config, 0.25, 0.0)


def row(study: Study, name: str, speeds: str) -> dict[str, Any]:
    """The best setting of a method, and simulated seconds to the loss of every seed."""
    of = arm(name, speeds)
    best = tuned(study, of, TARGET, "seconds", "seconds")
    curves = reported(study, of, best.point, TARGET)
    seconds = [to_loss(curve, TARGET, "seconds") for curve in curves]
    found = {"method": name, "speeds": speeds, **best.point}
    return found | {"interior": best.interior, "seconds": seconds}


def ratios(rows: list[dict[str, Any]]) -> Mapping[str, tuple[float, float, float]]:
    """Seconds of `ringleader` over those of the others, with a 95 % interval."""
    of = {(each["method"], each["speeds"]): each["seconds"] for each in rows}
    return {
        f"{other}, {speeds}": ratio(of["ringleader", speeds], of[other, speeds])
        for speeds in SPEEDS
        for other in ("asynchronous", "sync")
    }


def main() -> None:
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.read()
    choose, report = tuple(range(100, 104)), tuple(range(20))
    given = asked.workdir, "shards", choose, report, asked.processes
    with Study(*given, first=FIRST) as study:
        rows = [row(study, name, speeds) for speeds in SPEEDS for name in METHODS]
    said = {"target": TARGET, "choose": choose, "report": report}
    write_json(asked.out, said | {"rows": rows, "ratios": ratios(rows)})
    for each in rows:
        print(each)
    print(ratios(rows))


if __name__ == "__main__":
    main()
