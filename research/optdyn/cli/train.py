"""One run: `python -m launch.train --config=configs/quickstart.py --workdir=DIR`.

The same command resumes an interrupted or killed run and leaves a finished one as it is. Ctrl-C,
SIGTERM and SIGHUP save the run and end it; SIGUSR1 saves it, and it goes on.
`--config.replicas.count=N` records the trajectories of N replicas instead, for
`optdyn momentum`. `--dry_run` checks everything, measures a few updates, and says what
the run would take: its memory, its updates and epochs, and its time. It writes nothing.
"""

from pathlib import Path
from typing import Any

from optdyn.cli import app, dry
from optdyn.experiment import Experiment
from optdyn.train.checks import check
from optdyn.train.replicas import record
from optdyn.train.trainer import train


def run(config: Experiment, workdir: Path) -> dict[str, Any]:
    """Trains, or records replicas if the config asks for any; returns the summary."""
    check(config)
    app.warn(config)
    return record(config, workdir) if config.replicas.count else train(config, workdir)


def main(config: Experiment, workdir: Path) -> int:
    app.check_kind(config)
    reader = "momentum" if config.replicas.count else "report"
    return app.ended(run(config, workdir), workdir, reader)


if __name__ == "__main__":
    app.run(dry.asked(main, dry.described))
