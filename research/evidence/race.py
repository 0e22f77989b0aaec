"""A race: arms that are all tuned alike, by the clock of several networks and by updates.

An arm is tuned once, by updates, on the network of its config. Elsewhere it has the same setting:
where another network changes nothing but seconds, the same curve with other seconds, and where it
changes who arrives when, a run of its own. Synchronous training is timed for every arm on nodes of
as many devices as the arm has.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from optdyn.basics.trees import Json
from optdyn.config import to_json
from optdyn.evidence.arms import Arm, Tuned, at, tuned
from optdyn.evidence.claim import Verdict
from optdyn.evidence.intervals import ratio, shown, spread, words
from optdyn.evidence.study import Job, Study
from optdyn.evidence.trial import Curve, left_open, logged, timeline_of, to_loss
from optdyn.experiment import Experiment
from optdyn.grid import Point
from optdyn.strategies.chosen import PLAIN
from optdyn.timeline import Timeline
from optdyn.training import trainer
from optdyn.training.run import Run, extended

METERED, LOOKS, METERS = 400, 25, 3  # updates of a metered run and of a log point, seeds
DISTANCES = ("node_distance", "worker_distance")
FASTER, SLOWER, SAME, MISSED = "faster", "slower", "no difference seen", "missed"
COLOURS = {FASTER: "#009E73", SLOWER: "#D55E00", SAME: "#666666", MISSED: "#000000"}


class Race(NamedTuple):
    arms: Mapping[str, Arm]
    losses: Sequence[float]  # on the way, of which times are told; the last is tuned for
    networks: Mapping[str, float]  # bytes a second; one of them is that of the arms' configs
    synchronous: Sequence[str]  # the arms of which the best on a network is the opponent there


def measure(study: Study, race: Race) -> Json:
    """Every arm: what it takes on each network, and over the opponent's, and what it is like.

    The opponent is the synchronous arm that takes fewer seconds on the seeds that choose.
    """

    def ready(name: str) -> Tuned:
        return tuned(study, race.arms[name], race.losses[-1])

    found = dict(zip(race.arms, study.map(ready, race.arms), strict=True))

    def best(network: str) -> str:
        def seconds(name: str) -> float:
            arm = race.arms[name]
            curves = timed(study, race, network, arm, found[name].point, arm, study.choose)
            return float(np.median([to_loss(c, race.losses[-1], "seconds") for c in curves]))

        return min(race.synchronous, key=seconds)

    opponents = {network: best(network) for network in race.networks}

    def run(name: str) -> Json:
        arm, setting = race.arms[name], found[name].point

        def taken(network: str, arm: Arm, point: Point, like: Arm, clock: str) -> Any:
            curves = timed(study, race, network, arm, point, like, study.report)
            return {str(x): [to_loss(curve, x, clock) for curve in curves] for x in race.losses}

        networks = {}
        for network, opponent in opponents.items():
            own = taken(network, arm, setting, arm, "seconds")
            other = race.arms[opponent], found[opponent].point
            others = taken(network, *other, arm, "seconds")
            over = {loss: list(ratio(own[loss], others[loss])) for loss in own}
            networks[network] = {"seconds": own, "opponent": others, "over": over}
            curves = timed(study, race, network, arm, setting, arm, study.report)
            networks[network]["open"] = left_open(curves, race.losses[-1], "seconds")
        middle = next(n for n, size in race.networks.items() if _is_on(arm, size))
        updates = taken(middle, arm, setting, arm, "updates")
        first = race.synchronous[0]
        plain = taken(middle, race.arms[first], found[first].point, arm, "updates")
        return {
            "arm": name,
            "tuned": found[name]._asdict(),
            "updates": updates,
            "over": {loss: list(ratio(updates[loss], plain[loss])) for loss in updates},
            "networks": networks,
        }

    rows = study.map(run, race.arms)
    for row in rows:  # one after the other, since it is here that they run
        row["like"] = _metered(study, race.arms[row["arm"]], found[row["arm"]].point)
    return {"losses": list(race.losses), "opponents": opponents, "rows": rows}


def timed(
    study: Study,
    race: Race,
    network: str,
    arm: Arm,
    setting: Point,
    like: Arm,
    seeds: Sequence[int],
) -> list[Curve]:
    """The arm's curves on a network, of synchronous training on nodes like those of `like`."""
    every = [at(arm.config, setting, seed) for seed in seeds]
    trained = study.trials([Job(own, race.losses[-1]) for own in every])
    curves = []
    for own, curve in zip(every, trained, strict=True):
        there = at(own, {"cluster.bandwidth": race.networks[network]}, own.seed)
        if own.strategy.name == PLAIN:
            cluster = like.config.cluster
            shape = {"nodes": cluster.nodes, "devices_per_node": cluster.devices_per_node}
            there = there.with_(cluster=there.cluster.with_(**shape))
            curves.append(_with(curve, followed(there, curve).timeline.seconds))
            continue
        before, after = (followed(config, curve).timeline for config in (own, there))
        if same_order(before, after):
            curves.append(_with(curve, after.seconds))
        else:
            curves += study.trials([Job(there, race.losses[-1])])
    return curves


