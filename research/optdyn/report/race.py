"""A race of real workers against theory: `python -m launch.reality --workdir=DIR`.

The simulator runs with the law of service times of the race, or of another race (--from=DIR1),
which makes it a prediction. Its updates a second and staleness are compared with the race's, with
--against=DIR2 loss curves too, and a meter's momentum. Writes `race.json`.
"""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from optdyn.base.errors import InputError, print_error
from optdyn.base.files import write_json
from optdyn.base.flag_parser import Parser
from optdyn.clock.arrivals import Work, compute_groups, shared_cores
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Gamma, LogNormal
from optdyn.clock.timeline import Timeline
from optdyn.clock.trace import SERVED
from optdyn.evidence.intervals import spread
from optdyn.experiment import Config
from optdyn.implicit_momentum.lags import equivalent_momentum, geometric_distance
from optdyn.implicit_momentum.readings import from_row
from optdyn.methods.asynchronous import Asynchronous
from optdyn.report import implicit_momentum, raced, tables
from optdyn.report.raced import BATCH, FittedLaw, RaceRecord, load, only
from optdyn.report.tables import Point, TableError, shown
from optdyn.train import history
from optdyn.train.workdir import SKETCHES

SEEDS = 20  # of the simulator
SMALL = 0.01  # p-values below are a rejection
BOUND, SPEEDS = "method.staleness_bound", "cluster.speeds"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 2, after a line on standard error, for unusable input."""
    parser = Parser(prog="optdyn reality", description="A race of real workers against theory.")
    parser.add_argument("--workdir", type=Path, required=True, help="of a race")
    parser.add_argument("--from", dest="source", type=Path, help="workdir the law is taken from")
    parser.add_argument("--against", type=Path, help="workdir of the simulated run")
    parser.add_argument(
        "--cores",
        type=float,
        help="that the workers and the server share; with --from=DIR1, of one worker",
    )
    flags = parser.read(arguments)
    try:
        race = load(flags.workdir)
        source = load(flags.source) if flags.source else None
        against = only(flags.against) if flags.against else None
        found = summarize(race, source, against, flags.cores)
        write_json(flags.workdir / "race.json", found)
    except (InputError, OSError) as error:
        return print_error(error)
    _print(found)
    return 0


def summarize(
    race: RaceRecord,
    source: RaceRecord | None = None,
    against: Point | None = None,
    cores: float | None = None,
) -> dict[str, Any]:
    """Returns all figures of `race.json`.

    `cores`, which workers and server share, adds a prediction from one worker. Raises `TableError`.
    """
    origin = source or race
    fitted = raced.fit(raced.ratios(origin.services), origin.groups)
    values = simulation_keys(race, fitted[0], origin)
    timelines = simulate(race, values)
    pace, drawn = rates(timelines, race.stops), histograms(timelines, race.stops)
    counts = raced.histogram(race.worker, race.staleness, race.stops)
    real = raced.rate(race.worker, race.seconds, race.stops)
    first = raced.all_arrived(race.worker)
    setup = max(float(race.seconds[first] - (first + 1) / real), 0.0)
    chance = [raced.distance(seed, drawn.sum(0) - seed) for seed in drawn]
    found = {
        "workdir": race.point.folder.resolve().name,
        "law_from": source and source.point.folder.resolve().name,
        "groups": race.groups,
        "updates": len(race.seconds),
        "setup_seconds": setup,
        "stops": len(race.stops),
        "updates_a_second": real,
        "updates_a_second_with_stops": raced.rate(race.worker, race.seconds, np.zeros(0, int)),
        "tenths": raced.tenths(race.worker, race.seconds, race.stops).tolist(),
        "workers": [
            {
                "worker": w,
                "services": len(services),
                "mean_seconds": float(services.mean()),
                "variation": float(services.std() / services.mean()),
            }
            for w, services in enumerate(race.services)
        ],
        "serial_correlation": list(raced.serial(race.services)),
        "laws": [law._asdict() for law in fitted],
        "staleness_mean": float(counts @ np.arange(len(counts)) / counts.sum()),
        "staleness_histogram": counts.tolist(),
        "geometric": raced.memoryless(counts, race.groups),
        "simulated": {
            "seeds": SEEDS,
            "updates_a_second": spread(pace.tolist()),
            "tenths": [
                raced.tenths(line.worker, line.seconds, race.stops).tolist() for line in timelines
            ],
            "relative_error": float(np.median(pace) / real - 1),
            "staleness_histogram": drawn.tolist(),
            "staleness_mean": float(drawn.sum(0) @ np.arange(drawn.shape[1]) / drawn.sum()),
            "distance": raced.distance(counts, drawn.sum(0)),
            "chance": float(np.median(chance)),
            "keys": values,
            "command": command(race, values),
        },
        "shared": None,
        "momentum": momentum(race, counts),
    }
    if cores is not None:
        shared = predict_shared(race, values, source, cores)
        shared["relative_error"] = shared["updates_a_second"][0] / real - 1
        shared["distance"] = raced.distance(counts, np.array(shared["staleness_histogram"]))
        found["shared"] = shared
    found["against"] = compare_losses(race, setup, against) if against else None
    return found | {"notes": notes(race, source, found)}


def simulation_keys(race: RaceRecord, law: FittedLaw, source: RaceRecord) -> dict[str, Any]:
    """Returns the config keys with which the simulator runs this race by the law of `source`.

    Means are those of its workers; a race of another size has one worker's at the mean rate.
    """
    means = source.means
    if race.groups != source.groups:
        means = np.full(race.groups, 1 / np.mean(1 / means))
    mean = _six_digits(means.mean())
    found: dict[str, Any] = {
        "method.groups": race.groups,
        "cluster.nodes": race.groups,
        "cluster.devices_per_node": 1,
        "cluster.service.name": law.name,
        "cluster.service.variation": _six_digits(law.variation),
        "cluster.seconds_per_example": _six_digits(mean / race.point.config[BATCH]),
        SPEEDS: tuple(_six_digits(mean / worker) for worker in means),
    }
    if law.name not in raced.FREE:
        del found["cluster.service.variation"]
    if race.groups == 1 or race.groups != source.groups:  # all alike
        found[SPEEDS] = ()
    none = {"cluster.latency": 0.0, "cluster.bandwidth": 0.0}
    return found | {key: zero for key, zero in none.items() if race.point.config.get(key)}


def _cluster(values: Mapping[str, Any]) -> Cluster:
    keys = {key: value for key, value in values.items() if key.startswith("cluster.")}
    return Config().with_(keys).cluster


def simulate(race: RaceRecord, values: Mapping[str, Any]) -> list[Timeline]:
    return [
        compute_groups(
            _cluster(values),
            groups=race.groups,
            steps=len(race.seconds),
            batch_size=race.point.config[BATCH],
            seed=seed,
            policy=Asynchronous(staleness_bound=race.point.config.get(BOUND, -1)).policy,
        )
        for seed in range(SEEDS)
    ]


def rates(timelines: Sequence[Timeline], stops: np.ndarray) -> np.ndarray:
    """Returns updates a second of timelines, (seeds,)."""
    return np.array([raced.rate(line.worker, line.seconds, stops) for line in timelines])


def histograms(timelines: Sequence[Timeline], stops: np.ndarray) -> np.ndarray:
    """Returns counts of staleness from 0 up in timelines, (seeds, longest)."""
    counts = [raced.histogram(line.worker, line.staleness, stops) for line in timelines]
    return pd.DataFrame(counts).fillna(0).to_numpy(int)


def predict_shared(
    race: RaceRecord, values: Mapping[str, Any], source: RaceRecord | None, cores: float
) -> dict[str, Any]:
    """Returns the race as `shared_cores` predicts it from one worker, `source`.

    Its service is its computing and the server's `serving`, as it never waits. Raises `TableError`
    without such a source, or if the seconds of its server are unknown.
    """
    if not cores > 0:
        raise TableError(f"--cores={cores:g}: must be positive")
    if source is None or source.groups > 1 or not np.isfinite(source.serving):
        raise TableError(
            "--cores: needs --from=DIR1, a race of one worker whose trace.csv has the column "
            f"{SERVED!r}"
        )
    computing = float(source.means[0]) - source.serving
    if computing <= 0:
        raise TableError(
            f"{source.point.folder}: the server takes {source.serving:.3g} s for an update, "
            f"and an update {source.means[0]:.3g} seconds; nothing is left for the worker"
        )
    work = Work(np.full((race.groups, 1), computing))
    # Computing varies; the server's part is the same work each time.
    law = _cluster(values).service
    if isinstance(law, (LogNormal, Gamma)):
        law = law.with_(variation=law.variation * source.means[0] / computing)
    timelines = [
        shared_cores(seed, law.draw, work, source.serving, cores, len(race.seconds))
        for seed in range(SEEDS)
    ]
    return {
        "cores": cores,
        "computing_seconds": computing,
        "serving_seconds": source.serving,
        "updates_a_second": spread(rates(timelines, race.stops).tolist()),
        "staleness_histogram": histograms(timelines, race.stops).sum(axis=0).tolist(),
    }


def command(race: RaceRecord, values: Mapping[str, Any]) -> str:
    """Returns the command of the whole simulated run: the race's command with these keys."""
    folder = race.point.folder
    starts = history.starts(folder)
    words = shlex.split(starts[-1]["command"]) if starts else ["--config=CONFIG"]
    flag = re.compile(r"--?(?:no)?config(?:=|\.([^=]*))")
    kept = [word for word in words if (key := flag.match(word)) and key[1] not in values]
    speeds = "".join(f"{speed}," for speed in values[SPEEDS])
    changed = [
        f"--config.{key}={value}" for key, value in {**values, SPEEDS: f"({speeds})"}.items()
    ]
    return shlex.join(["optdyn", "train", *kept, *changed, f"--workdir={folder}-simulated"])


