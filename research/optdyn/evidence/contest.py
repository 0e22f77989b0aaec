"""A contest: on each network each arm chooses its batch and period, and so do its opponents.

Step and momentum are tuned once at a batch and period, by updates. Batch and period are chosen for
each network by its seconds: the curve of one trial is converted to the seconds of any network,
unless the order of arrivals differs there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from optdyn.clock.timeline import Timeline
from optdyn.evidence.arms import Arm, Rungs, Tuned, diagonal_neighbours, neighbours, tuned
from optdyn.evidence.intervals import chance, holm, ratio, ratio_at_best, shown
from optdyn.evidence.study import Job, Study
from optdyn.evidence.trial import Curve, left_open, meeting, timeline_of, to_loss
from optdyn.experiment import Config
from optdyn.methods import PLAIN
from optdyn.train import trainer
from optdyn.train.grid import Point
from optdyn.train.run import Run, extend_timeline, seconds_after

LEVEL = 0.05  # below this corrected p-value a ratio is not 1
FASTER, SLOWER, SAME, MISSED = "faster", "slower", "no difference seen", "missed"

Times = dict[str, list[float]]  # seconds of the reporting seeds to each loss


class Entry(NamedTuple):
    """An arm, some of whose numbers, such as batch and period, are chosen for each network."""

    arm: Arm  # the numbers that are tuned for each choice
    ladders: Mapping[str, Sequence[float]]  # the choices: keys of the config, their values
    start: Rungs  # the first choice
    plain: bool = False  # whether an update takes the seconds of a synchronous one, on any nodes


class Place(NamedTuple):
    """A network and the nodes on it, in whose seconds arms are compared."""

    bandwidth: float  # bytes a second between nodes
    nodes: int
    devices: int  # of a node


class Contest(NamedTuple):
    opponents: Mapping[str, Entry]  # on each network the best of them is the opponent
    entries: Mapping[str, Entry]  # all others
    losses: Sequence[float]  # targets, of which the last is tuned for
    networks: Mapping[str, float]  # bytes a second


class Side(NamedTuple):
    entry: Entry
    cells: dict[Rungs, Tuned]

    def config(self, cell: Rungs) -> Config:
        return self.entry.arm.config.with_(values(self.entry, cell))

    def setting(self, cell: Rungs) -> Point:
        return {**values(self.entry, cell), **self.cells[cell].point}


def values(entry: Entry, cell: Rungs) -> Point:
    return {key: steps[i] for (key, steps), i in zip(entry.ladders.items(), cell, strict=True)}


def chosen(study: Study, side: Side, place: Place, target: float) -> dict[Rungs, list[float]]:
    """Returns the choosing seeds' seconds at each tuned choice: the best one and its neighbours.

    The search climbs from the best of the tuned choices. A new choice is tuned from the step and
    momentum of the best.
    """

    def tune(cell: Rungs, near: Tuned | None = None) -> None:
        arm = side.entry.arm._replace(config=side.config(cell))
        side.cells[cell] = tuned(study, arm, target, near=near)

    if not side.cells:
        tune(side.entry.start)
    times = dict[Rungs, list[float]]()
    while True:
        for cell in side.cells:
            if cell not in times:
                setting = side.setting(cell)
                curves = timed(study, side.entry, setting, place, target, study.choose)
                times[cell] = [to_loss(curve, target, "met") for curve in curves]
        best = least(times)
        for nearby in (neighbours, diagonal_neighbours):
            new = [cell for cell in nearby(best) if cell_exists(side.entry, cell, times)]
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
    """Returns the curves of an entry at a setting, in the seconds of a place, on the seeds."""
    configs = [entry.arm.config.with_(setting, seed=seed) for seed in seeds]
    curves = study.trials([Job(config, target) for config in configs])
    reordered = dict[int, Config]()  # those whose workers arrive in another order there
    for i, (config, curve) in enumerate(zip(configs, curves, strict=True)):
        there = config.with_({"cluster.bandwidth": place.bandwidth})
        if entry.plain:
            shape = {"nodes": place.nodes, "devices_per_node": place.devices}
            there = there.with_(cluster=there.cluster.with_(**shape))
            there = there.with_({"method.name": PLAIN, "probes.mean": False})
        run = followed(there, curve)
        if not entry.plain and not same_order(followed(config, curve).timeline, run.timeline):
            reordered[i] = there
            continue
        seconds = [seconds_after(run.timeline, n) for n in curve.updates]
        met = [s + meeting(run, n) for s, n in zip(seconds, curve.updates, strict=True)]
        curves[i] = curve._replace(seconds=seconds, met=met)
    anew = study.trials([Job(config, target) for config in reordered.values()])
    for i, curve in zip(reordered, anew, strict=True):
        curves[i] = curve
    return curves


def followed(config: Config, curve: Curve) -> Run:
    """Returns the run, with its timeline as far as one with this curve goes."""
    run: Run = trainer.prepare(config, timeline_of=timeline_of)
    points = zip(curve.updates, curve.losses, strict=True)
    rows = [{"step": step, "train_loss": loss} for step, loss in points]
    return extend_timeline(run, curve.updates[-1], rows)


def same_order(one: Timeline, other: Timeline) -> bool:
    """Returns whether the timelines differ only in their seconds."""
    leaves = [jax.tree.leaves(line._replace(seconds=np.zeros(0))) for line in (one, other)]
    return all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))


def measure(study: Study, contest: Contest) -> dict[str, Any]:
    """Returns each entry's seconds on each network over the best and over the default opponent's.

    The default opponent is the first one at its first choice. Opponents run on nodes of as many
    devices as the entry has. All choices are made on the choosing seeds. The record is in JSON.
    """
    target = contest.losses[-1]
    opponents = {name: Side(entry, {}) for name, entry in contest.opponents.items()}
    first = next(iter(opponents.values()))

    def reported(side: Side, cell: Rungs, place: Place) -> list[Curve]:
        return timed(study, side.entry, side.setting(cell), place, target, study.report)

    def seconds_to_loss(curves: Sequence[Curve]) -> Times:
        return {str(x): [_short(to_loss(c, x, "met")) for c in curves] for x in contest.losses}

    def entry_summary(name: str, side: Side, place: Place) -> dict[str, Any]:
        times = chosen(study, side, place, target)
        cell = least(times)
        found, curves = side.cells[cell], reported(side, cell, place)
        return {
            "arm": name,
            "chosen": values(side.entry, cell),
            "point": found.point,
            "range": found.range,
            "interior": found.interior and not _at_an_end(side.entry, cell),
            "tried": [
                [*values(side.entry, other).values(), *map(_short, times[other])]
                for other in sorted(times)
            ],
            "cost": float(np.median(times[cell])),
            "seconds": seconds_to_loss(curves),
            "open": left_open(curves, target, "met"),
        }

    def against(place: Place) -> dict[str, Any]:
        summaries = [entry_summary(name, side, place) for name, side in opponents.items()]
        best = min(summaries, key=lambda summary: float(summary["cost"]))
        default = seconds_to_loss(reported(first, first.entry.start, place))
        return {"usual": default, "best": best["arm"], "every": summaries}

    def row(name: str, entry: Entry) -> dict[str, Any]:
        side, networks = Side(entry, {}), dict[str, Any]()
        cluster = entry.arm.config.cluster
        for network, bandwidth in contest.networks.items():
            place = Place(bandwidth, cluster.nodes, cluster.devices_per_node)
            if place not in met:
                met[place] = against(place)
            summary, others = entry_summary(name, side, place), met[place]
            seconds, best = summary["seconds"], best_of(others)["seconds"]
            tried = (_times(one, study) for one in (summary, best_of(others)))
            last = seconds[str(target)], best[str(target)]
            summary["over at best"] = list(ratio_at_best(*last, *tried))
            summary["over"] = {x: list(ratio(seconds[x], best[x])) for x in best}
            summary["over usual"] = {x: list(ratio(seconds[x], others["usual"][x])) for x in best}
            summary["chance"] = chance(*last)
            summary["shape"] = _shape(place)
            networks[network] = summary
        return {"arm": name, "networks": networks}

    met = dict[Place, dict[str, Any]]()
    rows = [row(name, entry) for name, entry in contest.entries.items()]
    named = {bandwidth: network for network, bandwidth in contest.networks.items()}
    by_network: dict[str, dict[str, Any]] = {network: {} for network in contest.networks}
    for place, others in met.items():
        by_network[named[place.bandwidth]][_shape(place)] = others
    return {
        "losses": list(contest.losses),
        "opponents": by_network,
        "rows": rows,
    }


def best_of(others: Mapping[str, Any]) -> dict[str, Any]:
    return next(one for one in others["every"] if one["arm"] == others["best"])


def words(result: Mapping[str, Any]) -> dict[str, dict[str, tuple[str, float]]]:
    """Returns the word and the corrected p-value of each arm, by network."""
    last = str(result["losses"][-1])
    cells = [(network, row) for row in result["rows"] for network in row["networks"]]
    corrected = holm([row["networks"][network]["chance"] for network, row in cells])
    found: dict[str, dict[str, tuple[str, float]]] = {n: {} for n in result["opponents"]}
    for (network, row), p in zip(cells, corrected, strict=True):
        summary = row["networks"][network]
        word = SAME if p >= LEVEL else FASTER if summary["over"][last][0] < 1 else SLOWER
        missed = np.isinf(np.median(summary["seconds"][last]))
        found[network][row["arm"]] = (MISSED if missed else word, p)
    return found


def table(result: Mapping[str, Any]) -> str:
    """Returns Markdown tables: the opponents, then each arm over the default and the best one."""
    result = nulls_to_inf(result)
    last, words_of = str(result["losses"][-1]), words(result)
    lines = ["| network | nodes | opponent | chosen | over the usual opponent | best |"]
    lines.append("|---" * 6 + "|")
    for network, shapes in result["opponents"].items():
        for shape, others in shapes.items():
            for opponent in others["every"]:
                over = shown(ratio(opponent["seconds"][last], others["usual"][last]))
                best = "yes" if opponent["arm"] == others["best"] else ""
                parts = (network, shape, opponent["arm"], _choice(opponent), over, best)
                lines.append(f"| {' | '.join(parts)} |")
    for loss in map(str, reversed(result["losses"])):
        lines += ["", f"To a loss of {loss}:", ""]
        titles = ["arm", "network", "chosen", "over the usual", "over the best", "missed"]
        if loss == last:
            titles += ["over the best, the cells' choice included", "p, corrected", "word"]
        lines += [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        for row in result["rows"]:
            for network, summary in row["networks"].items():
                seconds = summary["seconds"][loss]
                missed = f"{np.isinf(seconds).sum()} of {len(seconds)}"
                ratios = [shown(summary[key][loss]) for key in ("over usual", "over")]
                word, p = words_of[network][row["arm"]]
                ends = [shown(summary["over at best"]), f"{p:.2g}", word] * (loss == last)
                cells = [row["arm"], network, _choice(summary), *ratios, missed, *ends]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def nulls_to_inf(value: Any) -> Any:
    """Returns a record with infinity where its JSON file has null."""
    if isinstance(value, Mapping):
        return {key: nulls_to_inf(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [nulls_to_inf(inner) for inner in value]
    return np.inf if value is None else value


def cell_exists(entry: Entry, cell: Rungs, known: Mapping[Rungs, Any]) -> bool:
    on = all(0 <= i < len(steps) for steps, i in zip(entry.ladders.values(), cell, strict=True))
    return on and cell not in known


def _at_an_end(entry: Entry, cell: Rungs) -> bool:
    return any(i in (0, len(s) - 1) for s, i in zip(entry.ladders.values(), cell, strict=True))


def _shape(place: Place) -> str:
    return f"{place.nodes} x {place.devices}"


def _times(summary: Mapping[str, Any], study: Study) -> list[list[float]]:
    """Returns seconds, (tried cells, seeds that choose)."""
    return [row[-len(study.choose) :] for row in summary["tried"]]


def _choice(summary: Mapping[str, Any]) -> str:
    parts = [f"{key.rpartition('.')[2]} {value:g}" for key, value in summary["chosen"].items()]
    return ", ".join(parts) + ("" if summary["interior"] else " (not interior)")


def _short(seconds: float) -> float:
    return float(f"{seconds:.5g}")
