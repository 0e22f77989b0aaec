"""Logs to an experiment tracker: `python -m launch.export --workdir=DIR --to=wandb|mlflow`.

    --project=NAME   W&B's project, MLflow's experiment; the workdir's name
    --offline        nothing leaves this machine: W&B writes `wandb/`, MLflow `mlruns.db`, in DIR

Words in the log are left out, as both trackers keep numbers by step. Exporting again makes the
runs again. Without --offline WANDB_* and MLFLOW_TRACKING_URI say where to.
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
AT_ONCE = 100  # values of a config in one call of MLflow


def export(workdir: Path, to: str, project: str = "", offline: bool = False) -> int:
    """Exports the runs and returns their number; raises `TableError` without the library, too."""
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
            run.log(numbers(row), step=int(row["step"]))
        run.summary.update(figures(point.summary))
        run.finish(exit_code=0)


def to_mlflow(
    library: Any, points: Sequence[Point], project: str, workdir: Path, offline: bool
) -> None:
    if offline:
        library.set_tracking_uri(f"sqlite:///{workdir.resolve() / 'mlruns.db'}")
    library.set_experiment(project)
    for point in points:
        with library.start_run(run_name=point.name):
            values = [(key, str(value)[:LONGEST]) for key, value in point.config.items()]
            for start in range(0, len(values), AT_ONCE):
                library.log_params(dict(values[start : start + AT_ONCE]))
            for row in point.log:
                library.log_metrics(numbers(row), step=int(row["step"]))
            library.set_tags({k: str(v)[:LONGEST] for k, v in figures(point.summary).items()})


TRACKERS: Mapping[str, Callable[..., None]] = {"wandb": to_wandb, "mlflow": to_mlflow}


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns a log point's numbers but for its step."""
    return {
        key: float(value)
        for key, value in row.items()
        if key != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a summary's numbers and words."""
    return {k: v for k, v in summary.items() if v is not None and not isinstance(v, (dict, list))}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 2, after a line on standard error, for unusable input."""
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