def momentum(race: RaceRecord, counts: np.ndarray) -> dict[str, Any]:
    """Returns the momentum that the meter read, if it was on, and that of the recorded staleness.

    That of the staleness is of one term with its mean; `distance` is the total variation from it.
    """
    law = counts / counts.sum()
    found = {
        "memoryless": 1 - 1 / race.groups,
        "of_staleness": equivalent_momentum(law),
        "distance": geometric_distance(law),
        "meter": None,
    }
    if not (race.point.folder / SKETCHES).exists():
        return found
    return found | {"meter": implicit_momentum.of_folder(race.point.folder)}


def compare_losses(race: RaceRecord, setup: float, other: Point) -> dict[str, Any]:
    """Compares training losses of the race and of a simulated run; raises `TableError`.

    By seconds the race is counted without its first `setup` seconds.
    """
    race_log, other_log = (
        tables.metrics([point])[list(tables.LOGGED)].dropna() for point in (race.point, other)
    )
    merged = race_log.merge(other_log, on="step", suffixes=("", "_simulated"))
    if len(merged) < 2:
        raise TableError(f"{other.folder}: logs no two updates that {race.point.folder} logs too")
    by_update = merged.assign(off=merged["train_loss"] - merged["train_loss_simulated"])
    clock = other_log["simulated_seconds"].to_numpy()
    race_log = race_log.assign(seconds=race_log["simulated_seconds"] - setup)
    by_second = race_log[race_log["seconds"].between(clock[0], clock[-1])]
    if by_second.empty:
        raise TableError(f"{other.folder}: shares no second with {race.point.folder}")
    drawn = np.interp(by_second["seconds"], clock, other_log["train_loss"])
    by_second = by_second.assign(off=by_second["train_loss"] - drawn)
    differing = [
        key
        for key in tables.differing_keys([race.point, other])
        if not key.startswith(("cluster.", "note", "log_every", "checkpoint_every"))
    ]
    return {
        "workdir": other.folder.resolve().name,
        "differ": differing,
        "by_update": _largest_difference(by_update, "step"),
        "by_second": _largest_difference(by_second, "seconds"),
    }


