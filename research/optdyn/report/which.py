"""The fastest method: measured penalties in updates times priced seconds an update.

    time = updates(method) / updates(synchronous) x seconds(method) / seconds(synchronous)

Penalties (`report/penalties.py`) are carried over from their problem and cluster; seconds are
priced (`price/price.py`) on the config's cluster. Intervals of 95 % draw seeds again, in pairs,
and orders of arrivals.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from optdyn.base.errors import ConfigError, and_list, one_line
from optdyn.clock.timeline import TimelineError
from optdyn.evidence import intervals
from optdyn.experiment import Config
from optdyn.methods import PLAIN
from optdyn.price import price
from optdyn.price.price import GIGABIT
from optdyn.price.shapes import Shapes
from optdyn.report import efficiency
from optdyn.report.penalties import MethodResults, ProblemResults, is_synchronous
from optdyn.report.tables import method_value

ORDERS = 5  # of arrivals, that seconds are means of
WIDE = 100  # characters of a line of notes
BEST, OPEN, SLOWER = "best", "no difference seen", "slower"
PRICE_KEYS = {"groups": 1, "period": 1, "compression": ""}  # that a price is asked for by
Triple = tuple[float, float, float]


class Row(NamedTuple):
    """A method on a cluster: figures are (value, low, high)."""

    label: str
    method: str
    keys: Mapping[str, Any]
    batch_size: int  # on this cluster
    measured_batch: int
    measured_nodes: int
    updates: Triple  # to the loss, over those of synchronous training
    seconds: Triple  # an update, mean, least and most of the orders drawn
    time: Triple  # to the loss, over that of synchronous training
    of_best: Triple  # the same over the best row's
    word: str  # BEST, OPEN or SLOWER
    doubt: str  # of its optimum


class Ranking(NamedTuple):
    """Rows, best first, at one bandwidth; and arms that have no price, with the reason."""

    gigabits: float
    rows: list[Row]
    refused: dict[str, str]


def answers(
    config: Config, shapes: Shapes, found: ProblemResults, bandwidths: Sequence[float]
) -> list[Ranking]:
    """Returns the ranking on the cluster of the config, for each of the Gbit/s between nodes.

    A synchronous update of the smallest batch measured is one of as many examples as the config's.
    Raises `ConfigError` where synchronous training has no price.
    """
    priced, refused = [], dict[str, str]()
    for arm, label in zip(found.arms, labels(found.arms), strict=True):
        try:
            experiment = on_cluster(config, arm, found.anchor)
            orders = [
                price.price_by_bandwidth(experiment.with_(seed=experiment.seed + i), shapes)
                for i in range(ORDERS)
            ]
            seconds = [[at(b * GIGABIT).seconds for at in orders] for b in bandwidths]
        except (ConfigError, TimelineError) as error:
            refused[label] = one_line(error)
            continue
        priced.append((arm, label, experiment.batch_size, np.array(seconds)))
    if not any(arm.synchronous for arm, *_ in priced):
        raise ConfigError(f"no price of synchronous training: {next(iter(refused.values()))}")
    return [
        Ranking(b, _ranked([(*arm, seconds[i]) for *arm, seconds in priced]), refused)
        for i, b in enumerate(bandwidths)
    ]


def on_cluster(config: Config, arm: MethodResults, anchor: MethodResults) -> Config:
    """Returns the arm's method on the cluster of the config.

    The batch is the config's synchronous one times the arm's over the anchor's, rounded to equal
    numbers of examples of workers.
    """
    keys = {f"method.{key}": value for key, value in arm.keys.items()}
    experiment = config.with_({"method.name": arm.name, **keys})
    groups, cluster = experiment.methods.groups, experiment.cluster
    workers = cluster.worker_count
    if (cluster.devices_per_node if experiment.methods.mix else workers) % groups:
        raise ConfigError(f"of {groups} groups, which cannot share {workers:,} workers")
    at_work = round(experiment.batch_size / price.examples_of_worker(experiment))
    examples = price.with_method(config, PLAIN).batch_size * arm.batch / anchor.batch
    return experiment.with_(batch_size=max(round(examples / at_work), 1) * at_work)


def _ranked(priced: Sequence[tuple[MethodResults, str, int, np.ndarray]]) -> list[Row]:
    """Returns rows at one bandwidth, the least time first.

    Synchronous training, the opponent, has the batch of its least time.
    """
    seeds = efficiency.all_and_draws(priced[0][0].updates.shape[1])
    orders = np.random.default_rng(0).integers(ORDERS, size=(len(seeds) - 1, ORDERS))
    updates = np.array([arm.median_updates(seeds) for arm, *_ in priced])
    means = [[[arm.mean()], arm[orders].mean(axis=1)] for *_, arm in priced]
    time = updates * np.array([np.concatenate(mean) for mean in means])
    synchronous = [i for i, (arm, *_) in enumerate(priced) if arm.synchronous]
    base = min(synchronous, key=lambda i: time[i, 0])
    order = sorted(range(len(priced)), key=lambda i: time[i, 0])
    rows = []
    for i in order:
        arm, label, batch, seconds = priced[i]
        of_best = ratio(time[i], time[order[0]])
        word = BEST if i == order[0] else OPEN if of_best[1] <= 1 <= of_best[2] else SLOWER
        rows.append(
            Row(
                *(label, arm.name, arm.keys, batch, arm.batch, arm.nodes),
                ratio(updates[i], updates[base]),
                (float(seconds.mean()), float(seconds.min()), float(seconds.max())),
                ratio(time[i], time[base]),
                of_best,
                word,
                arm.doubt,
            )
        )
    return rows


def ratio(above: np.ndarray, below: np.ndarray) -> Triple:
    """Returns the ratio of all seeds, which come first, and its interval over the other draws."""
    if above is below or (above == below).all():
        return 1.0, 1.0, 1.0
    with np.errstate(invalid="ignore"):
        ratios = above / below
    low, high = intervals.ends(ratios[1:])
    return float(ratios[0]), float(low), float(high)


def labels(arms: Sequence[MethodResults], periods: bool = True) -> list[str]:
    """Returns each arm's name, period and groups, and the keys that tell it from others."""
    batches = len({arm.batch for arm in arms}) > 1
    keys_of = [
        {k: v for k, v in arm.keys.items() if periods or k.rpartition(".")[2] != "period"}
        for arm in arms
    ]
    found = [
        _label(arm.name, keys, f"batch {arm.batch:,}" * batches)
        for arm, keys in zip(arms, keys_of, strict=True)
    ]
    for label in {label for label in found if found.count(label) > 1}:
        alike = [i for i, other in enumerate(found) if other == label]
        for key in sorted({key for i in alike for key in keys_of[i]}):
            if len({repr(arms[i].keys.get(key)) for i in alike}) > 1:
                for i in alike:
                    found[i] += f", {key} {arms[i].keys.get(key)}"
    return found


