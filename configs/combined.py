"""Two methods joined: are they faster than either, and than the best synchronous training?

    unequal   daso+dynamic_batch: 2 nodes, each with a worker of speed 1 and one of speed 3
    eight     daso+asynchronous: 2 nodes of 4 memoryless workers
    free      asynchronous+local: 4 memoryless workers, messages of no cost, greedy blocks
    even      daso+local: 2 nodes of 2 workers of constant times, groups of 2 blocks that overlap

The procedure is the contest's (`research/evidence/contest.py`): everybody has its best batch, and
what else it chooses, by seconds on that cluster. Opponents of a combination are its parts,
synchronous SGD, SGD with an outer momentum on one node (SNOO) and updates of the K workers that
come first (`buffered` with `k_sync`), K chosen too.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from optdyn.config import usual
from optdyn.configs import contest, race
from optdyn.configs.contest import Chose
from optdyn.evidence.arms import PERIOD
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.contest import Contest, Entry, Place
from optdyn.evidence.intervals import ratio, shown
from optdyn.evidence.study import Study
from optdyn.grid import Point

BATCHES, USUAL = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), 32
STEP = 0.25  # long-run, that searches start from
LOSSES = (0.3, 0.15)  # the last is tuned for
BANDWIDTH = 25e6  # bytes a second between nodes
PROBLEM: Point = {
    "batch_size": USUAL,
    "steps": 4000,
    "model.name": "mlp",
    "model.hidden": (32, 32, 32),
    "data.train_examples": 4000,
    "data.train_evaluated": 1000,
}
NETWORK: Point = {
    "cluster.bandwidth": BANDWIDTH,
    "cluster.local_bandwidth": 10e9,
    "cluster.seconds_per_example": 1e-3,
    "cluster.overlap": 2 / 3,
    "cluster.nodes": 2,
}
DASO = {
    "strategy.warmup_epochs": 0,
    "strategy.cooldown_epochs": 0,
    "strategy.reset_batches": 8,
    "strategy.reset_wait": 2,
    "probes.mean": True,
}
MOST = "strategy.max_batches"  # B
FIRST = "first to come"

OVERLAPPING: Point = {"strategy.variant": "overlapping", "strategy.window": 2}


class Case(NamedTuple):
    """A cluster and what is joined there."""

    cluster: Point
    workers: int
    said: str
    parts: Mapping[str, Point]
    joined: tuple[str, Point]
    bandwidth: float = BANDWIDTH  # bytes a second between nodes; 0 where messages cost nothing


CASES = {
    "unequal": Case(
        {
            "cluster.devices_per_node": 2,
            "cluster.speeds": (1.0, 3.0, 1.0, 3.0),
            "cluster.service": "lognormal",
            "cluster.variation": 0.1,
        },
        4,
        "2 nodes of 2 workers, each with a worker three times as fast as the other, log-normal "
        "times (10 %)",
        {
            "dynamic_batch": {"strategy.name": "dynamic_batch"},
            "daso": {"strategy.name": "daso", **DASO},
        },
        ("daso+dynamic_batch", {"strategy.name": "daso+dynamic_batch", **DASO}),
    ),
    "eight": Case(
        {"cluster.devices_per_node": 4, "cluster.service": "exponential"},
        8,
        "2 nodes of 4 memoryless workers",
        {
            "asynchronous": {"strategy.name": "asynchronous", "strategy.groups": 8},
            "daso": {"strategy.name": "daso", **DASO},
        },
        (
            "daso+asynchronous",
            {"strategy.name": "daso+asynchronous", "strategy.groups": 4, **DASO},
        ),
    ),
    "free": Case(
        {
            "cluster.nodes": 1,
            "cluster.devices_per_node": 4,
            "cluster.service": "exponential",
            "cluster.bandwidth": 0.0,
            "cluster.local_bandwidth": 0.0,
        },
        4,
        "4 memoryless workers, greedy local gradients",
        {
            "asynchronous": {"strategy.name": "asynchronous", "strategy.groups": 4},
            "local": {"strategy.name": "asynchronous+local", "strategy.groups": 1},
        },
        ("asynchronous+local", {"strategy.name": "asynchronous+local", "strategy.groups": 4}),
        bandwidth=0.0,
    ),
    "even": Case(
        {"cluster.devices_per_node": 2, "cluster.service": "constant"},
        4,
        "2 nodes of 2 workers of constant times, local gradients of overlapping groups of 2 blocks",
        {
            "daso": {"strategy.name": "daso", **DASO},
            "local": {
                "strategy.name": "model_averaging+local",
                "strategy.period": 1,
                **OVERLAPPING,
                **contest.MEAN,
            },
        },
        ("daso+local", {"strategy.name": "daso+local", **OVERLAPPING, **DASO}),
    ),
}


def claim(number: int, case: str) -> Claim:
    of = CASES[case]
    joined, parts = of.joined[0], " and ".join(of.parts)
    links = f"{of.bandwidth / 1e6:g} MB/s between nodes" if of.bandwidth else "messages of no cost"
    return Claim(
        number=number,
        sentence=f"({case}) {joined} takes fewer seconds to a loss than {parts}, and than the best "
        "synchronous training",
        source="here; a sweep with batches of 32 for all had 5 seeds and weaker opponents",
        measured="simulated seconds, a last meeting of nodes included, to training losses of "
        f"{LOSSES[0]} and {LOSSES[1]} of an MLP 784-32-32-32-10 on 4,000 MNIST images, SGD with "
        f"momentum; {of.said}, 1 ms an example, {links}; gradients real, seconds "
        "simulated",
        opponent=f"the best, by seconds of the seeds that choose, of {parts}, synchronous SGD, "
        "outer Nesterov momentum on one node (SNOO) and updates of the first K workers to come. "
        "Everybody chooses its batch (powers of 2 to 1,024) and its period (2, 8, 32, 128), B (1, "
        "4, 16, 64) or K (powers of 2) by seconds there until no neighbour is better, diagonals "
        "among them; at each of these the learning rate and momentum are tuned by updates",
        rule=f"Of {joined}'s median seconds to a loss of {LOSSES[1]} over the best opponent's, on "
        "the 20 seeds that report, with a 95 % interval that draws the 4 choosing seeds again, "
        "too: confirmed if the interval is below 1, refuted if it is above, open otherwise. It is "
        "decided with --scale=full",
    )


def entry(case: str, keys: Point) -> Entry:
    """An arm with what it chooses besides its learning rate and momentum."""
    of = CASES[case]
    config = usual().with_({**PROBLEM, **NETWORK, **of.cluster, **keys})
    name = config.strategy.name
    each = keys.get("strategy.groups") == of.workers  # every worker is a group by itself
    alone = name.startswith("asynchronous") and each  # one worker has all of a batch
    batches = [batch for batch in BATCHES if alone or batch >= of.workers]
    ladders: dict[str, Any] = {"batch_size": batches}
    at = [batches.index(USUAL)]
    if name == "diloco":
        ladders[PERIOD] = contest.PERIODS
        at.append(1)
    elif name.startswith("daso"):
        ladders[MOST] = contest.MOSTS
        at.append(1)
    elif name == "buffered":
        ladders["strategy.arrivals"] = [2**i for i in range(of.workers.bit_length())]
        at.append(1)
    plain = name in ("sync", "diloco")
    return Entry(race.tuned_of(config, STEP), ladders, tuple(at), plain)


def of(case: str) -> Contest:
    it = CASES[case]
    others: dict[str, Point] = {
        contest.PLAIN: {"strategy.name": "sync"},
        contest.SNOO: {**contest.OPPONENTS[contest.SNOO], "cluster.speeds": ()},
        FIRST: {
            "strategy.name": "buffered",
            "strategy.groups": it.workers,
            "strategy.arrivals": it.workers // 2,
            "strategy.waiting": "k_sync",
        },
        **it.parts,
    }
    name, keys = it.joined
    opponents = {other: entry(case, point) for other, point in others.items()}
    return Contest(opponents, {name: entry(case, keys)}, LOSSES, {"": it.bandwidth}, "", 1)


def verdict(result: dict[str, Any]) -> Verdict:
    (row,) = result["rows"]
    own = row["networks"][""]
    others = result["opponents"][""][own["shape"]]
    found, n = own["over at best"], len(own["seconds"][str(LOSSES[-1])])
    return Verdict(
        below(found, 1.0),
        f"{row['arm']} takes {shown(found)} of the seconds of {others['best']}, the best of "
        f"{len(others['every'])} opponents (n = {n})",
    )


def claim_again(number: int, case: str, before: int, other: str) -> Claim:
    """A claim before, of the settings that it chose, against the opponent that was its best."""
    first, joined = claim(before, case), CASES[case].joined[0]
    return Claim(
        number=number,
        sentence=f"({case}) {joined} takes fewer seconds to a loss than {other}, the best of its "
        f"opponents of claim {before}",
        source=f"claim {before}, which 20 seeds left open",
        measured=first.measured,
        opponent=f"{other}; all settings are what claim {before} chose, on seeds that are not here",
        rule=f"Of {joined}'s median seconds to a loss of {LOSSES[-1]} over those of {other}, on "
        "the seeds that report, 300, with a 95 % interval from seeds drawn in pairs: confirmed if "
        "the interval is below 1, refuted if it is above, open otherwise",
    )


def measure_again(study: Study, case: str, settings: Mapping[str, Chose]) -> dict[str, Any]:
    every = of(case)
    (entry,) = every.entries.values()
    cluster = entry.arm.config.cluster
    place = Place(CASES[case].bandwidth, cluster.nodes, cluster.devices_per_node, cluster.speeds)
    return {"seconds": contest.taken(study, every, settings, place)}


def picture_again(result: dict[str, Any], figure: Figure) -> None:
    contest.arrived(result["seconds"], LOSSES[-1], figure)


def verdict_again(result: dict[str, Any]) -> Verdict:
    """Of the first one's seconds over the other's."""
    (joined, one), (other, two) = result["seconds"].items()
    found = ratio(one, two)
    said = f"{joined} takes {shown(found)} of the seconds of {other} (n = {len(one)})"
    return Verdict(below(found, 1.0), said)
