"""A race of real workers, held against theory: `python -m analysis.race --workdir=DIR`.

    T = m_w X                          service time of worker w; the law of X is fitted (`laws.py`)
    P(tau = k) = (1/g) (1 - 1/g)^k     staleness, if workers are memoryless and alike

The simulator then runs with the fitted law, seed by seed, for as many updates: updates a second and
staleness are those of the race if workers are independent and the law has the right form. The law
comes from the race itself, or from another with --from=DIR1, of any number of workers; only that is
a prediction. The flags of the whole simulated run are printed, and with --against=DIR2, that run,
the loss curves are compared. Of a metered race there is the implicit momentum too. Reads
`config.json`, `trace.csv`, `metrics.jsonl` and `sketches.npy`; writes `race.json` and `race.svg`.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import figures, laws, raced, tables, windows
from analysis.lags import geometric_distance
from analysis.laws import Law
from analysis.raced import BATCH, Race, load, only
from analysis.tables import Point, TableError, shown
from research.config import default
from research.dynamics.moments import equivalent_momentum
from research.outputs import history
from research.outputs.workdir import write_json
from research.timeline import make
from research.values import InputError

SEEDS = 20  # of the simulator
SMALL = 0.01  # p-values below are a rejection
TAIL = 1e-3  # of the staleness that the picture leaves out
BOUND = "strategy.staleness_bound"


def keys(race: Race, law: Law, source: Race) -> dict[str, Any]:
    """The keys of the config with which the simulator runs this race by the law of `source`.

    Means are those of its workers; of a race of another size that of one worker at the mean rate.
    """
    means = source.means
    if race.groups != source.groups:
        means = np.full(race.groups, 1 / np.mean(1 / means))
    usual = _rounded(means.mean())
    found: dict[str, Any] = {
        "strategy.groups": race.groups,
        "cluster.nodes": race.groups,
        "cluster.devices_per_node": 1,
        "cluster.service": law.name,
        "cluster.variation": _rounded(law.variation),
        "cluster.seconds_per_example": _rounded(usual / race.point.config[BATCH]),
        "cluster.speeds": tuple(_rounded(usual / mean) for mean in means),
    }
    if law.name not in laws.FREE:
        del found["cluster.variation"]
    if race.groups == 1 or race.groups != source.groups:  # all alike
        found["cluster.speeds"] = ()
    none = {"cluster.latency": 0.0, "cluster.bandwidth": 0.0}
    return found | {key: zero for key, zero in none.items() if race.point.config.get(key)}


def simulated(race: Race, values: Mapping[str, Any]) -> dict[str, Any]:
    """The simulator's updates a second (seeds,), and in every tenth of the updates (seeds, 10); and
    its histogram of staleness (seeds, longest).
    """
    config, batch = default(), race.point.config[BATCH]
    config.update_from_flattened_dict(dict(values))
    lines = [
        make(
            config.cluster,
            groups=race.groups,
            steps=len(race.seconds),
            batch_size=batch,
            seed=seed,
            staleness_bound=race.point.config.get(BOUND, -1),
        )
        for seed in range(SEEDS)
    ]
    counts = [raced.histogram(line.worker, line.staleness, race.stops) for line in lines]
    size = max(map(len, counts))
    return {
        "updates_a_second": np.array(
            [raced.rate(line.worker, line.seconds, race.stops) for line in lines]
        ),
        "tenths": np.stack([raced.tenths(line.worker, line.seconds, race.stops) for line in lines]),
        "histogram": np.stack([np.pad(each, (0, size - len(each))) for each in counts]),
    }


def summarize(
    race: Race, source: Race | None = None, against: Point | None = None
) -> dict[str, Any]:
    """All that the command reports, as JSON has it."""
    taken = source or race
    fitted = laws.fit(laws.ratios(taken.services), taken.groups)
    values = keys(race, fitted[0], taken)
    made = simulated(race, values)
    counts = raced.histogram(race.worker, race.staleness, race.stops)
    real = raced.rate(race.worker, race.seconds, race.stops)
    whole = raced.rate(race.worker, race.seconds, np.zeros(0, int))
    rates, drawn = made["updates_a_second"], made["histogram"]
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
            "updates_a_second": [float(f(rates)) for f in (np.median, np.min, np.max)],
            "tenths": made["tenths"].tolist(),
            "relative_error": float(np.median(rates) / real - 1),
            "staleness_histogram": drawn.tolist(),
            "staleness_mean": float(drawn.sum(0) @ np.arange(drawn.shape[1]) / drawn.sum()),
            "distance": raced.distance(counts, drawn.sum(0)),
            "chance": float(np.median(chance)),
            "keys": values,
            "command": command(race, values),
        },
        "momentum": momentum(race, counts),
    }
    found["against"] = compared(race, setup, against) if against else None
    return found | {"notes": notes(race, source, found)}


def command(race: Race, values: Mapping[str, Any]) -> str:
    """The command line of the whole simulated run: the race's own with these keys."""
    folder = race.point.folder
    starts = history.starts(folder)
    given = shlex.split(starts[-1]["command"]) if starts else ["--config=CONFIG"]
    kept = [word for word in given if re.match(r"--?(no)?config[.=]", word)]
    kept = [word for word in kept if _key(word) not in values]
    ours = [f"--config.{key}={_written(value)}" for key, value in values.items()]
    return shlex.join(["optdyn", "train", *kept, *ours, f"--workdir={folder}-simulated"])


