"""Runs as tables, read from their workdirs: one row a point, and one row a log point.

    from optdyn.report.tables import load, tidy
    runs, metrics = load(Path("workdirs/quickstart"))   # final figures; log points
    table = tidy(Path("workdirs"))                      # both in one: a row a log point

A workdir is that of a run or a sweep, or a folder above some. Its runs are the folders with a
`config.json` beside a `metrics.jsonl` or a `summary.json`.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import pandas as pd

from optdyn.base.errors import InputError
from optdyn.base.files import odd_figure, write
from optdyn.base.lookup import hashes_of

WRITING_SHARE = 1 / 20  # of the time of a sweep that goes into results.csv, at most
NAME, GROUPS = "method.name", "method.groups"
MOMENTUM, RATE = "optimizer.momentum", "optimizer.learning_rate"
# Shown even where all points agree in them: they say what a run is.
ALWAYS = (NAME, GROUPS, MOMENTUM, RATE, "seed")
NOTE = "note.txt"  # of a sweep's workdir: what its grid asks
LOGGED = ("step", "simulated_seconds", "train_loss")  # metrics.jsonl always has these


class TableError(InputError):
    """A workdir that cannot be read; the message is one line."""


class Point(NamedTuple):
    """One run, as its workdir has it; a missing file is an empty field."""

    name: str
    config: dict[str, Any]  # dotted keys; lists as JSON text
    summary: dict[str, Any]
    log: list[dict[str, Any]]  # metrics.jsonl
    fit: dict[str, Any]  # implicit_momentum.json
    folder: Path


def points(*workdirs: Path) -> list[Point]:
    """Returns all runs in the workdirs, each once, in natural order; raises `TableError`.

    A point's name is its folder's, or the whole path if they are of several workdirs.
    """
    paths: dict[Path, Path] = {}
    for workdir in workdirs:
        folders = {folder.resolve(): folder for folder in _run_folders(workdir)}
        if not folders:
            raise TableError(
                f"{workdir}: no run in it; give the workdir of launch.train or launch.sweep"
            )
        paths |= dict(sorted(folders.items(), key=lambda item: natural(item[1])))
    several = len({home(folder) for folder in paths}) > 1
    return [_point(folder, str(path) if several else folder.name) for folder, path in paths.items()]


def trained(points: Sequence[Point]) -> list[Point]:
    """Returns the points that are no recordings of replicas."""
    return [point for point in points if not point.config.get("replicas.count")]


def comparable(points: Sequence[Point]) -> list[Point]:
    """Returns the trained points; without metered ones, which serve the meter, if others remain."""
    runs = trained(points)
    return [point for point in runs if not point.config.get("probes.momentum")] or runs


def load(*workdirs: Path, keys: Sequence[str] = ()) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns (runs, metrics): the summaries, one row a point, and all log points.

    `runs` has the columns `point`, the dotted config keys in which points differ (besides a few
    that are always there, and `keys`), then the summary's scalar figures. `metrics` has `point`,
    then the columns of `metrics.jsonl`. Missing values are None or NaN. Raises `TableError`.
    """
    found = points(*workdirs)
    return runs(found, [*keys, *columns(found)]), metrics(found)


def tidy(*workdirs: Path, keys: Sequence[str] = ()) -> pd.DataFrame:
    """Returns `metrics` of `load` with its run's config on every row.

    Columns: `point`, the config's keys as in `runs` of `load`, `status`, then the logged numbers. A
    run that has logged nothing, as a recording of replicas, has one row without any. For example

        tidy(Path("workdirs")).groupby(["method.name", "step"])["train_loss"].median()

    Raises `TableError`.
    """
    found = points(*workdirs)
    shown_keys = list(dict.fromkeys([*keys, *columns(found)]))
    table = runs(found, shown_keys)[["point", *shown_keys, "status"]]
    return table.merge(metrics(found), "left", "point")


def notes(*workdirs: Path) -> list[str]:
    return [text for workdir in workdirs if (text := _text(workdir / NOTE))]


def write_results(workdir: Path, keys: Sequence[str] = ()) -> Path:
    """Writes `results.csv`, the first table of `load`, and returns its path."""
    path = workdir / "results.csv"
    replace(path, load(workdir, keys=keys)[0].to_csv(index=False))
    return path


def results_writer(workdir: Path, keys: Sequence[str] = ()) -> Callable[[str], None]:
    """Returns a function of a point's name that updates `results.csv` once the point has ended.

    The file is whole whenever it is read. No more than `WRITING_SHARE` of the time goes into it, so
    `write_results` has the last word. Any thread may call.
    """
    ended: dict[str, Point] = {}
    lock, resting_until = Lock(), 0.0

    def update(name: str) -> None:
        nonlocal resting_until
        with lock:
            ended.pop(name, None)
            start = time.monotonic()
            if start < resting_until:
                return
            for file in (workdir / "points").glob("*/summary.json"):
                if (folder := file.parent).name not in ended:
                    with suppress(TableError):  # `write_results` raises it at the end
                        ended[folder.name] = _point(folder, folder.name, with_log=False)
            found = sorted(ended.values(), key=lambda point: natural(point.folder))
            table = runs(found, list(dict.fromkeys([*keys, *columns(found)])))
            replace(workdir / "results.csv", table.to_csv(index=False))
            end = time.monotonic()
            resting_until = end + (end - start) / WRITING_SHARE

    return update


def columns(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys([*ALWAYS, *differing_keys(points)]))


