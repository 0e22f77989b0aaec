"""Methods that are combined, against those that they are made of, on clusters that suit them.

    python -m launch.sweep --config=configs/grids/combinations.py --workdir=workdirs/combinations
    python -m configs.grids.combinations workdirs/combinations

The second command writes `combinations.json` and `combinations-seconds.svg` there: what every arm
took to two training losses, and every combination over every other arm of its cluster.

    unequal  daso+dynamic_batch: 2 nodes of speeds 1 and 3 each, a slow network between the nodes
    apart    the same with both slow workers in one node, where shares inside nodes can do nothing
    free     asynchronous+local: 4 memoryless workers, a free network, an order of arrivals a block
    eight    daso+asynchronous: 2 nodes of 4 memoryless workers, a slow network between the nodes
    even     daso+local: 2 nodes of 2 equal workers, groups of 2 blocks that overlap

`blocking` is DASO whose nodes meet at every batch. With SGD that is synchronous training, on the
network of the others; with Adam every node has moments of its own.

Settings come from `research.evidence.arms.tuned`: long-run step and momentum of SGD, the learning
rate of Adam, a pattern search on ladders of about a factor of 2, by the median updates of seeds 500
to 503 to a training loss of 0.15, until the rungs beside are all worse. An arm whose updates do not
depend on its cluster was tuned once. Seeds 0 to 4 report.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from optdyn.analysis import efficiency, figures, tables
from optdyn.basics.files import write_json
from optdyn.config import default
from optdyn.evidence import intervals
from optdyn.evidence.intervals import ratio, spread
from optdyn.grid import Point, grid

NOTE = """\
Methods joined by '+', each beside what it is made of, with learning rate and momentum tuned for
each arm: a perceptron with three hidden layers of 32 units on 4,000 MNIST images, batches of 32.
How many updates and how many simulated seconds does each take to a training loss of 0.15?"""
SEEDS = range(5)
LOSSES = (0.3, 0.15)  # the last is the one that is tuned for
CLOCKS = ("updates", "seconds")
STEPS = 2000  # 16 epochs, of which DASO blocks in the first and the last
NETWORK: Point = {"cluster.bandwidth": 25e6, "cluster.local_bandwidth": 10e9}
PAIRS: Point = {"cluster.nodes": 2, "cluster.devices_per_node": 2, **NETWORK}
NOISY: Point = {"cluster.service": "lognormal", "cluster.variation": 0.1}
CLUSTERS: dict[str, Point] = {
    "unequal": {**PAIRS, **NOISY, "cluster.speeds": (1.0, 3.0, 1.0, 3.0)},
    "apart": {**PAIRS, **NOISY, "cluster.speeds": (1.0, 1.0, 3.0, 3.0)},
    "free": {"cluster.devices_per_node": 4},
    "eight": {"cluster.nodes": 2, "cluster.devices_per_node": 4, **NETWORK},
    "even": {**PAIRS, "cluster.service": "constant"},
}
BLOCKING: Point = {"strategy.warmup_epochs": STEPS}
OVERLAPPING: Point = {"strategy.variant": "overlapping", "strategy.window": 2}

# By what is tuned: SGD's long-run step and momentum, Adam's learning rate.
TUNED: dict[str, tuple[float, float, float]] = {
    "sync": (0.25, 0.8, 2**-7),
    "blocking": (0.25, 0.8, 2**-7),
    "daso": (0.25, 0.95, 2**-7),
    "asynchronous 4": (0.125, -0.3, 2**-9),
    "asynchronous 8": (0.0625, -0.3, 2**-9),
    "daso+asynchronous": (0.125, 0.0, 2**-7),
    "greedy": (0.5, 0.3, 2**-7),
    "asynchronous+local": (0.25, 0.0, 2**-8),
    "overlapping": (0.25, 0.6, 2**-7),
    "daso+local": (0.25, 0.6, 2**-7),
}

# By cluster: the arm's name, what its updates are tuned as, and its keys. The last one is combined.
ARMS: dict[str, list[tuple[str, str, Point]]] = {
    "unequal": [
        ("blocking", "blocking", {"strategy.name": "daso", **BLOCKING}),
        ("dynamic_batch", "sync", {"strategy.name": "dynamic_batch"}),
        (
            "dynamic_batch blocking",
            "blocking",
            {"strategy.name": "daso+dynamic_batch", **BLOCKING},
        ),
        ("daso", "daso", {"strategy.name": "daso"}),
        ("daso+dynamic_batch", "daso", {"strategy.name": "daso+dynamic_batch"}),
    ],
    "apart": [
        ("dynamic_batch", "sync", {"strategy.name": "dynamic_batch"}),
        ("daso", "daso", {"strategy.name": "daso"}),
        ("daso+dynamic_batch", "daso", {"strategy.name": "daso+dynamic_batch"}),
    ],
    "free": [
        ("sync", "sync", {"strategy.name": "sync"}),
        ("asynchronous", "asynchronous 4", {"strategy.name": "asynchronous", "strategy.groups": 4}),
        ("local", "greedy", {"strategy.name": "asynchronous+local"}),
        (
            "asynchronous+local",
            "asynchronous+local",
            {"strategy.name": "asynchronous+local", "strategy.groups": 4},
        ),
    ],
    "eight": [
        ("blocking", "blocking", {"strategy.name": "daso", **BLOCKING}),
        ("daso", "daso", {"strategy.name": "daso"}),
        ("asynchronous", "asynchronous 8", {"strategy.name": "asynchronous", "strategy.groups": 8}),
        (
            "daso+asynchronous",
            "daso+asynchronous",
            {"strategy.name": "daso+asynchronous", "strategy.groups": 4},
        ),
    ],
    "even": [
        ("blocking", "blocking", {"strategy.name": "daso", **BLOCKING}),
        ("daso", "daso", {"strategy.name": "daso"}),
        ("local", "overlapping", {"strategy.name": "daso+local", **OVERLAPPING, **BLOCKING}),
        ("daso+local", "daso+local", {"strategy.name": "daso+local", **OVERLAPPING}),
    ],
}


def get_config() -> ConfigDict:
    base = default()
    base.model.hidden = (32, 32, 32)
    base.batch_size = 32
    base.steps = STEPS
    base.log_every = 25
    base.checkpoint_every = 0
    base.data.train_evaluated = 1000
    base.data.test_evaluated = 200
    base.strategy.warmup_epochs = base.strategy.cooldown_epochs = 1
    base.strategy.reset_batches, base.strategy.reset_wait = 8, 2
    return grid(base, points(), NOTE)


def points() -> Iterator[Point]:
    for cluster, arms in ARMS.items():
        for arm, tuned, keys in arms:
            for seed in SEEDS:
                for optimizer, setting in _optimizers(tuned).items():
                    yield {
                        "name": f"{cluster}-{arm}-{optimizer}-seed{seed}".replace(" ", "_"),
                        **CLUSTERS[cluster],
                        **keys,
                        **setting,
                        "seed": seed,
                    }


def _optimizers(tuned: str) -> dict[str, Point]:
    step, momentum, rate = TUNED[tuned]
    return {
        "sgd": {
            "optimizer.momentum": momentum,
            "optimizer.learning_rate": round(step * (1 - momentum), 6),
        },
        "adam": {"optimizer.name": "adam", "optimizer.learning_rate": rate},
    }


def measured(workdir: Path) -> list[dict[str, Any]]:
    """A row a cluster, optimizer and arm: what its seeds took, and the combination's over that."""
    runs, log = tables.load(workdir)
    taken: dict[str, Any] = {}
    for loss in LOSSES:
        found = efficiency.with_target(runs, log, loss).set_index("point")
        taken[str(loss)] = {clock: found[f"{clock}_to_target"].to_dict() for clock in CLOCKS}
    staleness = runs.set_index("point")["staleness_mean"].to_dict()
    rows = []
    for cluster, arms in ARMS.items():
        for optimizer in ("sgd", "adam"):
            names = {
                arm: [f"{cluster}-{arm}-{optimizer}-seed{seed}".replace(" ", "_") for seed in SEEDS]
                for arm, _, _ in arms
            }
            combined = names[arms[-1][0]]
            for arm, own in names.items():
                row: dict[str, Any] = {"cluster": cluster, "optimizer": optimizer, "arm": arm}
                row["staleness"] = float(np.mean([staleness[name] for name in own]))
                for target, clocks in taken.items():
                    for clock, of in clocks.items():
                        values = [of[name] for name in own]
                        row[f"{clock} to {target}"] = spread(values)
                        row[f"missed {target}"] = int(np.isinf(values).sum())
                        over = ratio([of[name] for name in combined], values)
                        row[f"combination over it, {clock} to {target}"] = over
                rows.append(row)
    return rows


