"""Tunes groups, momentum and learning rate: `python -m launch.tune --config=... --workdir=DIR`.

Tunes and trains in turn on the simulated cluster until the training loss reaches
`config.tune.target`: in a mode that predicts what it can (`tune/predictive.py`), or by Omnivore's
automatic optimizer (`omnivore.py`). `decisions.jsonl` has all probes and decisions; after an
interrupt or a kill the same command goes on from there. At the end it writes `results.csv` and
`summary.json`. `--dry_run` prints the choices and the longest possible time.

`config.tune.mode=ladders` is for any method and optimizer: it tunes learning rate, momentum,
period, outer numbers and compression by simulated seconds to the target, with runs of at most
`config.steps` updates (`ladders.py`). `trials.jsonl` has all runs.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from absl import flags

from optdyn.base.files import as_json, read_json, write, write_json
from optdyn.base.progress import clock, number, say
from optdyn.base.streams import tell
from optdyn.base.trees import Json
from optdyn.cli import app, train
from optdyn.devices.first_process import hold_workdir
from optdyn.experiment import Config
from optdyn.report.tables import replace
from optdyn.train import history, trainer
from optdyn.train.checkpoints import Checkpoints, saving
from optdyn.train.workdir import claim, text_of
from optdyn.tune import bench, ladders
from optdyn.tune.bench import SimulatedCluster
from optdyn.tune.choice import Choice, EpochPoint
from optdyn.tune.journal import Bench, Journal
from optdyn.tune.omnivore import omnivore
from optdyn.tune.predictive import predictive

PRINTED_COLUMNS = {
    "seconds_to_target": "seconds to the target",
    "with_probes": "with probes",
    "updates": "updates",
    "picked": "picked: g/momentum/rate",
}
MODES = {"predictive": predictive, "omnivore": omnivore}
LADDERS = "ladders"


def tune(config: Config, workdir: Path) -> dict[str, Any]:
    """Tunes and trains, or goes on with it; returns the summary with `tuned` or `search`."""
    cluster = None if config.tune.mode == LADDERS else bench.prepare(config)
    run = cluster.run if cluster else trainer.prepare(config)
    if not cluster:
        ladders.ladders(config)
    with hold_workdir(workdir) as folder, saving(folder):
        claim(folder, config, ("log_every", "checkpoint_every", "plan"))
        if finished := read_json(folder / "summary.json"):
            say(f"already finished: {workdir}")
            return finished
        write(folder / "config.json", text_of(config))
        history.record_start(folder, 0, config.steps)
        if cluster:
            outcome = {"tuned": _tuned(config, cluster, folder)}
        else:
            outcome = {"search": ladders.tuned(config, folder)}
        summary = {"status": "completed", **outcome, **trainer.provenance(run)}
        summary |= history.summary_fields(folder)
        write_json(folder / "summary.json", summary)
        return summary


def _tuned(config: Config, cluster: SimulatedCluster, workdir: Path) -> dict[str, Any]:
    settings = config.tune
    with Checkpoints(workdir) as checkpoints:
        journal = Journal(workdir / "decisions.jsonl", checkpoints.latest() or 0, settings.seconds)
        method = Bench(cluster, journal, settings.target, checkpoints)
        MODES[settings.mode](method, cluster.groups, settings)
    tuned = result(journal.lines)
    replace(workdir / "results.csv", pd.DataFrame([tuned]).to_csv(index=False))
    return tuned


def result(lines: Sequence[Json]) -> dict[str, Any]:
    """Returns seconds to the target, infinite if it was missed, and the settings, g/mu/alpha.

    A probe that continues as a longer one or as an epoch counts once; `overhead` is the share of
    the other probes. `picked` is the first of the `settings` of training.
    """
    probes = [line for line in lines if line["what"] in ("probe", "limits")]
    epochs = [line for line in lines if line["what"] == "train"]
    trained = sum(line["seconds"] for line in epochs)
    probed = _seconds([*probes, *epochs]) - trained
    reached = bool(epochs) and epochs[-1]["reached"]
    return {
        "seconds_to_target": trained if reached else math.inf,
        "with_probes": probed + trained if reached else math.inf,
        "overhead": probed / (probed + trained),
        "probe_seconds": probed,
        "train_seconds": trained,
        "probes": len(probes),
        "updates": sum(line["updates"] for line in epochs),
        "picked": _setting(epochs[0]) if epochs else "",
        "settings": " ".join(map(_setting, epochs)),
    }


def _setting(line: Json) -> str:
    return f"{line['groups']}/{line['momentum']:.3g}/{line['learning_rate']:.3g}"


def _seconds(attempts: Sequence[Json]) -> float:
    """Returns the seconds of probes, of which those of one point and setting are one run."""
    longest: dict[tuple[Any, ...], float] = {}
    for line in attempts:
        key = tuple(line.get(name) for name in (*EpochPoint._fields, *Choice._fields))
        longest[key] = max(longest.get(key, 0.0), line["seconds"])
    return sum(longest.values())


def dry_run_lines(config: Config) -> Iterator[str]:
    """Yields lines on the choices and the longest time. Raises what `bench.prepare` raises."""
    if config.tune.mode == LADDERS:
        yield from _ladder_lines(config)
        return
    cluster, settings = bench.prepare(config), config.tune
    most = settings.seconds / bench.seconds_per_update(cluster, cluster.groups[-1])
    seconds = train.seconds_per_update(cluster.run)
    search = "momentum and learning rate from the measured noise scale and sharpness, at first"
    if settings.mode == "omnivore":
        momenta = ", ".join(f"{value:g}" for value in settings.momenta)
        rates = ", ".join(f"{value:g}" for value in settings.learning_rates)
        search = f"momentum {momenta}; learning rates {rates}, at first"
    yield f"groups          {', '.join(map(str, cluster.groups))}"
    yield f"{settings.mode:15} {search}"
    yield f"target          a training loss of {settings.target:g}"
    yield f"seconds         {number(settings.seconds)} of training at most, simulated"
    yield f"an update       {number(seconds)} s, {number(1 / seconds)} updates/s"
    yield (
        f"in all          {clock(most * seconds)} at most, besides probes: {most:,.0f} updates, if "
        f"{cluster.groups[-1]} groups never get there"
    )


def _ladder_lines(config: Config) -> Iterator[str]:
    run, start = trainer.prepare(config), ladders.arm(config)
    for key, ladder in start.ladders.items():
        i = start.start[key]
        below, here, above = (f"{ladder(i + by):g}" for by in (-1, 0, 1))
        yield f"{key}: from {here}, beside it {below} and {above}"
    yield (
        f"seeds           {ladders.CHOOSE} choose, {ladders.REPORT} report, to a training loss of "
        f"{config.tune.target:g}"
    )
    seconds = config.steps * train.seconds_per_update(run)
    yield f"a run           {clock(seconds)} at most: {config.steps:,} updates"


def search_lines(search: dict[str, Any], workdir: Path) -> Iterator[str]:
    """Yields lines on the setting that a search on ladders found, and how to train with it."""
    # A run that missed the target is null in a summary that is read again.
    updates, all_seconds = (
        [math.inf if value is None else value for value in search[key]]
        for key in ("updates", "seconds")
    )
    seconds = np.median(all_seconds)
    missed = sum(map(math.isinf, updates))
    for key, value in search["setting"].items():
        yield f"{key} = {value:g}"
    yield (
        f"{seconds:.4g} simulated seconds and {np.median(updates):.4g} updates to a training loss "
        f"of {search['target']:g}: medians of {len(updates)} other seeds ({min(updates):.4g} to "
        f"{max(updates):.4g} updates; {missed} missed it)"
    )
    inside = "worse" if search["interior"] else "not all worse: config.steps may be too few"
    yield f"{search['settings_tried']} settings were tried; the rungs beside it are {inside}"
    yield f"{workdir}/trials.jsonl: every run"
    flags = " ".join(f"--config.{key}={value:g}" for key, value in search["setting"].items())
    yield f"next: train with {flags}"


def tuning_lines(tuned: dict[str, Any], workdir: Path) -> Iterator[str]:
    """Yields lines on what tuning took, and how to train with the settings it picked."""
    table = pd.DataFrame([tuned])[list(PRINTED_COLUMNS)].rename(columns=PRINTED_COLUMNS)
    yield table.to_string(index=False, float_format="{:.3g}".format)
    yield f"{workdir}/results.csv: all that was measured, and the settings of every epoch"
    if picked := tuned["picked"]:
        groups, momentum, rate = picked.split("/")
        yield (
            f"next: train with --config.method.groups={groups} "
            f"--config.optimizer.momentum={momentum} --config.optimizer.learning_rate={rate}"
        )


def main(config: Config, workdir: Path) -> int:
    app.check_kind(config)
    summary = tune(config, workdir)
    if app.in_json():
        tell(as_json(summary))
    elif config.tune.mode == LADDERS:
        tell(*search_lines(summary["search"], workdir))
    else:
        tell(*tuning_lines(summary["tuned"], workdir))
    return 0


if __name__ == "__main__":
    flags.DEFINE_bool("json", False, "Print all figures as JSON in place of the tables.")
    app.run(train.with_dry_run(main, dry_run_lines))
