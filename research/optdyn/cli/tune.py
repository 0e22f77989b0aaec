"""Tuning groups, momentum and learning rate: `python -m launch.tune --config=... --workdir=DIR`.

Tunes and trains in turn on the simulated cluster, until the training loss is at
`config.tune.target`: in a mode that predicts what it can (`tune/predictive.py`), or as
the authors of Omnivore's automatic optimizer do it (`omnivore.py`). `decisions.jsonl` has every
probe and decision as it is made; interrupted or killed, the same command goes on from there. At the
end: `results.csv` and `summary.json`. `--dry_run` says what there is to choose from and how long it
can take, at most.

With `config.tune.mode=ladders` it is any method with any optimizer: learning rate, momentum,
period, outer numbers and compression, by simulated seconds to the target, each run of
`config.steps` updates at most (`ladders.py`). `trials.jsonl` has every run.
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

SHOWN = {  # columns of the result that are printed
    "seconds_to_target": "seconds to the target",
    "with_probes": "with probes",
    "updates": "updates",
    "picked": "picked: g/momentum/rate",
}
MODES = {"predictive": predictive, "omnivore": omnivore}
LADDERS = "ladders"


def tune(config: Config, workdir: Path) -> dict[str, Any]:
    """Tunes and trains, or goes on with it, and returns the summary: `tuned` or `search`.

    Raises what `bench.prepare` raises, and `WorkdirError`.
    """
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
        history.started(folder, 0, config.steps)
        if cluster:
            found = {"tuned": _tuned(config, cluster, folder)}
        else:
            found = {"search": ladders.tuned(config, folder)}
        summary = {"status": "completed", **found, **trainer.provenance(run)}
        summary |= history.told(folder)
        write_json(folder / "summary.json", summary)
        return summary


def _tuned(config: Config, cluster: SimulatedCluster, workdir: Path) -> dict[str, Any]:
    given = config.tune
    with Checkpoints(workdir) as checkpoints:
        journal = Journal(workdir / "decisions.jsonl", checkpoints.latest() or 0, given.seconds)
        method = Bench(cluster, journal, given.target, checkpoints)
        MODES[given.mode](method, cluster.groups, given)
    tuned = result(journal.lines)
    replace(workdir / "results.csv", pd.DataFrame([tuned]).to_csv(index=False))
    return tuned


def result(lines: Sequence[Json]) -> dict[str, Any]:
    """Seconds to the target without the probes (infinite: not reached) and with, and the settings.

    A probe that is gone on with, as a longer one or as an epoch, is the beginning of it, and counts
    once. `overhead` is the other probes' part of all seconds; `settings`, g/mu/alpha, are what it
    trained with, `picked` the first of them.
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
        "picked": _shown(epochs[0]) if epochs else "",
        "settings": " ".join(map(_shown, epochs)),
    }


def _shown(line: Json) -> str:
    return f"{line['groups']}/{line['momentum']:.3g}/{line['learning_rate']:.3g}"


def _seconds(attempts: Sequence[Json]) -> float:
    """The seconds of probes; those of one point and setting are one run, as long as the longest."""
    longest: dict[tuple[Any, ...], float] = {}
    for line in attempts:
        key = tuple(line.get(name) for name in (*EpochPoint._fields, *Choice._fields))
        longest[key] = max(longest.get(key, 0.0), line["seconds"])
    return sum(longest.values())


def described(config: Config) -> Iterator[str]:
    """Lines on what is tried and how long it can take. Raises what `bench.prepare` raises."""
    if config.tune.mode == LADDERS:
        yield from _climbed(config)
        return
    cluster, given = bench.prepare(config), config.tune
    most = given.seconds / bench.seconds_per_update(cluster, cluster.groups[-1])
    each = train.seconds_per_update(cluster.run)
    searched = "momentum and learning rate from the measured noise scale and sharpness, at first"
    if given.mode == "omnivore":
        momenta = ", ".join(f"{value:g}" for value in given.momenta)
        rates = ", ".join(f"{value:g}" for value in given.learning_rates)
        searched = f"momentum {momenta}; learning rates {rates}, at first"
    yield f"groups          {', '.join(map(str, cluster.groups))}"
    yield f"{given.mode:15} {searched}"
    yield f"target          a training loss of {given.target:g}"
    yield f"seconds         {number(given.seconds)} of training at most, simulated"
    yield f"an update       {number(each)} s, {number(1 / each)} updates/s"
    yield (
        f"in all          {clock(most * each)} at most, besides probes: {most:,.0f} updates, if "
        f"{cluster.groups[-1]} groups never get there"
    )


def _climbed(config: Config) -> Iterator[str]:
    """Lines on the ladders, and on what a run of the search takes at most."""
    run, start = trainer.prepare(config), ladders.arm(config)
    for key, ladder in start.ladders.items():
        i = start.start[key]
        below, here, above = (f"{ladder(i + by):g}" for by in (-1, 0, 1))
        yield f"{key}: from {here}, beside it {below} and {above}"
    yield (
        f"seeds           {ladders.CHOOSE} choose, {ladders.REPORT} report, to a training loss of "
        f"{config.tune.target:g}"
    )
    each = train.seconds_per_update(run)
    yield f"a run           {clock(config.steps * each)} at most: {config.steps:,} updates"


def found(search: dict[str, Any], workdir: Path) -> Iterator[str]:
    """The setting that a search on ladders ended with, what it took, and how to train with it."""
    read = {  # a run that missed is null where a summary is read again
        key: [math.inf if each is None else each for each in search[key]]
        for key in ("updates", "seconds")
    }
    seconds, updates = np.median(read["seconds"]), read["updates"]
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


def told(tuned: dict[str, Any], workdir: Path) -> Iterator[str]:
    """What tuning took, where the rest is, and how to train with what was chosen."""
    table = pd.DataFrame([tuned])[list(SHOWN)].rename(columns=SHOWN)
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
        tell(*found(summary["search"], workdir))
    else:
        tell(*told(summary["tuned"], workdir))
    return 0


if __name__ == "__main__":
    flags.DEFINE_bool("json", False, "Print all figures as JSON in place of the tables.")
    app.run(train.or_dry(main, described))
