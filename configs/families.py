"""Which of these rules are the same, once each is tuned? `python -m configs.families WORKDIR`

The race's MLP, 8 workers, a meeting every 8 updates where there are meetings, and a free network:
only updates to a training loss count. Every rule is tuned whole by one procedure on seeds 100 to
103: its rate, its momentum, and what it has outside or of errors. Twenty other seeds report. What
was run is remembered in the workdir. Ten minutes on two cores; prints a table, writes a record.

Two rules are `alike` if the 95 % interval of the ratio of their updates is inside of `ALIKE`, to
every one of three losses; they differ if it has no 1 in it.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from optdyn.analysis import figures
from optdyn.basics.arguments import Parser
from optdyn.basics.files import write_json
from optdyn.config import usual
from optdyn.configs.race import ARMS as RACE
from optdyn.configs.race import MEETING, PROBLEMS, WORKERS, of_method, parameters
from optdyn.evidence.arms import (
    MOMENTUM,
    OUTER,
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
from optdyn.evidence.intervals import chance, holm, ratio, shown, words
from optdyn.evidence.study import Study
from optdyn.evidence.trial import logged, to_loss
from optdyn.experiment import Experiment
from optdyn.grid import Point
from optdyn.setup import Cluster

CHOOSE, REPORT = range(100, 104), range(20)
LOSSES = PROBLEMS["mlp"].losses  # the last is tuned for
PLAIN, DILOCO = "synchronous", "DiLoCo"  # that the others are held against
ALIKE = (0.8, 1.25)  # an interval inside says that two rules take as many updates
COUNTED = 400  # updates of which bytes are counted
SLOW, DECAY, KEPT = "strategy.slow_momentum", "strategy.error_decay", "strategy.momentum_decay"


# Everything that is neither said here nor has a ladder is usual.
RULES: Mapping[str, Point] = {
    PLAIN: of_method("sync"),
    "SNOO": {**of_method("diloco"), "cluster.nodes": 1},
    DILOCO: of_method("diloco"),
    "SlowMo": of_method("slowmo"),
    "eager updates": of_method("eager"),
    "SparseLoCo": of_method("sparseloco"),
    "local SGD": of_method("model_averaging"),
    "local SGD, momenta averaged": of_method("model_averaging", inner_state="averaged"),
    "DES-LOC": of_method("des_loc"),
    "gossip": RACE["gossip"],
    "SPARTA": of_method("sparta"),
    "DeMo": {**of_method("demo"), MOMENTUM: 0.0},
    "DASO": RACE["DASO"],
    "asynchronous": RACE["asynchronous"],
}
# What a rule has besides rate and momentum, from 0 up, and where the search starts.
BESIDES: Mapping[str, tuple[str, float]] = {
    "diloco": (OUTER, 0.6),
    "eager": (OUTER, 0.6),
    "slowmo": (SLOW, 0.6),
    "sparseloco": (DECAY, 0.9),
}


def config_of(name: str) -> Experiment:
    cluster = Cluster(nodes=WORKERS, service="lognormal", variation=0.3)
    config = usual().with_(cluster=cluster).with_({**PROBLEMS["mlp"].config, **RULES[name]})
    own = config.strategy.name in (*MEETING, "des_loc", "eager", "sparseloco", "sparta")
    return config.with_({"probes.mean": own})  # the mean of nodes of their own counts


def arm(name: str) -> Arm:
    """All numbers that a rule is tuned by. DeMo's steps are of a sign, and it has its own momentum.

    The search starts where the race's does: at long-run steps of 1, of a quarter if gradients are
    late, and at momentum 0.6, of 0 if there is another momentum besides.
    """
    config = config_of(name)
    method = config.strategy.name
    if method == "demo":
        signs: dict[str, Ladder] = {RATE: rates, KEPT: not_negative}
        return Arm(config, signs, {RATE: -9, KEPT: rung(momenta, 0.9)})
    late = method == "asynchronous"
    ladders: dict[str, Ladder] = {STEP: rates, MOMENTUM: momenta}
    start = {STEP: -2 if late else 0, MOMENTUM: rung(momenta, 0.0 if late else 0.6)}
    if method in BESIDES:
        key, begin = BESIDES[method]
        ladders[key] = not_negative
        start |= {MOMENTUM: 0, key: rung(momenta, begin)}
    return Arm(config, ladders, start)


def traffic(name: str, setting: Point) -> dict[str, float]:
    """Bytes that a worker sends for an update, and staleness in updates, of a log of 400 updates.

    Where all gradients are exchanged at every update the log counts no bytes: they are those of the
    parameters.
    """
    config = config_of(name).with_(setting, steps=COUNTED, log_every=COUNTED)
    summary, rows = logged(config)
    every = name in (PLAIN, "SNOO", "asynchronous")
    sent = parameters(config) if every else rows[-1]["sent_bytes"] / COUNTED
    most = len(summary["staleness_histogram"]) - 1
    return {"bytes": sent, "staleness": summary["staleness_mean"], "stalest": most}


def row(study: Study, name: str) -> dict[str, Any]:
    """A rule at its best: the setting, its updates to every loss by seed, bytes, staleness."""
    best = tuned(study, arm(name), LOSSES[-1])
    curves = reported(study, arm(name), best.point, LOSSES[-1])
    updates = {f"{loss:g}": [to_loss(curve, loss) for curve in curves] for loss in LOSSES}
    missed = sum(math.isinf(each) for each in updates[f"{LOSSES[-1]:g}"])
    found = {"rule": name, "setting": best.point, "range": best.range, "interior": best.interior}
    return found | {"updates": updates, "missed": missed, **traffic(name, best.point)}


def against(rows: Sequence[Mapping[str, Any]], other: str, loss: float) -> dict[str, Any]:
    """By rule its updates over those of another: ratio, 95 % interval, p (Holm) and the word."""
    times = {row["rule"]: row["updates"][f"{loss:g}"] for row in rows}
    names = [name for name in times if name != other]
    chances = holm([chance(times[name], times[other]) for name in names])
    found = {name: ratio(times[name], times[other]) for name in names}
    return {
        name: {"ratio": found[name], "p": p, "word": word(found[name])}
        for name, p in zip(names, chances, strict=True)
    }


def word(found: Sequence[float]) -> str:
    """What an interval says: alike if it is inside of ALIKE, whether or not it has 1 in it."""
    return "alike" if ALIKE[0] < found[1] and found[2] < ALIKE[1] else words(found)


def alike(rows: Sequence[Mapping[str, Any]], losses: Sequence[float]) -> list[tuple[str, str]]:
    """The pairs of rules that are alike to every one of these losses."""

    def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        both = [(one["updates"][f"{loss:g}"], other["updates"][f"{loss:g}"]) for loss in losses]
        return all(word(ratio(*each)) == "alike" for each in both)

    return [
        (one["rule"], other["rule"]) for one, other in combinations(rows, 2) if same(one, other)
    ]


def table(record: Mapping[str, Any]) -> str:
    """The rules against DiLoCo and against plain synchronous training, in Markdown."""
    head = f"| rule | over {DILOCO}'s | over {PLAIN}'s | bytes an update | staleness, most |"
    lines = [head, "|---|---|---|---|---|"]
    loss = f"{LOSSES[-1]:g}"
    for each in record["rows"]:
        cells = [each["rule"]]
        for other in (DILOCO, PLAIN):
            found = record["against"][other][loss].get(each["rule"])
            cells.append(f"{shown(found['ratio'])} {found['word']}" if found else "1")
        cells += [f"{each['bytes']:,.0f}", f"{each['staleness']:.2g}, {each['stalest']}"]
        lines.append(f"| {' | '.join(cells)} |")
    pairs = [
        f"Alike, {name}: " + (", ".join(" and ".join(pair) for pair in found) or "none") + "."
        for name, found in record["alike"].items()
    ]
    return "\n".join([*lines, "", *pairs])


# What the rules of the page are grouped by, after the run was seen.
FAMILIES: Mapping[str, tuple[str, Sequence[str]]] = {
    "all at every update": ("#555555", (PLAIN, "gossip")),
    "with an outer momentum": ("#0072B2", ("SNOO", DILOCO, "SlowMo")),
    "averages without one": (
        "#009E73",
        ("local SGD", "local SGD, momenta averaged", "DES-LOC", "DASO", "DeMo"),
    ),
    "late, or left out": ("#D55E00", ("asynchronous", "eager updates", "SparseLoCo", "SPARTA")),
}
BESIDE: Mapping[str, tuple[int, int]] = {  # where a name is, in points from its rule; above: (0, 9)
    PLAIN: (-8, 0),
    "SNOO": (-8, 0),
    DILOCO: (-8, -4),
    "SlowMo": (-8, 4),
    "local SGD": (-8, 2),
    "local SGD, momenta averaged": (8, 4),
    "DES-LOC": (0, -16),
    "DASO": (8, -3),
}


def picture(record: Mapping[str, Any]) -> Figure:
    """Updates of every rule over those of plain training, against the bytes of an update."""
    figure, axes = figures.new(6.4, 4.2)
    loss = f"{LOSSES[-1]:g}"
    over = {name: each["ratio"] for name, each in record["against"][PLAIN][loss].items()}
    over |= {PLAIN: (1.0, 1.0, 1.0)}
    axes.axhline(1, color="#999999", lw=0.8, zorder=0)
    for family, (colour, names) in FAMILIES.items():
        rows = [row for row in record["rows"] if row["rule"] in names]
        ratios = np.array([over[row["rule"]] for row in rows])
        ends, sent = np.abs(ratios[:, 1:] - ratios[:, :1]).T, [row["bytes"] for row in rows]
        axes.errorbar(sent, ratios[:, 0], ends, fmt="o", ms=4, color=colour, label=family)
        for name, x, y in zip((row["rule"] for row in rows), sent, ratios[:, 0], strict=True):
            right, up = BESIDE.get(name, (0, 9))
            side = {-1: "right", 0: "center", 1: "left"}[int(np.sign(right))]
            shift: dict[str, Any] = {"xytext": (right, up), "textcoords": "offset points"}
            axes.annotate(name, (x, y), ha=side, va="center", fontsize=8, color=colour, **shift)
    axes.set(xscale="log", yscale="log", xlabel="bytes that a worker sends for an update")
    axes.set_ylabel(f"updates to a loss of {loss}, over synchronous")
    axes.set_yticks([0.7, 1, 2, 4, 8], ["0.7", "1", "2", "4", "8"])
    axes.minorticks_off()
    axes.margins(x=0.15)
    figures.legend(figure)
    return figure


def measured(study: Study, names: Sequence[str]) -> dict[str, Any]:
    rows = []
    for name in names:
        rows.append(row(study, name))
        print(rows[-1], flush=True)
    comparisons = {
        other: {f"{loss:g}": against(rows, other, loss) for loss in LOSSES}
        for other in (DILOCO, PLAIN)
    }
    return {
        "losses": LOSSES,
        "choose": list(study.choose),
        "report": list(study.report),
        "bounds": ALIKE,
        "alike": {"every loss": alike(rows, LOSSES), f"{LOSSES[-1]:g}": alike(rows, LOSSES[-1:])},
        "rows": rows,
        "against": comparisons,
    }


def main() -> None:
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--out", type=Path, help="the record; by default families.json there")
    parser.add_argument("--picture", type=Path, help="an SVG")
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.read()
    with Study(asked.workdir, "families", CHOOSE, REPORT, asked.processes) as study:
        record = measured(study, tuple(RULES))
    write_json(asked.out or asked.workdir / "families.json", record)
    print(table(record))
    if asked.picture:
        asked.picture.write_text(figures.svg(picture(record)))


if __name__ == "__main__":
    main()
