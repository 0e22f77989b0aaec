"""Whether beginning again pays where services have heavy tails: `buffered` against `mindflayer`.

    python -m analysis.benchmarks.heavy_tails WORKDIR

Sixteen groups of a worker each, K = 8 gradients an update, log-normal services of deviation 3 times
their mean, a free network, and the contest's MLP. Rates, and the time that is allotted, are tuned
by simulated seconds to a training loss of 0.25 on seeds 100 and 101; five other seeds report.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.studies.contest import PROBLEM
from optdyn.base.arguments import Parser
from optdyn.base.files import write_json
from optdyn.evidence.arms import RATE, Arm, Ladder, rates, reported, tuned
from optdyn.evidence.intervals import ratio
from optdyn.evidence.study import Study
from optdyn.evidence.trial import FIRST, to_loss
from optdyn.experiment import Experiment
from optdyn.train.grid import Point

TARGET, ALLOTTED = 0.25, "method.allotted"
CLUSTER: Point = {
    "cluster.nodes": 16,
    "cluster.service.name": "lognormal",
    "cluster.service.variation": 3.0,
    "cluster.seconds_per_example": 1e-3,
    "method.groups": 16,
    "method.arrivals": 8,
}
RECORD = Path("analysis/benchmarks/records/heavy_tails_cpu.json")
WAITING = ("k_batch_async", "k_batch_sync")


def arm(name: str, waiting: str) -> Arm:
    """The method, from a rate of 1/4 and half a mean service on."""
    keys = {"method.name": name, "method.waiting": waiting}
    config = Experiment().with_({**PROBLEM, **CLUSTER, **keys})
    ladders: dict[str, Ladder] = {RATE: rates}
    start = {RATE: -2}
    if name == "mindflayer":
        ladders[ALLOTTED], start[ALLOTTED] = rates, -1
    return Arm(config, ladders, start)


def row(study: Study, name: str, waiting: str) -> dict[str, Any]:
    """The best setting of a method, and simulated seconds to the loss of every seed."""
    best = tuned(study, arm(name, waiting), TARGET, "seconds", "seconds")
    curves = reported(study, arm(name, waiting), best.point, TARGET)
    updates, seconds = ([to_loss(c, TARGET, of) for c in curves] for of in ("updates", "seconds"))
    found = {"method": name, "waiting": waiting, **best.point, "interior": best.interior}
    return found | {"updates": updates, "seconds": seconds}


def ratios(rows: list[dict[str, Any]]) -> Mapping[str, tuple[float, float, float]]:
    """Seconds of `mindflayer` over those of `buffered`, by who waits, with a 95 % interval."""
    of = {(each["method"], each["waiting"]): each["seconds"] for each in rows}
    return {w: ratio(of["mindflayer", w], of["buffered", w]) for w in WAITING}


def main() -> None:
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.read()
    choose, report = (100, 101), (0, 1, 2, 3, 4)
    given = asked.workdir, "heavy_tails", choose, report, asked.processes
    with Study(*given, first=FIRST) as study:
        every = [(name, w) for w in WAITING for name in ("buffered", "mindflayer")]
        rows = [row(study, *each) for each in every]
    found = {"target": TARGET, "choose": choose, "report": report, "rows": rows}
    write_json(asked.out, found | {"ratios": ratios(rows)})
    for each in rows:
        print(each)
    print(ratios(rows))


if __name__ == "__main__":
    main()