def _largest_difference(table: pd.DataFrame, clock: str) -> dict[str, Any]:
    """Returns where the losses are the furthest `off`, and by how much at the end."""
    most = table["off"].abs().idxmax()
    return {
        "points": len(table),
        "largest": float(table.loc[most, "off"]),
        clock: table.loc[most, clock].item(),
        "train_loss": float(table.loc[most, "train_loss"]),
        "last": float(table["off"].iloc[-1]),
    }


def notes(race: RaceRecord, source: RaceRecord | None, found: Mapping[str, Any]) -> list[str]:
    best, (correlation, error) = found["laws"][0], found["serial_correlation"]
    lines = []
    if source is None:
        lines.append(
            "The law and the means come from this very run. So its updates a second are nearly an "
            "identity: the rates of workers add up. What can be wrong is the staleness histogram. "
            "A prediction takes the law from another race, --from=DIR1."
        )
    else:
        workers = worker_count(source.groups)
        lines.append(
            f"The law and the means come from {found['law_from']}, of {workers}: "
            "this is a prediction, of workers that do not slow one another down. There a service "
            f"takes {source.means.mean():.4g} s, here {race.means.mean():.4g} s."
        )
    if best["name"] == "constant":
        lines.append("Service is constant: all services of a worker take the same time.")
    elif best["p"] < SMALL:
        lines.append(
            f"No law fits to the last: {best['name']} is the nearest, off by up to "
            f"{best['distance']:.2g} of probability. p is too large where the variation is fitted."
        )
    if abs(correlation) > 3 * error:
        lines.append(
            f"A service is like the worker's last one (correlation {correlation:.2f}, {error:.1g} "
            "by chance), and the laws assume that it is not: the machine's pace changes."
        )
    parts = np.array(found["simulated"]["tenths"])
    pace = found["updates_a_second"], np.median(found["simulated"]["updates_a_second"])
    if min(found["tenths"]) / pace[0] < parts.min() / pace[1]:
        lines.append(
            "The pace changes more from tenth to tenth than the law makes it: something slows "
            "all workers together."
        )
    counts = np.array(found["staleness_histogram"])
    if race.groups > 1 and counts.max() == counts.sum():
        lines.append(
            f"The staleness is always {counts.argmax()}: workers take turns. That is a delay of "
            "g - 1 updates, not a momentum."
        )
    elif found["geometric"]["p"] is not None:
        agrees = found["geometric"]["p"] >= SMALL
        lines.append(
            "Staleness "
            + ("agrees with the geometric law: " if agrees else "is not geometric: ")
            + ("no sign that workers are not" if agrees else "workers are not")
            + " memoryless and alike."
        )
    if not found["stops"]:
        lines.append(
            "The server's stops, as to log, come too often to leave out what is near them, and "
            "services have them in them. A larger config.log_every would tell them apart."
        )
    else:
        share = 1 - found["updates_a_second_with_stops"] / found["updates_a_second"]
        lines.append(
            f"The server's stops, to log, to save and to read the meter, take {share:.0%} of the "
            "time; the simulator has none."
        )
    if found["against"] and found["against"]["differ"]:
        names = ", ".join(found["against"]["differ"])
        lines.append(f"The run that it is compared with differs in more than its cluster: {names}.")
    return lines


