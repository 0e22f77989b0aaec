"""Races that are real: `-m analysis.benchmarks.race [--only=replay,overhead,predicted]`.

    replay      4 workers race an MLP and LeNet-5, with and without merged dense blocks; the largest
                difference of a parameter after the replay, over the largest parameter
    overhead    seconds an update of a race with one worker over those of `launch.train`, at 20 ms
    predicted   updates a second of 2 and 4 workers, predicted from a race of one by cores that
                they share and a server that they queue for (`clock/arrivals.py`)

XLA's sums depend on its threads, so this process takes as many as a worker has; the simulator's
takes all. Needs the extra `ray`.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from analysis.benchmarks.record import RECORDS, options, publish
from configs import quickstart
from optdyn.base.files import read_rows
from optdyn.experiment import Config
from optdyn.race.race import race, replay_workers
from optdyn.report.race import summarize
from optdyn.report.raced import RaceRecord, load
from optdyn.train.checkpoints import parameters

STEPS, EARLY, GROUPS = 2000, 200, 4
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "cnn": {"model.name": "cnn", "optimizer.learning_rate": 0.05},
}
MERGED = {**MODELS["cnn"], "method.fresh": ("hidden0", "classifier")}
OVERHEAD = {"data.replacement": True, "log_every": 100, "checkpoint_every": 400}
BATCH = {"mlp": 14_000, "cnn": 448}  # about as large as takes so long:
SECONDS = 0.020  # an update
ROUNDS = 5
RACING = (2, 4)  # workers that are predicted from one
PREDICTED = {"mlp": 4000, "cnn": 1500}  # updates of such races
PLAIN = {"optimizer.momentum": 0.0, "optimizer.learning_rate": 0.1}


def config_of(groups: int, steps: int, values: dict[str, Any]) -> Config:
    return quickstart.get_config().with_(keys_of(groups, steps, values))


def keys_of(groups: int, steps: int, values: dict[str, Any]) -> dict[str, Any]:
    method = {"method.name": "asynchronous", "method.groups": groups, "cluster.nodes": groups}
    return {**method, "steps": steps, **values}


def start_run(
    module: str, workdir: Path, groups: int, steps: int, values: dict[str, Any], threads: str = ""
) -> Any:
    """Starts a run of `config_of`; XLA has `threads` threads, or one a core."""
    keys = (f"--config.{key}={value}" for key, value in keys_of(groups, steps, values).items())
    line = [sys.executable, "-m", module, "--config=configs/quickstart.py", f"--workdir={workdir}"]
    quiet, env = subprocess.DEVNULL, {k: v for k, v in os.environ.items() if k != "NPROC"}
    env |= {"NPROC": threads} if threads else {}
    return subprocess.Popen([*line, *keys], env=env, stdout=quiet, stderr=quiet)


def wait(process: Any) -> None:
    if process.wait():
        raise RuntimeError(f"{' '.join(process.args)} ended with {process.returncode}")


def difference(one: Path, other: Path) -> float:
    a, b = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(parameters(path)[1])])
        for path in (one, other)
    )
    return float(np.abs(a - b).max() / np.abs(a).max())


def replay(folder: Path) -> list[dict[str, Any]]:
    found = []
    for model, values in {**MODELS, "cnn, merged": MERGED}.items():
        raced = folder / model
        wait(start_run("launch.race", raced, GROUPS, STEPS, values))
        order = pd.read_csv(raced / "trace.csv")["worker"].tolist()
        source = {"cluster.service.name": "trace", "cluster.service.path": str(raced / "trace.csv")}
        for steps in (EARLY, STEPS):
            halves, whole = raced / f"halves{steps}", raced / f"whole{steps}"
            again = config_of(GROUPS, steps, {**values, "cluster.service.name": "race"})
            race(again, halves, replay_workers(order))
            wait(start_run("launch.train", whole, GROUPS, steps, {**values, **source}))
            about: dict[str, Any] = {"model": model, "updates": steps}
            about["replay by the simulator"] = f"{difference(halves, whole):.1e}"
            if steps == STEPS:
                about["replay by the same programs"] = f"{difference(raced, halves):.1e}"
            found.append(about)
    return found


def overhead(folder: Path) -> list[dict[str, Any]]:
    """Returns a row a model: an update after the first log point, with its evaluation."""

    def seconds_of(module: str, workdir: Path, values: dict[str, Any]) -> float:
        wait(start_run(module, workdir, 1, 400, values))
        log = read_rows(workdir / "metrics.jsonl")
        done = log[-1]["step"] - log[1]["step"]
        return (log[-1]["wall_seconds"] - log[1]["wall_seconds"]) / done

    found = []
    for model, batch in BATCH.items():
        values = {**MODELS[model], **OVERHEAD, "batch_size": batch}
        first = seconds_of("launch.train", folder / f"{model} first", values)
        values["batch_size"] = batch = round(batch * SECONDS / first)
        seconds: dict[str, list[float]] = {"launch.train": [], "launch.race": []}
        for i in range(ROUNDS):
            for module, samples in seconds.items():
                samples.append(seconds_of(module, folder / f"{model}{module}{i}", values))
        simulated, real = (np.array(samples) for samples in seconds.values())
        ratios = real / simulated
        about: dict[str, Any] = {"model": model, "batch": batch}
        about |= {f"ms, {name}": 1000 * float(np.median(v)) for name, v in seconds.items()}
        about |= {"ratio": float(np.median(ratios)), "from": float(ratios.min())}
        found.append(about | {"to": float(ratios.max()), "wanted": "at most 1.3"})
    return found


def busy_cores(seconds: float = 1.0) -> float:
    """Returns the cores that others use, while this process sleeps (Linux)."""

    def used() -> float:
        user, nice, system = Path("/proc/stat").read_text().split()[1:4]
        return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds


def at_once(folder: Path, races: int, groups: int, model: str) -> list[RaceRecord]:
    """Runs races of the same length at the same time, each with its server."""
    values = {"log_every": 500, "checkpoint_every": 0, **PLAIN, **MODELS[model]}
    steps = PREDICTED[model] * (2 if races > 1 else 1)  # most of which all of them run
    workdirs = [folder / f"{groups} {i}" for i in range(races)]
    processes = [start_run("launch.race", w, groups, steps, values, threads="1") for w in workdirs]
    for process in processes:
        wait(process)
    return [load(workdir) for workdir in workdirs]


def predict(folder: Path) -> list[dict[str, Any]]:
    """Returns a row a model and number of workers: medians over the rounds, and the worst.

    The law is that of a race of one worker beside others of its kind, one to a core, so that no
    core is idle, as in the races that are predicted.
    """
    cores, found = os.cpu_count() or 1, []
    for model in PREDICTED:
        rounds: dict[int, list[dict[str, float]]] = {groups: [] for groups in RACING}
        busy = list[float]()
        for i in range(ROUNDS):
            workdir = folder / f"{model} {i}"
            busy.append(busy_cores())
            (lone,) = at_once(workdir / "alone", 1, 1, model)
            beside = at_once(workdir / "beside", cores, 1, model)[0]
            for groups in RACING:
                busy.append(busy_cores())
                (race,) = at_once(workdir, 1, groups, model)
                by, by_lone = (summarize(race, one, cores=float(cores)) for one in (beside, lone))
                rounds[groups].append(
                    {
                        "measured": by["updates_a_second"],
                        "predicted": by["shared"]["updates_a_second"][0],
                        "from one alone": by_lone["shared"]["updates_a_second"][0],
                        "by workers alone": by_lone["simulated"]["updates_a_second"][0],
                    }
                )
        for groups, samples in rounds.items():
            columns = {name: np.array([sample[name] for sample in samples]) for name in samples[0]}
            off = {name: values / columns["measured"] - 1 for name, values in columns.items()}
            about: dict[str, Any] = {"model": model, "workers": groups}
            about["cores busy before"] = float(np.median(busy))
            for name in ("measured", "predicted"):
                about[f"updates/s, {name}"] = float(np.median(columns[name]))
            worst = abs(off["predicted"]).max()
            about |= {"off by": f"{np.median(off['predicted']):+.1%}", "at most": f"{worst:.1%}"}
            for name in ("from one alone", "by workers alone"):
                about[name] = f"{np.median(off[name]):+.1%}"
            found.append(about | {"wanted": "15 %"})
    return found


def main() -> None:
    parser = options(__doc__, RECORDS)
    parser.add_argument("--only", default="replay,overhead,predicted")
    arguments = parser.parse_args()
    os.environ["NPROC"] = str(max((os.cpu_count() or 1) // GROUPS, 1))
    parts = {"replay": replay, "overhead": overhead, "predicted": predict}
    for name in arguments.only.split(","):
        with tempfile.TemporaryDirectory(prefix="optdyn-race-") as folder:
            publish(pd.DataFrame(parts[name](Path(folder))), arguments.out / f"race_{name}.json")


if __name__ == "__main__":
    main()
