"""The momentum that asynchrony brings: `optdyn momentum DIR`, DIR a run or a sweep.

It reads what the momentum meter recorded of each run (`config.probes.momentum`), what all seeds of
a setting say together, and what recorded replicas say (`config.replicas.count`), the latter also
into `implicit_momentum.json`. Equations are in `implicit_momentum/moments.py`.
"""

import json
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from optdyn.base.errors import InputError, print_error
from optdyn.base.files import as_json, finite, write_json
from optdyn.base.flag_parser import Parser
from optdyn.base.lookup import CLOCK
from optdyn.experiment import Config, read
from optdyn.implicit_momentum import moments
from optdyn.implicit_momentum.lags import groups_of, theory
from optdyn.implicit_momentum.moments import Products, ReplicaProducts
from optdyn.implicit_momentum.readings import (
    Window,
    WindowSums,
    as_row,
    from_row,
    of_window,
    together,
    with_arrivals,
)
from optdyn.optimizers import is_heavy_ball
from optdyn.report import arrivals, tables
from optdyn.report.tables import TableError, folders_with, shown
from optdyn.train import meter, program
from optdyn.train.workdir import REPLICAS, SKETCHES

EXPLICIT = "read_explicit_momentum"
Row = dict[str, Any]


class Recorded(NamedTuple):
    """The records of a run, or of the replicas of one initialization."""

    name: str
    config: dict[str, Any]
    windows: list[Window]
    replicas: ReplicaProducts | None = None

    def sums(self) -> list[WindowSums]:
        if self.replicas:
            return [WindowSums(moments.implicit(self.replicas), None)]
        return [of_window(window) for window in self.windows]

    def products(self) -> list[Products | ReplicaProducts]:
        if self.replicas:
            return [self.replicas]
        found = (moments.products(w.steps, w.gradients, w.heed) for w in self.windows)
        return [part for parts in found for part in parts]


