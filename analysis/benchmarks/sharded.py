"""Time of sharded updates, as ratios: `python -m analysis.benchmarks.sharded`.

    one device      an update under each `parallel.api` on one device, over a `jax.jit` of a scan of
                    the same update in plain jax and optax
    two processes   examples a second of two processes with shard_map, over torch's DDP, eager and
                    compiled (`--torch=PYTHON`, one that has torch), with gloo and one thread each
    bound           DDP's seconds over those of computing without exchange plus torch's all-reduce

Models and optimizer are those of `step_time`. `--batch` is that of the two processes together.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from argparse import SUPPRESS
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.benchmarks.record import Timer, in_turn, options, publish, spread
from analysis.benchmarks.step_time import BATCH, by_hand, config_of, ours
from optdyn.base import processes
from optdyn.experiment import Config
from optdyn.train.program import CHUNK

MODELS = ("mlp", "cnn")
APIS = ("jit", "shard_map", "pmap")
PROCESSES = 2
UPDATES = CHUNK  # between two readings of the clock; what the trainer hands over at a time
Job = Callable[[str], float]  # of a model's name: seconds an update


def sharded_config(model: str, api: str, batch: int) -> Config:
    return config_of(model, 1).with_({"parallel.api": api}, batch_size=batch)


def one_device(rounds: int) -> list[dict[str, Any]]:
    """Returns a row a model and api: its seconds over those of the program written by hand."""
    rows = []
    for model in MODELS:
        timers = {api: ours(sharded_config(model, api, BATCH), UPDATES) for api in APIS}
        seconds = in_turn(timers | {"by hand": by_hand(model, UPDATES)}, rounds)
        for api in APIS:
            about = {"model": model, "batch": BATCH, "ratio": f"seconds, {api} / by hand"}
            ratios = spread(seconds[api] / seconds["by hand"])
            rows.append(about | ratios | {"wanted": "at most 1.03"} | ms(seconds, api, "by hand"))
    return rows


def two_processes(rounds: int, batch: int, python: str) -> list[dict[str, Any]]:
    here = [sys.executable, "-m", "analysis.benchmarks.sharded", f"--batch={batch}", "--work"]
    torch = [python, str(Path(__file__).with_name("torch_ddp.py")), str(batch), str(UPDATES)]
    commands = {
        "shard_map": [*here[:-1], "--together", here[-1]],
        "computing alone": here,
        "exchange alone": [*torch, "exchange"],
        "DDP": [*torch, "eager"],
        "compiled DDP": [*torch, "compiled"],
    }
    rows = []
    with contextlib.ExitStack() as stack:
        jobs = {name: stack.enter_context(job(command)) for name, command in commands.items()}
        for model in MODELS:
            timers: dict[str, Timer] = {name: partial(ask, model) for name, ask in jobs.items()}
            seconds = in_turn(timers, rounds)
            seconds["bound"] = seconds["computing alone"] + seconds["exchange alone"]
            for name in ("DDP", "compiled DDP"):
                for one in ("shard_map", "bound"):
                    ratio = f"examples a second, {one} / {name}"
                    about = {"model": model, "batch": batch, "ratio": ratio}
                    ratios = spread(seconds[name] / seconds[one])
                    aim = {"wanted": "at least 1.5" if one == "shard_map" else ""}
                    rows.append(about | ratios | aim | ms(seconds, one, name))
    return rows


def ms(seconds: dict[str, np.ndarray], one: str, other: str) -> dict[str, float]:
    return {
        "ms": 1e3 * float(np.median(seconds[one])),
        "ms of the other": 1e3 * float(np.median(seconds[other])),
    }


@contextlib.contextmanager
def job(command: list[str]) -> Iterator[Job]:
    """Starts `command FOLDER` in processes that read models' names from the pipes FOLDER/RANK.

    Process 0 answers a name with `seconds NUMBER`. Raises OSError if it ended instead.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        pipes = [Path(folder, str(rank)) for rank in range(PROCESSES)]
        for pipe in pipes:
            os.mkfifo(pipe)
        launcher = [sys.executable, "-m", "launch.local", f"--processes={PROCESSES}", "--"]
        whole = [*launcher, *command, folder]
        process = stack.enter_context(
            subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        )
        # For reading as well: opening does not wait for the other side.
        requests = [stack.enter_context(open(os.open(pipe, os.O_RDWR), "w")) for pipe in pipes]

        def ask(model: str) -> float:
            for request in requests:
                print(model, file=request, flush=True)
            for line in process.stdout or ():
                if " seconds " in line:  # gloo says things as well
                    return float(line.split()[-1])
            raise OSError(f"{' '.join(command)}: ended before it answered")

        yield ask


def work(batch: int, folder: Path, together: bool) -> None:
    """Runs one of our processes of `two_processes`, with or without the exchange."""
    rank = int(os.environ["OPTDYN_PROCESS"])
    if together:
        processes.initialize()
    share = batch if together else batch // PROCESSES
    timers = {model: ours(sharded_config(model, "shard_map", share), UPDATES) for model in MODELS}
    with open(folder / str(rank)) as requests:
        for line in requests:
            seconds = timers[line.strip()]()
            if rank == 0:
                print("seconds", seconds, flush=True)


def main() -> None:
    parser = options(__doc__, "workdirs/sharded.json", rounds=21)
    parser.add_argument("--batch", type=int, default=256, help="examples of two processes together")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch")
    parser.add_argument("--work", type=Path, help=SUPPRESS)
    parser.add_argument("--together", action="store_true", help=SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        return work(arguments.batch, arguments.work, arguments.together)
    load = os.getloadavg()[0]
    rows = one_device(arguments.rounds)
    if arguments.torch:
        rows += two_processes(arguments.rounds, arguments.batch, arguments.torch)
    publish(pd.DataFrame(rows), arguments.out, rounds=arguments.rounds, load_before=load)


if __name__ == "__main__":
    with processes.leaving_on_failure():
        main()