def _label(name: str, keys: Mapping[str, Any], batch: str = "") -> str:
    groups, period = int(method_value(keys, "groups", 1)), str(method_value(keys, "period", ""))
    compression = str(method_value(keys, "compression") or "")
    label = " ".join(filter(None, (name, period, compression)))
    more = ", ".join(filter(None, (f"{groups} groups" * (groups > 1), batch)))
    return f"{label} ({more})" if more else label


def is_measured(found: ProblemResults, experiment: Config) -> bool:
    """Returns whether the experiment's penalty is measured; plain synchronous training's is 1."""
    methods = experiment.methods
    asked = {key: methods.get(key, default) for key, default in PRICE_KEYS.items()}
    return methods.plain or any(
        arm.name == methods.name
        and asked == {k: method_value(arm.keys, k, default) for k, default in PRICE_KEYS.items()}
        for arm in found.arms
    )


def label_of(name: str, experiment: Config) -> str:
    methods = experiment.methods
    keys = {key: methods.get(key, default) for key, default in PRICE_KEYS.items()}
    if not methods.sections_with("period"):
        keys.pop("period")
    return _label(name, keys)


def table(answer: Ranking, others: Sequence[str] = ()) -> Iterator[str]:
    """Yields a line a method, best first; below them the `others`, which were not measured."""
    lines = [
        (f"at {answer.gigabits:g} Gbit/s", "updates", "seconds an update", "time"),
        ("", "over synchronous", "[least, most]", "over synchronous"),
    ]
    for row in answer.rows:
        lines.append((row.label, _shown(row.updates), _shown(row.seconds, 4), _shown(row.time)))
    lines += [(name, "not measured", "", "") for name in others]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (f"{cell:{width}}" for cell, width in zip(line, widths, strict=True))
        yield "  ".join(cells).rstrip()


