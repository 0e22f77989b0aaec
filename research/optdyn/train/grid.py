"""Grids of runs: a base config and the points at which it is changed.

A grid's config file returns `Grid(base, points)`; a point is a flat dict of dotted keys, and of
`name`, the folder of its run, if it wants one of its own. On the command line
`--config.base.KEY=VALUE` changes what all points share. Points are listed one by one, or made of
axes:

    product(
        {"optimizer.momentum": [0.0, 0.9], "optimizer.learning_rate": log_range(1e-3, 1, 7)},
        {"seed": seeds(3)},
    )

is 2 x 7 x 3 points, of which the last axis changes first. Points are made when they are asked for;
a grid has `MOST` at most.
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
    """So many points, made anew each time that they are gone through."""

    count: int
    make: Callable[[], Iterable[Point]]

    def __iter__(self) -> Iterator[Point]:
        return iter(self.make())


@dataclass(frozen=True)
class Grid:
    """A base and the points at which it is changed; `note` says on top of its report what it asks.

    Raises `ConfigError` if there are no points, or more than `MOST`.
    """

    base: Config
    points: Iterable[Point]
    note: str = ""

    def __post_init__(self) -> None:
        points = self.points
        if isinstance(points, Iterable) and not isinstance(points, (str, Mapping, Points)):
            listed = list(itertools.islice(points, MOST + 1))
            object.__setattr__(self, "points", Points(len(listed), lambda: listed))
        ConfigError.refuse(self._wrongs())

    def _wrongs(self) -> Iterator[tuple[object, str]]:
        base, points = self.base, self.points
        yield (
            not isinstance(base, Config),
            f"grid: base = {short_repr(base)}: must be an Experiment",
        )
        is_set = isinstance(points, Points)
        yield not is_set, f"grid: points = {short_repr(points)}: must be a list of dicts"
        assert isinstance(points, Points)
        yield not points.count, "grid: it has no points"
        many = f"{points.count:,} points or more"
        yield points.count > MOST, f"grid: {many}; {MOST:,} is the most"

    def with_(self, changes: Mapping[str, Any]) -> "Grid":
        """A copy with other values of `note`, or of keys of the base, `base.KEY`."""
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
    """Every combination of the values of axes, and of points of other sets."""
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
    """`count` numbers from first to last in equal ratios, to six digits."""
    numbers = all(isinstance(end, (int, float)) for end in (first, last)) and isinstance(count, int)
    if not (numbers and 0 < first < math.inf and 0 < last < math.inf and 2 <= count <= MOST):
        raise ConfigError(
            f"grid: log_range({short_repr(first)}, {short_repr(last)}, {short_repr(count)}): "
            f"must go from one number above 0 to another, in 2 to {MOST:,} numbers"
        )
    return [float(f"{value:.6g}") for value in np.geomspace(first, last, count)]


def seeds(count: int, first: int = 0) -> range:
    """`count` seeds from the first."""
    return range(first, first + count)


def named(grid: Grid) -> Iterator[tuple[str, Point]]:
    """Every point by its name; `ConfigError` if the grid has one twice."""
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
    """The checked experiment of the point; `ConfigError` says which point is bad and why."""
    with of_point(name):
        resolved = grid.base.with_({k: v for k, v in point.items() if k != "name"})
        check(resolved)
    return resolved


@contextlib.contextmanager
def of_point(name: str) -> Iterator[None]:
    """Inside, an error about what was given becomes a `ConfigError` that names the point."""
    try:
        yield
    except InputError as error:
        raise ConfigError(f"grid: point {name}: {error}") from error


def point_name(point: Point) -> str:
    """A folder name that says what is special about the point, whatever else is in the grid."""
    swept = ",".join(f"{key}={value}" for key, value in point.items()) or "base"
    text = str(point.get("name", swept))
    safe = re.sub(r"[^\w.,=+-]+", "_", text)
    checksum = zlib.crc32(text.encode(errors="backslashreplace"))
    return safe if len(safe) <= 120 else f"{safe[:110]}~{checksum:08x}"


def _factors(part: Axes | Points) -> list[Points]:
    """A set of points for every axis."""
    if isinstance(part, Points):
        return [part]
    return [
        Points(len(_values(key, values)), partial(_along, key, values))
        for key, values in part.items()
    ]


def _along(key: str, values: Sequence[object]) -> Iterator[Point]:
    return ({key: value} for value in values)


def _values(key: str, values: Any) -> Sequence[object]:
    """The values of an axis; `ConfigError` if they are none."""
    listed = isinstance(values, Sequence) and not isinstance(values, str)
    refuse(
        (not listed, f"grid: axis {key} = {short_repr(values)}: must be a list of values"),
        (listed and not values, f"grid: axis {key} is empty"),
    )
    return values