def differing_keys(points: Sequence[Point]) -> list[str]:
    """Returns the dotted config keys whose values differ between the points that have them."""
    values: dict[str, set[Any]] = {}
    for point in points:
        for key, value in point.config.items():
            values.setdefault(key, set()).add(value)
    return [key for key, distinct in values.items() if len(distinct) > 1]


def select(points: Sequence[Point], where: Sequence[str]) -> list[Point]:
    """Returns the points whose configs agree with texts KEY=VALUE. Raises `TableError`."""
    for key, equals, value in (text.partition("=") for text in where):
        if not equals or not any(key in point.config for point in points):
            raise TableError(f"--where={key}{equals}{value}: must be KEY=VALUE, KEY of the config")
        points = [point for point in points if str(point.config.get(key)) == value]
    return list(points)


def check_alike(points: Sequence[Point], subject: str, may_differ: Callable[[str], bool]) -> None:
    """Raises `TableError`, which begins with `subject`, where a key differs that may not."""
    for key in differing_keys(points):
        if not may_differ(key):
            values = ", ".join(sorted({str(point.config.get(key)) for point in points}))
            choice = f"choose one with --where={key}=VALUE, VALUE one of {values}"
            raise TableError(f"{subject} differ in {key}; {choice}")


def config_value(config: Mapping[str, Any], key: str) -> Any:
    """Returns the value of a dotted key, or None; a missing momentum is 0."""
    if key == MOMENTUM and "optimizer.name" in config:
        return config.get(key, 0.0)
    if key in config or not key.startswith("method."):
        return config.get(key)
    keys = {k.removeprefix("method."): v for k, v in config.items() if k.startswith("method.")}
    return method_value(keys, key.removeprefix("method."))


def method_value(keys: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Returns the value of a method's key, for joined methods of the first that has it."""
    return next((v for k, v in keys.items() if k.rpartition(".")[2] == name), default)


def runs(points: Sequence[Point], keys: Sequence[str]) -> pd.DataFrame:
    """Returns one row a point: `point`, the config's keys, the summary's scalar figures."""
    return pd.DataFrame(
        [
            {"point": point.name}
            | {key: config_value(point.config, key) for key in keys}
            | {k: v for k, v in point.summary.items() if not isinstance(v, (dict, list))}
            for point in points
        ]
    )


def metrics(points: Sequence[Point]) -> pd.DataFrame:
    """Returns one row a log point: `point`, then the logged numbers and words."""
    table = logged([row for point in points for row in point.log])
    table.insert(0, "point", [point.name for point in points for _ in point.log])
    return table


def logged(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Returns the rows of a log as a table; columns without words or lists are numbers."""
    table = pd.DataFrame(rows, columns=None if rows else [*LOGGED])
    for name in table.select_dtypes("object"):
        if not table[name].map(lambda v: isinstance(v, (str, list))).any():
            table[name] = pd.to_numeric(table[name])
    return table


def replace(path: Path, text: str) -> None:
    """Writes the file in one step, so that it is whole whenever the process is killed."""
    write(path, text, suffix=str(os.getpid()))


def folders_with(workdir: Path, name: str) -> list[Path]:
    """Returns the workdir or else its sweep's points, those with a file of the name."""
    if (workdir / name).exists():
        return [workdir]
    return sorted((path.parent for path in workdir.glob(f"points/*/{name}")), key=natural)


def _run_folders(workdir: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(workdir):
        if "config.json" in files and {"metrics.jsonl", "summary.json"} & set(files):
            folders.clear()
            yield Path(root)


def shown(value: float | None, interval: Sequence[float] | None = None) -> str:
    """Returns a value of four digits, with its interval's ends; '' for None."""
    if value is None:
        return ""
    return f"{value:.4g}" + (f" [{interval[0]:.4g}, {interval[1]:.4g}]" if interval else "")


def natural(path: Path) -> str:
    """Returns a sorting key by which g4 comes before g16, and 0.05 before 0.1."""

    def padded(number: re.Match[str]) -> str:
        whole, point, fraction = number[0].partition(".")
        return whole.zfill(9) + point + fraction

    return re.sub(r"\d+(\.\d+)?", padded, str(path))


def home(folder: Path) -> Path:
    """Returns the workdir of the sweep that a run's folder is a point of, or else the folder."""
    return folder.parent.parent if folder.parent.name == "points" else folder


def _point(folder: Path, name: str, with_log: bool = True) -> Point:
    config, summary, fit = (
        _parse(path, _text(path) or "{}")
        for path in (folder / f"{f}.json" for f in ("config", "summary", "implicit_momentum"))
    )
    path = folder / "metrics.jsonl"
    lines = _text(path).split("\n")[:-1] if with_log else []  # what follows the last is torn
    log = [_parse(path, line) for line in lines if line]
    for file, rows in ((folder / "summary.json", [summary]), (path, log)):
        if why := next(filter(None, map(odd_figure, rows)), ""):
            raise TableError(f"{file}: {why}")
    unfinished = {**(log[-1] if log else {}), "status": "unfinished"}
    return Point(name, _dotted(config), summary or unfinished, log, fit, folder)


def _dotted(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if prefix + key == "code":  # a key a file, so that runs differ in those that both have
            flat |= {f"code.{file}": checksum for file, checksum in hashes_of(value).items()}
        elif isinstance(value, Mapping):
            flat |= _dotted(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = json.dumps(value) if isinstance(value, list) else value
    return flat


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeError) as error:
        raise TableError(f"{path}: cannot be read ({error})") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TableError(f"{path}: is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise TableError(f"{path}: must hold JSON objects")
    return value
