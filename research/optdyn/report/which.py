"""Which method: measured penalties in updates times priced seconds an update.

    time = updates(method) / updates(synchronous) x seconds(method) / seconds(synchronous)

The penalty is of the problem and the cluster that it was measured on (`report/penalties.py`), and
is carried over as it is. Seconds are those of the cluster that is asked for
(`price/price.py`), of as many examples an update, over those of synchronous training, as
were measured. Intervals of 95 % draw seeds of the runs again, in pairs, and orders of arrivals.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from optdyn.base.errors import ConfigError, and_list, one_line
from optdyn.clock.timeline import TimelineError
from optdyn.evidence import intervals
from optdyn.evidence.intervals import shown
from optdyn.experiment import Config
from optdyn.methods import PLAIN
from optdyn.price import price
from optdyn.price.price import GIGABIT
from optdyn.price.shapes import Shapes
from optdyn.report import efficiency
from optdyn.report.penalties import MethodResults, ProblemResults, is_synchronous
from optdyn.report.tables import of_method

DRAWN = 5  # orders of arrivals that seconds are of
WIDE = 100  # characters of a line of notes
BEST, OPEN, SLOWER = "best", "no difference seen", "slower"
ASKED = {"groups": 1, "period": 1, "compression": ""}  # keys that a price is asked for by
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
    """What is best on the cluster of the config, for each of the Gbit/s between nodes.

    A synchronous update of the smallest batch measured is one of as many examples as the config's.
    Raises `ConfigError` where synchronous training has no price.
    """
    names = labels(found.arms)
    priced, refused = [], dict[str, str]()
    for arm, name in zip(found.arms, names, strict=True):
        try:
            one = carried(config, arm, found.anchor)
            orders = [
                price.price_by_bandwidth(one.with_(seed=one.seed + i), shapes) for i in range(DRAWN)
            ]
            seconds = [[of(b * GIGABIT).seconds for of in orders] for b in bandwidths]
        except (ConfigError, TimelineError) as error:
            refused[name] = one_line(error)
            continue
        priced.append((arm, name, one.batch_size, np.array(seconds)))
    if not any(arm.synchronous for arm, *_ in priced):
        raise ConfigError(f"no price of synchronous training: {next(iter(refused.values()))}")
    return [
        Ranking(b, _ranked([(*kept, seconds[i]) for *kept, seconds in priced]), refused)
        for i, b in enumerate(bandwidths)
    ]


def carried(config: Config, arm: MethodResults, anchor: MethodResults) -> Config:
    """The arm's method on the cluster of the config, at the batch that it was measured at.

    That is its batch over the anchor's, as much of the config's own synchronous batch, rounded to
    as many examples for each worker.
    """
    keys = {f"method.{key}": value for key, value in arm.keys.items()}
    one = config.with_({"method.name": arm.name, **keys})
    groups, cluster = one.methods.groups, one.cluster
    workers = cluster.worker_count
    if (cluster.devices_per_node if one.methods.mix else workers) % groups:
        raise ConfigError(f"of {groups} groups, which cannot share {workers:,} workers")
    at_work = round(one.batch_size / price.examples_of_worker(one))
    whole = price.with_method(config, PLAIN).batch_size * arm.batch / anchor.batch
    return one.with_(batch_size=max(round(whole / at_work), 1) * at_work)


def _ranked(priced: Sequence[tuple[MethodResults, str, int, np.ndarray]]) -> list[Row]:
    """Rows at one bandwidth, the least time on top; the opponent has the least of its batches."""
    seeds = priced[0][0].updates.shape[1]
    drawn = efficiency.draws(seeds)
    orders = np.random.default_rng(0).integers(DRAWN, size=(len(drawn), DRAWN))
    whole = np.concatenate([np.arange(seeds)[None], drawn])  # the first draw is all of them
    updates = np.array([arm.taken(whole) for arm, *_ in priced])
    seconds = np.array(
        [np.concatenate([[each.mean()], each[orders].mean(axis=1)]) for *_, each in priced]
    )
    time = updates * seconds
    values = time[:, 0]
    alone = [i for i, (arm, *_) in enumerate(priced) if arm.synchronous]
    base = min(alone, key=lambda i: values[i])
    order = sorted(range(len(priced)), key=lambda i: values[i])
    rows = []
    for i in order:
        arm, name, batch, each = priced[i]
        of_best = over(time[i], time[order[0]])
        word = BEST if i == order[0] else OPEN if of_best[1] <= 1 <= of_best[2] else SLOWER
        rows.append(
            Row(
                *(name, arm.name, arm.keys, batch, arm.batch, arm.nodes),
                over(updates[i], updates[base]),
                (float(each.mean()), float(each.min()), float(each.max())),
                over(time[i], time[base]),
                of_best,
                word,
                arm.doubt,
            )
        )
    return rows


def over(above: np.ndarray, below: np.ndarray) -> Triple:
    """The ratio of all seeds, which come first, and its interval over the others."""
    if above is below or (above == below).all():
        return 1.0, 1.0, 1.0
    with np.errstate(invalid="ignore"):
        ratio = above / below
    low, high = intervals.ends(ratio[1:])
    return float(ratio[0]), float(low), float(high)


def labels(arms: Sequence[MethodResults], periods: bool = True) -> list[str]:
    """The name of each arm, its period and groups, and whatever else tells it from others."""
    batches = len({arm.batch for arm in arms}) > 1
    told_by = [
        {k: v for k, v in arm.keys.items() if periods or k.rpartition(".")[2] != "period"}
        for arm in arms
    ]
    found = [
        _label(arm.name, keys, f"batch {arm.batch:,}" * batches)
        for arm, keys in zip(arms, told_by, strict=True)
    ]
    for name in {name for name in found if found.count(name) > 1}:
        alike = [i for i, each in enumerate(found) if each == name]
        keys = sorted({key for i in alike for key in told_by[i]})
        told = [k for k in keys if len({repr(arms[i].keys.get(k)) for i in alike}) > 1]
        for i in alike:
            found[i] += "".join(f", {key} {arms[i].keys.get(key)}" for key in told)
    return found


def _label(name: str, keys: Mapping[str, Any], batch: str = "") -> str:
    groups, period = int(of_method(keys, "groups", 1)), str(of_method(keys, "period", ""))
    said = " ".join(filter(None, (name, period, str(of_method(keys, "compression") or ""))))
    more = ", ".join(filter(None, (f"{groups} groups" * (groups > 1), batch)))
    return f"{said} ({more})" if more else said


def has(found: ProblemResults, one: Config) -> bool:
    """Whether a penalty of the experiment's method, period, groups and compression is among them.

    Plain synchronous training has one of 1.
    """
    methods = one.methods
    asked = {key: methods.get(key, usual) for key, usual in ASKED.items()}
    return methods.plain or any(
        arm.name == methods.name
        and {key: of_method(arm.keys, key, usual) for key, usual in ASKED.items()} == asked
        for arm in found.arms
    )


def named(name: str, one: Config) -> str:
    """The label of an experiment's method, as those of arms are."""
    methods = one.methods
    keys = {key: methods.get(key, usual) for key, usual in ASKED.items()}
    if not methods.having("period"):
        keys.pop("period")
    return _label(name, keys)