def sentences(rankings: Sequence[Ranking], found: ProblemResults, config: Config) -> Iterator[str]:
    """Yields wrapped lines: the best, those that the interval does not exclude, the conditions."""
    lines = [best(ranking) for ranking in rankings]
    lines += [f"No price of {name}: it is {why}." for name, why in rankings[0].refused.items()]
    batch, anchor = price.with_method(config, PLAIN).batch_size, found.anchor.batch
    lines.append(
        f"Updates were measured on {found.problem}, to a training loss of {found.target:.3g}, with "
        f"{found.seeds} seeds. They are carried over to this cluster and model as they are; a "
        f"batch of {anchor:,} there stands for one of {batch:,} here."
    )
    nodes = config.cluster.nodes
    elsewhere: dict[int, list[str]] = {}
    doubts: dict[str, list[str]] = {}
    for row in rankings[0].rows:
        if row.measured_nodes != nodes and not is_synchronous(row.method, row.keys):
            elsewhere.setdefault(row.measured_nodes, []).append(row.label)
        if row.doubt:
            doubts.setdefault(row.doubt, []).append(row.label)
    for count, names in elsewhere.items():
        lines.append(f"Measured on {count:,} nodes, and priced on {nodes:,}: {and_list(names)}.")
    for doubt, names in doubts.items():
        lines.append(f"Tuned too little ({doubt}), so that less may do: {and_list(names)}.")
    lines += _batches_on_edge(rankings)
    lines.append(
        "Each seed is judged at the setting that is best on the others. Intervals are 95 %, one by "
        "one, from drawing seeds in pairs and orders of arrivals again."
    )
    for line in lines:
        yield from textwrap.wrap(line, WIDE)


def _batches_on_edge(rankings: Sequence[Ranking]) -> Iterator[str]:
    edges: dict[tuple[str, int], list[str]] = {}
    for ranking in rankings:
        rows = [row for row in ranking.rows if is_synchronous(row.method, row.keys)]
        sizes, best = sorted({row.measured_batch for row in rows}), rows[0].measured_batch
        if best in (sizes[0], sizes[-1]):
            edge = "smallest" if best == sizes[0] else "largest"
            edge = "only" if len(sizes) == 1 else edge
            edges.setdefault((edge, best), []).append(f"{ranking.gigabits:g}")
    for (edge, batch), speeds in edges.items():
        yield (
            f"Synchronous training's best batch at {and_list(speeds)} Gbit/s, {batch:,}, is the "
            f"{edge} one measured: with another it may take less."
        )


def best(answer: Ranking) -> str:
    first, *others = answer.rows
    sentence = f"At {answer.gigabits:g} Gbit/s {first.label} takes the least time"
    if first.time != (1.0, 1.0, 1.0):
        sentence += f", {_shown(first.time)} times that of synchronous training"
    equals = and_list([row.label for row in others if row.word == OPEN])
    return f"{sentence}; it cannot be told from {equals}." if equals else f"{sentence}."


def _shown(found: Triple, digits: int = 3) -> str:
    return intervals.shown(found, digits).replace("inf", "∞")
