"""Runs as tables, read from their workdirs: one row a point, and one row a log point.

    from optdyn.report.tables import load, tidy
    runs, metrics = load(Path("workdirs/quickstart"))   # final figures; log points
    table = tidy(Path("workdirs"))                      # both in one: a row a log point

A workdir is a single run's (or replica recording's), a sweep's, or any folder above some: its runs
are the folders, however deep, with a `config.json` beside a `metrics.jsonl` or a `summary.json`.
Whatever else lies there is passed over.
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

SELDOM = 20
NAME, GROUPS = "method.name", "method.groups"
MOMENTUM, RATE = "optimizer.momentum", "optimizer.learning_rate"
# Shown even where all points agree in them: they say what a run is.
ALWAYS = (NAME, GROUPS, MOMENTUM, RATE, "seed")
NOTE = "note.txt"  # of a sweep's workdir: what its grid asks
LOGGED = ("step", "simulated_seconds", "train_loss")  # metrics.jsonl always has these


class TableError(InputError):
    """A workdir that cannot be read; the message is one line."""


class Point(NamedTuple):
    """One run, as its workdir has it; what is not there is empty."""

    name: str
    config: dict[str, Any]  # dotted keys; lists as JSON text
    summary: dict[str, Any]
    log: list[dict[str, Any]]  # metrics.jsonl
    fit: dict[str, Any]  # implicit_momentum.json
    folder: Path  # where all this lies


def points(*workdirs: Path) -> list[Point]:
    """All runs in the workdirs, each once, in natural order of their names; raises `TableError`.

    A point is called by its folder's name, by its whole path if they are of several workdirs.
    """
    found: dict[Path, Path] = {}
    for workdir in workdirs:
        held = {folder.resolve(): folder for folder in _runs_in(workdir)}
        if not held:
            raise TableError(
                f"{workdir}: no run in it; give the workdir of launch.train or launch.sweep"
            )
        found |= dict(sorted(held.items(), key=lambda item: natural(item[1])))
    several = len({home(folder) for folder in found}) > 1
    return [_point(folder, str(path) if several else folder.name) for folder, path in found.items()]


def load(*workdirs: Path, keys: Sequence[str] = ()) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(runs, metrics): the summaries, one row a point, and all log points.

    `runs` has the columns `point`, the dotted config keys in which points differ (besides a few
    that are always there, and `keys`), then the summary's scalar figures. `metrics` has `point`,
    then what `metrics.jsonl` holds, numbers or words; null is NaN. What a run does not have is
    missing (None, NaN). Raises `TableError`.
    """
    every = points(*workdirs)
    return runs(every, [*keys, *columns(every)]), metrics(every)


def tidy(*workdirs: Path, keys: Sequence[str] = ()) -> pd.DataFrame:
    """One table, a row a log point: `metrics` of `load`, and what its run was, on every row.

    Columns: `point`, the config's keys as in `runs` of `load`, `status`, then the logged numbers. A
    run that has logged nothing, as a recording of replicas, has one row without any. For example

        tidy(Path("workdirs")).groupby(["method.name", "step"])["train_loss"].median()

    Raises `TableError`.
    """
    every = points(*workdirs)
    chosen = list(dict.fromkeys([*keys, *columns(every)]))
    return runs(every, chosen)[["point", *chosen, "status"]].merge(metrics(every), "left", "point")


def notes(*workdirs: Path) -> list[str]:
    """What the grids of the sweeps ask; of those that say so."""
    return [text for workdir in workdirs if (text := _text(workdir / NOTE))]


def write_results(workdir: Path, keys: Sequence[str] = ()) -> Path:
    """Writes `results.csv`, the first table of `load`, and returns its path."""
    path = workdir / "results.csv"
    replace(path, load(workdir, keys=keys)[0].to_csv(index=False))
    return path


def following(workdir: Path, keys: Sequence[str] = ()) -> Callable[[str], None]:
    """What writes `results.csv` of the points that have ended, called with each that does.

    The file is whole whenever it is read, and once it takes long it is written seldom: no more
    than one part in `SELDOM` of the time goes into it. `write_results` has the last word. Any
    thread may call.
    """
    held: dict[str, Point] = {}
    lock, until = Lock(), [0.0]

    def again(name: str) -> None:
        with lock:
            held.pop(name, None)
            begun = time.monotonic()
            if begun < until[0]:
                return
            for file in (workdir / "points").glob("*/summary.json"):
                if (folder := file.parent).name not in held:
                    with suppress(TableError):  # what cannot be read is told of at the end
                        held[folder.name] = _point(folder, folder.name, with_log=False)
            every = sorted(held.values(), key=lambda point: natural(point.folder))
            table = runs(every, list(dict.fromkeys([*keys, *columns(every)])))
            replace(workdir / "results.csv", table.to_csv(index=False))
            now = time.monotonic()
            until[0] = now + SELDOM * (now - begun)

    return again


def columns(every: Sequence[Point]) -> list[str]:
    """The dotted config keys worth a column: `ALWAYS`, and those in which points differ."""
    return list(dict.fromkeys([*ALWAYS, *differing(every)]))