def table(answer: Ranking, others: Sequence[str] = ()) -> Iterator[str]:
    """One line a method, best first; below them the `others`, which were not measured."""
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


def sentences(every: Sequence[Ranking], found: ProblemResults, config: Config) -> Iterator[str]:
    """Who is best and who cannot be told from it, and what all that is of; wrapped lines."""
    said = [best(answer) for answer in every]
    said += [f"No price of {name}: it is {why}." for name, why in every[0].refused.items()]
    batch, anchor = price.with_method(config, PLAIN).batch_size, found.anchor.batch
    said.append(
        f"Updates were measured on {found.problem}, to a training loss of {found.target:.3g}, with "
        f"{found.seeds} seeds. They are carried over to this cluster and model as they are; a "
        f"batch of {anchor:,} there stands for one of {batch:,} here."
    )
    nodes, rows = config.cluster.nodes, every[0].rows
    elsewhere: dict[int, list[str]] = {}
    for row in rows:
        if row.measured_nodes != nodes and not is_synchronous(row.method, row.keys):
            elsewhere.setdefault(row.measured_nodes, []).append(row.label)
    for count, names in elsewhere.items():
        said.append(f"Measured on {count:,} nodes, and priced on {nodes:,}: {and_list(names)}.")
    doubts: dict[str, list[str]] = {}
    for row in rows:
        if row.doubt:
            doubts.setdefault(row.doubt, []).append(row.label)
    for doubt, names in doubts.items():
        said.append(f"Tuned too little ({doubt}), so that less may do: {and_list(names)}.")
    said += _batches(every)
    said.append(
        "Each seed is judged at the setting that is best on the others. Intervals are 95 %, one by "
        "one, from drawing seeds in pairs and orders of arrivals again."
    )
    for sentence in said:
        yield from textwrap.wrap(sentence, WIDE)


def _batches(every: Sequence[Ranking]) -> Iterator[str]:
    """Where the opponent's best batch is the first or the last of those that were measured."""
    edges: dict[tuple[str, int], list[str]] = {}
    for answer in every:
        alone = [row for row in answer.rows if is_synchronous(row.method, row.keys)]
        sizes, best = sorted({row.measured_batch for row in alone}), alone[0].measured_batch
        if len(sizes) == 1:
            edges.setdefault(("only", best), []).append(f"{answer.gigabits:g}")
        elif best in (sizes[0], sizes[-1]):
            which = "smallest" if best == sizes[0] else "largest"
            edges.setdefault((which, best), []).append(f"{answer.gigabits:g}")
    for (which, batch), speeds in edges.items():
        yield (
            f"Synchronous training's best batch at {and_list(speeds)} Gbit/s, {batch:,}, is the "
            f"{which} one measured: with another it may take less."
        )


def best(answer: Ranking) -> str:
    """Who takes the least time, and who cannot be told from it, in a sentence or two."""
    first, *others = answer.rows
    said = f"At {answer.gigabits:g} Gbit/s {first.label} takes the least time"
    if first.time != (1.0, 1.0, 1.0):
        said += f", {_shown(first.time)} times that of synchronous training"
    told = and_list([row.label for row in others if row.word == OPEN])
    return f"{said}; it cannot be told from {told}." if told else f"{said}."


def _shown(found: Triple, digits: int = 3) -> str:
    return shown(found, digits).replace("inf", "∞")
