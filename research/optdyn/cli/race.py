"""A real race: `python -m launch.race --config=configs/quickstart.py --workdir=DIR`.

The compute groups of `config.method.groups` are workers that compute at their own pace, actors
of Ray (pip install 'optdyn[ray]'), and this process is the server that applies each gradient as it
arrives. The workdir, the log and the report are those of `launch.train`; the seconds are real.
`trace.csv` there has who arrived when, with which version. The simulator replays it:

    python -m launch.train --config=... --workdir=DIR2 --config.cluster.service.name=trace
        --config.cluster.service.path=DIR/trace.csv

With --servers=S its blocks are spread over S processes, which workers send their gradients to. All
of them have one order of updates.

A worker that dies is replaced. A server that dies is started again from its last checkpoint
(config.checkpoint_every). Ctrl-C, SIGTERM and SIGHUP save, and the same command goes on; SIGUSR1
saves only. `--dry_run` says what workers compute and send, and starts none.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from optdyn.base import signals
from optdyn.base.errors import print_error
from optdyn.base.streams import put
from optdyn.experiment import Config

SERVER = "OPTDYN_RACE_SERVER"  # set in the process that is the server
LOST = 75  # exit status of a server of which a part died
DEATHS = 3  # one after the other without a new checkpoint, after which it is given up


def raced(config: Config) -> Config:
    """The experiment as a race of real workers. Raises `ConfigError`."""
    from optdyn.cli import app
    from optdyn.train.checks import check

    app.check_kind(config)
    config = config.with_({"cluster.service.name": "race"})
    check(config)
    return config


def served(config: Config, workdir: Path) -> int:
    """The server, in a process of its own."""
    from functools import partial

    from optdyn.cli import app, train
    from optdyn.race.on_ray import ray_workers
    from optdyn.race.race import race
    from optdyn.race.shards import PartLost

    config = raced(config)
    app.warn(config)
    given, servers = flags.FLAGS, flags.FLAGS.servers
    connect = partial(
        ray_workers, gpus=given.gpus_per_worker, servers=servers, address=given.address
    )
    try:
        summary = race(config, workdir, connect, servers)
        return train.ended(summary, workdir, "reality")
    except PartLost:
        return LOST


def described(config: Config) -> Iterator[str]:
    """Lines on what workers compute and send. Raises what a race raises before it begins."""
    from optdyn.base.progress import clock, number
    from optdyn.base.trees import bytes_of
    from optdyn.cli.train import SECONDS
    from optdyn.race.race import prepare_race
    from optdyn.race.worker import arrivals_per_update, first_job, make_compute

    config = raced(config)
    run = prepare_race(config, flags.FLAGS.servers)
    send, given, batches = first_job(run, make_compute(run), 0)
    sent, taken, done = send(), 0.0, 0
    while taken < SECONDS:
        begun = time.monotonic()
        send()
        taken, done = taken + time.monotonic() - begun, done + 1
    each, updates = taken / done, batches / arrivals_per_update(run)
    rate = config.methods.groups * updates / each
    yield f"parameters      {bytes_of(run.params):,} bytes"
    yield f"a message       {number(each)} s of a worker alone with all cores, {updates:g} updates"
    yield f"it is given     {bytes_of(given):,} bytes"
    yield f"it sends        {bytes_of(sent):,} bytes"
    yield f"at most         {number(rate)} updates/s, if nobody slowed or waited for anybody"
    yield f"in all          {clock(config.steps / rate)} at least"


def supervised(arguments: list[str], workdir: str) -> int:
    """Runs the server, and anew from its last checkpoint if it is killed; its exit code."""
    from optdyn.cli.local import bound_to_parent

    command = [sys.executable, "-m", "optdyn.cli.race", *arguments]
    process: subprocess.Popen[bytes] | None = None
    deaths, saved, stopped = 0, -1, 0

    def pass_on(number: int, frame: object) -> None:
        nonlocal stopped
        if number in signals.ENDING:
            stopped = number
        if process:
            process.send_signal(number)

    signals.take(pass_on, *signals.ENDING, *signals.SAVING)
    while not stopped:
        process = subprocess.Popen(
            command,
            env={**os.environ, SERVER: "1"},
            start_new_session=True,  # signals come through this process, once
            preexec_fn=bound_to_parent(),
        )
        if stopped:  # meanwhile
            process.send_signal(stopped)
        code = process.wait()
        if code != LOST and (code >= 0 or -code in signals.ENDING):
            return code if code >= 0 else 128 - code
        from optdyn.train.checkpoints import latest  # only here, for it takes long

        found = latest(Path(workdir)) or 0
        deaths, saved = (1 if found > saved else deaths + 1), found
        how = f"the server was ended by signal {-code}" if code < 0 else "a part of the server died"
        if deaths == DEATHS:
            print_error(f"{how}, {deaths} times at {found:,} saved updates")
            return 128 - code if code < 0 else code
        if not stopped:
            put(f"{how}; it starts again where it was saved\n")
    return 128 + stopped


def main() -> None:
    if os.environ.get(SERVER):
        from optdyn.cli import app, train

        flags.DEFINE_string(
            "address", "", "Ray cluster, or 'auto'; by default one on this machine."
        )
        flags.DEFINE_float("gpus_per_worker", 0.0, "GPUs of each worker, 0.5 for two on one.")
        flags.DEFINE_integer("servers", 1, "Processes that the server's blocks are spread over.")
        app.run(train.or_dry(served, described))
    else:
        named = [a.partition("=")[2] for a in sys.argv if a.startswith("--workdir=")]
        sys.exit(supervised(sys.argv[1:], (named or [""])[-1]))


if __name__ == "__main__":
    main()