def worker_count(count: int) -> str:
    return f"{count} worker{'s' * (count > 1)}"


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def _print(found: Mapping[str, Any]) -> None:
    drawn, exact = found["simulated"], found["geometric"]
    middle, low, high = drawn["updates_a_second"]
    workers = worker_count(found["groups"])
    print(f"{found['updates']} updates of {workers}, away from {found['stops']} stops:\n")
    print(pd.DataFrame(found["workers"]).to_string(index=False, float_format="{:.4g}".format))
    correlation, error = found["serial_correlation"]
    print(f"\ncorrelation of a worker's services in a row: {correlation:.3f} (chance {error:.2g})")
    source = f" of {found['law_from']}" if found["law_from"] else ""
    least = found["laws"][0]["aic"]
    rows = [
        {
            "law" + source: law["name"],
            "variation": shown(law["variation"], law["interval"] if law["aic"] else None),
            "AIC over the best": f"{law['aic'] - least:.1f}" if np.isfinite(least) else "",
            "KS distance": f"{law['distance']:.3g}",
            "p": f"{law['p']:.2g}",
        }
        for law in found["laws"]
    ]
    print("\n" + pd.DataFrame(rows).to_string(index=False))
    parts = np.array(drawn["tenths"])
    slow, fast = np.sort(parts.min(axis=1)), np.sort(parts.max(axis=1))
    rows = [
        _row("updates a second", found["updates_a_second"], middle, low, high),
        _row("with its stops", found["updates_a_second_with_stops"], middle, low, high),
        _row("in the slowest tenth", min(found["tenths"]), np.median(slow), slow[0], slow[-1]),
        _row("in the fastest tenth", max(found["tenths"]), np.median(fast), fast[0], fast[-1]),
    ]
    if shared := found["shared"]:
        name = f"updates a second, {shared['cores']:g} cores shared"
        rows.append(_row(name, found["updates_a_second"], *shared["updates_a_second"]))
    print("\n" + pd.DataFrame(rows).to_string(index=False))
    print(f"(simulated: median, least and most of {drawn['seeds']} seeds)")
    print(
        f"\nmean staleness {found['staleness_mean']:.4g}, simulated {drawn['staleness_mean']:.4g}"
    )
    print(f"staleness against the geometric law: total variation {exact['distance']:.3f}", end="")
    if exact["p"] is not None:
        print(f", chi-squared {exact['chi_square']:.4g} of {exact['freedom']}", end="")
        print(f", p = {exact['p']:.2g}", end="")
    print(f"\nstaleness against the simulated: total variation {drawn['distance']:.3f}", end="")
    print(f" (one seed against the others: {drawn['chance']:.3f})\n")
    _print_momentum(found["momentum"])
    if found["against"]:
        _print_losses(found["against"])
    print("\n".join(found["notes"]))
    print(f"\nThe whole simulated run, for --against:\n\n{drawn['command']}")


