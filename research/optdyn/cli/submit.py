"""Shards of a grid as jobs: `python -m launch.submit --shards=8 --config=... --workdir=DIR`.

Takes the flags of `launch.sweep` and some of its own, checks the grid, and submits `--shard=0/n` to
`--shard=n-1/n`; DIR must be on a file system that all nodes share. Needs submitit (`pip install
submitit`). The same command resumes a sweep.

    --shards=N
    --cluster=slurm   or 'local': all shards at once on this machine; waits until they have ended
    --resources=timeout_min=600,slurm_partition=NAME,gpus_per_node=1    parameters of submitit

A job that SLURM ends at its time limit, or for another's sake, saves its runs and is queued again.
Every shard writes the tables of what is there when it ends; `launch.sweep` writes them once more.
"""

import argparse
import importlib.util
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from absl import flags

from optdyn.base.errors import print_error
from optdyn.base.flag_parser import Parser
from optdyn.base.streams import tell
from optdyn.cli import app, sweep
from optdyn.cli.points import plan
from optdyn.experiment import ConfigError
from optdyn.train.grid import Grid

DAY = 24 * 60  # minutes; submitit's own limit is 5
SAVING = 60  # seconds for a shard to end when it is told to


class Shard:
    """One shard as submitit calls it; `checkpoint` is what it is to be queued again as."""

    def __init__(self, command: Sequence[str]):
        self.command = list(command)
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        """Raises RuntimeError with the exit code of a shard that fails."""
        self.process = subprocess.Popen(self.command)
        while self.process.poll() is None:
            time.sleep(0.2)
        if self.process.returncode:
            raise RuntimeError(f"exit code {self.process.returncode}: {' '.join(self.command)}")

    def checkpoint(self) -> Any:
        """Called in the midst of the call, by the handler of a signal."""
        import submitit

        assert self.process
        self.process.terminate()
        begun = time.monotonic()
        while self.process.poll() is None and time.monotonic() < begun + SAVING:
            time.sleep(0.2)
        return submitit.helpers.DelayedSubmission(Shard(self.command))


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """The values of this command's own flags, and the others, which are of `launch.sweep`."""
    parser = Parser(prog="optdyn submit", allow_abbrev=False, add_help=False)
    parser.add_argument("--shards", type=int, required=True, help="how many jobs")
    parser.add_argument(
        "--cluster", choices=("slurm", "local"), default="slurm", help="slurm, or local"
    )
    parser.add_argument("--resources", default="", help="of a job, as NAME=VALUE,NAME=VALUE")
    return parser.parse_known_args()


def main(given: argparse.Namespace, rest: list[str], config: Grid, workdir: Path) -> int:
    app.check_kind(config, is_grid=True)
    entries = plan(config, workdir)
    chosen = {"name": "optdyn", "timeout_min": DAY} | resources(given.resources)
    if flags.FLAGS.dry_run:
        return sweep.main(config, workdir)
    if not 1 <= given.shards <= len(entries):
        points = f"{len(entries)}, the grid's points"
        raise ConfigError(f"--shards={given.shards}: must be from 1 to {points}")
    if importlib.util.find_spec("submitit") is None:
        said = "launch.submit needs submitit, which is not installed: pip install submitit"
        raise ConfigError(said)
    import submitit

    with ConfigError.at("submitit", NameError, RuntimeError, TypeError, ValueError):
        executor = submitit.AutoExecutor(workdir / "jobs", cluster=given.cluster)
        executor.update_parameters(**chosen)
    command = [sys.executable, "-m", "optdyn.cli.sweep", *rest]
    shards = [f"--shard={number}/{given.shards}" for number in range(given.shards)]
    jobs = [executor.submit(Shard([*command, shard])) for shard in shards]
    tell(f"{len(entries)} points in {len(jobs)} jobs: {', '.join(job.job_id for job in jobs)}")
    if given.cluster == "slurm":
        return 0
    failed = [job for job in jobs if job.exception()]
    for job in failed:
        print_error(f"job {job.job_id} failed, see {job.paths.stderr}")
    if not failed:
        sweep.write(config, workdir)
    return int(bool(failed))


def resources(text: str) -> dict[str, int | str]:
    """`timeout_min=60,slurm_partition=gpu` as submitit's parameters. Raises `ConfigError`."""
    pairs = [item.partition("=") for item in text.split(",") if item]
    if not all(name and value for name, _, value in pairs):
        raise ConfigError(f"--resources={text}: must be NAME=VALUE,NAME=VALUE,...")
    return {name: int(value) if value.isdecimal() else value for name, _, value in pairs}


if __name__ == "__main__":
    given, rest = arguments()
    sys.argv[1:] = rest
    sweep.define()
    app.run(partial(main, given, rest))