def followed(config: Experiment, curve: Curve) -> Run:
    """The run, its timeline as far as one with this curve goes."""
    run: Run = trainer.prepare(config, timeline_of=timeline_of)
    points = zip(curve.updates, curve.losses, strict=True)
    rows = [{"step": step, "train_loss": loss} for step, loss in points]
    return extended(run, curve.updates[-1], rows)


def same_order(one: Timeline, other: Timeline) -> bool:
    """Whether timelines differ in nothing but seconds."""
    every = [jax.tree.leaves(line._replace(seconds=np.zeros(0))) for line in (one, other)]
    return all(np.array_equal(a, b) for a, b in zip(*every, strict=True))


def _with(curve: Curve, seconds: np.ndarray) -> Curve:
    return curve._replace(seconds=[float(seconds[n - 1]) if n else 0.0 for n in curve.updates])


def _is_on(arm: Arm, size: float) -> bool:
    return arm.config.cluster.bandwidth == size


def _metered(study: Study, arm: Arm, setting: Point) -> Json:
    """The implicit momentum of the first updates of some reporting seeds, and how far nodes are.

    Batches are drawn with replacement there: the meter has little to read of short epochs.
    """
    changed = {"steps": METERED, "log_every": LOOKS, "checkpoint_every": 0, "probes.momentum": True}
    changed |= {"probes.window": METERED, "probes.every": METERED, "data.replacement": True}
    said = []
    for seed in study.report[:METERS]:
        config = at(arm.config, {**setting, **changed}, seed)
        said.append(study.remember(f"race {to_json(config)}", _logged, config))
    names = sorted({name for each in said for name in each})
    return {name: [each[name] for each in said if name in each] for name in names}


def _logged(config: Experiment) -> Json:
    """What the meter says of a whole run, and the mean of its log points' distances."""
    summary, every = logged(config)
    rows = [row for row in every if row["step"]]
    ends = ("", "_low", "_high", "_p", "_refused")
    wanted = [f"implicit_momentum{end}" for end in ends]
    found = {name: summary[name] for name in wanted if name in summary}
    for name in DISTANCES:
        if name in rows[-1]:
            found["distance"] = float(np.mean([row[name] for row in rows]))
    return found


def word(own: Sequence[float], over: Sequence[float]) -> str:
    """The word of a cell, by an arm's figures and their ratio to the opponent's."""
    return MISSED if np.isinf(np.median(own)) else words(over, FASTER, SLOWER)


def cells(result: Json) -> dict[str, dict[str, str]]:
    """The word of every network and arm that is not the opponent there."""
    last = str(result["losses"][-1])
    return {
        network: {
            row["arm"]: word(row["networks"][network]["seconds"][last], of["over"][last])
            for row in result["rows"]
            for of in [row["networks"][network]]
            if row["arm"] != opponent
        }
        for network, opponent in result["opponents"].items()
    }


def verdict(result: Json) -> Verdict:
    """The verdict over networks, from the fastest to the slowest."""
    said = list(cells(result).values())
    fast, slow = ([w == FASTER for w in each.values()] for each in (said[0], said[-1]))
    is_many = [2 * sum(each) > len(each) for each in (fast, slow)]
    judged = "open"
    if is_many[1] and not any(fast):
        judged = "confirmed"
    if is_many[0] or not any(slow):
        judged = "refuted"
    last = str(result["losses"][-1])
    over = {row["arm"]: row["networks"] for row in result["rows"]}
    parts = []
    for network, each in cells(result).items():
        counts = [f"{sum(w == kind for w in each.values())} {kind}" for kind in COLOURS]
        of = {arm: over[arm][network]["over"][last] for arm in each}
        median = {arm: float(np.nan_to_num(of[arm][0], nan=np.inf)) for arm in each}
        best = min(median, key=median.__getitem__)
        parts.append(
            f"{network}, of {len(each)} arms over {result['opponents'][network]}: "
            f"{', '.join(counts)}; least {best}, {shown(of[best])} of its seconds"
        )
    interior = sum(row["tuned"]["interior"] for row in result["rows"])
    return Verdict(judged, f"{'; '.join(parts)}; {interior} of {len(over)} settings interior")


