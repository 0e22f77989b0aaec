"""One run: `python -m launch.train --config=configs/quickstart.py --workdir=DIR`.

The same command resumes an interrupted or killed run and leaves a finished one as it is.
`--config.replicas.count=N` records the trajectories of N replicas instead, for
`analysis.implicit_momentum`. `--dry_run` checks everything, measures a few updates, and says what
the run would take: its memory, its updates and epochs, and its time. It writes nothing.
"""

from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from launch import app, dry
from research.checks import check
from research.parallel.processes import is_writer
from research.trainer import train
from research.trajectories.replicas import record


def run(config: ConfigDict, workdir: Path) -> dict[str, Any]:
    """Trains, or records replicas if the config asks for any; returns the summary."""
    check(config)
    app.warn(config)
    return record(config, workdir) if config.replicas.count else train(config, workdir)


def main(config: ConfigDict, workdir: Path) -> int:
    app.one_run(config)
    return app.ended(run(config, workdir))


def asked(config: ConfigDict, workdir: Path) -> int:
    """`main`, or with `--dry_run` what it would take."""
    if not flags.FLAGS.dry_run:
        return main(config, workdir)
    app.one_run(config)
    lines = list(dry.described(config))
    if is_writer():
        print(*lines, sep="\n")
    return 0


def define() -> None:
    """The flags of this command besides those of all (`app.run`)."""
    flags.DEFINE_bool("dry_run", False, "Only say what the run would take; write nothing.")


if __name__ == "__main__":
    define()
    app.run(asked)
