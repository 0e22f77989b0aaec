"""Grids of runs: a base config and the points at which it is changed.

A point is a dict of dotted keys, and may have a `name`, the folder of its run. On the command line
`--config.base.KEY=VALUE` changes what all points share. Axes make points:

    product(
        {"optimizer.momentum": [0.0, 0.9], "optimizer.learning_rate": log_range(1e-3, 1, 7)},
        {"seed": range(3)},
    )

is 2 x 7 x 3 points, of which the last axis changes first.
"""

import contextlib
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from optdyn.base.errors import InputError, refuse, short_repr
from optdyn.experiment import Config, ConfigError
from optdyn.train.checks import check

MOST = 100_000  # points of a grid

Point = Mapping[str, Any]
Axes = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Points:
    """`count` points, generated anew by each iteration."""

    count: int
    make: Callable[[], Iterable[Point]]

    def __iter__(self) -> Iterator[Point]:
        return iter(self.make())


@dataclass(frozen=True)
class Grid:
    """A base and the points at which it is changed; `note` is shown on top of its report.

    Raises `ConfigError` if there are no points, or more than `MOST`.
    """

    base: Config
    points: Iterable[Point]
    note: str = ""

    def __post_init__(self) -> None:
        points = self.points
        if isinstance(points, Iterable) and not isinstance(points, (str, Mapping, Points)):
            listed = list(itertools.islice(points, MOST + 1))
            points = Points(len(listed), lambda: listed)
            object.__setattr__(self, "points", points)
        no_base, no_points = not isinstance(self.base, Config), not isinstance(points, Points)
        count = points.count if isinstance(points, Points) else 0
        rows = (
            (no_base, f"grid: base = {short_repr(self.base)}: must be an Experiment"),
            (no_points, f"grid: points = {short_repr(points)}: must be a list of dicts"),
            (not count, "grid: points: must be one at least"),
            (count > MOST, f"grid: points: {count:,}: must be at most {MOST:,}"),
        )
        ConfigError.refuse(rows)

    def with_(self, changes: Mapping[str, Any]) -> "Grid":
        """Returns a copy with other values of `note`, or of keys of the base, `base.KEY`."""
        base = {k.removeprefix("base."): v for k, v in changes.items() if k.startswith("base.")}
        for key, value in changes.items():
            if key != "note" and not key.startswith("base."):
                self.base.with_({key: value})
                raise ConfigError(
                    f"config has no key {key!r}; that of a grid has {'base.' + key!r}"
                )
        note = str(changes.get("note", self.note))
        return Grid(self.base.with_(base), self.points, note)


def product(*parts: Axes | Points) -> Points:
    """Returns all combinations of the values of axes, and of points of other sets."""
    factors = [factor for part in parts for factor in _factors(part)]

    def make() -> Iterator[Point]:
        for combination in itertools.product(*factors):
            point = {key: value for part in combination for key, value in part.items()}
            if len(point) < sum(map(len, combination)):
                twice = [key for key in point if sum(key in part for part in combination) > 1]
                raise ConfigError(f"grid: {twice[0]} is on two axes of a product")
            yield point

    return Points(math.prod(factor.count for factor in factors), make)


def log_range(first: float, last: float, count: int) -> list[float]:
    """Returns `count` numbers from first to last in equal ratios, to six digits."""
    numbers = all(isinstance(end, (int, float)) for end in (first, last)) and isinstance(count, int)
    if not (numbers and 0 < first < math.inf and 0 < last < math.inf and 2 <= count <= MOST):
        raise ConfigError(
            f"grid: log_range({short_repr(first)}, {short_repr(last)}, {short_repr(count)}): "
            f"must go from one number above 0 to another, in 2 to {MOST:,} numbers"
        )
    return [float(f"{value:.6g}") for value in np.geomspace(first, last, count)]


def named(grid: Grid) -> Iterator[tuple[str, Point]]:
    """Yields the points with their names. Raises `ConfigError` if the grid has one twice."""
    names: set[str] = set()
    values: dict[str, str] = {}
    for point in grid.points:
        if not (isinstance(point, Mapping) and all(isinstance(key, str) for key in point)):
            raise ConfigError(
                f"grid: {short_repr(point)} is no point: must be a dict of dotted keys"
            )
        with ConfigError.at(f"grid: {list(point)} of a point", ValueError):
            name = point_name(point)
            text = json.dumps({**point, "name": ""}, sort_keys=True, default=repr)
        refuse(
            (
                not name.strip("."),
                f"grid: a point is called {name!r}, which cannot be a folder's name",
            ),
            (name in names, f"grid: point {name} occurs twice"),
            (text in values, f"grid: points {values.get(text)} and {name} are the same"),
        )
        names.add(name)
        values[text] = name
        yield name, point


def resolve(grid: Grid, name: str, point: Point) -> Config:
    """Returns the checked experiment of the point. Raises `ConfigError`, which names the point."""
    with point_errors(name):
        resolved = grid.base.with_({k: v for k, v in point.items() if k != "name"})
        check(resolved)
    return resolved


@contextlib.contextmanager
def point_errors(name: str) -> Iterator[None]:
    """Returns a context in which an `InputError` becomes a `ConfigError` that names the point."""
    try:
        yield
    except InputError as error:
        raise ConfigError(f"grid: point {name}: {error}") from error


def point_name(point: Point) -> str:
    """Returns the name of the folder of the point's run."""
    swept = ",".join(f"{key}={value}" for key, value in point.items()) or "base"
    text = str(point.get("name", swept))
    safe = re.sub(r"[^\w.,=+-]+", "_", text)
    checksum = zlib.crc32(text.encode(errors="backslashreplace"))
    return safe if len(safe) <= 120 else f"{safe[:110]}~{checksum:08x}"


def _factors(part: Axes | Points) -> list[Points]:
    if isinstance(part, Points):
        return [part]
    for key, values in part.items():
        listed = isinstance(values, Sequence) and not isinstance(values, str)
        refuse(
            (not listed, f"grid: axis {key} = {short_repr(values)}: must be a list of values"),
            (listed and not values, f"grid: axis {key} is empty"),
        )
    return [Points(len(v), partial(_axis_points, key, v)) for key, v in part.items()]


def _axis_points(key: str, values: Sequence[object]) -> Iterator[Point]:
    return ({key: value} for value in values)