def momentum(race: Race, counts: np.ndarray) -> dict[str, Any]:
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


def compared(race: Race, setup: float, other: Point) -> dict[str, Any]:
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


def notes(race: Race, source: Race | None, found: Mapping[str, Any]) -> list[str]:
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
            f"The law and the means come from {found['law_from']}, of {_workers(source.groups)}: "
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


@matplotlib.rc_context(figures.STYLE)
def picture(found: Mapping[str, Any]) -> Figure:
    """The staleness: real, simulated with its range over seeds, and of the geometric law."""
    groups = found["groups"]
    real = np.array(found["staleness_histogram"], float)
    drawn = np.array(found["simulated"]["staleness_histogram"], float)
    size = int(np.searchsorted(real.cumsum(), (1 - TAIL) * real.sum())) + 1
    size = max(size, min(2 * groups, drawn.shape[1]))
    k = np.arange(size)
    shares = [_share(each, size) for each in drawn]
    middle, low, high = (f(shares, axis=0) for f in (np.median, np.min, np.max))
    alone = _share(real, size)
    series = [
        figures.Series(
            f"simulated with the {found['laws'][0]['name']} law",
            figures.OKABE_ITO[3],
            "dash-dotted",
            pd.DataFrame({"x": k, "value": middle, "low": low, "high": high}),
        ),
        figures.Series(
            "the race",
            figures.BLUE,
            "solid",
            pd.DataFrame({"x": k, "value": alone, "low": alone, "high": alone}),
        ),
    ]
    theory = {"memoryless workers, (1 − 1/g)ᵏ / g": (k, raced.geometric(groups, size)[:-1])}
    return figures.against(series, "staleness k", "share of the updates", theory)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 2 and one line on standard error for input it cannot use."""
    parser = argparse.ArgumentParser(
        prog="analysis.race", description="A race of real workers, held against theory."
    )
    parser.add_argument("--workdir", type=Path, required=True, help="of a race")
    parser.add_argument("--from", dest="source", type=Path, help="workdir the law is taken from")
    parser.add_argument("--against", type=Path, help="workdir of the simulated run")
    flags = parser.parse_args(arguments)
    try:
        race = load(flags.workdir)
        source = load(flags.source) if flags.source else None
        against = only(flags.against) if flags.against else None
        found = summarize(race, source, against)
        write_json(flags.workdir / "race.json", found)
        tables.replace(flags.workdir / "race.svg", figures.svg(picture(found)))
    except (InputError, OSError) as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    _print(found)
    return 0


def _print(found: Mapping[str, Any]) -> None:
    drawn, exact = found["simulated"], found["geometric"]
    workers = pd.DataFrame(found["workers"])
    middle, low, high = drawn["updates_a_second"]
    who = _workers(found["groups"])
    print(f"{found['updates']} updates of {who}, away from {found['stops']} stops:\n")
    print(workers.to_string(index=False, float_format="{:.4g}".format))
    correlation, error = found["serial_correlation"]
    print(f"\ncorrelation of a worker's services in a row: {correlation:.3f} (chance {error:.2g})")
    of = f" of {found['law_from']}" if found["law_from"] else ""
    least = found["laws"][0]["aic"]
    rows = [
        {
            "law" + of: law["name"],
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
    meter = found["meter"] or {}
    row = {
        "1 - 1/g": shown(found["memoryless"]),
        "of the staleness": shown(found["of_staleness"]),
        "from one term": shown(found["distance"]),
    }
    if "implicit_momentum" in meter:
        value, low, high, p = (
            meter[f"implicit_momentum{end}"] for end in ("", "_low", "_high", "_p")
        )
        row |= {"meter": shown(value, (low, high)), "p of J": shown(p)}
    elif meter:
        row["meter"] = f"refused: {meter['implicit_momentum_refused']}"
    print("implicit momentum\n" + pd.DataFrame([row]).to_string(index=False) + "\n")


def _print_losses(found: Mapping[str, Any]) -> None:
    rows = [
        {
            "at equal": name,
            "points": its["points"],
            "largest difference": shown(its["largest"]),
            "at": f"{its[unit]:.4g}",
            "where the loss is": shown(its["train_loss"]),
            "at the end": shown(its["last"]),
        }
        for name, its, unit in (
            ("updates", found["by_update"], "step"),
            ("seconds", found["by_second"], "seconds"),
        )
    ]
    print(f"training loss, race less {found['workdir']}")
    print(pd.DataFrame(rows).to_string(index=False) + "\n")


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count > 1)}"


def _key(word: str) -> str:
    """Of a flag --config.KEY=VALUE."""
    return re.sub(r"^--?(no)?config\.", "", word).partition("=")[0]


def _written(value: Any) -> str:
    """As a flag has it."""
    return (
        "(" + "".join(f"{each}," for each in value) + ")"
        if isinstance(value, tuple)
        else str(value)
    )


def _share(counts: np.ndarray, size: int) -> np.ndarray:
    """Of each staleness below `size`."""
    return np.pad(counts / counts.sum(), (0, max(size - len(counts), 0)))[:size]


def _rounded(value: float) -> float:
    """What the flags have."""
    return float(f"{value:.6g}")


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


if __name__ == "__main__":
    sys.exit(main())