def differing(every: Sequence[Point]) -> list[str]:
    """The dotted config keys in which points differ that have them.

    A key that only newer runs have, all with one value, tells nothing apart.
    """
    values: dict[str, set[Any]] = {}
    for point in every:
        for key, value in point.config.items():
            values.setdefault(key, set()).add(value)
    return [key for key, its in values.items() if len(its) > 1]


def narrowed(every: Sequence[Point], where: Sequence[str]) -> list[Point]:
    """The points whose configs agree with texts KEY=VALUE. Raises `TableError`."""
    for key, equals, value in (text.partition("=") for text in where):
        if not equals or not any(key in point.config for point in every):
            raise TableError(f"--where={key}{equals}{value}: must be KEY=VALUE, KEY of the config")
        every = [point for point in every if str(point.config.get(key)) == value]
    return list(every)


def check_alike(every: Sequence[Point], what: str, may_differ: Callable[[str], bool]) -> None:
    """Raises `TableError` where configs differ in a key that may not; `what` are the points."""
    for key in differing(every):
        if not may_differ(key):
            values = ", ".join(sorted({str(point.config.get(key)) for point in every}))
            choice = f"choose one with --where={key}=VALUE, VALUE one of {values}"
            raise TableError(f"{what} differ in {key}; {choice}")


def value(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, None if there is none; of config.method as `of_method` has it.

    The momentum of an optimizer that has none is 0.
    """
    if key == MOMENTUM and "optimizer.name" in config:
        return config.get(key, 0.0)
    if key in config or not key.startswith("method."):
        return config.get(key)
    keys = {k.removeprefix("method."): v for k, v in config.items() if k.startswith("method.")}
    return of_method(keys, key.removeprefix("method."))


def of_method(keys: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """The value of a key of config.method, of the first of joined methods that has it."""
    return next((v for k, v in keys.items() if k.rpartition(".")[2] == name), default)


def runs(every: Sequence[Point], keys: Sequence[str]) -> pd.DataFrame:
    """One row a point: `point`, the config's keys, the summary's scalar figures."""
    return pd.DataFrame(
        [
            {"point": point.name}
            | {key: value(point.config, key) for key in keys}
            | {k: v for k, v in point.summary.items() if not isinstance(v, (dict, list))}
            for point in every
        ]
    )


def metrics(every: Sequence[Point]) -> pd.DataFrame:
    """One row a log point: `point`, then what was logged, numbers and words."""
    table = logged([row for point in every for row in point.log])
    table.insert(0, "point", [point.name for point in every for _ in point.log])
    return table


def logged(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of a log, numbers and words."""
    table = pd.DataFrame(rows, columns=None if rows else [*LOGGED])
    for name in table.select_dtypes("object"):
        # What a probe says in words, such as why it refused, stays as it is, and so do lists.
        if not table[name].map(lambda v: isinstance(v, (str, list))).any():
            table[name] = pd.to_numeric(table[name])
    return table


def replace(path: Path, text: str) -> None:
    """Writes the file in one step: it is whole whenever the process is killed."""
    write(path, text, suffix=str(os.getpid()))


def folders_with(workdir: Path, name: str) -> list[Path]:
    """The workdir itself or those of a sweep's points, if a file of the name is there."""
    if (workdir / name).exists():
        return [workdir]
    return sorted((path.parent for path in workdir.glob(f"points/*/{name}")), key=natural)


def _runs_in(workdir: Path) -> Iterator[Path]:
    """The folders of runs at or below `workdir`; nothing below a run is searched."""
    for root, folders, files in os.walk(workdir):
        if "config.json" in files and {"metrics.jsonl", "summary.json"} & set(files):
            folders.clear()
            yield Path(root)


def shown(value: float | None, interval: Sequence[float] | None = None) -> str:
    """Four digits, and the interval's ends; nothing for None."""
    if value is None:
        return ""
    return f"{value:.4g}" + (f" [{interval[0]:.4g}, {interval[1]:.4g}]" if interval else "")


def natural(path: Path) -> str:
    """Sorts g4 before g16, and 0.05 before 0.1."""

    def padded(number: re.Match[str]) -> str:
        whole, point, fraction = number[0].partition(".")
        return whole.zfill(9) + point + fraction

    return re.sub(r"\d+(\.\d+)?", padded, str(path))


def home(folder: Path) -> Path:
    """The workdir of the sweep that a run's folder is a point of, or the folder itself."""
    return folder.parent.parent if folder.parent.name == "points" else folder


def _point(folder: Path, name: str, with_log: bool = True) -> Point:
    """A run; its final figures alone do not need its log."""
    config, summary, fit = (
        _json(folder / f"{file}.json") for file in ("config", "summary", "implicit_momentum")
    )
    path = folder / "metrics.jsonl"
    lines = _text(path).split("\n")[:-1] if with_log else []  # what follows the last is torn
    log = [_parse(path, line) for line in lines if line]
    for file, held in ((folder / "summary.json", [summary]), (path, log)):
        if why := next(filter(None, map(odd_figure, held)), ""):
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


def _json(path: Path) -> dict[str, Any]:
    return _parse(path, _text(path) or "{}")


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