@matplotlib.rc_context(figures.STYLE)
def picture(rows: list[dict[str, Any]]) -> Figure:
    """Each combination's simulated seconds over those of the other arms of its cluster."""
    figure, axes = figures.new(6.4, 5.6)
    key = f"combination over it, seconds to {LOSSES[-1]}"
    names: list[str] = []
    looks = {"sgd": (figures.BLUE, "o", -0.14), "adam": (figures.VERMILION, "s", 0.14)}
    for row in rows:
        combined = ARMS[row["cluster"]][-1][0]
        if row["arm"] == combined:
            continue
        name = f"{row['cluster']}: {combined}\nover {row['arm']}"
        names += [] if name in names else [name]
        middle, low, high = row[key]
        colour, marker, aside = looks[row["optimizer"]]
        label = {"sgd": "SGD with momentum", "adam": "Adam"}[row["optimizer"]]
        axes.errorbar(
            middle,
            names.index(name) + aside,
            xerr=[[middle - low], [high - middle]],
            color=colour,
            marker=marker,
            ms=4,
            lw=1.2,
            label=label if name == names[0] else None,
        )
    axes.axvline(1, color=figures.GREY, lw=1)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel=f"simulated seconds to a training loss of {LOSSES[-1]}, ratio")
    axes.set_xticks((0.3, 0.5, 0.7, 1, 1.5, 2), ("0.3", "0.5", "0.7", "1", "1.5", "2"))
    axes.minorticks_off()
    figures.legend(figure)
    return figure


def shown(rows: list[dict[str, Any]], target: float) -> Iterator[str]:
    """A table in Markdown: medians, and in brackets 95 % intervals of the combination over them."""
    yield "| cluster, optimizer | arm | updates | seconds | updates over | seconds over | missed |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        over = [row[f"combination over it, {clock} to {target}"] for clock in CLOCKS]
        middle = [f"{row[f'{clock} to {target}'][0]:.4g}" for clock in CLOCKS]
        first = [f"{row['cluster']}, {row['optimizer']}", row["arm"]]
        cells = [*first, *middle, *map(intervals.shown, over), str(row[f"missed {target}"])]
        yield f"| {' | '.join(cells)} |"


def main(workdir: Path) -> None:
    rows = measured(workdir)
    write_json(workdir / "combinations.json", {"seeds": list(SEEDS), "rows": rows})
    tables.replace(workdir / "combinations-seconds.svg", figures.svg(picture(rows)))
    for target in LOSSES:
        print(f"To a training loss of {target}; the cluster's combination over each arm:\n")
        print(*shown(rows, target), "", sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
