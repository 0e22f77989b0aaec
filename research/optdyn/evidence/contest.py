"""A contest: every arm chooses its batch and period for each network, the opponents first.

At one batch and period an update takes the same seconds whatever the step and the momentum. So
these two are tuned once at a batch and period, by updates, and each network then chooses batch and
period by its own seconds (`chosen`): a curve of the loss over updates is told in the seconds of any
network. Where a network changes who arrives when, runs on it say what a batch and period take.

The loss of nodes that train by themselves is that of their mean, and the seconds of the meeting
that makes it count (`Curve.met`), on all sides.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from optdyn.clock.timeline import Timeline
from optdyn.evidence.arms import Arm, Rungs, Tuned, at, beside, diagonal, tuned
from optdyn.evidence.intervals import chance, holm, ratio, ratio_at_best, shown
from optdyn.evidence.study import Job, Study
from optdyn.evidence.trial import Curve, left_open, meeting, timeline_of, to_loss
from optdyn.experiment import Config
from optdyn.methods import PLAIN
from optdyn.train import trainer
from optdyn.train.grid import Point
from optdyn.train.run import Run, extended

LEVEL = 0.05  # a ratio is called other than 1 where its corrected chance is below
FASTER, SLOWER, SAME, MISSED = "faster", "slower", "no difference seen", "missed"

Times = dict[str, list[float]]  # seconds of every reporting seed, by the loss that they are to


class Entry(NamedTuple):
    """An arm of which each network chooses some numbers, such as the batch and the period."""

    arm: Arm  # what is tuned whatever a network chooses
    ladders: Mapping[str, Sequence[float]]  # what it chooses from: keys of the config, their values
    usual: Rungs  # of these ladders, where everybody starts
    plain: bool = False  # whether an update takes the seconds of a synchronous one, on any nodes


class Place(NamedTuple):
    """Where seconds are told."""

    bandwidth: float  # bytes a second between nodes
    nodes: int
    devices: int  # of a node


class Contest(NamedTuple):
    opponents: Mapping[str, Entry]  # on each network the best of them is everybody's opponent
    entries: Mapping[str, Entry]  # all others
    losses: Sequence[float]  # on the way, of which times are told; the last is tuned for
    networks: Mapping[str, float]  # bytes a second


class Side(NamedTuple):
    """An entry, and what has been tuned of it so far."""

    entry: Entry
    cells: dict[Rungs, Tuned]

    def config(self, cell: Rungs) -> Config:
        return self.entry.arm.config.with_(values(self.entry, cell))

    def setting(self, cell: Rungs) -> Point:
        """What a network chose, and what was tuned for that."""
        return {**values(self.entry, cell), **self.cells[cell].point}


def values(entry: Entry, cell: Rungs) -> Point:
    """What a network chooses, by key of the config."""
    return {key: steps[i] for (key, steps), i in zip(entry.ladders.items(), cell, strict=True)}


def chosen(study: Study, side: Side, place: Place, target: float) -> dict[Rungs, list[float]]:
    """Seconds at every cell that is tuned, of every seed that chooses.

    Among them are the cell of the least median, and all that are around it.

    From the best of what has been tuned so far it goes to a better one beside it, or where there is
    none to one on a diagonal, until nothing around it is better. What it looks at is tuned first,
    from the step and momentum of where it comes from.
    """

    def tune(cell: Rungs, near: Tuned | None = None) -> None:
        arm = side.entry.arm._replace(config=side.config(cell))
        side.cells[cell] = tuned(study, arm, target, near=near)

    if not side.cells:
        tune(side.entry.usual)
    times = dict[Rungs, list[float]]()
    while True:
        for cell in side.cells:
            if cell not in times:
                at_it = side.setting(cell)
                curves = timed(study, side.entry, at_it, place, target, study.choose)
                times[cell] = [to_loss(curve, target, "met") for curve in curves]
        best = least(times)
        for around in (beside, diagonal):
            new = [cell for cell in around(best) if cell_exists(side.entry, cell, times)]
            if new:
                break
        else:
            return times
        for cell in new:
            tune(cell, side.cells[best])


def least(times: Mapping[Rungs, Sequence[float]]) -> Rungs:
    return min(times, key=lambda cell: float(np.median(times[cell])))


def timed(
    study: Study, entry: Entry, setting: Point, place: Place, target: float, seeds: Sequence[int]
) -> list[Curve]:
    """The curves of an entry at a setting, in the seconds of a place, on the seeds."""
    plain = entry.plain
    every = [at(entry.arm.config, setting, seed) for seed in seeds]
    curves = study.trials([Job(config, target) for config in every])
    unlike = dict[int, Config]()  # those whose workers arrive in another order there
    for i, (own, curve) in enumerate(zip(every, curves, strict=True)):
        there = own.with_({"cluster.bandwidth": place.bandwidth})
        if plain:
            shape = {"nodes": place.nodes, "devices_per_node": place.devices}
            there = there.with_(cluster=there.cluster.with_(**shape))
            there = there.with_({"method.name": PLAIN, "probes.mean": False})
        run = followed(there, curve)
        if not plain and not same_order(followed(own, curve).timeline, run.timeline):
            unlike[i] = there
            continue
        seconds = [float(run.timeline.seconds[n - 1]) if n else 0.0 for n in curve.updates]
        met = [s + meeting(run, n) for s, n in zip(seconds, curve.updates, strict=True)]
        curves[i] = curve._replace(seconds=seconds, met=met)
    anew = study.trials([Job(config, target) for config in unlike.values()])
    for i, curve in zip(unlike, anew, strict=True):
        curves[i] = curve
    return curves


def followed(config: Config, curve: Curve) -> Run:
    """The run, its timeline as far as one with this curve goes."""
    run: Run = trainer.prepare(config, timeline_of=timeline_of)
    points = zip(curve.updates, curve.losses, strict=True)
    rows = [{"step": step, "train_loss": loss} for step, loss in points]
    return extended(run, curve.updates[-1], rows)


def same_order(one: Timeline, other: Timeline) -> bool:
    """Whether timelines differ in nothing but seconds."""
    every = [jax.tree.leaves(line._replace(seconds=np.zeros(0))) for line in (one, other)]
    return all(np.array_equal(a, b) for a, b in zip(*every, strict=True))


def measure(study: Study, contest: Contest) -> dict[str, Any]:
    """Every entry on every network, over the best opponent there and over the usual one.

    The usual opponent is the first one where everybody starts. Opponents are told on nodes of as
    many devices as the entry has. Whatever is chosen is chosen on the seeds that choose.
    """
    target = contest.losses[-1]
    opponents = {name: Side(entry, {}) for name, entry in contest.opponents.items()}
    first = next(iter(opponents.values()))

    def taken(side: Side, cell: Rungs, place: Place) -> Times:
        curves = timed(study, side.entry, side.setting(cell), place, target, study.report)
        return {str(x): [_short(to_loss(c, x, "met")) for c in curves] for x in contest.losses}

    def told(name: str, side: Side, place: Place) -> dict[str, Any]:
        times = chosen(study, side, place, target)
        cell = least(times)
        found = side.cells[cell]
        return {
            "arm": name,
            "chosen": values(side.entry, cell),
            "point": found.point,
            "range": found.range,
            "interior": found.interior and not _at_an_end(side.entry, cell),
            "tried": [
                [*values(side.entry, each).values(), *map(_short, times[each])]
                for each in sorted(times)
            ],
            "cost": float(np.median(times[cell])),
            "seconds": taken(side, cell, place),
            "open": left_open(
                timed(study, side.entry, side.setting(cell), place, target, study.report),
                target,
                "met",
            ),
        }

    def against(place: Place) -> dict[str, Any]:
        every = [told(name, side, place) for name, side in opponents.items()]
        best = min(every, key=lambda each: float(each["cost"]))
        usual = taken(first, first.entry.usual, place)
        return {"usual": usual, "best": best["arm"], "every": every}

    def row(name: str, entry: Entry) -> dict[str, Any]:
        side, networks = Side(entry, {}), dict[str, Any]()
        cluster = entry.arm.config.cluster
        for network, bandwidth in contest.networks.items():
            place = Place(bandwidth, cluster.nodes, cluster.devices_per_node)
            if place not in met:
                met[place] = against(place)
            own, others = told(name, side, place), met[place]
            best = best_of(others)["seconds"]
            tried = (_times(each, study) for each in (own, best_of(others)))
            last = own["seconds"][str(target)], best[str(target)]
            own["over at best"] = list(ratio_at_best(*last, *tried))
            own["over"] = {x: list(ratio(own["seconds"][x], best[x])) for x in best}
            own["over usual"] = {
                x: list(ratio(own["seconds"][x], others["usual"][x])) for x in best
            }
            own["chance"] = chance(*last)
            own["shape"] = _shape(place)
            networks[network] = own
        return {"arm": name, "networks": networks}

    met = dict[Place, dict[str, Any]]()
    rows = [row(name, entry) for name, entry in contest.entries.items()]
    named = {bandwidth: network for network, bandwidth in contest.networks.items()}
    against_whom: dict[str, dict[str, Any]] = {network: {} for network in contest.networks}
    for place, others in met.items():
        against_whom[named[place.bandwidth]][_shape(place)] = others
    return {
        "losses": list(contest.losses),
        "opponents": against_whom,
        "rows": rows,
    }


def best_of(others: Mapping[str, Any]) -> dict[str, Any]:
    """The best of the opponents of a place."""
    return next(each for each in others["every"] if each["arm"] == others["best"])


def words(result: Mapping[str, Any]) -> dict[str, dict[str, tuple[str, float]]]:
    """By network and arm, its word and its chance, corrected for all of them."""
    last = str(result["losses"][-1])
    every = [(network, row) for row in result["rows"] for network in row["networks"]]
    corrected = holm([row["networks"][network]["chance"] for network, row in every])
    found: dict[str, dict[str, tuple[str, float]]] = {n: {} for n in result["opponents"]}
    for (network, row), p in zip(every, corrected, strict=True):
        own = row["networks"][network]
        word = SAME if p >= LEVEL else FASTER if own["over"][last][0] < 1 else SLOWER
        missed = np.isinf(np.median(own["seconds"][last]))
        found[network][row["arm"]] = (MISSED if missed else word, p)
    return found


def table(result: Mapping[str, Any]) -> str:
    """In Markdown: the opponents, then every arm over the usual opponent and over the best."""
    result = infinite(result)
    last, said = str(result["losses"][-1]), words(result)
    lines = ["| network | nodes | opponent | chosen | over the usual opponent | best |"]
    lines.append("|---" * 6 + "|")
    for network, shapes in result["opponents"].items():
        for shape, others in shapes.items():
            for each in others["every"]:
                over = shown(ratio(each["seconds"][last], others["usual"][last]))
                best = "yes" if each["arm"] == others["best"] else ""
                parts = (network, shape, each["arm"], _chosen(each), over, best)
                lines.append(f"| {' | '.join(parts)} |")
    for loss in map(str, reversed(result["losses"])):
        lines += ["", f"To a loss of {loss}:", ""]
        titles = ["arm", "network", "chosen", "over the usual", "over the best", "missed"]
        if loss == last:
            titles += ["over the best, the cells' choice included", "p, corrected", "word"]
        lines += [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        for row in result["rows"]:
            for network, own in row["networks"].items():
                missed = f"{np.isinf(own['seconds'][loss]).sum()} of {len(own['seconds'][loss])}"
                usual, best = shown(own["over usual"][loss]), shown(own["over"][loss])
                word, p = said[network][row["arm"]]
                ends = [shown(own["over at best"]), f"{p:.2g}", word] * (loss == last)
                every = [row["arm"], network, _chosen(own), usual, best, missed, *ends]
                lines.append(f"| {' | '.join(every)} |")
    return "\n".join(lines) + "\n"


def infinite(value: Any) -> Any:
    """A record with infinity where its JSON file has null."""
    if isinstance(value, Mapping):
        return {key: infinite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [infinite(each) for each in value]
    return np.inf if value is None else value


def cell_exists(entry: Entry, cell: Rungs, known: Mapping[Rungs, Any]) -> bool:
    """Whether the ladders have the cell, and it is new."""
    on = all(0 <= i < len(steps) for steps, i in zip(entry.ladders.values(), cell, strict=True))
    return on and cell not in known


def _at_an_end(entry: Entry, cell: Rungs) -> bool:
    return any(i in (0, len(s) - 1) for s, i in zip(entry.ladders.values(), cell, strict=True))


def _shape(place: Place) -> str:
    return f"{place.nodes} x {place.devices}"


def _times(told: Mapping[str, Any], study: Study) -> list[list[float]]:
    """(cells, seeds that choose) seconds of what a network chose from."""
    return [each[-len(study.choose) :] for each in told["tried"]]


def _chosen(own: Mapping[str, Any]) -> str:
    every = [f"{key.rpartition('.')[2]} {value:g}" for key, value in own["chosen"].items()]
    return ", ".join(every) + ("" if own["interior"] else " (not interior)")


def _short(seconds: float) -> float:
    return float(f"{seconds:.5g}")
