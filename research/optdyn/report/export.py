"""Logs to an experiment tracker: `python -m launch.export --workdir=DIR --to=wandb|mlflow`.

Each run below DIR becomes a run there, with its config, every log point and its final figures.
What is logged in words is left out, as both trackers keep numbers by step. The libraries are
extras: `pip install 'optdyn[wandb]'`, `pip install 'optdyn[mlflow]'`.

    --project=NAME   W&B's project, MLflow's experiment; the workdir's name
    --offline        nothing leaves this machine: W&B writes `wandb/`, MLflow `mlruns.db`, in DIR

Without --offline the libraries' own settings say where to (WANDB_*, MLFLOW_TRACKING_URI). Exporting
again makes the runs again.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from optdyn.base.errors import print_error
from optdyn.base.flag_parser import Parser
from optdyn.report import tables
from optdyn.report.tables import Point, TableError

LONGEST = 6000  # characters of a value that MLflow keeps
AT_ONCE = 100  # values of a config that it takes


def export(workdir: Path, to: str, project: str = "", offline: bool = False) -> int:
    """How many runs were exported. Raises `TableError` also where the library is missing."""
    points = tables.points(workdir)
    try:
        library = import_module(to)
    except ImportError:
        raise TableError(f"{to} is not installed: pip install 'optdyn[{to}]'") from None
    TRACKERS[to](library, points, project or workdir.resolve().name, workdir, offline)
    return len(points)


def to_wandb(
    library: Any, points: Sequence[Point], project: str, workdir: Path, offline: bool
) -> None:
    """A run each, with `step` as the axis of all figures."""
    for point in points:
        run = library.init(
            project=project,
            name=point.name,
            config=dict(point.config),
            dir=str(workdir),
            mode="offline" if offline else None,
            reinit="finish_previous",
        )
        for row in point.log:
            run.log(numbers(row, without="step"), step=int(row["step"]))
        run.summary.update(figures(point.summary))
        run.finish(exit_code=0)


def to_mlflow(
    library: Any, points: Sequence[Point], project: str, workdir: Path, offline: bool
) -> None:
    """A run each in the experiment; keys of the config are its parameters."""
    if offline:
        library.set_tracking_uri(f"sqlite:///{workdir.resolve() / 'mlruns.db'}")
    library.set_experiment(project)
    for point in points:
        with library.start_run(run_name=point.name):
            values = [(key, str(value)[:LONGEST]) for key, value in point.config.items()]
            for start in range(0, len(values), AT_ONCE):
                library.log_params(dict(values[start : start + AT_ONCE]))
            for row in point.log:
                library.log_metrics(numbers(row, without="step"), step=int(row["step"]))
            library.set_tags({k: str(v)[:LONGEST] for k, v in figures(point.summary).items()})


TRACKERS: Mapping[str, Callable[..., None]] = {"wandb": to_wandb, "mlflow": to_mlflow}


def numbers(row: Mapping[str, Any], without: str) -> dict[str, float]:
    """The row's numbers; neither null nor words."""
    return {
        key: float(value)
        for key, value in row.items()
        if key != without and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a summary says in one number or word each."""
    return {k: v for k, v in summary.items() if v is not None and not isinstance(v, (dict, list))}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 2 and one line on standard error for input it cannot use."""
    parser = Parser(prog="optdyn export", description="Exports logs.")
    parser.add_argument("--workdir", type=Path, required=True, help="of a run or a sweep")
    parser.add_argument("--to", choices=list(TRACKERS), required=True, help="wandb or mlflow")
    parser.add_argument("--project", default="", help="the workdir's name")
    parser.add_argument("--offline", action="store_true", help="write into the workdir only")
    flags = parser.read(arguments)
    try:
        count = export(flags.workdir, flags.to, flags.project, flags.offline)
    except (TableError, OSError) as error:
        return print_error(error)
    print(f"{count} run{'s' * (count > 1)} to {flags.to}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