def table(result: Json) -> str:
    """The rows in Markdown, at the last loss, and then the ratios at the others.

    Of a record too, in whose file what is not finite is null.
    """
    result = infinite(result)
    last, networks = str(result["losses"][-1]), list(result["opponents"])
    titles = ["arm", "setting", "updates", *(f"seconds, {network}" for network in networks)]
    titles += ["missed", "implicit momentum", "distance"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    said = cells(result)
    for row in result["rows"]:
        name, of = row["arm"], row["networks"]
        parts = [name, _setting(row), shown(row["over"][last])]
        for network in networks:
            what = said[network].get(name, "the opponent")
            parts.append(f"{shown(of[network]['over'][last])}, {what}")
        runs = of[networks[0]]["seconds"][last]
        parts.append(f"{np.isinf(runs).sum()} of {len(runs)}")
        lines.append(f"| {' | '.join(parts + _like(row['like']))} |")
    for loss in map(str, result["losses"][:-1]):
        lines += ["", f"Of these to a loss of {loss}, seconds over the opponent's:", ""]
        lines += [f"| arm | {' | '.join(networks)} |", "|---" * (1 + len(networks)) + "|"]
        for row in result["rows"]:
            each = (shown(row["networks"][network]["over"][loss]) for network in networks)
            lines.append(f"| {row['arm']} | {' | '.join(each)} |")
    return "\n".join(lines) + "\n"


def infinite(value: Any) -> Any:
    """A record with infinity where its JSON file has null."""
    if isinstance(value, Mapping):
        return {key: infinite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [infinite(each) for each in value]
    return np.inf if value is None else value


def _setting(row: Json) -> str:
    values = [f"{key.split('.')[-1]} {value:.3g}" for key, value in row["tuned"]["point"].items()]
    return ", ".join(values) + ("" if row["tuned"]["interior"] else " (not interior)")


def _like(found: Json) -> list[str]:
    """The meter's cell, a reading a seed, and that of the distance: median, least and most."""
    read, refused = found.get("implicit_momentum", []), found.get("implicit_momentum_refused", [])
    p = found.get("implicit_momentum_p", [])
    meter = "refused"
    if read:
        meter = "{:.2f} ({:.2f} to {:.2f})".format(*spread(read))
        meter += f", p {min(p):.2g}" + (f", {len(refused)} refused" if refused else "")
    away = found.get("distance", [])
    return [meter, "{:.2g} ({:.2g} to {:.2g})".format(*spread(away)) if away else ""]


def picture(result: Json, figure: Figure) -> None:
    """Updates, and seconds on each network, over synchronous; an arm a row, its word its colour."""
    last, networks, rows = str(result["losses"][-1]), list(result["opponents"]), result["rows"]
    figure.set_size_inches(9, 0.24 * len(rows) + 1.2)
    panels = figure.subplots(1, 1 + len(networks), sharey=True)
    every: list[tuple[str, Any]] = [("updates", lambda row: (row["updates"], row["over"]))]
    for network in networks:
        every.append((network, lambda row, n=network: _seconds(row["networks"][n])))
    for axes, (title, of) in zip(panels, every, strict=True):
        for y, row in enumerate(reversed(rows)):
            own, over = (each[last] for each in of(row))
            value, low, high = (float(np.clip(x, 1e-3, 1e3)) for x in over)
            kind = word(own, over)
            if kind == MISSED:
                axes.text(1, y, "missed", va="center", fontsize=7)
                continue
            axes.plot([low, high], [y, y], color=COLOURS[kind], lw=1.5)
            axes.plot(value, y, "o", color=COLOURS[kind], ms=4)
        on_ratios(axes, title)
    panels[0].set_yticks(range(len(rows)), [row["arm"] for row in reversed(rows)], fontsize=7)
    said = "over synchronous: updates; simulated seconds, by network"
    figure.supxlabel(f"{said} (green: fewer, orange: more)", fontsize=8)


def on_ratios(axes: Axes, title: str) -> None:
    """A panel of ratios, on a logarithmic axis with a line at 1."""
    axes.axvline(1, color="#666666", lw=0.8)
    axes.set(xscale="log", title=title)
    axes.tick_params(axis="x", labelsize=7)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def _seconds(of: Json) -> tuple[Any, Any]:
    return of["seconds"], of["over"]
