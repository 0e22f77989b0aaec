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

import numpy as np
from matplotlib.figure import Figure

from optdyn.evidence.arms import Arm, Rungs, Tuned, at, beside, diagonal, tuned
from optdyn.evidence.claim import Verdict
from optdyn.evidence.intervals import chance, holm, ratio, ratio_at_best, share, shown
from optdyn.evidence.race import (
    COLOURS,
    FASTER,
    MISSED,
    SAME,
    SLOWER,
    followed,
    infinite,
    on_ratios,
    same_order,
)
from optdyn.evidence.study import Job, Study
from optdyn.evidence.trial import Curve, left_open, meeting, to_loss
from optdyn.experiment import Experiment
from optdyn.grid import Point
from optdyn.strategies.chosen import PLAIN

LEVEL = 0.05  # a ratio is called other than 1 where its corrected chance is below
HALF = 0.5  # of the gain: the bound of the verdict

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
    speeds: tuple[float, ...] = ()  # of workers, where they are unequal


class Contest(NamedTuple):
    opponents: Mapping[str, Entry]  # on each network the best of them is everybody's opponent
    entries: Mapping[str, Entry]  # all others
    losses: Sequence[float]  # on the way, of which times are told; the last is tuned for
    networks: Mapping[str, float]  # bytes a second
    judged: str  # the network that the verdict is of
    family: int  # words that are judged at once, of all entries on all networks


class Side(NamedTuple):
    """An entry, and what has been tuned of it so far."""

    entry: Entry
    cells: dict[Rungs, Tuned]

    def config(self, cell: Rungs) -> Experiment:
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
            new = [cell for cell in around(best) if _there_is(side.entry, cell, times)]
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
    unlike = dict[int, Experiment]()  # those whose workers arrive in another order there
    for i, (own, curve) in enumerate(zip(every, curves, strict=True)):
        there = own.with_({"cluster.bandwidth": place.bandwidth})
        if plain:
            shape = {"nodes": place.nodes, "devices_per_node": place.devices}
            there = there.with_(cluster=there.cluster.with_(**shape, speeds=place.speeds))
            there = there.with_({"strategy.name": PLAIN, "probes.mean": False})
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
            place = Place(bandwidth, cluster.nodes, cluster.devices_per_node, cluster.speeds)
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
        "judged": contest.judged,
        "family": contest.family,
        "opponents": against_whom,
        "rows": rows,
    }


def best_of(others: Mapping[str, Any]) -> dict[str, Any]:
    """The best of the opponents of a place."""
    return next(each for each in others["every"] if each["arm"] == others["best"])


def words(result: Mapping[str, Any]) -> dict[str, dict[str, tuple[str, float]]]:
    """By network and arm, its word and its chance, corrected for all that are judged at once."""
    last = str(result["losses"][-1])
    every = [(network, row) for row in result["rows"] for network in row["networks"]]
    chances = [row["networks"][network]["chance"] for network, row in every]
    corrected = holm([*chances, *[1.0] * (result["family"] - len(chances))])
    found: dict[str, dict[str, tuple[str, float]]] = {n: {} for n in result["opponents"]}
    for (network, row), p in zip(every, corrected, strict=False):
        own = row["networks"][network]
        word = SAME if p >= LEVEL else FASTER if own["over"][last][0] < 1 else SLOWER
        missed = np.isinf(np.median(own["seconds"][last]))
        found[network][row["arm"]] = (MISSED if missed else word, p)
    return found


def fastest(result: Mapping[str, Any], network: str) -> dict[str, Any]:
    """What is told of the arm that takes the fewest seconds there on the seeds that choose.

    Only arms with nodes like those of the first opponents count.
    """
    shape = next(iter(result["opponents"][network]))
    every = [row["networks"][network] for row in result["rows"]]
    return min((own for own in every if own["shape"] == shape), key=lambda own: float(own["cost"]))


def gain(result: Mapping[str, Any], network: str) -> tuple[str, tuple[float, float, float]]:
    """The fastest arm, and `share` of its gain.

    It is the share that the first opponent has with its best batch over the usual one, on the seeds
    that report.
    """
    last, best = str(result["losses"][-1]), fastest(result, network)
    others = result["opponents"][network][best["shape"]]
    own, plain = best["seconds"][last], others["every"][0]["seconds"][last]
    return best["arm"], share(others["usual"][last], plain, own)


def counts(result: Mapping[str, Any]) -> list[str]:
    """Of each network, how many arms have which word."""
    found = list[str]()
    for name, each in words(result).items():
        said = [word for word, _ in each.values()]
        parts = ", ".join(f"{said.count(kind)} {kind}" for kind in COLOURS if kind in said)
        found.append(f"{name}, of {len(said)} arms over their best opponent: {parts}")
    return found


def verdict(result: Mapping[str, Any]) -> Verdict:
    """By the share of the gain that is the batch's, on the network that is judged."""
    network = result["judged"]
    arm, found = gain(result, network)
    _, low, high = found
    judged = "confirmed" if low > HALF else "refuted" if high < HALF else "open"
    parts = [f"{network}: {shown(found)} of the gain of {arm} is the opponent's batch"]
    n = len(result["rows"][0]["networks"][network]["seconds"][str(result["losses"][-1])])
    said = "; ".join([*parts, *counts(result)])
    return Verdict(judged, f"{said} (n = {n}, Holm over {result['family']})")


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


def picture(result: Mapping[str, Any], figure: Figure) -> None:
    """An arm a row, a network a panel: over the usual opponent (a ring) and the best (a disc)."""
    result = infinite(result)
    last, said, rows = str(result["losses"][-1]), words(result), result["rows"]
    figure.set_size_inches(9, 0.24 * len(rows) + 1.2)
    panels = figure.subplots(1, len(result["opponents"]), sharey=True, squeeze=False)[0]
    for axes, network in zip(panels, result["opponents"], strict=True):
        for y, row in enumerate(reversed(rows)):
            own, (kind, _) = row["networks"][network], said[network][row["arm"]]
            if kind == MISSED:
                axes.text(1, y, "missed", va="center", fontsize=7)
                continue
            value, low, high = (float(np.clip(x, 1e-3, 1e3)) for x in own["over"][last])
            usual = own["over usual"][last][0]
            axes.plot([usual, value], [y, y], color="#bbbbbb", lw=0.8, zorder=0)
            axes.plot(usual, y, "o", mfc="none", color="#888888", ms=4)
            axes.plot([low, high], [y, y], color=COLOURS[kind], lw=1.5)
            axes.plot(value, y, "o", color=COLOURS[kind], ms=4)
        on_ratios(axes, network)
    panels[0].set_yticks(range(len(rows)), [row["arm"] for row in reversed(rows)], fontsize=7)
    said_below = "seconds over synchronous training with its usual batch (rings), over the best"
    figure.supxlabel(f"{said_below} opponent (discs; green: faster, orange: slower)", fontsize=8)


def _there_is(entry: Entry, cell: Rungs, known: Mapping[Rungs, Any]) -> bool:
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