def load(folder: Path, terms: int = 1) -> Recorded:
    """Returns what is recorded so far, for a fit of so many terms. Raises `TableError`."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        parsed = read(config, path, CLOCK)
        if terms > 1 and (not is_heavy_ball(parsed.optimizer) or parsed.probes.steer):
            raise ValueError("explicit momentum is read from steps of SGD with one momentum only")
        by_displacement = terms > 1 or parsed.replicas.count
        if by_displacement and not program.hypers(parsed)["learning_rate"].all():
            raise ValueError("an update's learning rate is 0, so its step says nothing of momentum")
        recorded = _replicas if parsed.replicas.count else _windows
        return recorded(folder, config, parsed, terms)
    except (
        *(OSError, EOFError, ValueError, LookupError, TypeError, ArithmeticError),
        *(zipfile.BadZipFile, zlib.error, InputError),
    ) as error:
        raise TableError(f"{folder}: what is recorded there cannot be read ({error})") from error


def _windows(folder: Path, config: dict[str, Any], parsed: Config, terms: int) -> Recorded:
    (point,) = tables.points(folder)
    step, last = point.summary["step"], point.log[-1]
    # The epochs that a run has gone through say how many examples there are.
    examples = round(last["step"] * parsed.batch_size / last["epoch"]) if step else 1
    rows = np.load(folder / SKETCHES, mmap_mode="r")
    came = arrivals.arrivals(point)
    found = meter.read(rows, parsed, examples, came[0] if came else None, 0, step, terms)
    return Recorded(folder.resolve().name, config, list(found.values()))


def _replicas(folder: Path, config: dict[str, Any], parsed: Config, terms: int) -> Recorded:
    with np.load(folder / REPLICAS) as file:
        displacements, gradients = file["displacements"], file["gradients"]
    steps = displacements / program.hypers(parsed)["learning_rate"][:, None]
    if terms == 1:  # the optimizer's momentum is known: what is left are raw steps
        steps[:, 1:] -= parsed.optimizer.momentum * steps[:, :-1].copy()
    name = folder.resolve().name
    return Recorded(name, config, [], moments.of_replicas(steps, gradients))


def of_folder(folder: Path, terms: int = 1) -> Row:
    """Returns the figures of the one run or of the replicas there. Raises `TableError`."""
    (row,) = rows([load(folder, terms)], terms)
    if (folder / REPLICAS).exists():
        write_json(folder / "implicit_momentum.json", finite(row))
    return row


def rows(recorded: Sequence[Recorded], terms: int = 1) -> list[Row]:
    """Returns the figures of each, and of all seeds of each setting that has several."""
    settings: dict[str, list[Recorded]] = {}
    for one in recorded:
        settings.setdefault(json.dumps(one.config | {"seed": None}, sort_keys=True), []).append(one)
    single, pooled = [], []
    for seeds in settings.values():
        found = [list(one.sums() if terms == 1 else one.products()) for one in seeds]
        single += [_row(one, one.name, its, terms) for one, its in zip(seeds, found, strict=True)]
        if len(seeds) > 1:
            name = f"{seeds[0].name} and {len(seeds) - 1} more"
            pooled.append(_row(seeds[0], name, [part for its in found for part in its], terms))
    order = [one.name for one in recorded]
    return sorted(single, key=lambda row: order.index(row["run"])) + pooled


def _row(one: Recorded, name: str, its: Sequence[Any], terms: int) -> Row:
    row = {
        "run": name,
        "groups": groups_of(one.config),
        "explicit_momentum": one.config["optimizer"].get("momentum", 0.0),
        "theory_momentum": theory(one.config),
    }
    if terms == 1:
        return row | as_row(together(its))
    implicit, explicit = moments.two_terms(its)
    ages = [window.ages for window in one.windows]
    return row | as_row(with_arrivals(implicit, ages)) | as_row(explicit, EXPLICIT)


def table(found: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Returns a row a result of `rows`: estimate, 95 % set, p-value of the model and strength."""
    return pd.DataFrame(list(map(_shown, found)))


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    figures = {
        "run": row["run"],
        "groups": row["groups"],
        "explicit": row["explicit_momentum"],
        "theory": shown(row["theory_momentum"]),
        "implicit": shown(row.get("implicit_momentum")),
        "95 % set": str(from_row(row)),
        "p": shown(row["implicit_momentum_p"]),
        "strength": shown(row["implicit_momentum_strength"]),
    }
    if explicit := from_row(row, EXPLICIT):
        figures |= {"explicit, read": shown(explicit.estimate), "its 95 % set": str(explicit)}
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 2, after a line on standard error, for unusable input."""
    parser = Parser(prog="optdyn momentum", description="The momentum that asynchrony brings.")
    parser.add_argument("workdir", type=Path, help="of a run or a sweep")
    parser.add_argument(
        *("--terms",),
        type=int,
        choices=(1, 2),
        default=1,
        help="2: explicit momentum is read, too, from the steps of heavy-ball SGD",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.read(arguments)
    try:
        recorded = list(_found(options.workdir, options.terms))
        found = [finite(row) for row in rows(recorded, options.terms)]
    except (TableError, OSError) as error:
        return print_error(error)
    print(as_json({"readings": found}) if options.json else table(found).to_string(index=False))
    return 0


def _found(workdir: Path, terms: int) -> Iterator[Recorded]:
    if not workdir.is_dir():
        raise TableError(f"{workdir}: no such folder")
    folders = [*folders_with(workdir, REPLICAS), *folders_with(workdir, SKETCHES)]
    if not folders:
        raise TableError(
            f"{workdir}: no {REPLICAS} and no {SKETCHES} in it or in its points; record them with "
            "config.replicas.count > 0 or with config.probes.momentum"
        )
    for folder in folders:
        yield load(folder, terms)


if __name__ == "__main__":
    sys.exit(main())