def _row(name: str, real: float, middle: float, low: float, high: float) -> dict[str, str]:
    off = f"{100 * (middle / real - 1):+.2g} %"
    return {"": name, "race": shown(real), "simulated": shown(middle, (low, high)), "off by": off}


def _print_momentum(found: Mapping[str, Any]) -> None:
    meter = found["meter"]
    row = {
        "1 - 1/g": shown(found["memoryless"]),
        "of the staleness": shown(found["of_staleness"]),
        "from one term": shown(found["distance"]),
    }
    if meter:
        row |= {"meter": str(from_row(meter)), "p": shown(meter["implicit_momentum_p"])}
    print("implicit momentum\n" + pd.DataFrame([row]).to_string(index=False) + "\n")


def _print_losses(found: Mapping[str, Any]) -> None:
    rows = [
        {
            "at equal": name,
            "points": difference["points"],
            "largest difference": shown(difference["largest"]),
            "at": f"{difference[unit]:.4g}",
            "where the loss is": shown(difference["train_loss"]),
            "at the end": shown(difference["last"]),
        }
        for name, difference, unit in (
            ("updates", found["by_update"], "step"),
            ("seconds", found["by_second"], "seconds"),
        )
    ]
    print(f"training loss, race less {found['workdir']}")
    print(pd.DataFrame(rows).to_string(index=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
