"""A race of real workers and what theory makes of it, in figures: `report/race.py` tells them.

    T = m_w X                          service time of worker w; the law of X is fitted (`laws.py`)
    P(tau = k) = (1/g) (1 - 1/g)^k     staleness, if workers are memoryless and alike

The simulator runs with the fitted law, seed by seed, for as many updates: updates a second and
staleness are those of the race if workers are independent and the law has the right form.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from optdyn.clock.arrivals import Work, compute_groups, shared_cores
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Gamma, LogNormal
from optdyn.clock.timeline import Timeline
from optdyn.clock.trace import SERVED
from optdyn.experiment import Experiment
from optdyn.methods.asynchronous import Asynchronous
from optdyn.momentum.lags import geometric_distance
from optdyn.momentum.moments import equivalent_momentum
from optdyn.report import laws, raced, tables, windows
from optdyn.report.laws import FittedLaw
from optdyn.report.raced import BATCH, RaceRecord
from optdyn.report.tables import Point, TableError
from optdyn.train import history

SEEDS = 20  # of the simulator
SMALL = 0.01  # p-values below are a rejection
BOUND = "method.staleness_bound"


def keys(race: RaceRecord, law: FittedLaw, source: RaceRecord) -> dict[str, Any]:
    """The keys of the config with which the simulator runs this race by the law of `source`.

    Means are those of its workers; of a race of another size that of one worker at the mean rate.
    """
    means = source.means
    if race.groups != source.groups:
        means = np.full(race.groups, 1 / np.mean(1 / means))
    mean = _rounded(means.mean())
    found: dict[str, Any] = {
        "method.groups": race.groups,
        "cluster.nodes": race.groups,
        "cluster.devices_per_node": 1,
        "cluster.service.name": law.name,
        "cluster.service.variation": _rounded(law.variation),
        "cluster.seconds_per_example": _rounded(mean / race.point.config[BATCH]),
        "cluster.speeds": tuple(_rounded(mean / own) for own in means),
    }
    if law.name not in laws.FREE:
        del found["cluster.service.variation"]
    if race.groups == 1 or race.groups != source.groups:  # all alike
        found["cluster.speeds"] = ()
    none = {"cluster.latency": 0.0, "cluster.bandwidth": 0.0}
    return found | {key: zero for key, zero in none.items() if race.point.config.get(key)}


def _cluster(values: Mapping[str, Any]) -> Cluster:
    keys = {key: value for key, value in values.items() if key.startswith("cluster.")}
    return Experiment().with_(keys).cluster


def simulated(race: RaceRecord, values: Mapping[str, Any]) -> dict[str, Any]:
    """What the simulator makes of the race with these keys, seed by seed.

    `updates_a_second`, (seeds,); `tenths`, (seeds, 10), the same in every tenth of the updates;
    `histogram`, (seeds, longest), of staleness.
    """
    cluster, batch = _cluster(values), race.point.config[BATCH]
    lines = [
        compute_groups(
            cluster,
            groups=race.groups,
            steps=len(race.seconds),
            batch_size=batch,
            seed=seed,
            policy=Asynchronous(staleness_bound=race.point.config.get(BOUND, -1)).policy,
        )
        for seed in range(SEEDS)
    ]
    return {
        "updates_a_second": rates(lines, race.stops),
        "tenths": np.stack([raced.tenths(line.worker, line.seconds, race.stops) for line in lines]),
        "histogram": histograms(lines, race.stops),
    }


def rates(lines: Sequence[Timeline], stops: np.ndarray) -> np.ndarray:
    """(seeds,) updates a second of timelines."""
    return np.array([raced.rate(line.worker, line.seconds, stops) for line in lines])


def histograms(lines: Sequence[Timeline], stops: np.ndarray) -> np.ndarray:
    """(seeds, longest) how often every staleness from 0 up came, of each of the timelines."""
    counts = [raced.histogram(line.worker, line.staleness, stops) for line in lines]
    size = max(map(len, counts))
    return np.stack([np.pad(each, (0, size - len(each))) for each in counts])


def sharing(
    race: RaceRecord, values: Mapping[str, Any], source: RaceRecord | None, cores: float
) -> dict[str, Any]:
    """The race as `shared_cores` predicts it from one worker, `source`, with the law of `values`.

    One worker is served at once, so its service is its own computing and the server's `serving`.
    Raises `TableError` where there is no such source, or it does not know what the server took.
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
    # What varies of a service is its computing: an update is the same work each time.
    law = _cluster(values).service
    if isinstance(law, (LogNormal, Gamma)):
        law = law.with_(variation=law.variation * source.means[0] / computing)
    drawn = law.draw
    lines = [
        shared_cores(seed, drawn, work, source.serving, cores, len(race.seconds))
        for seed in range(SEEDS)
    ]
    return {
        "cores": cores if np.isfinite(cores) else None,
        "computing_seconds": computing,
        "serving_seconds": source.serving,
        "updates_a_second": _spread(rates(lines, race.stops)),
        "staleness_histogram": histograms(lines, race.stops).sum(axis=0).tolist(),
    }


