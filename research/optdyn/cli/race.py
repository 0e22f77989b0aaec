"""Runs a real race: `python -m launch.race --config=configs/quickstart.py --workdir=DIR`.

The `config.method.groups` compute groups are workers, actors of Ray (pip install 'optdyn[ray]'),
that do not wait for one another, and this process is the server that applies gradients as they
arrive. Workdir, log and report are those of `launch.train`; the seconds are real. `trace.csv` there
has the arrivals with their times and versions. The simulator replays it:

    python -m launch.train --config=... --workdir=DIR2 --config.cluster.service.name=trace
        --config.cluster.service.path=DIR/trace.csv

With --servers=S the parameter blocks are spread over S processes, to which workers send gradients.
All have one order of updates.

A worker that dies is replaced. A server that dies is started again from its last checkpoint
(config.checkpoint_every). Ctrl-C, SIGTERM and SIGHUP save, and the same command goes on; SIGUSR1
only saves. `--dry_run` prints what workers compute and send, and starts none.
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

SERVER = "OPTDYN_RACE_SERVER"  # a variable that is set in the server's process
PART_LOST = 75  # exit status of a server if one of its parts died
MOST_DEATHS = 3  # without a new checkpoint between them, after which the race is given up


def race_config(config: Config) -> Config:
    from optdyn.cli import app
    from optdyn.train.checks import check

    app.check_kind(config)
    config = config.with_({"cluster.service.name": "race"})
    check(config)
    return config


def serve(config: Config, workdir: Path) -> int:
    """Runs the server, in a separate process; returns its exit code."""
    from functools import partial

    from optdyn.cli import app, train
    from optdyn.race.on_ray import ray_workers
    from optdyn.race.race import race
    from optdyn.race.shards import PartLost

    config = race_config(config)
    app.warn(config)
    values, servers = flags.FLAGS, flags.FLAGS.servers
    connect = partial(
        ray_workers, gpus=values.gpus_per_worker, servers=servers, address=values.address
    )
    try:
        summary = race(config, workdir, connect, servers)
        return train.print_ending(summary, workdir, "reality")
    except PartLost:
        return PART_LOST


def dry_run_lines(config: Config) -> Iterator[str]:
    """Yields lines on what workers compute and send. Raises what a race raises at first."""
    from optdyn.base.progress import clock, number
    from optdyn.base.trees import bytes_of
    from optdyn.cli.train import TIMED_SECONDS
    from optdyn.race.race import prepare_race
    from optdyn.race.worker import arrivals_per_update, first_job, make_compute

    config = race_config(config)
    run = prepare_race(config, flags.FLAGS.servers)
    send, received, batches = first_job(run, make_compute(run), 0)
    sent, total, done = send(), 0.0, 0
    while total < TIMED_SECONDS:
        begun = time.monotonic()
        send()
        total, done = total + time.monotonic() - begun, done + 1
    seconds, updates = total / done, batches / arrivals_per_update(run)
    rate = config.methods.groups * updates / seconds
    yield f"parameters      {bytes_of(run.params):,} bytes"
    yield f"a message       {number(seconds)} s of one worker with all cores, {updates:g} updates"
    yield f"it is given     {bytes_of(received):,} bytes"
    yield f"it sends        {bytes_of(sent):,} bytes"
    yield f"at most         {number(rate)} updates/s, if nobody slowed or waited for anybody"
    yield f"in all          {clock(config.steps / rate)} at least"


def supervise(arguments: list[str], workdir: str) -> int:
    """Runs the server, again from its last checkpoint if it is killed; returns its exit code."""
    from optdyn.cli.local import die_with_parent

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
            preexec_fn=die_with_parent(),
        )
        if stopped:  # in the meantime
            process.send_signal(stopped)
        while (code := process.poll()) is None:  # a signal just before a `wait` is heard after it
            time.sleep(0.1)
        if code != PART_LOST and (code >= 0 or -code in signals.ENDING):
            return code if code >= 0 else 128 - code
        from optdyn.train.checkpoints import latest  # only here, for it takes long

        found = latest(Path(workdir)) or 0
        deaths, saved = (1 if found > saved else deaths + 1), found
        how = f"the server was ended by signal {-code}" if code < 0 else "a part of the server died"
        if deaths == MOST_DEATHS:
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
        flags.DEFINE_integer("servers", 1, "Server processes that share the parameter blocks.")
        app.run(train.with_dry_run(serve, dry_run_lines))
    else:
        workdirs = [a.partition("=")[2] for a in sys.argv if a.startswith("--workdir=")]
        sys.exit(supervise(sys.argv[1:], (workdirs or [""])[-1]))


if __name__ == "__main__":
    main()