def summarize(
    race: RaceRecord,
    source: RaceRecord | None = None,
    against: Point | None = None,
    cores: float | None = None,
) -> dict[str, Any]:
    """All that the command reports, as JSON has it.

    With `cores`, that workers and server share, there is a prediction from one worker besides.
    Raises `TableError`.
    """
    taken = source or race
    fitted = laws.fit(laws.ratios(taken.services), taken.groups)
    values = keys(race, fitted[0], taken)
    made = simulated(race, values)
    counts = raced.histogram(race.worker, race.staleness, race.stops)
    real = raced.rate(race.worker, race.seconds, race.stops)
    whole = raced.rate(race.worker, race.seconds, np.zeros(0, int))
    pace, drawn = made["updates_a_second"], made["histogram"]
    first = raced.begun(race.worker)
    parts = raced.tenths(race.worker, race.seconds, race.stops)
    setup = max(float(race.seconds[first] - (first + 1) / real), 0.0)
    chance = [raced.distance(one, drawn.sum(0) - one) for one in drawn]
    found = {
        "workdir": race.point.folder.resolve().name,
        "law_from": source and source.point.folder.resolve().name,
        "groups": race.groups,
        "updates": len(race.seconds),
        "setup_seconds": setup,
        "stops": len(race.stops),
        "updates_a_second": real,
        "updates_a_second_with_stops": whole,
        "tenths": parts.tolist(),
        "workers": [
            {
                "worker": w,
                "services": len(each),
                "mean_seconds": float(each.mean()),
                "variation": float(each.std() / each.mean()),
            }
            for w, each in enumerate(race.services)
        ],
        "serial_correlation": list(laws.serial(race.services)),
        "laws": [law._asdict() for law in fitted],
        "staleness_mean": float(counts @ np.arange(len(counts)) / counts.sum()),
        "staleness_histogram": counts.tolist(),
        "geometric": raced.memoryless(counts, race.groups),
        "simulated": {
            "seeds": SEEDS,
            "updates_a_second": _spread(pace),
            "tenths": made["tenths"].tolist(),
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
        shared = sharing(race, values, source, cores)
        shared["relative_error"] = shared["updates_a_second"][0] / real - 1
        shared["distance"] = raced.distance(counts, np.array(shared["staleness_histogram"]))
        found["shared"] = shared
    found["against"] = compared(race, setup, against) if against else None
    return found | {"notes": notes(race, source, found)}


def command(race: RaceRecord, values: Mapping[str, Any]) -> str:
    """The command line of the whole simulated run: the race's own with these keys."""
    folder = race.point.folder
    starts = history.starts(folder)
    given = shlex.split(starts[-1]["command"]) if starts else ["--config=CONFIG"]
    kept = [word for word in given if re.match(r"--?(no)?config[.=]", word)]
    kept = [word for word in kept if _key(word) not in values]
    ours = [f"--config.{key}={_written(value)}" for key, value in values.items()]
    return shlex.join(["optdyn", "train", *kept, *ours, f"--workdir={folder}-simulated"])


def momentum(race: RaceRecord, counts: np.ndarray) -> dict[str, Any]:
    """What the meter read, if it was on, and what the order of arrivals says by itself.

    The recorded staleness is the lag polynomial eta_m = alpha P(tau = m). Its equivalent momentum
    is that of its mean lag; `distance`, the total variation from one term of momentum.
    """
    eta = counts / counts.sum()
    found = {
        "memoryless": 1 - 1 / race.groups,
        "of_staleness": float(equivalent_momentum(np.zeros(0), eta)),
        "distance": _number(geometric_distance(np.zeros(0), eta)),
        "meter": None,
    }
    if not windows.metered_workdirs(race.point.folder):
        return found
    read = windows.fit(windows.load(race.point.folder))
    return found | {"meter": {k: v for k, v in read.items() if k.startswith("implicit")}}


def compared(race: RaceRecord, setup: float, other: Point) -> dict[str, Any]:
    """Training losses of the race and of a simulated run; raises `TableError`.

    By seconds the race is counted without the `setup` with which it began.
    """
    ours, theirs = (
        tables.metrics([point])[list(tables.LOGGED)].dropna() for point in (race.point, other)
    )
    both = ours.merge(theirs, on="step", suffixes=("", "_simulated"))
    if len(both) < 2:
        raise TableError(f"{other.folder}: logs no two updates that {race.point.folder} logs too")
    at = (ours["simulated_seconds"] - setup).to_numpy()
    clock = theirs["simulated_seconds"].to_numpy()
    within = (at >= clock[0]) & (at <= clock[-1])
    if not within.any():
        raise TableError(f"{other.folder}: shares no second with {race.point.folder}")
    by_update = both["train_loss"] - both["train_loss_simulated"]
    drawn = np.interp(at[within], clock, theirs["train_loss"])
    by_second = ours["train_loss"].to_numpy()[within] - drawn
    most, latest = int(abs(by_update).to_numpy().argmax()), int(abs(by_second).argmax())
    unlike = [
        key
        for key in tables.differing([race.point, other])
        if not key.startswith(("cluster.", "note", "log_every", "checkpoint_every"))
    ]
    return {
        "workdir": other.folder.resolve().name,
        "differ": unlike,
        "by_update": {
            "points": len(both),
            "largest": float(by_update.iloc[most]),
            "step": int(both["step"].iloc[most]),
            "train_loss": float(both["train_loss"].iloc[most]),
            "last": float(by_update.iloc[-1]),
        },
        "by_second": {
            "points": int(within.sum()),
            "largest": float(by_second[latest]),
            "seconds": float(at[within][latest]),
            "train_loss": float(ours["train_loss"].to_numpy()[within][latest]),
            "last": float(by_second[-1]),
        },
    }


def notes(race: RaceRecord, source: RaceRecord | None, found: Mapping[str, Any]) -> list[str]:
    """What the figures do not say by themselves."""
    best, (correlation, error) = found["laws"][0], found["serial_correlation"]
    said = []
    if source is None:
        said.append(
            "The law and the means come from this very run. So its updates a second are nearly an "
            "identity: the rates of workers add up. What can be wrong is the staleness histogram. "
            "A prediction takes the law from another race, --from=DIR1."
        )
    else:
        said.append(
            f"The law and the means come from {found['law_from']}, of {workers(source.groups)}: "
            "this is a prediction, of workers that do not slow one another down. There a service "
            f"takes {source.means.mean():.4g} s, here {race.means.mean():.4g} s."
        )
    if best["name"] == "constant":
        said.append("Service is constant: all services of a worker take the same time.")
    elif best["p"] < SMALL:
        said.append(
            f"No law fits to the last: {best['name']} is the nearest, off by up to "
            f"{best['distance']:.2g} of probability. p is too large where the variation is fitted."
        )
    if abs(correlation) > 3 * error:
        said.append(
            f"A service is like the worker's last one (correlation {correlation:.2f}, {error:.1g} "
            "by chance), and the laws assume that it is not: the machine's pace changes."
        )
    parts = np.array(found["simulated"]["tenths"])
    pace = found["updates_a_second"], np.median(found["simulated"]["updates_a_second"])
    if min(found["tenths"]) / pace[0] < parts.min() / pace[1]:
        said.append(
            "The pace changes more from tenth to tenth than the law makes it: something slows "
            "all workers together."
        )
    counts = np.array(found["staleness_histogram"])
    if race.groups > 1 and counts.max() == counts.sum():
        said.append(
            f"The staleness is always {counts.argmax()}: workers take turns. That is a delay of "
            "g - 1 updates, not a momentum."
        )
    elif found["geometric"]["p"] is not None:
        agrees = found["geometric"]["p"] >= SMALL
        said.append(
            "Staleness "
            + ("agrees with the geometric law: " if agrees else "is not geometric: ")
            + ("no sign that workers are not" if agrees else "workers are not")
            + " memoryless and alike."
        )
    if not found["stops"]:
        said.append(
            "The server's stops, as to log, come too often to leave out what is near them, and "
            "services have them in them. A larger config.log_every would tell them apart."
        )
    else:
        share = 1 - found["updates_a_second_with_stops"] / found["updates_a_second"]
        said.append(
            f"The server's stops, to log, to save and to read the meter, take {share:.0%} of the "
            "time; the simulator has none."
        )
    if found["against"] and found["against"]["differ"]:
        names = ", ".join(found["against"]["differ"])
        said.append(f"The run that it is compared with differs in more than its cluster: {names}.")
    return said


def workers(count: int) -> str:
    """'1 worker', or '2 workers' and so on."""
    return f"{count} worker{'s' * (count > 1)}"


def _key(word: str) -> str:
    """The key of a flag --config.KEY=VALUE."""
    return re.sub(r"^--?(no)?config\.", "", word).partition("=")[0]


def _written(value: Any) -> str:
    """The value as a flag has it."""
    return f"({''.join(f'{each},' for each in value)})" if isinstance(value, tuple) else str(value)


def _spread(values: np.ndarray) -> list[float]:
    """The median, the least and the most."""
    return [float(f(values)) for f in (np.median, np.min, np.max)]


def _rounded(value: float) -> float:
    """What the flags have."""
    return float(f"{value:.6g}")


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
